//! `acl token`: manages tokens.

use anyhow::{Context, bail, ensure};
use serde_json::json;

use super::links::{self, CHANGED_TEMPLATES, LINKS, ROLES, TEMPLATES};
use super::noun::{Noun, print};
use super::shown;
use super::table::{
    DESCRIPTION, FORMAT, Flag, Given, META,
    Takes::{Duration, Secret, Switch, Text},
};
use super::token_update::{ADDED, MERGE, update};
use crate::output::{quoted, warn};

#[rustfmt::skip] // One row a line.
const WHICH: &[Flag] = &[
    ("accessor-id", Text("ID"), "Accessor id of the token, or a unique prefix"),
    ("id", Text("ID"), "Deprecated name of -accessor-id"),
];
#[rustfmt::skip] // One row a line.
const OWN: &[Flag] = &[
    ("self", Switch, "The token of this request itself"),
    ("expanded", Switch, "Print all its permissions and their sources"),
];
#[rustfmt::skip] // One row a line.
const NEW: &[Flag] = &[
    ("accessor", Text("ID"), "Accessor id [default: a random one]"),
    ("secret", Secret("ID"), "Secret id [default: a random one]"),
    ("local", Switch, "Valid in this datacenter only"),
    ("expires-ttl", Duration, "Lifetime of the token"),
];

#[rustfmt::skip] // One row a line.
pub(super) static NOUN: Noun = Noun {
    command: "token",
    about: "Manage tokens",
    plural: "tokens",
    id: "AccessorID",
    builtin: &[("anonymous", "00000000-0000-0000-0000-000000000002")],
    shown: |token, meta, _| shown::token(token, meta),
    between: "\n",
    commands: &[
        ("clone", &[WHICH, DESCRIPTION, FORMAT], |given| Box::pin(clone(given))),
        ("create", &[NEW, DESCRIPTION, LINKS, ROLES, TEMPLATES, META, FORMAT], |given| Box::pin(create(given))),
        ("delete", &[WHICH], |given| Box::pin(delete(given))),
        ("list", &[META, FORMAT], |given| Box::pin(NOUN.list(given, ("", "")))),
        ("read", &[WHICH, OWN, META, FORMAT], |given| Box::pin(read(given))),
        (
            "update",
            &[
                WHICH,
                DESCRIPTION,
                LINKS,
                ROLES,
                ADDED,
                CHANGED_TEMPLATES,
                MERGE,
                META,
                FORMAT,
            ],
            |given| Box::pin(update(given)),
        ),
    ],
};

/// The id of a token, from either flag.
pub(super) fn which<'g>(given: &'g Given, missing: &'static str) -> anyhow::Result<&'g str> {
    if !given.text("accessor-id").is_empty() {
        return Ok(given.text("accessor-id"));
    }
    let id = given.required("id", missing)?;
    warn("Use the -accessor-id parameter to specify token by Accessor ID");
    Ok(id)
}

async fn clone(given: Given) -> anyhow::Result<()> {
    let missing = "Cannot update a token without specifying the -accessor-id parameter";
    let id = which(&given, missing)?;
    let api = given.connect()?;
    let id = NOUN.whole_id(&api, id).await;
    let id = id.context("Error determining token Accessor ID")?;
    let mut body = json!({});
    given.set(&mut body, &[("description", "Description")]);
    let path = format!("{}/clone", NOUN.one(&id));
    let token = api.put(path).json(&body).value().await;
    NOUN.print(&token.context("Error cloning token")?, &given)
}

async fn create(given: Given) -> anyhow::Result<()> {
    let missing = "Cannot create a token without specifying -policy-name, -policy-id, -role-name, \
                   -role-id, -service-identity, -node-identity, -templated-policy, or \
                   -templated-policy-file at least once";
    links::check(&given, "token", missing)?;
    let api = given.connect()?;
    let mut token = json!({"Local": given.is_set("local")});
    given.set(
        &mut token,
        &[("accessor", "AccessorID"), ("description", "Description")],
    );
    links::set(&api, &given, &mut token).await?;
    if let Some(secret) = given.secret("secret") {
        token["SecretID"] = secret.expose().into();
    }
    if let Some(ttl) = given.duration("expires-ttl") {
        token["ExpirationTTL"] = ttl.into();
    }
    NOUN.create(&api, &token, &given).await
}

async fn delete(given: Given) -> anyhow::Result<()> {
    let id = which(&given, "Must specify the -accessor-id parameter")?;
    let api = given.connect()?;
    NOUN.delete(&api, &NOUN.determined_id(&api, id).await?)
        .await
}

async fn read(given: Given) -> anyhow::Result<()> {
    let api = given.connect()?;
    let expanded = given.is_set("expanded");
    if given.is_set("self") {
        ensure!(
            !expanded,
            "Cannot use both -expanded and -self. Instead, use -expanded and -accessor-id=<accessor \
             id>."
        );
        let token = api.get("/v1/acl/token/self").value().await;
        return NOUN.print(&token.context("Error reading token")?, &given);
    }
    let id = which(&given, "Must specify the -accessor-id parameter")?;
    let id = NOUN.determined_id(&api, id).await?;
    let mut ask = api.get(NOUN.one(&id));
    if expanded {
        ask = ask.query("expanded", "true");
    }
    let token = ask.value().await;
    let token = token.with_context(|| format!("Error reading token {}", quoted(&id)))?;
    if token.is_null() {
        bail!("Error reading token {}: it does not exist", quoted(&id));
    }
    match expanded {
        true => print(&token, &given, shown::expanded_token),
        false => NOUN.print(&token, &given),
    }
}
