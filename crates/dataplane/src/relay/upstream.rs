//! The relay's streams towards servers, as the core sees them: what each has been asked for.
//!
//! There are two while a new server takes over, and none while no server is reachable.

use std::collections::BTreeSet;

use bytes::Bytes;
use legate_api::discovery::DeltaDiscoveryRequest;
use legate_api::rpc;

use super::cache::{Name, TypeKey, TypeState};
use super::core::Epoch;

/// Bytes of names in one request: Consul takes requests of 50 MiB, in which there are also the
/// versions of what Envoy has.
const PART: usize = 16 * 1024 * 1024;

/// One stream towards a server.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) epoch: Epoch,
    /// Who the first request of the stream said that asks.
    pub(super) introduced: Option<Bytes>,
    asked: BTreeSet<TypeKey>,
}

impl Lane {
    pub(super) fn new(epoch: Epoch) -> Lane {
        Lane {
            epoch,
            introduced: None,
            asked: BTreeSet::new(),
        }
    }

    /// Whether this stream was asked for the type.
    pub(super) fn has_asked(&self, key: TypeKey) -> bool {
        self.asked.contains(&key)
    }

    /// Takes note that the place of a type is another type's from now on. Returns whether this
    /// stream was asked for the former.
    pub(super) fn unask(&mut self, key: TypeKey) -> bool {
        self.asked.remove(&key)
    }

    /// Asks for a type with everything that is wanted of it and everything that Envoy has. Of what
    /// is held elsewhere no version is known: a server sends it, or says that it is gone.
    pub(super) fn ask(
        &mut self,
        key: TypeKey,
        state: &TypeState,
        node: &Bytes,
        held_elsewhere: Vec<Name>,
    ) -> Vec<DeltaDiscoveryRequest> {
        self.asked.insert(key);
        let mut names = in_parts(&state.names).into_iter();
        let mut versions = state.versions();
        let unversioned = held_elsewhere.iter().map(|name| name.to_string());
        versions.extend(unversioned.map(|name| (name, String::new())));
        let first = DeltaDiscoveryRequest {
            node: match &self.introduced {
                Some(_) => Bytes::new(),
                None => self.introduced.insert(node.clone()).clone(),
            },
            type_url: state.url.clone(),
            // An empty list is the form of "all" that every server knows.
            resource_names_subscribe: match state.wildcard {
                true => Vec::new(),
                false => names.next().unwrap_or_default(),
            },
            initial_resource_versions: versions,
            ..DeltaDiscoveryRequest::default()
        };
        let more = names.map(|names| change(&state.url, names, Vec::new()));
        [first].into_iter().chain(more).collect()
    }
}

/// Names in parts that fit into a request. What one Envoy may ask for is one part.
fn in_parts(names: &BTreeSet<Name>) -> Vec<Vec<String>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for name in names {
        bytes += name.len();
        if bytes > PART {
            bytes = name.len();
            parts.push(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push(name.to_string());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// A change of a subscription.
pub(super) fn change(
    url: &str,
    subscribe: Vec<String>,
    unsubscribe: Vec<String>,
) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: url.to_owned(),
        resource_names_subscribe: subscribe,
        resource_names_unsubscribe: unsubscribe,
        ..DeltaDiscoveryRequest::default()
    }
}

/// Envoy's answer to a response of the server's.
pub(super) fn answer(
    url: &str,
    nonce: String,
    error_detail: Option<rpc::Status>,
) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: url.to_owned(),
        response_nonce: nonce,
        error_detail,
        ..DeltaDiscoveryRequest::default()
    }
}
