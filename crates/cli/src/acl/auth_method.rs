//! `acl auth-method`: manages auth methods.

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use legate_model::{Secret, duration};
use serde_json::{Value, json};

use super::noun::{Asked, Delete, List, Noun, Read};
use super::printed::Printed;
use super::shown;
use crate::input;
use crate::output::text;

/// Subcommands of `acl auth-method`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create an auth method
    Create(Create),
    /// Delete an auth method
    Delete(Delete<Which>),
    /// Print all auth methods
    List(List),
    /// Print an auth method
    Read(Read<Which>),
    /// Update an auth method
    Update(Update),
}

/// The fields of an auth method.
#[derive(Args)]
struct Fields {
    /// Name of the auth method
    #[arg(long, default_value = "")]
    name: String,
    /// Display name
    #[arg(long, default_value = "")]
    display_name: String,
    /// Description
    #[arg(long, default_value = "")]
    description: String,
    /// Lifetime of tokens created by its logins
    #[arg(long, value_parser = input::duration, value_name = "DURATION")]
    max_token_ttl: Option<Duration>,
    /// Locality of those tokens: local or global
    #[arg(long, default_value = "", value_name = "LOCALITY")]
    token_locality: String,
    /// Configuration as JSON: text, @FILE, or - for standard input
    #[arg(long, default_value = "", value_name = "JSON")]
    config: String,
    /// Address of the API server, for type kubernetes
    #[arg(long, default_value = "", value_name = "URL")]
    kubernetes_host: String,
    /// PEM of its CA certificate: text, or @FILE
    #[arg(long, default_value = "", value_name = "PEM")]
    kubernetes_ca_cert: String,
    /// Service account token for token reviews
    #[arg(long, value_parser = input::secret, value_name = "JWT")]
    kubernetes_service_account_jwt: Option<Secret>,
    /// Selector of logins that get a token in another namespace [default: all]
    #[arg(long, default_value = "", value_name = "EXPRESSION")]
    namespace_rule_selector: String,
    /// Name of that namespace; may contain ${variables} of the login
    #[arg(long, default_value = "", value_name = "NAMESPACE")]
    namespace_rule_bind_namespace: String,
}

#[derive(Args)]
pub(crate) struct Create {
    /// Type: jwt, kubernetes, oidc or aws-iam
    #[arg(long = "type", default_value = "")]
    kind: String,
    #[command(flatten)]
    fields: Fields,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

/// Selects an auth method.
#[derive(Args)]
pub(crate) struct Which {
    /// Name of the auth method
    #[arg(long, default_value = "")]
    name: String,
}

#[derive(Args)]
pub(crate) struct Update {
    #[command(flatten)]
    fields: Fields,
    /// Replace all fields, including those not given
    #[arg(long)]
    no_merge: bool,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

const NOUN: Noun = Noun {
    name: "auth method",
    path: "/v1/acl/auth-method",
    all: "/v1/acl/auth-methods",
    shown: shown::auth_method,
    listed: shown::listed_auth_method,
    between: "",
};

pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(options) => options.run().await,
        Command::Delete(options) => {
            let name = options.which.given()?;
            NOUN.delete(&options.asked.api.connect()?, name).await
        }
        Command::List(options) => NOUN.list(options).await,
        Command::Read(options) => {
            let name = options.which.given()?;
            let api = options.asked.api.connect()?;
            let method = NOUN.read(&api, "name", name).await?;
            NOUN.print(&method, &options.printed)
        }
        Command::Update(options) => options.run().await,
    }
}

impl Which {
    fn given(&self) -> anyhow::Result<&str> {
        ensure!(!self.name.is_empty(), "Must specify the -name parameter");
        Ok(&self.name)
    }
}

