//! Rules: which requests they are about, what is changed, and where requests go.

use std::sync::Arc;
use std::time::Duration;

use legate_model::{HeaderModifiers, JwtRequirement, ServiceName};

use crate::matching::Match;

/// The rules for some hosts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualHost {
    /// Host names: `*`, `*.` and a name, or a name; in lower case, without ports.
    pub domains: Vec<String>,
    /// The first that matches a request applies. A request that none matches is answered with 404.
    pub rules: Vec<Rule>,
}

/// A rule with one condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Where it was written.
    pub origin: Origin,
    /// The requests that it is about.
    pub matched: Match,
    /// Changes to headers of requests.
    pub request: HeaderModifiers,
    /// Changes to headers of responses.
    pub response: HeaderModifiers,
    /// Change to the path.
    pub rewrite: Option<Rewrite>,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Retries; `None` for those that every route has.
    pub retry: Option<Retry>,
    /// The token that requests must carry.
    pub token: Option<Arc<JwtRequirement>>,
    /// What happens to a request.
    pub action: Action,
}

/// Where a rule was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The route.
    pub route: ServiceName,
    /// The place of the rule in it, from 0.
    pub rule: usize,
}

/// A change to the path of requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rewrite {
    /// Replaces what the rule's path matched.
    Matched(String),
}

/// Timeouts of requests. `None` for the backend's, or else Envoy's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// Until the complete response.
    pub request: Option<Duration>,
    /// Without data in either direction.
    pub idle: Option<Duration>,
}

/// Retries of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Retry {
    /// How often at most; zero for the default.
    pub count: u32,
    /// Envoy's conditions.
    pub conditions: Vec<String>,
    /// Statuses of responses.
    pub statuses: Vec<u32>,
    /// Whether also after a failed connection.
    pub on_connect_failure: bool,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It goes to one of the backends, by weight. At least one.
    Forward(Vec<WeightedBackend>),
    /// The gateway answers with this status.
    Answer(u16),
}

/// A backend and its share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightedBackend {
    /// Share relative to the other weights. The sum of a rule's weights fits in 32 bits.
    pub weight: u32,
    /// The backend.
    pub target: Target,
    /// Changes to headers of its requests, after those of the rule.
    pub request: HeaderModifiers,
    /// Changes to headers of its responses.
    pub response: HeaderModifiers,
    /// The token that its requests must carry instead of that of the rule.
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A service in the mesh, by its discovery chain.
    Service(ServiceName),
    /// Nothing: the gateway answers its share with this status, and closes connections.
    Answer(u16),
}
