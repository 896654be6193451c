//! The relay between Envoys and servers that send arbitrary messages: envelopes are decoded as on the wire and
//! passed to the relay's core in any order. Checks the invariants of the core.
//!
//! Input: steps of one byte with their operands; see [`Relay::step`].
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use legate_api::{rpc, type_url};
use legate_dataplane::relay::UpstreamStatus;
use legate_dataplane::relay::core::{Action, Core, EnvoyStreamId, Event, ServerStreamId};
use libfuzzer_sys::fuzz_target;
use prost::Message;

/// Maximum number of concurrent streams of each side. The relay itself has at most two.
const STREAMS: usize = 3;

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let mut relay = Relay::default();
    while relay.step(&mut input).is_some() {}
});

/// The remaining input; bytes are taken from the front.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Bytes that follow their length.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.byte()?).min(self.0.len());
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(taken)
    }

    /// Selects one of the items.
    fn choose<T: Clone>(&mut self, items: impl IntoIterator<Item = T>) -> Option<T> {
        let items: Vec<T> = items.into_iter().collect();
        let place = usize::from(self.byte()?);
        items.get(place.checked_rem(items.len())?).cloned()
    }

    /// Selects names by the bits of one byte.
    fn names(&mut self) -> Option<Vec<String>> {
        let bits = self.byte()?;
        let names = ["*", "a", "b", "c", "d", "e", "", "é"];
        let chosen = (0..8).filter(|bit| bits >> bit & 1 == 1);
        Some(chosen.map(|bit| names[bit].to_owned()).collect())
    }

    fn type_url(&mut self) -> Option<String> {
        self.choose(type_url::ORDERED).map(str::to_owned)
    }
}

/// The core, and the state of its Envoys and servers.
#[derive(Default)]
struct Relay {
    core: Core,
    streams: u64,
    /// Streams of Envoys, with the unanswered nonce of each type.
    envoys: BTreeMap<EnvoyStreamId, BTreeMap<String, String>>,
    /// Streams to servers, with the nonces received on them.
    servers: BTreeMap<ServerStreamId, BTreeSet<String>>,
}

