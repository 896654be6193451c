//! `acl role`: roles.

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::links::{self, ChangedTemplates, Links, Templates, push};
use super::{Printed, role_id, shown};
use crate::output::{line, list, quoted, text};
use crate::server_api::{ApiFlags, encoded};

/// What is done with roles.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a role
    Create(Create),
    /// Delete a role
    Delete(Delete),
    /// Print all roles
    List(List),
    /// Print a role
    Read(Read),
    /// Change a role
    Update(Update),
}

#[derive(Args)]
pub(crate) struct Create {
    /// Name of the role
    #[arg(long, default_value = "")]
    name: String,
    /// Description, for people
    #[arg(long, default_value = "")]
    description: String,
    #[command(flatten)]
    links: Links,
    #[command(flatten)]
    templates: Templates,
    #[command(flatten)]
    printed: Printed,
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

/// Which role.
#[derive(Args)]
struct Which {
    /// Id of the role, or its beginning
    #[arg(long, default_value = "")]
    id: String,
    /// Name of the role
    #[arg(long, default_value = "")]
    name: String,
}

#[derive(Args)]
pub(crate) struct Delete {
    #[command(flatten)]
    which: Which,
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    printed: Printed,
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Read {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    printed: Printed,
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Update {
    /// Id of the role, or its beginning
    #[arg(long, default_value = "")]
    id: String,
    /// Another name
    #[arg(long, default_value = "")]
    name: String,
    /// Another description
    #[arg(long, default_value = "")]
    description: String,
    #[command(flatten)]
    links: Links,
    /// Replace all fields, also those that are not given
    #[arg(long)]
    no_merge: bool,
    #[command(flatten)]
    templates: ChangedTemplates,
    #[command(flatten)]
    printed: Printed,
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(options) => options.run().await,
        Command::Delete(options) => options.run().await,
        Command::List(options) => {
            let roles = options.api.connect()?.get("/v1/acl/roles").value().await;
            let roles = roles.context("Failed to retrieve the role list")?;
            options.printed.print_list(&roles, "", shown::listed_role)
        }
        Command::Read(options) => options.run().await,
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
        let api = self.api.connect()?;
        let links = &self.links;
        let role = json!({
            "Name": self.name,
            "Description": self.description,
            "Policies": links::policies(&api, &links.policy_id, &links.policy_name).await?,
            "ServiceIdentities": links::service_identities(&links.service_identity)?,
            "NodeIdentities": links::node_identities(&links.node_identity)?,
            "TemplatedPolicies": links::templated_policies(template, file, &links.var)?,
        });
        let made = api.put("/v1/acl/role").json(&role).value().await;
        let made = made.context("Failed to create new role")?;
        self.printed.print(&made, shown::role)
    }
}

impl Delete {
    async fn run(self) -> anyhow::Result<()> {
        let (id, name) = (&self.which.id, &self.which.name);
        ensure!(
            !id.is_empty() || !name.is_empty(),
            "Must specify the -id or -name parameters"
        );
        let api = self.api.connect()?;
        let what = "Error determining role ID";
        let id = if id.is_empty() {
            let roles = api.get("/v1/acl/roles").value().await.context(what)?;
            let mut roles = roles.as_array().into_iter().flatten();
            match roles.find(|role| text(role, "Name") == name) {
                Some(role) => text(role, "ID").to_owned(),
                None => bail!("{what}: No such role with name {name}"),
            }
        } else {
            role_id(&api, id).await.context(what)?
        };
        let deleted = api
            .delete(format!("/v1/acl/role/{}", encoded(&id)))
            .ok()
            .await;
        deleted.with_context(|| format!("Error deleting role {}", quoted(&id)))?;
        line(&format!("Role {} deleted successfully", quoted(&id)))
    }
}

impl Read {
    async fn run(self) -> anyhow::Result<()> {
        let (id, name) = (&self.which.id, &self.which.name);
        ensure!(
            !id.is_empty() || !name.is_empty(),
            "Must specify either the -id or -name parameters"
        );
        let api = self.api.connect()?;
        let (path, by, key) = if id.is_empty() {
            (
                format!("/v1/acl/role/name/{}", encoded(name)),
                "name",
                name.clone(),
            )
        } else {
            let id = role_id(&api, id)
                .await
                .context("Error determining role ID")?;
            (format!("/v1/acl/role/{}", encoded(&id)), "ID", id)
        };
        let role = api.get(path).found().await;
        let role = role.with_context(|| format!("Error reading role {}", quoted(&key)))?;
        let role = role.with_context(|| format!("Role not found with {by} {}", quoted(&key)))?;
        self.printed.print(&role, shown::role)
    }
}

impl Update {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(
            !self.id.is_empty(),
            "Cannot update a role without specifying the -id parameter"
        );
        let api = self.api.connect()?;
        let id = role_id(&api, &self.id)
            .await
            .context("Error determining role ID")?;
        let path = format!("/v1/acl/role/{}", encoded(&id));
        let known = api.get(path.as_str()).found().await;
        let known = known.context("Error when retrieving current role")?;
        let known = known.with_context(|| format!("Role not found with ID {}", quoted(&id)))?;
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
        let written = api.put(path).json(&role).value().await;
        let written = written.with_context(|| format!("Error updating role {}", quoted(&id)))?;
        self.printed.print(&written, shown::role)
    }
}

/// Adds an element; one that is the same by any of the keys that it has is replaced.
fn merged(role: &mut Value, field: &str, keys: &[&str], one: Value) {
    let same = |known: &Value| {
        let mut keys = keys.iter().filter(|key| !one[**key].is_null());
        keys.any(|key| known[*key] == one[*key])
    };
    let mut all = list(role, field).to_vec();
    match all.iter().position(same) {
        // A link has nothing that could be changed.
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
    fn what_a_role_has_is_kept() {
        let mut role = json!({"ServiceIdentities": [{"ServiceName": "a"}, {"ServiceName": "b"}]});
        let a = json!({"ServiceName": "a", "Datacenters": ["dc1"]});
        merged(&mut role, "ServiceIdentities", &["ServiceName"], a.clone());
        assert_eq!(role["ServiceIdentities"], json!([a, {"ServiceName": "b"}]));
        merged(&mut role, "Policies", &["ID", "Name"], json!({"Name": "p"}));
        merged(&mut role, "Policies", &["ID", "Name"], json!({"Name": "p"}));
        assert_eq!(role["Policies"], json!([{"Name": "p"}]));
    }
}
