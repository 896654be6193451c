//! `acl binding-rule`: manages binding rules.

use anyhow::ensure;
use serde_json::{Value, json};

use super::noun::Noun;
use super::shown;
use super::table::{
    DESCRIPTION, FORMAT, Flag, Given, ID, META, NO_MERGE,
    Takes::{Pairs, Text},
};

/// The only bind type with variables.
const TEMPLATED: &str = "templated-policy";

const METHOD: &[Flag] = &[("method", Text("NAME"), "Name of the auth method")];
#[rustfmt::skip] // One row a line.
const FIELDS: &[Flag] = &[
    ("selector", Text("SELECTOR"), "Selector of logins, in Consul's filter language"),
    (
        "bind-type",
        Text("TYPE"),
        "Type of the bound object: service, node, role, policy or templated-policy \
         [default: service]",
    ),
    ("bind-name", Text("NAME"), "Name of the bound object; may contain variables such as ${value.name}"),
    ("bind-vars", Pairs, "Variable of a templated policy; may be repeated"),
];

#[rustfmt::skip] // One row a line.
pub(super) static NOUN: Noun = Noun {
    command: "binding-rule",
    about: "Manage binding rules: the permissions that logins get",
    plural: "binding-rules",
    id: "ID",
    builtin: &[],
    shown: shown::binding_rule,
    between: "",
    commands: &[
        ("create", &[METHOD, DESCRIPTION, FIELDS, META, FORMAT], |given| Box::pin(create(given))),
        ("delete", &[ID], |given| Box::pin(delete(given))),
        ("list", &[METHOD, META, FORMAT], |given| Box::pin(list(given))),
        ("read", &[ID, META, FORMAT], |given| Box::pin(read(given))),
        ("update", &[ID, DESCRIPTION, FIELDS, NO_MERGE, META, FORMAT], |given| Box::pin(update(given))),
    ],
};

async fn list(given: Given) -> anyhow::Result<()> {
    let method = given.text("method").to_owned();
    NOUN.list(given, ("authmethod", &method)).await
}

async fn delete(given: Given) -> anyhow::Result<()> {
    let id = given.required("id", "Must specify the -id parameter")?;
    let api = given.connect()?;
    NOUN.delete(&api, &NOUN.determined_id(&api, id).await?)
        .await
}

async fn read(given: Given) -> anyhow::Result<()> {
    let id = given.required("id", "Must specify the -id parameter.")?;
    let api = given.connect()?;
    let id = NOUN.determined_id(&api, id).await?;
    NOUN.read(&api, NOUN.one(&id), ("ID", &id), &given).await
}

/// The variables; only one name is supported.
fn variables(given: &Given) -> Option<Value> {
    let variables = given.pairs("bind-vars");
    let mut names = variables.iter().rev();
    let name = names.find(|(key, _)| key.eq_ignore_ascii_case("name"));
    match variables.is_empty() {
        true => None,
        false => Some(json!({"Name": name.map_or("", |(_, value)| value)})),
    }
}

fn bind_type(given: &Given) -> &str {
    given.get("bind-type").unwrap_or("service")
}

/// Sets the fields that are given. As in Consul, the bind type is always set; its default is service.
fn set(given: &Given, rule: &mut Value) {
    given.set(
        rule,
        &[("description", "Description"), ("bind-name", "BindName")],
    );
    if !bind_type(given).is_empty() {
        rule["BindType"] = bind_type(given).into();
    }
    if let Some(selector) = given.get("selector") {
        rule["Selector"] = selector.into();
    }
}

/// The rule of the flags, which must be complete.
fn whole(given: &Given) -> anyhow::Result<Value> {
    let kind = bind_type(given);
    ensure!(!kind.is_empty(), "Missing required '-bind-type' flag");
    given.required("bind-name", "Missing required '-bind-name' flag")?;
    let variables = variables(given);
    ensure!(
        kind == TEMPLATED || variables.is_none(),
        "Cannot specify -bind-vars when -bind-type is not templated-policy"
    );
    let mut rule = json!({"BindVars": variables});
    set(given, &mut rule);
    Ok(rule)
}

async fn create(given: Given) -> anyhow::Result<()> {
    let method = given.required("method", "Missing required '-method' flag")?;
    let mut rule = whole(&given)?;
    rule["AuthMethod"] = method.into();
    NOUN.create(&given.connect()?, &rule, &given).await
}

async fn update(given: Given) -> anyhow::Result<()> {
    let missing = "Cannot update a binding rule without specifying the -id parameter";
    let id = given.required("id", missing)?;
    let api = given.connect()?;
    let id = NOUN.determined_id(&api, id).await?;
    let known = NOUN.current(&api, "ID", &id).await?;
    let mut rule = known;
    if given.is_set("no-merge") {
        let method = rule["AuthMethod"].take();
        rule = whole(&given)?;
        rule["ID"] = id.as_str().into();
        rule["AuthMethod"] = method;
    } else {
        set(&given, &mut rule);
        rule["BindVars"] = match bind_type(&given) {
            TEMPLATED => variables(&given).unwrap_or_else(|| rule["BindVars"].take()),
            _ => Value::Null,
        };
    }
    NOUN.update(&api, &id, &rule, &given).await
}
