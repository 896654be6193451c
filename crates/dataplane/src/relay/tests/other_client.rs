//! A process of the pod other than Envoy that opens a stream to the relay, with arbitrary requests,
//! some beyond the limits, and arbitrary answers.

use std::collections::VecDeque;

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::rpc;
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER};

use super::super::core::{EnvoyStreamId, Event};
use super::mesh::{LIMITS, Mesh};

#[derive(Debug)]
pub(super) struct OtherClient {
    pub(super) stream_id: EnvoyStreamId,
    pub(super) from_relay: VecDeque<DeltaDiscoveryResponse>,
}

// Indices of some requests.
pub(super) const INVENTED_NAMES: usize = 0;
pub(super) const ONE_ENDPOINT: usize = 1;
pub(super) const ALL_CLUSTERS: usize = 5;
pub(super) const INVENTED_TYPE: usize = 6;
pub(super) const TOO_MANY_NAMES: usize = 9;

/// Number of different requests.
pub(super) const REQUESTS: usize = 10;

fn request(what: usize, which: usize) -> DeltaDiscoveryRequest {
    let invented = || {
        (0..4)
            .map(|number| format!("invented-{which}-{number}"))
            .collect::<Vec<_>>()
    };
    let request = |url: &str, names: Vec<String>| DeltaDiscoveryRequest {
        node: Bytes::from_static(b"other_client"),
        type_url: url.to_owned(),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    };
    match what {
        INVENTED_NAMES => request(ENDPOINT, invented()),
        ONE_ENDPOINT => request(ENDPOINT, vec![format!("c{which}")]),
        2 => request(CLUSTER, vec![format!("c{which}")]),
        3 => request(ENDPOINT, Vec::new()),
        4 => request(LISTENER, Vec::new()),
        ALL_CLUSTERS => DeltaDiscoveryRequest {
            initial_resource_versions: [("c0", "v1"), ("invented", "v1")]
                .map(|(name, version)| (name.to_owned(), version.to_owned()))
                .into(),
            ..request(CLUSTER, Vec::new())
        },
        INVENTED_TYPE => request(&format!("invented type {which}"), Vec::new()),
        7 => request(&format!("invented type {which}"), invented()),
        8 => DeltaDiscoveryRequest {
            resource_names_unsubscribe: vec!["*".to_owned(), format!("c{which}")],
            ..request(ENDPOINT, Vec::new())
        },
        _ => request(
            ENDPOINT,
            (0..=LIMITS.names)
                .map(|number| number.to_string())
                .collect(),
        ),
    }
}

impl Mesh {
    pub(super) fn other_client_connects(&mut self) {
        let stream_id = EnvoyStreamId(self.number());
        self.other_clients.push(OtherClient {
            stream_id,
            from_relay: VecDeque::new(),
        });
        self.handle(Event::EnvoyConnected(stream_id));
    }

    pub(super) fn other_client_asks(&mut self, place: usize, what: usize, which: usize) {
        if let Some(other_client) = self.other_clients.get(place) {
            let request = Box::new(request(what, which));
            self.handle(Event::EnvoyRequest(other_client.stream_id, request));
        }
    }

    pub(super) fn other_client_answers(&mut self, place: usize, accepts: bool) {
        let Some(other_client) = self.other_clients.get_mut(place) else {
            return;
        };
        let Some(response) = other_client.from_relay.pop_front() else {
            return;
        };
        let stream_id = other_client.stream_id;
        let error = rpc::Status {
            code: 13,
            message: "no".to_owned(),
            details: Vec::new(),
        };
        self.answered(stream_id, &response.type_url);
        let answer = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            error_detail: (!accepts).then_some(error),
            ..DeltaDiscoveryRequest::default()
        };
        self.handle(Event::EnvoyRequest(stream_id, Box::new(answer)));
    }

    pub(super) fn other_client_leaves(&mut self, place: usize) {
        if place < self.other_clients.len() {
            let other_client = self.other_clients.remove(place);
            self.handle(Event::EnvoyGone(other_client.stream_id));
        }
    }
}
