//! `acl token`: manages tokens.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use legate_model::{Secret, duration};
use serde_json::json;

use super::ids::token_id;
use super::links::{self, Links, Templates};
use super::noun::{Asked, Delete, List, Noun};
use super::printed::Printed;
use super::shown;
use super::token_update::{Update, Which};
use crate::input;
use crate::output::{Format, quoted};
use crate::server_api::encoded;

/// Subcommands of `acl token`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create a token with the permissions of another
    Clone(Clone),
    /// Create a token
    Create(Create),
    /// Delete a token
    Delete(Delete<Which>),
    /// Print all tokens
    List(List),
    /// Print a token
    Read(Read),
    /// Update a token
    Update(Update),
}

#[derive(Args)]
pub(crate) struct Clone {
    #[command(flatten)]
    which: Which,
    /// Description of the new token [default: that of the original]
    #[arg(long, default_value = "")]
    description: String,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args)]
pub(crate) struct Create {
    /// Accessor id [default: a random one]
    #[arg(long, default_value = "", value_name = "ID")]
    accessor: String,
    /// Secret id [default: a random one]
    #[arg(long, value_parser = input::secret, value_name = "ID")]
    secret: Option<Secret>,
    /// Valid in this datacenter only
    #[arg(long)]
    local: bool,
    /// Description
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
    /// Lifetime of the token
    #[arg(long, value_parser = input::duration, value_name = "DURATION")]
    expires_ttl: Option<Duration>,
    #[command(flatten)]
    templates: Templates,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args)]
pub(crate) struct Read {
    #[command(flatten)]
    which: Which,
    /// The token of this request itself
    #[arg(long = "self")]
    own: bool,
    /// Print all its permissions and their sources
    #[arg(long)]
    expanded: bool,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

const NOUN: Noun = Noun {
    name: "token",
    path: "/v1/acl/token",
    all: "/v1/acl/tokens",
    shown: shown::token,
    listed: shown::token,
    between: "\n",
};

pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Clone(options) => options.run().await,
        Command::Create(options) => options.run().await,
        Command::Delete(options) => {
            let given = options
                .which
                .given("Must specify the -accessor-id parameter")?;
            let api = options.asked.api.connect()?;
            let id = token_id(&api, given).await;
            NOUN.delete(&api, &id.context("Error determining token ID")?)
                .await
        }
        Command::List(options) => NOUN.list(options).await,
        Command::Read(options) => options.run().await,
        Command::Update(options) => options.run().await,
    }
}

impl Clone {
    async fn run(self) -> anyhow::Result<()> {
        let missing = "Cannot update a token without specifying the -accessor-id parameter";
        let given = self.which.given(missing)?;
        let api = self.asked.api.connect()?;
        let id = token_id(&api, given).await;
        let id = id.context("Error determining token Accessor ID")?;
        let body = match self.description.as_str() {
            "" => json!({}),
            description => json!({"Description": description}),
        };
        let path = format!("/v1/acl/token/{}/clone", encoded(&id));
        let token = api.put(path).json(&body).value().await;
        let token = token.context("Error cloning token")?;
        let printed = Printed {
            meta: false,
            format: self.format,
        };
        printed.print(&token, shown::token)
    }
}

impl Create {
    async fn run(self) -> anyhow::Result<()> {
        let templates = &self.templates;
        let (template, file) = (
            &templates.templated_policy,
            &templates.templated_policy_file,
        );
        let roles = !self.role_id.is_empty() || !self.role_name.is_empty();
        let templated = !template.is_empty() || !file.is_empty();
        ensure!(
            roles || templated || !self.links.is_empty(),
            "Cannot create a token without specifying -policy-name, -policy-id, -role-name, \
             -role-id, -service-identity, -node-identity, -templated-policy, or \
             -templated-policy-file at least once"
        );
        ensure!(
            template.is_empty() || file.is_empty(),
            "Cannot combine the use of templated-policy flag with templated-policy-file. To create \
             a token with a single templated policy and simple use case, use -templated-policy. For \
             multiple templated policies and more complicated use cases, use \
             -templated-policy-file"
        );
        let api = self.asked.api.connect()?;
        let links = &self.links;
        let mut token = json!({
            "Description": self.description,
            "Local": self.local,
            "Policies": links::policies(&api, &links.policy_id, &links.policy_name).await?,
            "Roles": links::roles(&api, &self.role_id, &self.role_name).await?,
            "ServiceIdentities": links::service_identities(&links.service_identity)?,
            "NodeIdentities": links::node_identities(&links.node_identity)?,
            "TemplatedPolicies": links::templated_policies(template, file, &links.var)?,
        });
        if !self.accessor.is_empty() {
            token["AccessorID"] = self.accessor.as_str().into();
        }
        if let Some(secret) = &self.secret {
            token["SecretID"] = secret.expose().into();
        }
        if let Some(ttl) = self.expires_ttl.filter(|ttl| !ttl.is_zero()) {
            token["ExpirationTTL"] = duration::format(ttl).into();
        }
        let made = NOUN.create(&api, &token).await?;
        NOUN.print(&made, &self.printed)
    }
}

impl Read {
    async fn run(self) -> anyhow::Result<()> {
        let api = self.asked.api.connect()?;
        if self.own {
            ensure!(
                !self.expanded,
                "Cannot use both -expanded and -self. Instead, use -expanded and \
                 -accessor-id=<accessor id>."
            );
            let token = api.get("/v1/acl/token/self").value().await;
            let token = token.context("Error reading token")?;
            return self.printed.print(&token, shown::token);
        }
        let given = self
            .which
            .given("Must specify the -accessor-id parameter")?;
        let id = token_id(&api, given)
            .await
            .context("Error determining token ID")?;
        let mut ask = api.get(NOUN.one(&id));
        if self.expanded {
            ask = ask.query("expanded", "true");
        }
        let token = ask.value().await;
        let token = token.with_context(|| format!("Error reading token {}", quoted(&id)))?;
        if token.is_null() {
            bail!("Error reading token {}: it does not exist", quoted(&id));
        }
        match self.expanded {
            true => self.printed.print(&token, shown::expanded_token),
            false => self.printed.print(&token, shown::token),
        }
    }
}
