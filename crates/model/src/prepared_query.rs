//! Prepared queries: which instances of a service to select, under a name. Consul's fields, texts and
//! rules.
//!
//! A query is found by its id or name, made a plain one where it is a template
//! ([`PreparedQuery::render`]), and asked of each instance ([`ServiceQuery::fits`]). Nothing here looks
//! instances up.

mod service_query;
mod template;

use serde::{Deserialize, Serialize};

use crate::duration::GoDuration;
use crate::secret::Secret;

pub use service_query::{QueryFailover, QueryFailoverTarget, ServiceQuery, put_node_first};
pub use template::{QueryTemplate, TemplateError};

/// The largest query, in bytes of its JSON.
const MAX_QUERY_SIZE: usize = 64 * 1024;

/// The longest name, in bytes.
pub const MAX_QUERY_NAME: usize = 512;

/// The longest regular expression of a template, in bytes.
const MAX_REGEXP: usize = 4096;

/// What a token looks like to those who may not read it. Consul's text.
const HIDDEN_TOKEN: &str = "<hidden>";

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
        // Consul's test: with its own name it must be possible to fill it in.
        self.render(&self.name)?;
        Ok(())
    }

    /// The query for a name: a template filled in, any other query as it is.
    ///
    /// # Errors
    ///
    /// [`TemplateError`] says which text cannot be filled in.
    pub fn render(&self, name: &str) -> Result<PreparedQuery, TemplateError> {
        let mut query = self.clone();
        if self.is_template() {
            self.template.fill(&self.name, name, &mut query.service)?;
        }
        Ok(query)
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
