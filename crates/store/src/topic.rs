//! What can be watched. A topic names a set of rows; it never holds them.

use std::sync::Arc;

use legate_model::{ConfigKind, WILDCARD};

/// A set of rows that change together, as far as readers care.
///
/// Names are compared as the tables compare them: without regard to case.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// The nodes themselves, without what runs on them.
    Nodes,
    /// One node with the instances and checks on it.
    Node(Arc<str>),
    /// Which services exist, and their tags.
    Services,
    /// The instances of one service with their nodes and checks.
    Service(Arc<str>),
    /// The instances through which one service is reached in the mesh: its proxies, and instances
    /// that speak the mesh protocol themselves. With their nodes and checks.
    Connect(Arc<str>),
    /// One instance with its node and checks.
    Instance {
        /// The node's name.
        node: Arc<str>,
        /// The service id.
        id: Arc<str>,
    },
    /// The CA's root certificates.
    CaRoots,
    /// All intentions.
    Intentions,
    /// The intentions that apply to one destination, those for `*` included.
    IntentionsFor(Arc<str>),
    /// All config entries of one kind.
    ConfigEntries(ConfigKind),
    /// One config entry.
    ConfigEntry {
        /// The kind, such as `service-defaults`.
        kind: ConfigKind,
        /// The entry's name.
        name: Arc<str>,
    },
    /// The ACL tokens.
    Tokens,
    /// The ways to log in.
    AuthMethods,
    /// What a login may do.
    BindingRules,
}

/// Topics that come and go in number share the index of the last one that went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Family {
    Node,
    Service,
    Connect,
    Instance,
    Intentions,
    ConfigEntry,
}

impl Topic {
    /// The same topic with the names as the tables spell them.
    pub(crate) fn folded(self) -> Self {
        match self {
            Self::Node(name) => Self::Node(fold_arc(name)),
            Self::Service(name) => Self::Service(fold_arc(name)),
            Self::Connect(name) => Self::Connect(fold_arc(name)),
            Self::Instance { node, id } => Self::Instance {
                node: fold_arc(node),
                id: fold_arc(id),
            },
            Self::IntentionsFor(name) => Self::IntentionsFor(fold_arc(name)),
            Self::ConfigEntry { kind, name } => Self::ConfigEntry {
                kind,
                name: fold_arc(name),
            },
            fixed @ (Self::Nodes
            | Self::Services
            | Self::CaRoots
            | Self::Intentions
            | Self::ConfigEntries(_)
            | Self::Tokens
            | Self::AuthMethods
            | Self::BindingRules) => fixed,
        }
    }

    /// The family of a topic whose rows can vanish for good; `None` for those of a fixed number.
    pub(crate) fn family(&self) -> Option<Family> {
        match self {
            Self::Node(_) => Some(Family::Node),
            Self::Service(_) => Some(Family::Service),
            Self::Connect(_) => Some(Family::Connect),
            Self::Instance { .. } => Some(Family::Instance),
            // Those for everybody are one topic, and part of all the others.
            Self::IntentionsFor(name) if &**name == WILDCARD => None,
            Self::IntentionsFor(_) => Some(Family::Intentions),
            Self::ConfigEntry { .. } => Some(Family::ConfigEntry),
            Self::Nodes
            | Self::Services
            | Self::CaRoots
            | Self::Intentions
            | Self::ConfigEntries(_)
            | Self::Tokens
            | Self::AuthMethods
            | Self::BindingRules => None,
        }
    }

    /// The topics whose changes are changes of this one too.
    pub(crate) fn implied(&self) -> Option<Self> {
        match self {
            Self::IntentionsFor(name) if &**name != WILDCARD => {
                Some(Self::IntentionsFor(WILDCARD.into()))
            }
            _ => None,
        }
    }
}

/// A name as the tables spell it: Consul compares names without regard to case.
pub(crate) fn fold(name: &str) -> Arc<str> {
    if name.chars().any(char::is_uppercase) {
        name.to_lowercase().into()
    } else {
        name.into()
    }
}

fn fold_arc(name: Arc<str>) -> Arc<str> {
    if name.chars().any(char::is_uppercase) {
        name.to_lowercase().into()
    } else {
        name
    }
}