impl Fields {
    /// Sets the fields that are given.
    fn apply(&self, method: &mut Value) -> anyhow::Result<()> {
        let bound = &self.namespace_rule_bind_namespace;
        ensure!(
            !bound.is_empty() || self.namespace_rule_selector.is_empty(),
            "Missing '-namespace-rule-bind-namespace' flag: it sets the namespace of the selected logins"
        );
        if !bound.is_empty() {
            let selector = &self.namespace_rule_selector;
            method["NamespaceRules"] = json!([{"Selector": selector, "BindNamespace": bound}]);
        }
        let ttl = self.max_token_ttl.filter(|ttl| !ttl.is_zero());
        for (field, value) in [
            ("DisplayName", self.display_name.clone()),
            ("Description", self.description.clone()),
            ("TokenLocality", self.token_locality.clone()),
            ("MaxTokenTTL", ttl.map(duration::format).unwrap_or_default()),
        ] {
            if !value.is_empty() {
                method[field] = value.into();
            }
        }
        Ok(())
    }

    /// The value of `-config`, if given.
    fn config(&self) -> anyhow::Result<Option<Value>> {
        if self.config.is_empty() {
            return Ok(None);
        }
        ensure!(
            self.kubernetes_host.is_empty()
                && self.kubernetes_ca_cert.is_empty()
                && self.kubernetes_service_account_jwt.is_none(),
            "Cannot use command line arguments with '-config' flags"
        );
        let data = input::text_or_file(&self.config);
        let data = data.context("Error loading configuration file")?;
        let config = serde_json::from_str(&data);
        Ok(Some(
            config.context("Error parsing JSON configuration file")?,
        ))
    }

    /// The fields for Kubernetes.
    fn kubernetes(&self) -> anyhow::Result<[(&'static str, String); 3]> {
        let ca = input::text_or_file(&self.kubernetes_ca_cert);
        let ca = ca.context("Invalid '-kubernetes-ca-cert' value")?;
        ensure!(
            !ca.is_empty() || self.kubernetes_ca_cert.is_empty(),
            "Kubernetes CA Cert is empty"
        );
        let jwt = self.kubernetes_service_account_jwt.as_ref();
        Ok([
            ("Host", self.kubernetes_host.clone()),
            ("CACert", ca),
            (
                "ServiceAccountJWT",
                jwt.map(|jwt| jwt.expose().to_owned()).unwrap_or_default(),
            ),
        ])
    }

    /// The complete configuration of a new auth method.
    fn whole_config(&self, kind: &str) -> anyhow::Result<Option<Value>> {
        let config = self.config()?;
        if kind != "kubernetes" || config.is_some() {
            return Ok(config);
        }
        let mut config = json!({});
        let flags = [
            "kubernetes-host",
            "kubernetes-ca-cert",
            "kubernetes-service-account-jwt",
        ];
        for (flag, (field, value)) in flags.into_iter().zip(self.kubernetes()?) {
            ensure!(!value.is_empty(), "Missing required '-{flag}' flag");
            config[field] = value.into();
        }
        Ok(Some(config))
    }
}

impl Create {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(!self.kind.is_empty(), "Missing required '-type' flag");
        ensure!(
            !self.fields.name.is_empty(),
            "Missing required '-name' flag"
        );
        let api = self.asked.api.connect()?;
        let mut method = json!({"Type": self.kind, "Name": self.fields.name});
        self.fields.apply(&mut method)?;
        method["Config"] = self.fields.whole_config(&self.kind)?.into();
        let made = NOUN.create(&api, &method).await?;
        NOUN.print(&made, &self.printed)
    }
}

impl Update {
    async fn run(self) -> anyhow::Result<()> {
        let fields = &self.fields;
        let name = &fields.name;
        ensure!(
            !name.is_empty(),
            "Cannot update an auth method without specifying the -name parameter"
        );
        let api = self.asked.api.connect()?;
        let known = NOUN.current(&api, "name", name).await?;
        let kind = text(&known, "Type").to_owned();
        let mut method = match self.no_merge {
            true => json!({"Name": name, "Type": kind}),
            false => known,
        };
        fields.apply(&mut method)?;
        if self.no_merge {
            method["Config"] = fields.whole_config(&kind)?.into();
        } else if let Some(config) = fields.config()? {
            method["Config"] = config;
        } else if kind == "kubernetes" {
            for (field, value) in fields.kubernetes()? {
                if !value.is_empty() {
                    method["Config"][field] = value.into();
                }
            }
        }
        let written = NOUN.update(&api, name, &method).await?;
        NOUN.print(&written, &self.printed)
    }
}
