//! Prepared queries: which instances of a service to select, under a name. Consul's fields, texts and
//! rules.
//!
//! A query is found by its id or name, made a plain one where it is a template
//! ([`PreparedQuery::render`]), and asked of each instance ([`ServiceQuery::fits`]). Nothing here looks
//! instances up.

mod select;
mod template;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::duration::GoDuration;
use crate::secret::Secret;
use crate::tenancy::TenancyName;
use crate::{Invalid, meta};

pub use select::put_node_first;
pub use template::TemplateError;

/// The largest query, in bytes of its JSON.
const MAX_QUERY_SIZE: usize = 64 * 1024;

/// The longest name, in bytes.
pub const MAX_QUERY_NAME: usize = 512;

/// The longest regular expression of a template, in bytes.
const MAX_REGEXP: usize = 4096;

/// What a token looks like to those who may not read it. Consul's text.
const HIDDEN_TOKEN: &str = "<hidden>";

/// A template whose name is what the names that it is for begin with. The only type there is.
const NAME_PREFIX_MATCH: &str = "name_prefix_match";

/// A stored query.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PreparedQuery {
    /// UUID, made by the server.
    #[serde(rename = "ID")]
    pub id: String,
    /// Unique. Empty only for the template that is for every name.
    pub name: String,
    /// The session that the query ends with; empty where it stays.
    pub session: String,
    /// The token that it is executed with; empty means that of whoever executes it.
    pub token: Secret,
    /// Whether it is for other names, too, and how it is filled in then.
    pub template: QueryTemplate,
    /// What it asks for.
    pub service: ServiceQuery,
    /// For answers over DNS.
    #[serde(rename = "DNS")]
    pub dns: QueryDns,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// What makes a query a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct QueryTemplate {
    /// `name_prefix_match`, or empty for a plain query.
    pub r#type: String,
    /// What parts of a name are taken from, as `${match(1)}`.
    pub regexp: String,
    /// Leaves out tags that became empty.
    pub remove_empty_tags: bool,
}

/// Instances of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceQuery {
    /// Its name.
    pub service: String,
    /// Sameness groups are not served.
    pub sameness_group: String,
    /// Where else to ask when there is no instance.
    pub failover: QueryFailover,
    /// Leaves out instances with a warning, too.
    pub only_passing: bool,
    /// Checks that do not count.
    #[serde(rename = "IgnoreCheckIDs")]
    pub ignore_check_ids: Option<Vec<String>>,
    /// The node whose instances come first; `_agent` is that of the agent that is asked, `_ip` the one
    /// with the address of whoever asks.
    pub near: String,
    /// Tags that an instance has; after `!` one that it has not. Case does not matter.
    pub tags: Option<Vec<String>>,
    /// What the node's meta has.
    pub node_meta: Option<BTreeMap<String, String>>,
    /// What the instance's meta has.
    pub service_meta: Option<BTreeMap<String, String>>,
    /// Whether to answer with what stands for the service in the mesh.
    pub connect: bool,
    /// Peers are not served.
    pub peer: String,
    /// The namespace of the service; empty for the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition of the service; empty for the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

/// Where else to ask. There is one datacenter: others find nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct QueryFailover {
    /// So many other datacenters, the nearest first.
    pub nearest_n: i64,
    /// These datacenters, in order.
    pub datacenters: Option<Vec<String>>,
    /// These, in order, instead of both.
    pub targets: Option<Vec<QueryFailoverTarget>>,
}

/// A place to ask.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct QueryFailoverTarget {
    /// Peers are not served.
    pub peer: String,
    /// A datacenter.
    pub datacenter: String,
    /// A namespace of this datacenter; empty for the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// A partition of this datacenter; empty for the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

impl QueryFailoverTarget {
    /// Whether it names another tenant of this datacenter, and nothing else.
    fn is_here(&self) -> bool {
        let is_tenant = !self.namespace.is_empty() || !self.partition.is_empty();
        is_tenant && self.datacenter.is_empty() && self.peer.is_empty()
    }
}

/// For answers over DNS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct QueryDns {
    /// How long resolvers may keep them, in Go's notation.
    #[serde(rename = "TTL")]
    pub ttl: String,
}

/// A query that cannot be accepted. Consul's texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuery {
    /// A value is wrong.
    #[error("Invalid prepared query: {0}")]
    Field(String),
    /// The template cannot be filled in.
    #[error("failed compiling template: {0}")]
    Template(#[from] TemplateError),
}

/// A query that was found and cannot be executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnusableQuery {
    /// A template was named by its id. Consul's text.
    #[error("prepared query templates can only be resolved up by name, not by ID")]
    TemplateById,
    /// The template cannot be filled in with this name.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

