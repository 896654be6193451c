//! Decides what a token permits. Never looks up tokens and never knows why the caller asks.
//!
//! Among the rules about a name, an exact match takes precedence over a prefix, and a longer prefix
//! over a shorter one. If no rule matches, the default policy applies. Where several policies have
//! rules for the same name or prefix, deny takes precedence over write, write over list, and list
//! over read. This is Consul's precedence.
//!
//! The same holds for the namespace and partition blocks around rules: exact names before prefixes,
//! longer prefixes before shorter ones. If a block has no rule about a name, the next matching block
//! is consulted.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::acl::resource::{Access, Names, Resource};
use crate::acl::rules::{Rule, Rules};
use crate::acl::scope::Scope;
use crate::acl::trie::Trie;
use crate::name::WILDCARD;
use crate::named::named;
use crate::tenancy::Tenancy;

/// Decision for requests that no rule covers. The name is that in configuration and in
/// `X-Consul-Default-ACL-Policy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultPolicy {
    /// Permit everything but access control itself; the default.
    #[default]
    Allow,
    /// Permit nothing.
    Deny,
}

named! {
    DefaultPolicy { Allow = "allow", Deny = "deny" } UnknownDefaultPolicy
}

/// A text that is not the name of a default policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a default policy: it must be allow or deny")]
pub struct UnknownDefaultPolicy(String);

/// Decides what one token permits in one tenancy. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorizer {
    grant: Grant,
    tenancy: Tenancy,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Grant {
    /// Permits everything, including access control.
    Manage,
    /// Permits what the rules grant; falls back to the default policy.
    Default(DefaultPolicy, Option<Arc<Granted>>),
}

/// Rules with their scopes, the most specific scope first.
#[derive(Debug, Default, PartialEq, Eq)]
struct Granted(Vec<(Scope, Compiled)>);

impl Granted {
    /// Appends the rules of policies, each with the policy's tenancy.
    fn add<'r>(&mut self, policies: impl IntoIterator<Item = (&'r Tenancy, &'r Rules)>) {
        let mut scopes: BTreeMap<Scope, Vec<&Rule>> = BTreeMap::new();
        for (own, rules) in policies {
            for rule in rules.iter() {
                let scope = rule.scope.resolved(own);
                scopes.entry(scope).or_default().push(rule);
            }
        }
        let mut layers: Vec<_> = scopes.into_iter().collect();
        layers.sort_by_key(|(scope, _)| std::cmp::Reverse(scope.weight()));
        let compiled = |(scope, rules)| (scope, Compiled::new(rules));
        self.0.extend(layers.into_iter().map(compiled));
    }

    /// The first answer of the rules that hold in a tenancy, by precedence.
    fn first<T>(&self, tenancy: &Tenancy, ask: impl Fn(&Compiled) -> Option<T>) -> Option<T> {
        let about = |(scope, _): &&(Scope, Compiled)| scope.holds_in(tenancy, tenancy);
        let layers = self.0.iter().filter(about);
        layers.map(|(_, rules)| ask(rules)).find_map(|said| said)
    }
}

/// Rules by resource.
#[derive(Debug, Default, PartialEq, Eq)]
struct Compiled {
    /// Rules of resources without names.
    whole: BTreeMap<Resource, Access>,
    /// Rules of resources with names.
    named: BTreeMap<Resource, Trie>,
}

