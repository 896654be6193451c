//! `acl auth-method`: manages auth methods.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::noun::Noun;
use super::shown;
use super::table::{
    DESCRIPTION, FORMAT, Flag, Given, META, NAME, NO_MERGE,
    Takes::{Duration, Secret, Text},
};
use crate::input;
use crate::output::text;

const TYPE: &[Flag] = &[(
    "type",
    Text("TYPE"),
    "Type: jwt, kubernetes, oidc or aws-iam",
)];
#[rustfmt::skip] // One row a line.
const FIELDS: &[Flag] = &[
    ("display-name", Text("NAME"), "Display name"),
    ("max-token-ttl", Duration, "Lifetime of tokens created by its logins"),
    ("token-locality", Text("LOCALITY"), "Locality of those tokens: local or global"),
    ("config", Text("JSON"), "Configuration as JSON: text, @FILE, or - for standard input"),
    ("kubernetes-host", Text("URL"), "Address of the API server, for type kubernetes"),
    ("kubernetes-ca-cert", Text("PEM"), "PEM of its CA certificate: text, or @FILE"),
    ("kubernetes-service-account-jwt", Secret("JWT"), "Service account token for token reviews"),
    (
        "namespace-rule-selector",
        Text("EXPRESSION"),
        "Selector of logins that get a token in another namespace [default: all]",
    ),
    (
        "namespace-rule-bind-namespace",
        Text("NAMESPACE"),
        "Name of that namespace; may contain ${variables} of the login",
    ),
];

#[rustfmt::skip] // One row a line.
pub(super) static NOUN: Noun = Noun {
    command: "auth-method",
    about: "Manage auth methods: trusted sources of identities for logins",
    plural: "auth-methods",
    id: "Name",
    builtin: &[],
    shown: shown::auth_method,
    between: "",
    commands: &[
        ("create", &[TYPE, NAME, DESCRIPTION, FIELDS, META, FORMAT], |given| Box::pin(create(given))),
        ("delete", &[NAME], |given| Box::pin(delete(given))),
        ("list", &[META, FORMAT], |given| Box::pin(NOUN.list(given, ("", "")))),
        ("read", &[NAME, META, FORMAT], |given| Box::pin(read(given))),
        ("update", &[NAME, DESCRIPTION, FIELDS, NO_MERGE, META, FORMAT], |given| Box::pin(update(given))),
    ],
};

async fn delete(given: Given) -> anyhow::Result<()> {
    let name = given.required("name", "Must specify the -name parameter")?;
    NOUN.delete(&given.connect()?, name).await
}

async fn read(given: Given) -> anyhow::Result<()> {
    let name = given.required("name", "Must specify the -name parameter")?;
    let api = given.connect()?;
    NOUN.read(&api, NOUN.one(name), ("name", name), &given)
        .await
}

/// Sets the fields that are given.
fn set(given: &Given, method: &mut Value) -> anyhow::Result<()> {
    let bound = given.text("namespace-rule-bind-namespace");
    let selector = given.text("namespace-rule-selector");
    ensure!(
        !bound.is_empty() || selector.is_empty(),
        "Missing '-namespace-rule-bind-namespace' flag: it sets the namespace of the selected logins"
    );
    if !bound.is_empty() {
        method["NamespaceRules"] = json!([{"Selector": selector, "BindNamespace": bound}]);
    }
    if let Some(ttl) = given.duration("max-token-ttl") {
        method["MaxTokenTTL"] = ttl.into();
    }
    given.set(
        method,
        &[
            ("display-name", "DisplayName"),
            ("description", "Description"),
            ("token-locality", "TokenLocality"),
        ],
    );
    Ok(())
}

/// The value of `-config`, if given.
fn config(given: &Given) -> anyhow::Result<Option<Value>> {
    let config = given.text("config");
    if config.is_empty() {
        return Ok(None);
    }
    ensure!(
        given.text("kubernetes-host").is_empty()
            && given.text("kubernetes-ca-cert").is_empty()
            && given.secret("kubernetes-service-account-jwt").is_none(),
        "Cannot use command line arguments with '-config' flags"
    );
    let data = input::text_or_file(config).context("Error loading configuration file")?;
    let config = serde_json::from_str(&data);
    config.context("Error parsing JSON configuration file")
}

/// The fields for Kubernetes, with their flags.
fn kubernetes(given: &Given) -> anyhow::Result<[(&'static str, &'static str, String); 3]> {
    let (flag, jwt_flag) = ("kubernetes-ca-cert", "kubernetes-service-account-jwt");
    let ca = input::text_or_file(given.text(flag));
    let ca = ca.context("Invalid '-kubernetes-ca-cert' value")?;
    ensure!(
        !ca.is_empty() || given.text(flag).is_empty(),
        "Kubernetes CA Cert is empty"
    );
    let jwt = given.secret(jwt_flag).map(|jwt| jwt.expose().to_owned());
    let host = ("kubernetes-host", "Host");
    Ok([
        (host.0, host.1, given.text(host.0).to_owned()),
        (flag, "CACert", ca),
        (jwt_flag, "ServiceAccountJWT", jwt.unwrap_or_default()),
    ])
}

/// The complete configuration of a new auth method.
fn whole_config(given: &Given, kind: &str) -> anyhow::Result<Option<Value>> {
    let config = config(given)?;
    if kind != "kubernetes" || config.is_some() {
        return Ok(config);
    }
    let mut config = json!({});
    for (flag, field, value) in kubernetes(given)? {
        ensure!(!value.is_empty(), "Missing required '-{flag}' flag");
        config[field] = value.into();
    }
    Ok(Some(config))
}

async fn create(given: Given) -> anyhow::Result<()> {
    let kind = given.required("type", "Missing required '-type' flag")?;
    let name = given.required("name", "Missing required '-name' flag")?;
    let api = given.connect()?;
    let mut method = json!({"Type": kind, "Name": name});
    set(&given, &mut method)?;
    method["Config"] = whole_config(&given, kind)?.into();
    NOUN.create(&api, &method, &given).await
}

async fn update(given: Given) -> anyhow::Result<()> {
    let missing = "Cannot update an auth method without specifying the -name parameter";
    let name = given.required("name", missing)?;
    let api = given.connect()?;
    let known = NOUN.current(&api, "name", name).await?;
    let kind = text(&known, "Type").to_owned();
    let no_merge = given.is_set("no-merge");
    let mut method = match no_merge {
        true => json!({"Name": name, "Type": kind}),
        false => known,
    };
    set(&given, &mut method)?;
    if no_merge {
        method["Config"] = whole_config(&given, &kind)?.into();
    } else if let Some(config) = config(&given)? {
        method["Config"] = config;
    } else if kind == "kubernetes" {
        for (_, field, value) in kubernetes(&given)? {
            if !value.is_empty() {
                method["Config"][field] = value.into();
            }
        }
    }
    NOUN.update(&api, name, &method, &given).await
}