impl PreparedQuery {
    /// Whether it is for other names than its own.
    pub fn is_template(&self) -> bool {
        !self.template.r#type.is_empty()
    }

    /// How large it is, in bytes of its JSON.
    pub fn size(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |text| text.len())
    }

    /// The same without its token, but for whether it has one.
    #[must_use]
    pub fn without_token(&self) -> PreparedQuery {
        let token = match self.token.is_empty() {
            true => Secret::default(),
            false => Secret::new(HIDDEN_TOKEN),
        };
        PreparedQuery {
            token,
            ..self.clone()
        }
    }

    /// # Errors
    ///
    /// [`InvalidQuery`] says what is wrong first. That its name is free is not looked at.
    pub fn validate(&self) -> Result<(), InvalidQuery> {
        self.validate_fields().map_err(InvalidQuery::Field)?;
        if self.is_template() {
            self.check_template()?;
        }
        Ok(())
    }

    fn validate_fields(&self) -> Result<(), String> {
        if self.name.is_empty() && !self.is_template() && self.session.is_empty() {
            return Err("Must be bound to a session".to_owned());
        }
        if self.token.expose() == HIDDEN_TOKEN {
            return Err(format!(
                "Bad Token '{HIDDEN_TOKEN}', it looks like a query definition with a redacted token \
                 was submitted"
            ));
        }
        self.service.validate()?;
        self.dns.validate()?;
        self.validate_sizes()
    }

    fn validate_sizes(&self) -> Result<(), String> {
        let checks = [
            ("Name", self.name.len(), MAX_QUERY_NAME),
            ("Template.Regexp", self.template.regexp.len(), MAX_REGEXP),
            ("the query", self.size(), MAX_QUERY_SIZE),
        ];
        match checks.into_iter().find(|(_, length, most)| length > most) {
            None => Ok(()),
            Some((what, length, most)) => {
                Err(format!("{what} has {length} bytes, more than {most}"))
            }
        }
    }
}

impl ServiceQuery {
    fn validate(&self) -> Result<(), String> {
        if self.service.is_empty() {
            return Err("Must provide a Service name to query".to_owned());
        }
        self.failover.validate()?;
        for (field, map) in [
            ("NodeMeta", &self.node_meta),
            ("ServiceMeta", &self.service_meta),
        ] {
            let checked = map
                .iter()
                .try_for_each(|map| meta::validate_entry(field, map));
            checked.map_err(|invalid: Invalid| invalid.to_string())?;
        }
        if !self.sameness_group.is_empty() {
            return Err(
                "sameness-groups are an enterprise-only feature: leave SamenessGroup out"
                    .to_owned(),
            );
        }
        if !self.peer.is_empty() {
            return Err("Service.Peer: peers are not served, leave it out".to_owned());
        }
        Ok(())
    }

    /// The partitions and namespaces to look in, until there is an instance: its own, and those that it fails
    /// over to.
    pub fn places(&self) -> impl Iterator<Item = (&TenancyName, &TenancyName)> {
        let targets = self.failover.targets.iter().flatten();
        let others = targets.filter(|target| target.is_here());
        let others = others.map(|target| (&target.partition, &target.namespace));
        std::iter::once((&self.partition, &self.namespace)).chain(others)
    }
}

impl QueryFailover {
    fn validate(&self) -> Result<(), String> {
        if self.nearest_n < 0 {
            return Err(format!("Bad NearestN '{}', must be >= 0", self.nearest_n));
        }
        let targets = self.targets.as_deref().unwrap_or_default();
        let datacenters = self.datacenters.as_deref().unwrap_or_default();
        if !targets.is_empty() && (self.nearest_n != 0 || !datacenters.is_empty()) {
            return Err("Targets cannot be populated with NearestN or Datacenters".to_owned());
        }
        for (at, target) in targets.iter().enumerate() {
            let refuse = |field: &str, reason: &str| {
                Err(format!("Service.Failover.Targets[{at}].{field}: {reason}"))
            };
            if !target.peer.is_empty() {
                return refuse("Peer", "peers are not served, leave it out");
            }
            for (field, name) in [
                ("Namespace", &target.namespace),
                ("Partition", &target.partition),
            ] {
                if name.is_every() {
                    return refuse(field, "\"*\" stands for every one: name one");
                }
            }
        }
        Ok(())
    }
}

impl QueryDns {
    fn validate(&self) -> Result<(), String> {
        if self.ttl.is_empty() {
            return Ok(());
        }
        let ttl: GoDuration = self
            .ttl
            .parse()
            .map_err(|error| format!("Bad DNS TTL '{}': {error}", self.ttl))?;
        match ttl.is_negative() {
            true => Err(format!("DNS TTL '{}', must be >=0", ttl.as_nanos())),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