impl Relay {
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.byte()? % 11 {
            0 if self.envoys.len() < STREAMS => {
                let id = EnvoyStreamId(self.number());
                self.envoys.insert(id, BTreeMap::new());
                self.handle(Event::EnvoyConnected(id));
            }
            1 if self.servers.len() < STREAMS => {
                let id = ServerStreamId(self.number());
                self.servers.insert(id, BTreeSet::new());
                self.handle(Event::ServerConnected(id));
            }
            2 => self.lose_envoy(input)?,
            3 => self.lose_server(input)?,
            4 => drop(self.handle(Event::Forget)),
            5 => {
                let bytes = Bytes::copy_from_slice(input.bytes()?);
                if let Some(request) = decode(bytes) {
                    self.request(input, request);
                }
            }
            6 => {
                let bytes = Bytes::copy_from_slice(input.bytes()?);
                if let Some(response) = decode(bytes) {
                    self.response(input, response);
                }
            }
            7 => self.answer(input, None)?,
            8 => self.answer(input, Some(rpc::Status::default()))?,
            9 => {
                let request = DeltaDiscoveryRequest {
                    type_url: input.type_url()?,
                    resource_names_subscribe: input.names()?,
                    resource_names_unsubscribe: input.names()?,
                    ..DeltaDiscoveryRequest::default()
                };
                self.request(input, request);
            }
            10 => {
                let response = self.made_response(input)?;
                self.response(input, response);
            }
            _ => {}
        }
        Some(())
    }

    fn number(&mut self) -> u64 {
        self.streams += 1;
        self.streams
    }

    fn made_response(&mut self, input: &mut Input<'_>) -> Option<DeltaDiscoveryResponse> {
        let type_url = input.type_url()?;
        let version = input.byte()?;
        let resources = input.names()?.into_iter().map(|name| Resource {
            name,
            version: version.to_string(),
            resource: Bytes::copy_from_slice(&[version]),
            ..Resource::default()
        });
        Some(DeltaDiscoveryResponse {
            type_url,
            resources: resources.collect(),
            removed_resources: input.names()?,
            nonce: self.number().to_string(),
            ..DeltaDiscoveryResponse::default()
        })
    }

    fn request(&mut self, input: &mut Input<'_>, request: DeltaDiscoveryRequest) {
        let Some(id) = input.choose(self.envoys.keys().copied()) else {
            return;
        };
        let unanswered = self.envoys.entry(id).or_default();
        if unanswered.get(&request.type_url) == Some(&request.response_nonce) {
            unanswered.remove(&request.type_url);
        }
        self.handle(Event::EnvoyRequest(id, Box::new(request)));
    }

    fn answer(&mut self, input: &mut Input<'_>, error: Option<rpc::Status>) -> Option<()> {
        let (id, unanswered) = input.choose(&self.envoys)?;
        let (type_url, nonce) = input.choose(unanswered)?;
        let (id, type_url, response_nonce) = (*id, type_url.clone(), nonce.clone());
        self.envoys.get_mut(&id)?.remove(&type_url);
        let request = DeltaDiscoveryRequest {
            type_url,
            response_nonce,
            error_detail: error,
            ..DeltaDiscoveryRequest::default()
        };
        self.handle(Event::EnvoyRequest(id, Box::new(request)));
        Some(())
    }

    /// Passes a response of a server on, unless the core currently reads none.
    fn response(&mut self, input: &mut Input<'_>, response: DeltaDiscoveryResponse) {
        let Some(id) = input.choose(self.servers.keys().copied()) else {
            return;
        };
        if self.core.wants_upstream() {
            let nonces = self.servers.entry(id).or_default();
            nonces.insert(response.nonce.clone());
            self.handle(Event::ServerResponse(id, Box::new(response)));
        }
    }

    /// Ends the stream of an Envoy. If it was the last one, the cache must not change, because it will return.
    fn lose_envoy(&mut self, input: &mut Input<'_>) -> Option<()> {
        let id = input.choose(self.envoys.keys().copied())?;
        self.envoys.remove(&id);
        let before = self.held();
        self.handle(Event::EnvoyGone(id));
        if self.envoys.is_empty() {
            assert_eq!(before, self.held(), "the last Envoy changed the cache");
        }
        Some(())
    }

    /// Ends the stream to a server, which no Envoy must notice.
    fn lose_server(&mut self, input: &mut Input<'_>) -> Option<()> {
        let id = input.choose(self.servers.keys().copied())?;
        self.servers.remove(&id);
        let before = self.held();
        let changed = self.handle(Event::ServerGone(id));
        assert!(!changed, "a lost server affected an Envoy");
        assert_eq!(before, self.held(), "a lost server changed the cache");
        Some(())
    }

    /// Number and size in bytes of the cached resources of each type.
    fn held(&self) -> Vec<(String, usize, usize)> {
        let types = self.core.status(UpstreamStatus::default()).types;
        let held = types.into_iter();
        held.map(|one| (one.type_url, one.resources, one.bytes))
            .collect()
    }

    /// Passes an event to the core; returns whether an Envoy was sent something.
    fn handle(&mut self, event: Event) -> bool {
        let actions = self.core.handle(event);
        let sent = actions
            .iter()
            .any(|action| matches!(action, Action::ToEnvoy(..)));
        for action in actions {
            self.act(action);
        }
        drop(self.core.missing());
        sent
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::ToEnvoy(id, response) => {
                same_on_the_wire(&response);
                let unanswered = self.envoys.get_mut(&id).expect("a response on no stream");
                let before = unanswered.insert(response.type_url, response.nonce);
                assert_eq!(before, None, "two unanswered responses of a type");
            }
            Action::ToServer(id, request) => {
                same_on_the_wire(&request);
                let nonces = self.servers.get(&id).expect("a request on no stream");
                let nonce = &request.response_nonce;
                let own = nonce.is_empty() || nonces.contains(nonce);
                assert!(own, "an answer to another stream");
            }
            Action::CloseEnvoy(id, _) => drop(self.envoys.remove(&id)),
            Action::RenewServer
            | Action::Accepted { .. }
            | Action::Rejected(_)
            | Action::Unexpected(_) => {}
        }
    }
}

/// Decodes a message and checks that encoding it preserves its meaning.
fn decode<M: Message + Default + PartialEq + Debug>(bytes: Bytes) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    same_on_the_wire(&message);
    Some(message)
}

fn same_on_the_wire<M: Message + Default + PartialEq + Debug>(message: &M) {
    let read = M::decode(Bytes::from(message.encode_to_vec())).expect("it was encoded");
    assert!(&read == message, "{message:?} becomes {read:?}");
}
