//! Rules: which requests they are about, what is changed, and where requests go.

use std::sync::Arc;
use std::time::Duration;

use legate_model::{HeaderModifiers, JwtRequirement, ServiceName};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::form;
use crate::matching::{Match, TextMatch};

/// The rules for some hosts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct VirtualHost {
    /// Host names: `*`, `*.` and a name, or a name; in lower case, without ports.
    pub domains: Vec<String>,
    /// The first that matches a request applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// The status of the answer to a request that none matches.
    pub otherwise: u16,
}

/// The usual answer to a request that no rule matches.
pub const NOT_FOUND: u16 = 404;

/// A rule with one condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Rule {
    /// Where it was written.
    pub origin: Origin,
    /// The requests that it is about.
    #[serde(default, skip_serializing_if = "form::is_default")]
    pub matched: Match,
    /// Changes to headers of requests.
    #[serde(
        default,
        with = "form::strict",
        skip_serializing_if = "form::is_default"
    )]
    pub request: HeaderModifiers,
    /// Changes to headers of responses.
    #[serde(
        default,
        with = "form::strict",
        skip_serializing_if = "form::is_default"
    )]
    pub response: HeaderModifiers,
    /// Change to the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<Rewrite>,
    /// Change to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_rewrite: Option<String>,
    /// Which pages of other origins may send requests; `None` if the gateway does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cors: Option<Arc<Cors>>,
    /// What gets copies of requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<Mirror>,
    /// Timeouts.
    #[serde(default, skip_serializing_if = "form::is_default")]
    pub timeouts: Timeouts,
    /// Retries; `None` for those that every route has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// The token that requests must carry.
    #[serde(
        default,
        with = "form::strict",
        skip_serializing_if = "Option::is_none"
    )]
    pub token: Option<Arc<JwtRequirement>>,
    /// What happens to a request.
    pub action: Action,
}

impl Rule {
    /// A rule for every request, without changes to it.
    #[must_use]
    pub fn plain(origin: Origin, action: Action) -> Self {
        Self {
            origin,
            matched: Match::default(),
            request: HeaderModifiers::default(),
            response: HeaderModifiers::default(),
            rewrite: None,
            host_rewrite: None,
            cors: None,
            mirrors: Vec::new(),
            timeouts: Timeouts::default(),
            retry: None,
            token: None,
            action,
        }
    }
}

/// Where a rule was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Origin {
    /// The route.
    #[serde(with = "form::service")]
    pub route: ServiceName,
    /// The place of the rule in it, from 0.
    pub rule: usize,
}

/// A change to the path of requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Rewrite {
    /// Replaces what the rule's path matched.
    Matched(String),
    /// Replaces the segments that the rule's path matched. The path begins with a slash afterwards,
    /// and has no slash twice where the parts meet.
    Segments(String),
    /// Replaces the whole path, but not the query.
    Whole(String),
}

/// Which pages of other origins may send requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Cors {
    /// The origins, one of which the page's must match.
    pub origins: Vec<TextMatch>,
    /// Whether with cookies.
    #[serde(default, skip_serializing_if = "form::is_default")]
    pub credentials: bool,
    /// The methods, `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// The headers of requests, `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Headers of responses that pages may read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposed: Vec<String>,
    /// How long browsers may remember the answer.
    #[serde(with = "legate_model::duration::text")]
    pub max_age: Duration,
}

/// What gets copies of requests. Its responses are dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Mirror {
    /// What gets them.
    pub target: Target,
    /// How many requests out of a million.
    pub per_million: u32,
}

/// An answer that names another place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Redirect {
    /// The scheme; `None` for the request's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// The host; `None` for the request's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The port. `None` for none if there is a host, and otherwise for the request's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The path; `None` for the request's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Rewrite>,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Timeouts of requests. `None` for the backend's, or else Envoy's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Timeouts {
    /// Until the complete response; zero for none.
    #[serde(
        default,
        with = "form::some_duration",
        skip_serializing_if = "Option::is_none"
    )]
    pub request: Option<Duration>,
    /// The same, of one of several tries.
    #[serde(
        default,
        with = "form::some_duration",
        skip_serializing_if = "Option::is_none"
    )]
    pub one_try: Option<Duration>,
    /// Without data in either direction.
    #[serde(
        default,
        with = "form::some_duration",
        skip_serializing_if = "Option::is_none"
    )]
    pub idle: Option<Duration>,
}

/// Retries of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Retry {
    /// How often at most; `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// The pause before the first; `None` for the default.
    #[serde(
        default,
        with = "form::some_duration",
        skip_serializing_if = "Option::is_none"
    )]
    pub pause: Option<Duration>,
    /// Envoy's conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// Statuses of responses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<u32>,
    /// Whether also after a failed connection.
    #[serde(default, skip_serializing_if = "form::is_default")]
    pub on_connect_failure: bool,
    /// Whether also of requests that no application has seen, as every route without retries of its
    /// own does.
    #[serde(default, skip_serializing_if = "form::is_default")]
    pub of_unseen: bool,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Action {
    /// It goes to one of the backends, by weight. At least one.
    Forward(Vec<WeightedBackend>),
    /// The gateway answers with another place.
    Redirect(Redirect),
    /// The gateway answers with this status.
    Answer(u16),
}

/// A backend and its share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct WeightedBackend {
    /// Share relative to the other weights. The sum of a rule's weights fits in 32 bits.
    pub weight: u32,
    /// The backend.
    pub target: Target,
    /// Changes to headers of its requests, after those of the rule.
    #[serde(
        default,
        with = "form::strict",
        skip_serializing_if = "form::is_default"
    )]
    pub request: HeaderModifiers,
    /// Changes to headers of its responses.
    #[serde(
        default,
        with = "form::strict",
        skip_serializing_if = "form::is_default"
    )]
    pub response: HeaderModifiers,
    /// The token that its requests must carry instead of that of the rule.
    #[serde(
        default,
        with = "form::strict",
        skip_serializing_if = "Option::is_none"
    )]
    pub token: Option<Arc<JwtRequirement>>,
}

impl WeightedBackend {
    /// The only backend of something, without changes.
    #[must_use]
    pub fn only(target: Target) -> Self {
        Self {
            weight: 1,
            target,
            request: HeaderModifiers::default(),
            response: HeaderModifiers::default(),
            token: None,
        }
    }
}

/// What receives requests or connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    /// A service in the mesh, by its discovery chain.
    Service(#[serde(with = "form::service")] ServiceName),
    /// A port of something outside of the mesh.
    Backend(Arc<Backend>),
    /// Nothing: the gateway answers its share with this status, closes connections, and drops
    /// datagrams.
    Answer(u16),
}

impl Target {
    /// What is outside of the mesh.
    pub fn backend(&self) -> Option<&Arc<Backend>> {
        match self {
            Self::Backend(backend) => Some(backend),
            Self::Service(_) | Self::Answer(_) => None,
        }
    }
}
