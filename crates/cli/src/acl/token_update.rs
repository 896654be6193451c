//! `acl token update`: reads, changes and writes a token.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::links::{self, is_linked};
use super::noun::{print, put};
use super::shown;
use super::table::{
    Flag, Given,
    Takes::{Many, Switch},
};
use super::token::{NOUN, which};
use crate::output::{list, warn};
use crate::server_api::Api;

/// Links that are added to the existing ones.
#[rustfmt::skip] // One row a line.
pub(super) const ADDED: &[Flag] = &[
    ("append-policy-id", Many("ID"), "Id of a policy to add; may be repeated"),
    ("append-policy-name", Many("NAME"), "Name of a policy to add; may be repeated"),
    ("append-role-id", Many("ID"), "Id of a role to add; may be repeated"),
    ("append-role-name", Many("NAME"), "Name of a role to add; may be repeated"),
    ("append-service-identity", Many("NAME[:DATACENTERS]"), "Service identity to add; may be repeated"),
    ("append-node-identity", Many("NAME:DATACENTER"), "Node identity to add; may be repeated"),
];

/// Deprecated flags that add instead of replacing.
#[rustfmt::skip] // One row a line.
pub(super) const MERGE: &[Flag] = &[
    ("merge-policies", Switch, "Add policies instead of replacing them"),
    ("merge-roles", Switch, "Add roles instead of replacing them"),
    ("merge-service-identities", Switch, "Add service identities instead of replacing them"),
    ("merge-node-identities", Switch, "Add node identities instead of replacing them"),
];

/// Refuses a flag in combination with its append variant.
fn not_both(set: bool, added: bool, flags: &str, what: &str) -> anyhow::Result<()> {
    let one = flags.replace('/', " or -");
    let append: Vec<String> = flags.split('/').map(|it| format!("-append-{it}")).collect();
    let both = match append.len() {
        1 => format!("{flags} flag with append-{flags}"),
        _ => format!("{flags} flags with append- variants"),
    };
    ensure!(
        !(set && added),
        "Cannot combine the use of {both}. To set or overwrite existing \
         {what}, use -{one}. To append to existing {what}, use {}.",
        append.join(" or ")
    );
    Ok(())
}

pub(super) async fn update(given: Given) -> anyhow::Result<()> {
    let missing = "Cannot update a token without specifying the -accessor-id parameter";
    let id = which(&given, missing)?;
    let api = given.connect()?;
    let id = NOUN.determined_id(&api, id).await?;
    let token = api.get(NOUN.one(&id)).value().await;
    let mut token = token.context("Error when retrieving current token")?;
    given.set(&mut token, &[("description", "Description")]);
    for (field, keys, flag) in [
        (
            "ServiceIdentities",
            &["ServiceName"][..],
            "service-identity",
        ),
        (
            "NodeIdentities",
            &["NodeName", "Datacenter"],
            "node-identity",
        ),
    ] {
        identities(&api, &given, &mut token, (field, keys, flag)).await?;
    }
    links::change_templates(&given, &mut token)?;
    for (field, flag, what) in [
        ("Policies", "policy", "policies"),
        ("Roles", "role", "roles"),
    ] {
        let set = links::of(&api, &given, "", field).await?;
        let more = links::of(&api, &given, "append-", field).await?;
        let flags = format!("{flag}-id/{flag}-name");
        not_both(!set.is_empty(), !more.is_empty(), &flags, what)?;
        let merge = given.is_set(&format!("merge-{what}"));
        if merge {
            warn(&format!(
                "merge-{what} is deprecated and will be removed in a future Consul version. Use \
                 `append-{flag}-name` or `append-{flag}-id` instead."
            ));
        }
        change(&mut token, field, set, more, merge);
    }
    let written = api.put(NOUN.one(&id)).json(&token).value().await;
    let written = written.with_context(|| format!("Failed to update token {id}"))?;
    print(&written, &given, shown::token)
}

/// Sets or adds identities. As in Consul, identities that are not given are removed, unless some are
/// appended.
async fn identities(
    api: &Api,
    given: &Given,
    token: &mut Value,
    (field, keys, flag): (&str, &[&str], &str),
) -> anyhow::Result<()> {
    let set = links::of(api, given, "", field).await?;
    let more = links::of(api, given, "append-", field).await?;
    let what = flag.replace("-identity", " identities");
    not_both(!set.is_empty(), !more.is_empty(), flag, &what)?;
    let merge = given.is_set(&format!("merge-{}", what.replace(' ', "-")));
    if more.is_empty() && !merge {
        token[field] = set.into();
        return Ok(());
    }
    for identity in set.into_iter().chain(more) {
        let mut all = list(token, field).to_vec();
        all.retain(|known| keys.iter().any(|key| known[*key] != identity[*key]));
        all.push(identity);
        token[field] = all.into();
    }
    Ok(())
}

/// Replaces links, or adds missing ones.
fn change(token: &mut Value, field: &str, set: Vec<Value>, more: Vec<Value>, merge: bool) {
    if !merge && !set.is_empty() {
        token[field] = json!([]);
    }
    for link in set.into_iter().chain(more) {
        if !is_linked(list(token, field), &link) {
            put(token, field, link, |_| false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_replaced_or_added() {
        let old = json!({"Policies": [{"ID": "1", "Name": "a"}]});
        let (a, b) = (json!({"Name": "a"}), json!({"ID": "2"}));
        let mut token = old.clone();
        change(&mut token, "Policies", vec![b.clone()], vec![], false);
        assert_eq!(token["Policies"], json!([b]));
        let mut token = old.clone();
        change(
            &mut token,
            "Policies",
            vec![],
            vec![a.clone(), b.clone()],
            false,
        );
        assert_eq!(token["Policies"], json!([{"ID": "1", "Name": "a"}, b]));
        let mut token = old.clone();
        change(&mut token, "Policies", vec![a], vec![], true);
        assert_eq!(token, old);
    }
}