impl Compiled {
    fn new<'r>(all: impl IntoIterator<Item = &'r Rule>) -> Self {
        let mut compiled = Self::default();
        // Without a rule of their own, intentions follow the combined rules of their service.
        let mut services: BTreeMap<(&str, bool), (Access, Option<Access>)> = BTreeMap::new();
        for rule in all {
            let (name, prefix) = match &rule.names {
                Names::All => {
                    let whole = compiled.whole.entry(rule.resource).or_insert(rule.access);
                    *whole = (*whole).max(rule.access);
                    continue;
                }
                Names::Exact(name) => (name.as_str(), false),
                Names::Prefix(name) => (name.as_str(), true),
            };
            let trie = compiled.named.entry(rule.resource).or_default();
            trie.add(name, prefix, rule.access);
            if rule.resource == Resource::Service {
                let merged = services.entry((name, prefix));
                let (access, intentions) = merged.or_insert((rule.access, None));
                *access = (*access).max(rule.access);
                *intentions = (*intentions).max(rule.intentions);
            }
        }
        for ((name, prefix), (access, intentions)) in services {
            let implied = match access {
                Access::Read | Access::Write => Access::Read,
                Access::List | Access::Deny => Access::Deny,
            };
            let trie = compiled.named.entry(Resource::Intention).or_default();
            trie.add(name, prefix, intentions.unwrap_or(implied));
        }
        compiled
    }

    fn whole(&self, resource: Resource, wanted: Access) -> Option<bool> {
        let rule = self.whole.get(&resource)?;
        Some(rule.permits(wanted))
    }

    fn named(&self, resource: Resource, name: &str, wanted: Access) -> Option<bool> {
        let rule = self.named.get(&resource)?.rule(name)?;
        Some(rule.permits(wanted))
    }

    /// Whether any rule permits reading something.
    fn shows_anything(&self) -> bool {
        let whole = self.whole.values();
        whole.copied().any(|rule| rule.permits(Access::Read))
            || self
                .named
                .values()
                .any(|trie| trie.any(Access::Read) == Some(true))
    }
}

/// A permission check for an unknown resource or access level. The texts are Consul's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadQuestion {
    /// Unknown resource.
    #[error("Invalid ACL resource requested: {0:?}")]
    Resource(String),
    /// The resource does not have this access level.
    #[error("Invalid access level for {resource} resource: {access}")]
    Access {
        /// The resource.
        resource: Resource,
        /// The requested access level.
        access: String,
    },
}

impl Authorizer {
    /// Permits everything, including access control. Used while ACLs are disabled.
    pub fn manage_all() -> Self {
        Self::of(Grant::Manage)
    }

    /// Permits nothing.
    pub fn deny_all() -> Self {
        Self::of(Grant::Default(DefaultPolicy::Deny, None))
    }

