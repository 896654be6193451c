//! What becomes of a cluster's objects.

use std::collections::BTreeMap;

use legate_routes::{Datagrams, Frontend, Listener};

use crate::condition::Condition;
use crate::kind::RouteKind;
use crate::object::Key;
use crate::types::{GatewayAddress, KindReference, ParametersReference, ParentReference};

/// What becomes of the objects of a [`crate::World`]. There is nothing of gateways of other
/// controllers, and what others have said about an object is not known here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Of each class of this controller, by name.
    pub classes: BTreeMap<String, ClassVerdict>,
    /// Of each gateway.
    pub gateways: BTreeMap<Key, GatewayVerdict>,
    /// Of each ListenerSet that names one of these gateways.
    pub listener_sets: BTreeMap<Key, ListenerSetVerdict>,
    /// Of each route that names one of these.
    pub routes: BTreeMap<RouteId, RouteVerdict>,
    /// Of each BackendTLSPolicy that concerns one of these gateways.
    pub policies: BTreeMap<Key, PolicyVerdict>,
    /// What each gateway serves. Nothing is made for a gateway that is not here.
    pub served: BTreeMap<Key, Served>,
    /// How callers in the mesh reach Services, by Service and callers.
    pub frontends: Vec<ServedFrontend>,
}

/// What is said of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassVerdict {
    /// The generation that it is about.
    pub generation: i64,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// What its gateways can do, sorted.
    pub supported_features: Vec<&'static str>,
}

/// What is said of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayVerdict {
    /// The generation that it is about.
    pub generation: i64,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Its addresses.
    pub addresses: Vec<GatewayAddress>,
    /// Its own listeners, in the order of its spec.
    pub listeners: Vec<ListenerVerdict>,
    /// How many ListenerSets add listeners to it.
    pub attached_listener_sets: usize,
}

/// What is said of a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerSetVerdict {
    /// The generation that it is about.
    pub generation: i64,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Its listeners, in the order of its spec.
    pub listeners: Vec<ListenerVerdict>,
}

/// What is said of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerVerdict {
    /// Its name.
    pub name: String,
    /// The kinds of routes that can be attached.
    pub supported_kinds: Vec<KindReference>,
    /// How many are.
    pub attached_routes: usize,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// The name of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId {
    /// Its kind.
    pub kind: RouteKind,
    /// Its name.
    pub key: Key,
}

/// What is said of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteVerdict {
    /// The generation that it is about.
    pub generation: i64,
    /// For each of its references to gateways of this controller and to Services, in the order of its
    /// spec.
    pub parents: Vec<ParentVerdict>,
}

/// What is said of a route to one that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentVerdict {
    /// The reference, as it is in the route.
    pub parent: ParentReference,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// What is said of a BackendTLSPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyVerdict {
    /// The generation that it is about.
    pub generation: i64,
    /// For each gateway that it concerns, at most [`MAX_ANCESTORS`] of them: the oldest.
    pub ancestors: Vec<AncestorVerdict>,
}

/// What the status of a policy has room for.
pub const MAX_ANCESTORS: usize = 16;

/// What is said of a policy for a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AncestorVerdict {
    /// The gateway.
    pub gateway: Key,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// What a gateway serves, and with what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// What is on the ports of TCP, by port.
    pub listeners: Vec<Listener>,
    /// What is on the ports of UDP, by port.
    pub datagrams: Vec<Datagrams>,
    /// What is made for it.
    pub infrastructure: InfrastructurePlan,
}

/// A frontend of a Service, and what it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedFrontend {
    /// The Service and the callers.
    pub frontend: Frontend,
    /// What is on each port of TCP that the Service has, by port.
    pub listeners: Vec<Listener>,
}

/// What is made for a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfrastructurePlan {
    /// The ports of its Service, and whether they are for datagrams.
    pub ports: Vec<(u16, bool)>,
    /// The addresses that it asks for.
    pub addresses: Vec<GatewayAddress>,
    /// Labels of everything that is made.
    pub labels: BTreeMap<String, String>,
    /// Annotations of everything that is made.
    pub annotations: BTreeMap<String, String>,
    /// Its settings, or else those of its class.
    pub parameters: Option<ParametersReference>,
}
