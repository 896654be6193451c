//! A delta xDS client that behaves like a sidecar's Envoy, without IO: responses in, requests out.
//! It uses names only and never decodes a resource.

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::node::{BuildVersion, Node, SemanticVersion};
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ORDERED, ROUTE, SECRET};
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::catalog;

/// The cluster of the local application, the only one without EDS endpoints.
const LOCAL_APP: &str = "local_app";

/// References from a server's clusters and listeners, apart from endpoints.
#[derive(Debug, Clone, Copy)]
pub(crate) struct References {
    /// Secrets referenced by the clusters and the listener.
    pub(crate) secrets: &'static [&'static str],
    /// Routes referenced by the listener.
    pub(crate) routes: &'static [&'static str],
}

/// The encoded node of a proxy, as sent by Envoy with the bootstrap of `consul-dataplane`.
pub(crate) fn node(id: String, service: String, catalog_node: String) -> Bytes {
    let text = |value: String| Value {
        kind: Some(Kind::StringValue(value)),
    };
    let metadata = [
        ("node_name", catalog_node),
        ("namespace", "default".to_owned()),
        ("partition", "default".to_owned()),
    ];
    let fields = metadata.map(|(key, value)| (key.to_owned(), text(value)));
    let version = SemanticVersion {
        major: 1,
        minor: 34,
        patch: 1,
    };
    let node = Node {
        id,
        cluster: service,
        metadata: Some(Struct {
            fields: fields.into(),
        }),
        user_agent_name: "envoy".to_owned(),
        user_agent_build_version: Some(BuildVersion {
            version: Some(version),
            ..BuildVersion::default()
        }),
        ..Node::default()
    };
    node.encode_to_vec().into()
}

/// One type of resources on a stream.
#[derive(Debug, Default)]
struct Subscription {
    asked: bool,
    answered: bool,
    /// The subscribed names.
    names: Vec<String>,
    /// Subscribed names without a resource yet.
    missing: Vec<String>,
}

impl Subscription {
    fn is_complete(&self) -> bool {
        self.answered && self.missing.is_empty()
    }
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Session {
    references: References,
    /// The subscriptions in the order of [`ORDERED`].
    types: [Subscription; ORDERED.len()],
}

impl Session {
    /// Starts a stream with its first request.
    pub(crate) fn start(references: References, node: Bytes) -> (Self, DeltaDiscoveryRequest) {
        let mut session = Self {
            references,
            types: Default::default(),
        };
        let mut first = session.ask(CLUSTER, Vec::new());
        first.node = node;
        (session, first)
    }

    /// The requests in reply to a response: the ACK, and new subscriptions.
    pub(crate) fn on_response(
        &mut self,
        response: &DeltaDiscoveryResponse,
    ) -> Vec<DeltaDiscoveryRequest> {
        let mut requests = vec![DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        }];
        let received = self.of(&response.type_url);
        received.answered = true;
        let came = |name: &String| response.resources.iter().any(|one| one.name == *name);
        received.missing.retain(|name| !came(name));
        if response.type_url == CLUSTER {
            let known = &self.of(ENDPOINT).names;
            let names = response.resources.iter().map(|cluster| &cluster.name);
            let names = names.filter(|name| *name != LOCAL_APP && !known.contains(name));
            let new: Vec<String> = names.cloned().collect();
            if !new.is_empty() {
                requests.push(self.ask(ENDPOINT, new));
            }
            requests.extend(self.ask_once(SECRET, self.references.secrets));
        }
        // Envoy subscribes to listeners once its clusters are complete.
        let has_clusters = [CLUSTER, ENDPOINT]
            .iter()
            .all(|url| self.of(url).is_complete());
        if has_clusters && !self.of(LISTENER).asked {
            requests.push(self.ask(LISTENER, Vec::new()));
        }
        if response.type_url == LISTENER {
            requests.extend(self.routes(response));
        }
        requests
    }

    /// Whether the proxy has all required resources.
    pub(crate) fn is_configured(&self) -> bool {
        let asked = self.types.iter().filter(|one| one.asked);
        self.types[place(LISTENER)].answered && asked.into_iter().all(Subscription::is_complete)
    }

    /// Subscribes to the routes that listeners refer to: their own, and those of the service with a
    /// router.
    fn routes(&mut self, listeners: &DeltaDiscoveryResponse) -> Option<DeltaDiscoveryRequest> {
        if self.of(ROUTE).asked {
            return None;
        }
        let own = self.references.routes.iter().map(ToString::to_string);
        let routed = catalog::routed();
        let is_routed = |name: &str| name.split(':').next() == Some(&routed);
        let mut names: Vec<String> = own.collect();
        if listeners.resources.iter().any(|one| is_routed(&one.name)) {
            names.push(routed);
        }
        (!names.is_empty()).then(|| self.ask(ROUTE, names))
    }

    fn ask_once(
        &mut self,
        url: &'static str,
        names: &[&'static str],
    ) -> Option<DeltaDiscoveryRequest> {
        let new = !names.is_empty() && !self.of(url).asked;
        new.then(|| self.ask(url, names.iter().map(ToString::to_string).collect()))
    }

    fn ask(&mut self, url: &'static str, names: Vec<String>) -> DeltaDiscoveryRequest {
        let subscription = self.of(url);
        subscription.asked = true;
        subscription.names.extend_from_slice(&names);
        subscription.missing.extend_from_slice(&names);
        DeltaDiscoveryRequest {
            type_url: url.to_owned(),
            resource_names_subscribe: names,
            ..DeltaDiscoveryRequest::default()
        }
    }

    fn of(&mut self, url: &str) -> &mut Subscription {
        &mut self.types[place(url)]
    }
}

/// The index of a type in [`ORDERED`].
///
/// # Panics
///
/// If the type is not among them.
pub(crate) fn place(url: &str) -> usize {
    let place = ORDERED.iter().position(|one| *one == url);
    place.unwrap_or_else(|| panic!("the server sends {url}, for which nobody asked"))
}
