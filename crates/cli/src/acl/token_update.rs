//! `acl token update`: reads, changes and writes a token.

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::ids::token_id;
use super::links::{self, ChangedTemplates, Links, push};
use super::noun::Asked;
use super::printed::Printed;
use super::shown;
use crate::output::{list, warn};
use crate::server_api::{Api, encoded};

/// Selects a token.
#[derive(Args)]
pub(crate) struct Which {
    /// Accessor id of the token, or a unique prefix
    #[arg(long, default_value = "", value_name = "ID")]
    pub(super) accessor_id: String,
    /// Deprecated name of -accessor-id
    #[arg(long, default_value = "", value_name = "ID")]
    pub(super) id: String,
}

impl Which {
    /// The id, from either flag.
    pub(super) fn given(&self, missing: &str) -> anyhow::Result<&str> {
        if !self.accessor_id.is_empty() {
            return Ok(&self.accessor_id);
        }
        ensure!(!self.id.is_empty(), "{missing}");
        warn("Use the -accessor-id parameter to specify token by Accessor ID");
        Ok(&self.id)
    }
}

#[derive(Args)]
pub(crate) struct Update {
    #[command(flatten)]
    which: Which,
    /// New description
    #[arg(long, default_value = "")]
    description: String,
    #[command(flatten)]
    links: Links,
    /// Id of a role, or a unique prefix; may be repeated
    #[arg(long, value_name = "ID")]
    role_id: Vec<String>,
    /// Name of a role; may be repeated
    #[arg(long, value_name = "NAME")]
    role_name: Vec<String>,
    #[command(flatten)]
    added: Added,
    #[command(flatten)]
    templates: ChangedTemplates,
    #[command(flatten)]
    merge: Merge,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

/// Links that are added to the existing ones.
#[derive(Args)]
struct Added {
    /// Id of a policy to add; may be repeated
    #[arg(long, value_name = "ID")]
    append_policy_id: Vec<String>,
    /// Name of a policy to add; may be repeated
    #[arg(long, value_name = "NAME")]
    append_policy_name: Vec<String>,
    /// Id of a role to add; may be repeated
    #[arg(long, value_name = "ID")]
    append_role_id: Vec<String>,
    /// Name of a role to add; may be repeated
    #[arg(long, value_name = "NAME")]
    append_role_name: Vec<String>,
    /// Service identity to add; may be repeated
    #[arg(long, value_name = "NAME[:DATACENTERS]")]
    append_service_identity: Vec<String>,
    /// Node identity to add; may be repeated
    #[arg(long, value_name = "NAME:DATACENTER")]
    append_node_identity: Vec<String>,
}

/// Deprecated flags that add instead of replacing.
#[derive(Args)]
struct Merge {
    /// Add policies instead of replacing them
    #[arg(long)]
    merge_policies: bool,
    /// Add roles instead of replacing them
    #[arg(long)]
    merge_roles: bool,
    /// Add service identities instead of replacing them
    #[arg(long)]
    merge_service_identities: bool,
    /// Add node identities instead of replacing them
    #[arg(long)]
    merge_node_identities: bool,
}

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

impl Update {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let missing = "Cannot update a token without specifying the -accessor-id parameter";
        let given = self.which.given(missing)?;
        let api = self.asked.api.connect()?;
        let id = token_id(&api, given)
            .await
            .context("Error determining token ID")?;
        let path = format!("/v1/acl/token/{}", encoded(&id));
        let token = api.get(path.as_str()).value().await;
        let mut token = token.context("Error when retrieving current token")?;
        if !self.description.is_empty() {
            token["Description"] = self.description.as_str().into();
        }
        self.identities(&mut token)?;
        self.templates.apply(&mut token, &self.links.var)?;
        self.links_of(&api, &mut token).await?;
        let written = api.put(path).json(&token).value().await;
        let written = written.with_context(|| format!("Failed to update token {id}"))?;
        self.printed.print(&written, shown::token)
    }

    /// Sets or adds policies and roles.
    async fn links_of(&self, api: &Api, token: &mut Value) -> anyhow::Result<()> {
        let (links, added) = (&self.links, &self.added);
        let set = links::policies(api, &links.policy_id, &links.policy_name).await?;
        let more = links::policies(api, &added.append_policy_id, &added.append_policy_name).await?;
        not_both(
            !set.is_empty(),
            !more.is_empty(),
            "policy-id/policy-name",
            "policies",
        )?;
        if self.merge.merge_policies {
            warn(
                "merge-policies is deprecated and will be removed in a future Consul version. Use \
                 `append-policy-name` or `append-policy-id` instead.",
            );
        }
        changed(token, "Policies", set, more, self.merge.merge_policies);
        let set = links::roles(api, &self.role_id, &self.role_name).await?;
        let more = links::roles(api, &added.append_role_id, &added.append_role_name).await?;
        not_both(
            !set.is_empty(),
            !more.is_empty(),
            "role-id/role-name",
            "roles",
        )?;
        if self.merge.merge_roles {
            warn(
                "merge-roles is deprecated and will be removed in a future Consul version. Use \
                 `append-role-name` or `append-role-id` instead.",
            );
        }
        changed(token, "Roles", set, more, self.merge.merge_roles);
        Ok(())
    }

    /// Sets or adds identities. As in Consul, identities that are not given are removed, unless
    /// some are appended.
    fn identities(&self, token: &mut Value) -> anyhow::Result<()> {
        for (field, key, flag, what, set, more, merge) in [
            (
                "ServiceIdentities",
                &["ServiceName"][..],
                "service-identity",
                "service identities",
                links::service_identities(&self.links.service_identity)?,
                links::service_identities(&self.added.append_service_identity)?,
                self.merge.merge_service_identities,
            ),
            (
                "NodeIdentities",
                &["NodeName", "Datacenter"][..],
                "node-identity",
                "node identities",
                links::node_identities(&self.links.node_identity)?,
                links::node_identities(&self.added.append_node_identity)?,
                self.merge.merge_node_identities,
            ),
        ] {
            not_both(!set.is_empty(), !more.is_empty(), flag, what)?;
            if more.is_empty() && !merge {
                token[field] = set.into();
                continue;
            }
            for identity in set.into_iter().chain(more) {
                let mut all = list(token, field).to_vec();
                all.retain(|known| key.iter().any(|key| known[*key] != identity[*key]));
                all.push(identity);
                token[field] = all.into();
            }
        }
        Ok(())
    }
}

/// Replaces links, or adds missing ones.
fn changed(token: &mut Value, field: &str, set: Vec<Value>, more: Vec<Value>, merge: bool) {
    let replace = !merge && !set.is_empty();
    if replace {
        token[field] = json!([]);
    }
    for link in set.into_iter().chain(more) {
        let same = |known: &Value| {
            let same = |key: &str| !link[key].is_null() && link[key] == known[key];
            same("ID") || same("Name")
        };
        if !list(token, field).iter().any(same) {
            push(token, field, link);
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
        changed(&mut token, "Policies", vec![b.clone()], vec![], false);
        assert_eq!(token["Policies"], json!([b]));
        let mut token = old.clone();
        changed(
            &mut token,
            "Policies",
            vec![],
            vec![a.clone(), b.clone()],
            false,
        );
        assert_eq!(token["Policies"], json!([{"ID": "1", "Name": "a"}, b]));
        let mut token = old.clone();
        changed(&mut token, "Policies", vec![a], vec![], true);
        assert_eq!(token, old);
    }
}
