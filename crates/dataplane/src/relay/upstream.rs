//! The relay's streams towards servers, as the core sees them: what each has been asked for.
//!
//! There are two while a new server takes over, and none while no server is reachable.

use std::collections::BTreeSet;

use bytes::Bytes;
use legate_api::discovery::DeltaDiscoveryRequest;
use legate_api::rpc;

use super::cache::{TypeKey, TypeState};
use super::core::Epoch;

/// One stream towards a server.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) epoch: Epoch,
    /// The first request of a stream says who asks.
    introduced: bool,
    asked: BTreeSet<TypeKey>,
}

impl Lane {
    pub(super) fn new(epoch: Epoch) -> Lane {
        Lane {
            epoch,
            introduced: false,
            asked: BTreeSet::new(),
        }
    }

    /// Whether this stream was asked for the type.
    pub(super) fn has_asked(&self, key: TypeKey) -> bool {
        self.asked.contains(&key)
    }

    /// Asks for a type with everything that is wanted of it and everything that Envoy has.
    pub(super) fn ask(
        &mut self,
        key: TypeKey,
        state: &TypeState,
        node: &Bytes,
    ) -> Vec<DeltaDiscoveryRequest> {
        self.asked.insert(key);
        let names = || state.names.iter().map(|name| name.to_string()).collect();
        let first = DeltaDiscoveryRequest {
            node: if self.introduced {
                Bytes::new()
            } else {
                node.clone()
            },
            type_url: state.url.clone(),
            // An empty list is the form of "all" that every server knows.
            resource_names_subscribe: if state.wildcard { Vec::new() } else { names() },
            initial_resource_versions: state.versions(),
            ..DeltaDiscoveryRequest::default()
        };
        self.introduced = true;
        let mut requests = vec![first];
        if state.wildcard && !state.names.is_empty() {
            requests.push(change(&state.url, names(), Vec::new()));
        }
        requests
    }
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
