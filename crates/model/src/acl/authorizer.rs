//! What a token permits. It decides; who asks and why is the caller's business.

use std::collections::HashSet;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::acl::token::Token;

/// What is permitted where no rule says anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultPolicy {
    /// Everything but access control itself; the default.
    #[default]
    Allow,
    /// Nothing.
    Deny,
}

impl DefaultPolicy {
    /// The name in configuration and in `X-Consul-Default-ACL-Policy`.
    pub const fn as_str(self) -> &'static str {
        match self {
            DefaultPolicy::Allow => "allow",
            DefaultPolicy::Deny => "deny",
        }
    }
}

impl std::fmt::Display for DefaultPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A default policy that is neither.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a default policy: it must be allow or deny")]
pub struct UnknownDefaultPolicy(String);

impl FromStr for DefaultPolicy {
    type Err = UnknownDefaultPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownDefaultPolicy> {
        match text {
            "allow" => Ok(DefaultPolicy::Allow),
            "deny" => Ok(DefaultPolicy::Deny),
            _ => Err(UnknownDefaultPolicy(text.to_owned())),
        }
    }
}

/// Decides what one token permits. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorizer(Grant);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Grant {
    /// Everything, access control included.
    Manage,
    /// What the default says, unless a rule decides.
    Default(DefaultPolicy, Option<Arc<Rules>>),
}

/// What a token's identities say. A rule that reads everything also *decides* about writing: who
/// holds an identity may not write other services even where the default is to allow.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rules {
    write_services: HashSet<String>,
    write_nodes: HashSet<String>,
    /// Whether a rule covers every node with reading; only service identities bring one.
    read_nodes: bool,
}

impl Authorizer {
    /// Permits everything, access control included: a management token.
    pub const fn manage_all() -> Self {
        Authorizer(Grant::Manage)
    }

    /// Permits everything but access control itself; also what holds while it is off.
    pub const fn allow_all() -> Self {
        Authorizer(Grant::Default(DefaultPolicy::Allow, None))
    }

    /// Permits nothing.
    pub const fn deny_all() -> Self {
        Authorizer(Grant::Default(DefaultPolicy::Deny, None))
    }

    /// What a token permits in `datacenter`. Identities for other datacenters are left out.
    pub fn new(token: &Token, default: DefaultPolicy, datacenter: &str) -> Self {
        if token
            .policies
            .iter()
            .any(|link| link.is_global_management())
        {
            return Authorizer::manage_all();
        }
        let mut rules = Rules::default();
        for identity in &token.service_identities {
            let here = |d: &String| d.eq_ignore_ascii_case(datacenter);
            if identity.datacenters.is_empty() || identity.datacenters.iter().any(here) {
                rules.read_nodes = true;
                let sidecar = format!("{}-sidecar-proxy", identity.service_name);
                rules.write_services.insert(identity.service_name.clone());
                rules.write_services.insert(sidecar);
            }
        }
        for identity in &token.node_identities {
            if identity.datacenter.eq_ignore_ascii_case(datacenter) {
                rules.write_nodes.insert(identity.node_name.clone());
            }
        }
        let any = rules.read_nodes || !rules.write_nodes.is_empty();
        Authorizer(Grant::Default(default, any.then(|| Arc::new(rules))))
    }

    /// Decides from the rules, or else from the default.
    fn decide(&self, rule: impl FnOnce(&Rules) -> Option<bool>) -> bool {
        match &self.0 {
            Grant::Manage => true,
            Grant::Default(default, rules) => rules
                .as_deref()
                .and_then(rule)
                .unwrap_or(*default == DefaultPolicy::Allow),
        }
    }

    /// Seeing instances of a service.
    pub fn service_read(&self, _service: &str) -> bool {
        self.decide(|_| Some(true))
    }

    /// Registering instances of a service, and being it: certificates, configuration.
    pub fn service_write(&self, service: &str) -> bool {
        self.decide(|rules| Some(rules.write_services.contains(service)))
    }

    /// Being at least one service; what some lists ask for.
    pub fn service_write_any(&self) -> bool {
        self.decide(|rules| Some(!rules.write_services.is_empty()))
    }

    /// Seeing a node.
    pub fn node_read(&self, node: &str) -> bool {
        self.decide(|rules| {
            let covered = rules.read_nodes || rules.write_nodes.contains(node);
            covered.then_some(true)
        })
    }

    /// Seeing every node, whatever its name.
    pub fn node_read_all(&self) -> bool {
        self.decide(|rules| rules.read_nodes.then_some(true))
    }

    /// Seeing the inside of a server or agent: its settings and metrics. No identity permits it.
    pub fn agent_read(&self) -> bool {
        self.decide(|_| None)
    }

    /// Registering a node.
    pub fn node_write(&self, node: &str) -> bool {
        self.decide(|rules| match rules.write_nodes.contains(node) {
            true => Some(true),
            false => rules.read_nodes.then_some(false),
        })
    }

    /// Seeing who may call a service: whoever sees the service sees it.
    pub fn intention_read(&self, destination: &str) -> bool {
        self.service_read(destination)
    }

    /// Changing who may call a service (or, with `*`, all): no identity permits it.
    pub fn intention_write(&self, _destination: &str) -> bool {
        self.decide(|_| Some(false))
    }

    /// Seeing mesh-wide settings.
    pub fn mesh_read(&self) -> bool {
        self.operator_read()
    }

    /// Changing mesh-wide settings.
    pub fn mesh_write(&self) -> bool {
        self.operator_write()
    }

    /// Seeing the control plane's own state.
    pub fn operator_read(&self) -> bool {
        self.decide(|_| None)
    }

    /// Changing the control plane's own state.
    pub fn operator_write(&self) -> bool {
        self.decide(|_| None)
    }

    /// Seeing tokens, auth methods and binding rules: management tokens only.
    pub fn acl_read(&self) -> bool {
        self.0 == Grant::Manage
    }

    /// Changing tokens, auth methods and binding rules: management tokens only.
    pub fn acl_write(&self) -> bool {
        self.0 == Grant::Manage
    }
}