    /// Combines rules of the default tenancy; the default policy applies where none matches.
    pub fn new<'r>(rules: impl IntoIterator<Item = &'r Rules>, default: DefaultPolicy) -> Self {
        let own = Tenancy::default();
        Self::with_defaults(rules.into_iter().map(|rules| (&own, rules)), [], default)
    }

    /// Combines the rules of policies, each with the policy's tenancy. Where none matches, the rules
    /// of the namespace defaults apply, then the default policy.
    pub fn with_defaults<'r>(
        rules: impl IntoIterator<Item = (&'r Tenancy, &'r Rules)>,
        of_namespace: impl IntoIterator<Item = (&'r Tenancy, &'r Rules)>,
        default: DefaultPolicy,
    ) -> Self {
        let mut granted = Granted::default();
        granted.add(rules);
        granted.add(of_namespace);
        let any = granted != Granted::default();
        Self::of(Grant::Default(default, any.then(|| Arc::new(granted))))
    }

    fn of(grant: Grant) -> Self {
        let tenancy = Tenancy::default();
        Self { grant, tenancy }
    }

    /// The same authorizer for another tenancy. Resources of a partition or of the whole mesh are
    /// looked up there, whichever namespace is given.
    #[must_use]
    pub fn within(&self, tenancy: &Tenancy) -> Self {
        Self {
            grant: self.grant.clone(),
            tenancy: tenancy.clone(),
        }
    }

    /// The tenancy whose resources it decides about.
    pub fn tenancy(&self) -> &Tenancy {
        &self.tenancy
    }

    /// Applies the first matching rule, or the default policy.
    fn decide(&self, rule: impl FnOnce(&Granted) -> Option<bool>) -> bool {
        match &self.grant {
            Grant::Manage => true,
            Grant::Default(default, rules) => rules
                .as_deref()
                .and_then(rule)
                .unwrap_or(*default == DefaultPolicy::Allow),
        }
    }

    /// Whether what is imported from a peer may be read: by those who may write a service, as that may call it, or who
    /// may read all of its kind. As in Consul, rules for its name do not count, because the names are the peer's.
    fn imported(&self, reads_all: impl FnOnce(&Self) -> bool) -> bool {
        let here = self.within(&self.tenancy.of_peer(""));
        here.service_write_any() || reads_all(&here)
    }

    /// For named resources of a namespace.
    fn named(&self, resource: Resource, name: &str, wanted: Access) -> bool {
        if !self.tenancy.peer.is_empty() && resource == Resource::Service {
            return wanted == Access::Read
                && self.imported(|here| here.trie(resource, |trie| trie.all(wanted)));
        }
        self.decide(|rules| rules.first(&self.tenancy, |rules| rules.named(resource, name, wanted)))
    }

    fn trie(&self, resource: Resource, ask: impl Fn(&Trie) -> Option<bool>) -> bool {
        self.decide(|rules| rules.first(&self.tenancy, |rules| ask(rules.named.get(&resource)?)))
    }

    /// Whether a resource with names may be accessed under any name and in any tenancy: what is not permitted here is
    /// permitted for no name. With the default policy `allow` that is unknown, so it counts as permitted.
    pub fn some(&self, resource: Resource, wanted: Access) -> bool {
        match &self.grant {
            Grant::Manage | Grant::Default(DefaultPolicy::Allow, _) => true,
            Grant::Default(DefaultPolicy::Deny, rules) => {
                let mut layers = rules.iter().flat_map(|granted| &granted.0);
                layers.any(|(_, rules)| {
                    let tries = rules.named.get(&resource);
                    tries.and_then(|trie| trie.any(wanted)) == Some(true)
                })
            }
        }
    }

    /// For named resources of the whole mesh.
    fn mesh_named(&self, resource: Resource, name: &str, wanted: Access) -> bool {
        let main = Tenancy::default();
        self.decide(|rules| rules.first(&main, |rules| rules.named(resource, name, wanted)))
    }

    fn mesh_whole(&self, resource: Resource, wanted: Access) -> bool {
        let main = Tenancy::default();
        self.decide(|rules| rules.first(&main, |rules| rules.whole(resource, wanted)))
    }

    /// Nodes belong to a partition. They are visible to tokens that may read them in the partition or
    /// in the current namespace.
    fn node(&self, node: &str, wanted: Access) -> bool {
        if !self.tenancy.peer.is_empty() {
            return wanted == Access::Read && self.imported(Self::node_read_all);
        }
        self.nodes(wanted, |trie| Some(trie.rule(node)?.permits(wanted)))
    }

    fn nodes(&self, wanted: Access, ask: impl Fn(&Trie) -> Option<bool>) -> bool {
        let ask = |rules: &Compiled| ask(rules.named.get(&Resource::Node)?);
        self.decide(|rules| {
            let here = (wanted == Access::Read).then(|| rules.first(&self.tenancy, ask));
            let above = || rules.first(&self.tenancy.of_partition(), ask);
            here.flatten().or_else(above)
        })
    }

    /// Access to ACLs themselves, which the default policy never permits.
    fn acl(&self, wanted: Access) -> bool {
        match &self.grant {
            Grant::Manage => true,
            Grant::Default(_, rules) => rules
                .as_deref()
                .and_then(|rules| {
                    rules.first(&self.tenancy, |rules| rules.whole(Resource::Acl, wanted))
                })
                .unwrap_or(false),
        }
    }

    /// For resources that operator rules cover, unless they have a rule of their own.
    fn operated(&self, resource: Resource, wanted: Access) -> bool {
        let partition = self.tenancy.of_partition();
        self.operated_or(wanted, |rules| {
            rules.first(&partition, |rules| rules.whole(resource, wanted))
        })
    }

    fn operated_or(&self, wanted: Access, own: impl FnOnce(&Granted) -> Option<bool>) -> bool {
        let main = Tenancy::default();
        self.decide(|rules| {
            let operator = || rules.first(&main, |rules| rules.whole(Resource::Operator, wanted));
            own(rules).or_else(operator)
        })
    }

    fn namespace(&self, name: &str, wanted: Access) -> bool {
        let partition = self.tenancy.of_partition();
        self.operated_or(wanted, |rules| {
            rules.first(&partition, |rules| {
                rules.named(Resource::Namespace, name, wanted)
            })
        })
    }

    fn partition(&self, name: &str, wanted: Access) -> bool {
        let main = Tenancy::default();
        self.operated_or(wanted, |rules| {
            rules.first(&main, |rules| {
                rules.named(Resource::Partition, name, wanted)
            })
        })
    }

    /// Read a namespace of this partition. Permitted if anything in it may be read.
    pub fn namespace_read(&self, name: &str) -> bool {
        let within = Tenancy {
            namespace: name.into(),
            ..self.tenancy.clone()
        };
        let sees = match &self.grant {
            Grant::Default(_, Some(rules)) => {
                let shown = |rules: &Compiled| rules.shows_anything().then_some(());
                rules.first(&within, shown).is_some()
            }
            Grant::Manage | Grant::Default(_, None) => false,
        };
        sees || self.namespace(name, Access::Read)
    }

    /// Write at least one service of the tenancy, as some lists require.
    pub fn service_write_any(&self) -> bool {
        self.trie(Resource::Service, |trie| trie.any(Access::Write))
    }

    /// Read every node.
    pub fn node_read_all(&self) -> bool {
        self.nodes(Access::Read, |trie| trie.all(Access::Read))
    }

    fn intention(&self, destination: &str, wanted: Access) -> bool {
        match (destination, wanted) {
            (WILDCARD, Access::Read) => self.trie(Resource::Intention, |trie| trie.any(wanted)),
            (WILDCARD, _) => self.trie(Resource::Intention, |trie| trie.all(wanted)),
            (name, _) => self.named(Resource::Intention, name, wanted),
        }
    }

    /// Change every key with a prefix.
    pub fn key_write_prefix(&self, prefix: &str) -> bool {
        self.trie(Resource::Key, |trie| trie.below(prefix, Access::Write))
    }

    /// Access data that contains secrets of every tenant, whichever tenancy is current: full
    /// snapshots and the tokens of prepared queries.
    pub fn acl_write_of_mesh(&self) -> bool {
        self.within(&Tenancy::default()).acl_write()
    }

    /// Answers a permission check given as texts: resource, access level and, for resources with
    /// names, the name.
    ///
    /// # Errors
    ///
    /// [`BadQuestion`] when the resource or access level does not exist.
    pub fn permits(&self, resource: &str, access: &str, name: &str) -> Result<bool, BadQuestion> {
        let known = Resource::parse(resource);
        let resource = known.ok_or_else(|| BadQuestion::Resource(resource.to_owned()))?;
        let wanted = match access.to_ascii_lowercase().as_str() {
            "read" => Access::Read,
            "write" => Access::Write,
            "list" if resource == Resource::Key => Access::List,
            "write-prefix" if resource == Resource::Key => {
                return Ok(self.key_write_prefix(name));
            }
            _ => {
                let access = access.to_owned();
                return Err(BadQuestion::Access { resource, access });
            }
        };
        Ok(match resource {
            Resource::Acl => self.acl(wanted),
            Resource::Intention => self.intention(name, wanted),
            Resource::Keyring | Resource::Operator => self.mesh_whole(resource, wanted),
            Resource::Mesh | Resource::Peering => self.operated(resource, wanted),
            Resource::Namespace => self.namespace(name, wanted),
            Resource::Partition => self.partition(name, wanted),
            Resource::Node => self.node(name, wanted),
            Resource::Agent | Resource::Event | Resource::Query => {
                self.mesh_named(resource, name, wanted)
            }
            Resource::Key | Resource::Service | Resource::Session => {
                self.named(resource, name, wanted)
            }
        })
    }
}

