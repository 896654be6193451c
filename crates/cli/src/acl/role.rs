//! `acl role`: manages roles.

use anyhow::{Context, bail};
use serde_json::json;

use super::links::{self, CHANGED_TEMPLATES, LINKS, TEMPLATES};
use super::noun::{Noun, put};
use super::shown;
use super::table::{DESCRIPTION, FORMAT, Given, ID, META, NAME, NO_MERGE};
use crate::output::{list, text};
use crate::server_api::encoded;

#[rustfmt::skip] // One row a line.
pub(super) static NOUN: Noun = Noun {
    command: "role",
    about: "Manage roles: named sets of policies and identities",
    plural: "roles",
    id: "ID",
    builtin: &[],
    shown: shown::role,
    between: "",
    commands: &[
        ("create", &[NAME, DESCRIPTION, LINKS, TEMPLATES, META, FORMAT], |given| Box::pin(create(given))),
        ("delete", &[ID, NAME], |given| Box::pin(delete(given))),
        ("list", &[META, FORMAT], |given| Box::pin(NOUN.list(given, ("", "")))),
        ("read", &[ID, NAME, META, FORMAT], |given| Box::pin(read(given))),
        (
            "update",
            &[
                ID,
                NAME,
                DESCRIPTION,
                LINKS,
                NO_MERGE,
                CHANGED_TEMPLATES,
                META,
                FORMAT,
            ],
            |given| Box::pin(update(given)),
        ),
    ],
};

const FIELDS: &[(&str, &str)] = &[("name", "Name"), ("description", "Description")];

async fn create(given: Given) -> anyhow::Result<()> {
    given.required("name", "Missing required '-name' flag")?;
    let missing = "Cannot create a role without specifying -policy-name, -policy-id, \
                   -service-identity, -node-identity, -templated-policy-file or -templated-policy \
                   at least once";
    links::check(&given, "role", missing)?;
    let api = given.connect()?;
    let mut role = json!({});
    given.set(&mut role, FIELDS);
    links::set(&api, &given, &mut role).await?;
    NOUN.create(&api, &role, &given).await
}

async fn delete(given: Given) -> anyhow::Result<()> {
    let (id, name) = (given.text("id"), given.text("name"));
    if id.is_empty() && name.is_empty() {
        bail!("Must specify the -id or -name parameters");
    }
    let api = given.connect()?;
    let what = "Error determining role ID";
    let id = if id.is_empty() {
        let roles = api.get(NOUN.all()).value().await.context(what)?;
        let mut roles = roles.as_array().into_iter().flatten();
        match roles.find(|role| text(role, "Name") == name) {
            Some(role) => text(role, "ID").to_owned(),
            None => bail!("{what}: No such role with name {name}"),
        }
    } else {
        NOUN.determined_id(&api, id).await?
    };
    NOUN.delete(&api, &id).await
}

async fn read(given: Given) -> anyhow::Result<()> {
    let (id, name) = (given.text("id"), given.text("name"));
    if id.is_empty() && name.is_empty() {
        bail!("Must specify either the -id or -name parameters");
    }
    let api = given.connect()?;
    if id.is_empty() {
        let path = format!("/v1/acl/role/name/{}", encoded(name));
        return NOUN.read(&api, path, ("name", name), &given).await;
    }
    let id = NOUN.determined_id(&api, id).await?;
    NOUN.read(&api, NOUN.one(&id), ("ID", &id), &given).await
}

async fn update(given: Given) -> anyhow::Result<()> {
    let missing = "Cannot update a role without specifying the -id parameter";
    let id = given.required("id", missing)?;
    let api = given.connect()?;
    let id = NOUN.determined_id(&api, id).await?;
    let known = NOUN.current(&api, "ID", &id).await?;
    let mut role = match given.is_set("no-merge") {
        true => json!({"ID": id}),
        false => known,
    };
    given.set(&mut role, FIELDS);
    for (field, key) in [
        ("Policies", None),
        ("ServiceIdentities", Some("ServiceName")),
        ("NodeIdentities", Some("NodeName")),
    ] {
        for link in links::of(&api, &given, "", field).await? {
            match key {
                // As in Consul, an identity replaces the one of the same name.
                Some(key) => {
                    let name = link[key].clone();
                    put(&mut role, field, link, |known| known[key] == name);
                }
                None if links::is_linked(list(&role, field), &link) => {}
                None => put(&mut role, field, link, |_| false),
            }
        }
    }
    links::change_templates(&given, &mut role)?;
    NOUN.update(&api, &id, &role, &given).await
}
