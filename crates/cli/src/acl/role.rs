//! `acl role`: manages roles.

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::ids::role_id;
use super::links::{self, ChangedTemplates, Links, Templates, push};
use super::noun::{Asked, Delete, List, Noun, Read};
use super::printed::Printed;
use super::shown;
use crate::output::{list, text};
use crate::server_api::encoded;

/// Subcommands of `acl role`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create a role
    Create(Create),
    /// Delete a role
    Delete(Delete<Which>),
    /// Print all roles
    List(List),
    /// Print a role
    Read(Read<Which>),
    /// Update a role
    Update(Update),
}

#[derive(Args)]
pub(crate) struct Create {
    /// Name of the role
    #[arg(long, default_value = "")]
    name: String,
    /// Description
    #[arg(long, default_value = "")]
    description: String,
    #[command(flatten)]
    links: Links,
    #[command(flatten)]
    templates: Templates,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

/// Selects a role.
#[derive(Args)]
pub(crate) struct Which {
    /// Id of the role, or a unique prefix
    #[arg(long, default_value = "")]
    id: String,
    /// Name of the role
    #[arg(long, default_value = "")]
    name: String,
}

#[derive(Args)]
pub(crate) struct Update {
    /// Id of the role, or a unique prefix
    #[arg(long, default_value = "")]
    id: String,
    /// New name
    #[arg(long, default_value = "")]
    name: String,
    /// New description
    #[arg(long, default_value = "")]
    description: String,
    #[command(flatten)]
    links: Links,
    /// Replace all fields, including those not given
    #[arg(long)]
    no_merge: bool,
    #[command(flatten)]
    templates: ChangedTemplates,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

const NOUN: Noun = Noun {
    name: "role",
    path: "/v1/acl/role",
    all: "/v1/acl/roles",
    shown: shown::role,
    listed: shown::listed_role,
    between: "",
};

pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(options) => options.run().await,
        Command::Delete(options) => delete(options).await,
        Command::List(options) => NOUN.list(options).await,
        Command::Read(options) => read(options).await,
        Command::Update(options) => options.run().await,
    }
}

impl Create {
    async fn run(self) -> anyhow::Result<()> {
        let (template, file) = (
            &self.templates.templated_policy,
            &self.templates.templated_policy_file,
        );
        ensure!(!self.name.is_empty(), "Missing required '-name' flag");
        ensure!(
            !self.links.is_empty() || !template.is_empty() || !file.is_empty(),
            "Cannot create a role without specifying -policy-name, -policy-id, -service-identity, \
             -node-identity, -templated-policy-file or -templated-policy at least once"
        );
        ensure!(
            template.is_empty() || file.is_empty(),
            "Cannot combine the use of templated-policy flag with templated-policy-file. To create \
             a role with a single templated policy and simple use case, use -templated-policy. For \
             multiple templated policies and more complicated use cases, use \
             -templated-policy-file"
        );
        let api = self.asked.api.connect()?;
        let links = &self.links;
        let role = json!({
            "Name": self.name,
            "Description": self.description,
            "Policies": links::policies(&api, &links.policy_id, &links.policy_name).await?,
            "ServiceIdentities": links::service_identities(&links.service_identity)?,
            "NodeIdentities": links::node_identities(&links.node_identity)?,
            "TemplatedPolicies": links::templated_policies(template, file, &links.var)?,
        });
        let made = NOUN.create(&api, &role).await?;
        NOUN.print(&made, &self.printed)
    }
}

impl Which {
    /// Requires one of the two. Consul's commands have different messages.
    fn check(&self, missing: &'static str) -> anyhow::Result<()> {
        ensure!(!self.id.is_empty() || !self.name.is_empty(), missing);
        Ok(())
    }
}

async fn delete(options: Delete<Which>) -> anyhow::Result<()> {
    let missing = "Must specify the -id or -name parameters";
    options.which.check(missing)?;
    let Which { id, name } = &options.which;
    let api = options.asked.api.connect()?;
    let what = "Error determining role ID";
    let id = if id.is_empty() {
        let roles = api.get(NOUN.all).value().await.context(what)?;
        let mut roles = roles.as_array().into_iter().flatten();
        match roles.find(|role| text(role, "Name") == name) {
            Some(role) => text(role, "ID").to_owned(),
            None => bail!("{what}: No such role with name {name}"),
        }
    } else {
        role_id(&api, id).await.context(what)?
    };
    NOUN.delete(&api, &id).await
}

async fn read(options: Read<Which>) -> anyhow::Result<()> {
    let missing = "Must specify either the -id or -name parameters";
    options.which.check(missing)?;
    let Which { id, name } = &options.which;
    let api = options.asked.api.connect()?;
    let role = if id.is_empty() {
        let path = format!("/v1/acl/role/name/{}", encoded(name));
        NOUN.read_at(&api, path, "name", name).await?
    } else {
        let id = role_id(&api, id).await;
        let id = id.context("Error determining role ID")?;
        NOUN.read(&api, "ID", &id).await?
    };
    NOUN.print(&role, &options.printed)
}

impl Update {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(
            !self.id.is_empty(),
            "Cannot update a role without specifying the -id parameter"
        );
        let api = self.asked.api.connect()?;
        let id = role_id(&api, &self.id)
            .await
            .context("Error determining role ID")?;
        let known = NOUN.current(&api, "ID", &id).await?;
        let mut role = match self.no_merge {
            true => json!({"ID": id, "Name": self.name, "Description": self.description}),
            false => known,
        };
        for (field, value) in [("Name", &self.name), ("Description", &self.description)] {
            if !value.is_empty() {
                role[field] = value.as_str().into();
            }
        }
        let links = &self.links;
        let policies = links::policies(&api, &links.policy_id, &links.policy_name).await?;
        let services = links::service_identities(&links.service_identity)?;
        let nodes = links::node_identities(&links.node_identity)?;
        for (field, keys, more) in [
            ("Policies", &["ID", "Name"][..], policies),
            ("ServiceIdentities", &["ServiceName"][..], services),
            ("NodeIdentities", &["NodeName"][..], nodes),
        ] {
            for one in more {
                merged(&mut role, field, keys, one);
            }
        }
        self.templates.apply(&mut role, &links.var)?;
        let written = NOUN.update(&api, &id, &role).await?;
        NOUN.print(&written, &self.printed)
    }
}

/// Adds an element, replacing one that is equal in any of the keys it has.
fn merged(role: &mut Value, field: &str, keys: &[&str], one: Value) {
    let same = |known: &Value| {
        let mut keys = keys.iter().filter(|key| !one[**key].is_null());
        keys.any(|key| known[*key] == one[*key])
    };
    let mut all = list(role, field).to_vec();
    match all.iter().position(same) {
        // A policy link has no other fields to change.
        Some(_) if field == "Policies" => {}
        Some(at) => {
            all[at] = one;
            role[field] = all.into();
        }
        None => push(role, field, one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_links_of_a_role_are_kept() {
        let mut role = json!({"ServiceIdentities": [{"ServiceName": "a"}, {"ServiceName": "b"}]});
        let a = json!({"ServiceName": "a", "Datacenters": ["dc1"]});
        merged(&mut role, "ServiceIdentities", &["ServiceName"], a.clone());
        assert_eq!(role["ServiceIdentities"], json!([a, {"ServiceName": "b"}]));
        merged(&mut role, "Policies", &["ID", "Name"], json!({"Name": "p"}));
        merged(&mut role, "Policies", &["ID", "Name"], json!({"Name": "p"}));
        assert_eq!(role["Policies"], json!([{"Name": "p"}]));
    }
}