/// Defines the questions about permissions: the name and argument of each, and how it is decided.
macro_rules! questions {
    ($($(#[$about:meta])* $question:ident($($name:ident)?) = $decide:ident($($with:expr),*);)*) => {
        impl Authorizer {
            $(
                $(#[$about])*
                pub fn $question(&self $(, $name: &str)?) -> bool {
                    self.$decide($($with),*)
                }
            )*
        }
    };
}

questions! {
    /// Create, change and delete a namespace of this partition.
    namespace_write(name) = namespace(name, Access::Write);
    /// Read a partition.
    partition_read(name) = partition(name, Access::Read);
    /// Create, change and delete a partition.
    partition_write(name) = partition(name, Access::Write);
    /// Read instances of a service.
    service_read(service) = named(Resource::Service, service, Access::Read);
    /// Register instances of a service and act as it: obtain its certificates and configuration.
    service_write(service) = named(Resource::Service, service, Access::Write);
    /// Read a node.
    node_read(node) = node(node, Access::Read);
    /// Register a node.
    node_write(node) = node(node, Access::Write);
    /// Read the settings and metrics of the server or agent with this name.
    agent_read(node) = mesh_named(Resource::Agent, node, Access::Read);
    /// Manage the server or agent with this name: its tokens, and shutting it down.
    agent_write(node) = mesh_named(Resource::Agent, node, Access::Write);
    /// Read the intentions of a destination; `*` means those of any service.
    intention_read(destination) = intention(destination, Access::Read);
    /// Change the intentions of a destination; `*` means those of every service.
    intention_write(destination) = intention(destination, Access::Write);
    /// Read a prepared query by name.
    query_read(name) = mesh_named(Resource::Query, name, Access::Read);
    /// Change a prepared query by name.
    query_write(name) = mesh_named(Resource::Query, name, Access::Write);
    /// Read a key.
    key_read(key) = named(Resource::Key, key, Access::Read);
    /// List the keys with a prefix.
    key_list(prefix) = named(Resource::Key, prefix, Access::List);
    /// Change a key.
    key_write(key) = named(Resource::Key, key, Access::Write);
    /// Read the sessions of a node.
    session_read(node) = named(Resource::Session, node, Access::Read);
    /// Create, renew and destroy sessions of a node.
    session_write(node) = named(Resource::Session, node, Access::Write);
    /// Read events with a name.
    event_read(name) = mesh_named(Resource::Event, name, Access::Read);
    /// Fire events with a name.
    event_write(name) = mesh_named(Resource::Event, name, Access::Write);
    /// Read mesh-wide settings.
    mesh_read() = operated(Resource::Mesh, Access::Read);
    /// Change mesh-wide settings.
    mesh_write() = operated(Resource::Mesh, Access::Write);
    /// Read operator data, such as the autopilot configuration.
    operator_read() = mesh_whole(Resource::Operator, Access::Read);
    /// Change operator data, such as the autopilot configuration.
    operator_write() = mesh_whole(Resource::Operator, Access::Write);
    /// Read peerings with other clusters.
    peering_read() = operated(Resource::Peering, Access::Read);
    /// Change peerings with other clusters.
    peering_write() = operated(Resource::Peering, Access::Write);
    /// Read the gossip keyring.
    keyring_read() = mesh_whole(Resource::Keyring, Access::Read);
    /// Change the gossip keyring.
    keyring_write() = mesh_whole(Resource::Keyring, Access::Write);
    /// Read tokens, policies, roles, auth methods and binding rules.
    acl_read() = acl(Access::Read);
    /// Change tokens, policies, roles, auth methods and binding rules.
    acl_write() = acl(Access::Write);
}
