//! The protocol of one gateway's Envoy, without IO. It decodes resources to find what they refer to, because the
//! names differ between servers.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ROUTE};
use legate_runtime::BoxError;

use super::references::Content;

/// How much of each a configured gateway has at least.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) clusters: usize,
    /// Filter chains of all listeners.
    pub(super) chains: usize,
    /// Virtual hosts of all routes.
    pub(super) hosts: usize,
}

/// One stream.
#[derive(Debug, Default)]
pub(super) struct Session {
    asked: HashSet<(&'static str, String)>,
    missing: HashSet<(String, String)>,
    asked_for_listeners: bool,
    /// The size of each resource, by type and name.
    held: BTreeMap<String, HashMap<String, usize>>,
}

impl Session {
    /// Starts a stream with its first request.
    pub(super) fn start(node: Bytes) -> (Self, DeltaDiscoveryRequest) {
        let mut first = request(CLUSTER, Vec::new());
        first.node = node;
        (Self::default(), first)
    }

    /// The requests in reply to a response: the ACK, and new subscriptions.
    ///
    /// # Errors
    ///
    /// If a resource cannot be decoded.
    pub(super) fn on_response(
        &mut self,
        response: &DeltaDiscoveryResponse,
    ) -> Result<Vec<DeltaDiscoveryRequest>, BoxError> {
        let url = &response.type_url;
        let mut requests = vec![DeltaDiscoveryRequest {
            response_nonce: response.nonce.clone(),
            ..request(url, Vec::new())
        }];
        let mut new: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        let held = self.held.entry(url.clone()).or_default();
        for name in &response.removed_resources {
            held.remove(name);
        }
        for resource in &response.resources {
            let content = Content::of(url, &resource.resource)?;
            self.missing.remove(&(url.clone(), resource.name.clone()));
            held.insert(resource.name.clone(), content.size);
            for (url, name) in content.references {
                if self.asked.insert((url, name.clone())) {
                    self.missing.insert((url.to_owned(), name.clone()));
                    new.entry(url).or_default().push(name);
                }
            }
        }
        requests.extend(new.into_iter().map(|(url, names)| request(url, names)));
        if !self.asked_for_listeners && self.has_clusters() {
            self.asked_for_listeners = true;
            requests.push(request(LISTENER, Vec::new()));
        }
        Ok(requests)
    }

    /// Envoy subscribes to listeners once its clusters are complete.
    fn has_clusters(&self) -> bool {
        let of_clusters = |(url, _): &(String, String)| url == ENDPOINT;
        self.held.contains_key(CLUSTER) && !self.missing.iter().any(of_clusters)
    }

    /// What it lacks of what its resources refer to and of the expected size; `None` if it is configured.
    pub(super) fn lacks(&self, expected: Size) -> Option<String> {
        let of = |url: &str| self.held.get(url).into_iter().flatten();
        let size = Size {
            clusters: of(CLUSTER).count(),
            chains: of(LISTENER).map(|(_, size)| size).sum(),
            hosts: of(ROUTE).map(|(_, size)| size).sum(),
        };
        let large = size.clusters >= expected.clusters
            && size.chains >= expected.chains
            && size.hosts >= expected.hosts;
        let lacks = || {
            let some: Vec<_> = self.missing.iter().take(2).collect();
            format!(
                "{size:?} of {expected:?}, missing {} such as {some:?}",
                self.missing.len()
            )
        };
        (!large || !self.missing.is_empty()).then(lacks)
    }
}

fn request(url: &str, names: Vec<String>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: url.to_owned(),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    }
}
