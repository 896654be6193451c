//! `acl policy`: manages policies.

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};

use super::noun::Noun;
use super::shown;
use super::table::{
    DESCRIPTION, FORMAT, Flag, Given, ID, META, NAME, NO_MERGE,
    Takes::{Many, Text},
};
use crate::input;
use crate::output::{quoted, text};
use crate::server_api::{Api, encoded};

#[rustfmt::skip] // One row a line.
const FIELDS: &[Flag] = &[
    ("valid-datacenter", Many("NAME"), "Datacenter in which it is valid; may be repeated [default: all]"),
    ("rules", Text("RULES"), "Rules: text, @FILE, or - for standard input"),
];

#[rustfmt::skip] // One row a line.
pub(super) static NOUN: Noun = Noun {
    command: "policy",
    about: "Manage policies: named rules",
    plural: "policies",
    id: "ID",
    builtin: &[
        ("global-management", "00000000-0000-0000-0000-000000000001"),
        ("builtin/global-read-only", "00000000-0000-0000-0000-000000000002"),
    ],
    shown: shown::policy,
    between: "",
    commands: &[
        ("create", &[NAME, DESCRIPTION, FIELDS, META, FORMAT], |given| Box::pin(create(given))),
        ("delete", &[ID, NAME], |given| Box::pin(delete(given))),
        ("list", &[META, FORMAT], |given| Box::pin(NOUN.list(given, ("", "")))),
        ("read", &[ID, NAME, META, FORMAT], |given| Box::pin(read(given))),
        ("update", &[ID, NAME, DESCRIPTION, FIELDS, NO_MERGE, META, FORMAT], |given| Box::pin(update(given))),
    ],
};

/// The client for a command that selects a policy.
fn connect(given: &Given) -> anyhow::Result<Api> {
    ensure!(
        !given.text("id").is_empty() || !given.text("name").is_empty(),
        "Must specify either the -id or -name parameters"
    );
    given.connect()
}

/// Reads a policy by name; `None` if it does not exist.
async fn by_name(api: &Api, name: &str) -> anyhow::Result<Option<Value>> {
    let found = api.get(format!("/v1/acl/policy/name/{}", encoded(name)));
    let found = found.found().await;
    found.with_context(|| format!("Failed to find policy with name {name}"))
}

/// The id of the policy that `-id` or `-name` selects.
async fn id(api: &Api, given: &Given) -> anyhow::Result<String> {
    let (id, name) = (given.text("id"), given.text("name"));
    if !id.is_empty() {
        return NOUN.determined_id(api, id).await;
    }
    let what = "Error determining policy ID";
    match by_name(api, name).await.context(what)? {
        Some(policy) => Ok(text(&policy, "ID").to_owned()),
        None => bail!("{what}: No such policy with name: {name}"),
    }
}

/// The fields that are given.
fn fields(given: &Given, unreadable: &'static str) -> anyhow::Result<Map<String, Value>> {
    let mut fields = Map::new();
    for (flag, field) in [("name", "Name"), ("description", "Description")] {
        if let Some(value) = given.get(flag) {
            fields.insert(field.to_owned(), value.into());
        }
    }
    if let Some(rules) = given.get("rules") {
        let rules = input::text_or_file(rules).context(unreadable)?;
        fields.insert("Rules".to_owned(), rules.into());
    }
    let datacenters = given.all("valid-datacenter");
    if !datacenters.is_empty() {
        fields.insert("Datacenters".to_owned(), datacenters.into());
    }
    Ok(fields)
}

async fn create(given: Given) -> anyhow::Result<()> {
    given.required("name", "Missing required '-name' flag")?;
    let api = given.connect()?;
    let policy = fields(&given, "Error loading rules")?;
    NOUN.create(&api, &policy.into(), &given).await
}

async fn delete(given: Given) -> anyhow::Result<()> {
    let api = connect(&given)?;
    NOUN.delete(&api, &id(&api, &given).await?).await
}

async fn read(given: Given) -> anyhow::Result<()> {
    let api = connect(&given)?;
    let (id, name) = (given.text("id"), given.text("name"));
    let reading = |key: String| format!("Error reading policy {}", quoted(&key));
    let policy = if id.is_empty() {
        let found = by_name(&api, name).await;
        let found = found.with_context(|| reading(format!("name:{name}")))?;
        found.with_context(|| format!("Error policy not found: {name}"))?
    } else {
        let id = NOUN.determined_id(&api, id).await?;
        let found = api.get(NOUN.one(&id)).value().await;
        found.with_context(|| reading(format!("id:{id}")))?
    };
    NOUN.print(&policy, &given)
}

async fn update(given: Given) -> anyhow::Result<()> {
    let api = connect(&given)?;
    let id = id(&api, &given).await?;
    let changed = fields(&given, "Error loading data source")?;
    let mut policy = json!({"ID": id});
    if !given.is_set("no-merge") {
        let known = api.get(NOUN.one(&id)).value().await;
        let known = known.with_context(|| format!("Error reading policy {}", quoted(&id)))?;
        for field in ["Name", "Description", "Rules", "Datacenters"] {
            policy[field] = known[field].clone();
        }
    }
    for (field, value) in changed {
        policy[field] = value;
    }
    NOUN.update(&api, &id, &policy, &given).await
}
