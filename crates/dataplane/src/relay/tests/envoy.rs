//! A model of Envoy's xDS client: its resources, its subscriptions, and the resources it waits for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::rpc;
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET};

use super::super::core::EnvoyStreamId;
use super::server::{Snapshot, route_of, version};

/// Names of secrets that clusters use.
pub(super) const SECRETS: [&str; 2] = ["leaf", "roots"];

#[derive(Debug, Default)]
pub(super) struct Envoy {
    pub(super) stream_id: Option<EnvoyStreamId>,
    pub(super) held: BTreeMap<String, BTreeMap<String, String>>,
    names: BTreeMap<&'static str, BTreeSet<String>>,
    /// Endpoints and routes that have not arrived since a resource that refers to them changed.
    warming: BTreeMap<&'static str, BTreeSet<String>>,
    /// Types requested on this stream.
    asked: BTreeSet<String>,
    introduced: bool,
    pub(super) rejections: usize,
    pub(super) to_relay: VecDeque<DeltaDiscoveryRequest>,
    pub(super) from_relay: VecDeque<DeltaDiscoveryResponse>,
    /// Types in the order in which their responses arrived.
    pub(super) received: Vec<String>,
    /// Names that it was asked to remove.
    pub(super) removed: Vec<String>,
}

impl Envoy {
    /// Opens a stream with the resources of an earlier one.
    pub(super) fn connect(&mut self, stream_id: EnvoyStreamId) {
        self.stream_id = Some(stream_id);
        self.asked.clear();
        self.introduced = false;
        self.to_relay.clear();
        self.from_relay.clear();
        self.request(CLUSTER, &[], &[]);
        for url in [ENDPOINT, SECRET, ROUTE] {
            let names: Vec<String> = self.names.get(url).into_iter().flatten().cloned().collect();
            if !names.is_empty() {
                self.request(url, &names, &[]);
            }
        }
        self.request(LISTENER, &[], &[]);
    }

    fn request(&mut self, url: &str, subscribe: &[String], unsubscribe: &[String]) {
        let first = self.asked.insert(url.to_owned());
        let held = self.held.get(url).cloned().unwrap_or_default();
        let node = if self.introduced {
            Bytes::new()
        } else {
            Bytes::from_static(b"node")
        };
        self.introduced = true;
        self.to_relay.push_back(DeltaDiscoveryRequest {
            node,
            type_url: url.to_owned(),
            resource_names_subscribe: subscribe.to_vec(),
            resource_names_unsubscribe: unsubscribe.to_vec(),
            initial_resource_versions: if first {
                held.into_iter().collect()
            } else {
                [].into()
            },
            ..DeltaDiscoveryRequest::default()
        });
    }

    /// Processes one response from the relay.
    pub(super) fn receive(&mut self, snapshot: &Snapshot) {
        let Some(response) = self.from_relay.pop_front() else {
            return;
        };
        let url = response.type_url.clone();
        self.received.push(url.clone());
        self.removed
            .extend(response.removed_resources.iter().cloned());
        let invalid = response.resources.iter().any(|resource| {
            snapshot
                .invalid
                .iter()
                .any(|number| version(*number) == resource.version)
        });
        let error = invalid.then(|| rpc::Status {
            code: 13,
            message: "invalid".to_owned(),
            details: Vec::new(),
        });
        self.to_relay.push_back(DeltaDiscoveryRequest {
            type_url: url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail: error,
            ..DeltaDiscoveryRequest::default()
        });
        if invalid {
            self.rejections += 1;
            return;
        }
        self.apply(&url, &response);
        match url.as_str() {
            CLUSTER => self.follow(ENDPOINT, &response, str::to_owned),
            LISTENER => self.follow(ROUTE, &response, route_of),
            _ => {}
        }
        if url == CLUSTER && !self.asked.contains(SECRET) {
            let names = SECRETS.map(str::to_owned);
            self.names.insert(SECRET, names.iter().cloned().collect());
            self.request(SECRET, &names, &[]);
        }
    }

    fn apply(&mut self, url: &str, response: &DeltaDiscoveryResponse) {
        let held = self.held.entry(url.to_owned()).or_default();
        for resource in &response.resources {
            let body = String::from_utf8(resource.resource.to_vec()).unwrap();
            let number = resource.version.trim_start_matches('v');
            assert_eq!(
                body,
                format!("{url} {} {number}", resource.name),
                "a foreign body"
            );
            if let Some(names) = self.names.get(url)
                && !names.contains(&resource.name)
            {
                // It was in flight when Envoy unsubscribed.
                continue;
            }
            held.insert(resource.name.clone(), resource.version.clone());
            if let Some(warming) = self.warming.get_mut(url) {
                warming.remove(&resource.name);
            }
        }
        for name in &response.removed_resources {
            held.remove(name);
        }
    }

    /// Subscribes to the resources that changed ones refer to, and waits for them.
    fn follow(
        &mut self,
        child: &'static str,
        response: &DeltaDiscoveryResponse,
        name_of: impl Fn(&str) -> String,
    ) {
        let names = self.names.entry(child).or_default();
        let warming = self.warming.entry(child).or_default();
        let mut subscribe = Vec::new();
        let mut unsubscribe = Vec::new();
        for resource in &response.resources {
            let name = name_of(&resource.name);
            warming.insert(name.clone());
            if names.insert(name.clone()) {
                subscribe.push(name);
            }
        }
        for removed in &response.removed_resources {
            let name = name_of(removed);
            warming.remove(&name);
            if names.remove(&name) {
                self.held.entry(child.to_owned()).or_default().remove(&name);
                unsubscribe.push(name);
            }
        }
        if !subscribe.is_empty() || !unsubscribe.is_empty() {
            self.request(child, &subscribe, &unsubscribe);
        }
    }

    /// Panics unless Envoy holds the snapshot's resources and waits for nothing.
    pub(super) fn assert_holds(&self, snapshot: &Snapshot, when: &str) {
        for url in [CLUSTER, ENDPOINT, LISTENER, ROUTE] {
            let expected: BTreeMap<String, String> = snapshot
                .get(url)
                .into_iter()
                .map(|(name, number)| (name, version(number)))
                .collect();
            let held = self.held.get(url).cloned().unwrap_or_default();
            assert_eq!(held, expected, "{when}: {url}");
        }
        for name in SECRETS {
            let expected = snapshot
                .get(SECRET)
                .get(name)
                .map(|number| version(*number));
            let held = self
                .held
                .get(SECRET)
                .and_then(|held| held.get(name))
                .cloned();
            assert_eq!(held, expected, "{when}: secret {name}");
        }
        for (url, names) in &self.warming {
            assert!(names.is_empty(), "{when}: still waits for {url} {names:?}");
        }
    }
}
