//! Compares two consecutive snapshots of a proxy. Values are the same if they are the same `Arc`s.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use legate_model::Upstream;
use legate_proxycfg::{Proxy, UpstreamSnapshot};

use crate::telemetry::Telemetry;

/// The inputs that are the same as in the last snapshot, of those that every proxy has.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SameProxy {
    /// Trust domain and datacenter.
    pub(super) mesh_name: bool,
    pub(super) instance: bool,
    /// The locality of the proxy.
    pub(super) locality: bool,
    pub(super) node_address: bool,
    pub(super) mesh: bool,
    /// Access logs and tracing.
    pub(super) telemetry: bool,
    pub(super) roots: bool,
    pub(super) default_intention: bool,
}

impl SameProxy {
    pub(super) fn between(last: &Proxy, now: &Proxy) -> Self {
        Self {
            mesh_name: last.trust_domain == now.trust_domain && last.datacenter == now.datacenter,
            instance: Arc::ptr_eq(&last.instance, &now.instance),
            locality: last.instance.locality == now.instance.locality,
            node_address: last.node_address == now.node_address,
            mesh: Arc::ptr_eq(&last.mesh, &now.mesh),
            telemetry: Telemetry::is_same(&last.instance, &now.instance),
            roots: Arc::ptr_eq(&last.roots, &now.roots),
            default_intention: last.default_intention == now.default_intention,
        }
    }

    /// Whether all inputs are the same.
    pub(super) fn all(self) -> bool {
        let all = Self {
            mesh_name: true,
            instance: true,
            locality: true,
            node_address: true,
            mesh: true,
            telemetry: true,
            roots: true,
            default_intention: true,
        };
        self == all
    }
}

/// Whether two upstreams of one proxy are in the same tenancy.
pub(super) fn is_of_same_tenancy(one: &Upstream, other: &Upstream) -> bool {
    one.destination_partition == other.destination_partition
        && one.destination_namespace == other.destination_namespace
}

/// The index of an upstream in the last snapshot.
pub(super) fn counterpart(
    last: &[UpstreamSnapshot],
    place: usize,
    upstream: &UpstreamSnapshot,
) -> Option<usize> {
    let now = &upstream.upstream;
    let same = |other: &UpstreamSnapshot| Arc::ptr_eq(&other.upstream, now);
    let alike = |other: &UpstreamSnapshot| {
        let other = &other.upstream;
        other.destination_name == now.destination_name
            && is_of_same_tenancy(other, now)
            && other.destination_type.is_service() == now.destination_type.is_service()
            && other.datacenter == now.datacenter
            && other.destination_peer == now.destination_peer
    };
    let in_place = last.get(place).filter(|other| same(other));
    in_place
        .map(|_| place)
        .or_else(|| last.iter().position(same))
        .or_else(|| last.get(place).filter(|other| alike(other)).map(|_| place))
        .or_else(|| last.iter().position(alike))
}

/// Whether two upstreams have the same settings and the same chain.
pub(super) fn same_chain(last: &UpstreamSnapshot, now: &UpstreamSnapshot) -> bool {
    let chains = last
        .resolved
        .chain
        .as_ref()
        .ok()
        .zip(now.resolved.chain.as_ref().ok());
    Arc::ptr_eq(&last.upstream, &now.upstream)
        && chains.is_some_and(|(last, now)| Arc::ptr_eq(last, now))
}

/// The indexes of the values of a list in the last snapshot, by what identifies them.
pub(super) enum Positions<K> {
    /// The same as in the current one.
    Same,
    /// Those of the last snapshot, and their indexes if any value is not where it was.
    Keys(Vec<K>, OnceCell<HashMap<K, usize>>),
}

impl<K: Clone + Eq + Hash> Positions<K> {
    /// `last` are the keys in the last snapshot, and `same` is whether the list is still that one.
    pub(super) fn of(same: bool, last: impl Iterator<Item = K>) -> Self {
        match same {
            true => Self::Same,
            false => Self::Keys(last.collect(), OnceCell::new()),
        }
    }

    /// The index of the value that is now at `at`.
    pub(super) fn before(&self, at: usize, key: &K) -> Option<usize> {
        let (keys, positions) = match self {
            Self::Same => return Some(at),
            Self::Keys(keys, positions) => (keys, positions),
        };
        if keys.get(at) == Some(key) {
            return Some(at);
        }
        let positions = positions.get_or_init(|| keys.iter().cloned().zip(0..).collect());
        positions.get(key).copied()
    }
}
