//! Envoys, the relay's core and a server, connected by queues that deliver one message at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use tonic::Status;

use super::super::core::{Action, Core, EnvoyStreamId, Event, ServerStreamId};
use super::super::limits::Limits;
use super::envoy::{Envoy, SECRETS};
use super::other_client::OtherClient;
use super::server::{Snapshot, Stream};

/// A stream between the relay and the server.
#[derive(Debug)]
pub(super) struct ServerStream {
    pub(super) id: ServerStreamId,
    pub(super) server: Stream,
    pub(super) to_server: VecDeque<DeltaDiscoveryRequest>,
    pub(super) to_relay: VecDeque<DeltaDiscoveryResponse>,
}

#[derive(Debug)]
pub(super) struct Mesh {
    pub(super) core: Core,
    pub(super) snapshot: Snapshot,
    pub(super) envoys: Vec<Envoy>,
    pub(super) other_clients: Vec<OtherClient>,
    pub(super) server_streams: Vec<ServerStream>,
    /// The stream that replaces another one on request, until the server responds on it.
    renewal: Option<ServerStreamId>,
    pub(super) resends_children: bool,
    /// Whether the server sends only one resource per response.
    pub(super) splits: bool,
    pub(super) debug: bool,
    next: u64,
    /// Types with an unanswered response, for each stream of an Envoy.
    unanswered: BTreeMap<EnvoyStreamId, BTreeSet<String>>,
    pub(super) rejected: Vec<String>,
    /// Streams that the relay closed because of limits.
    pub(super) refused: Vec<(EnvoyStreamId, Status)>,
}

/// Limits that suffice for an Envoy of this mesh, with little to spare.
pub(super) const LIMITS: Limits = Limits {
    types: 6,
    names: 12,
    bytes: 200,
    name: 64,
};

impl Mesh {
    /// A server with two clusters and a listener, one Envoy, nothing delivered.
    pub(super) fn new() -> Mesh {
        let mut snapshot = Snapshot::default();
        for name in ["c0", "c1"] {
            snapshot.add_cluster(name);
        }
        snapshot.add_listener("l0");
        for name in SECRETS {
            snapshot.bump_secret(name);
        }
        let mut mesh = Mesh {
            core: Core::with_limits(LIMITS),
            snapshot,
            envoys: Vec::new(),
            other_clients: Vec::new(),
            server_streams: Vec::new(),
            renewal: None,
            resends_children: false,
            splits: false,
            debug: false,
            next: 0,
            unanswered: BTreeMap::new(),
            rejected: Vec::new(),
            refused: Vec::new(),
        };
        mesh.start_envoy();
        mesh
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn handle(&mut self, event: Event) {
        let mut renew = false;
        if self.debug {
            eprintln!("EVENT {event:?}");
        }
        for action in self.core.handle(event) {
            if self.debug {
                eprintln!("   {action:?}");
            }
            match action {
                Action::RenewServer => renew = true,
                action => self.act(action),
            }
        }
        if renew {
            self.renew_server_stream();
        }
        self.assert_bounded();
    }

    fn renew_server_stream(&mut self) {
        if self.server_streams.is_empty() {
            return;
        }
        self.renewal = None;
        self.lose_server_stream(0);
        self.open_server_stream();
        self.renewal = self.server_streams.last().map(|stream| stream.id);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::ToEnvoy(id, response) => {
                let unanswered = self.unanswered.entry(id).or_default();
                assert!(
                    unanswered.insert(response.type_url.clone()),
                    "two unanswered responses"
                );
                if let Some(other_client) = self
                    .other_clients
                    .iter_mut()
                    .find(|one| one.stream_id == id)
                {
                    return other_client.from_relay.push_back(response);
                }
                let envoy = self
                    .envoys
                    .iter_mut()
                    .find(|envoy| envoy.stream_id == Some(id));
                envoy
                    .expect("a response without a recipient")
                    .from_relay
                    .push_back(response);
            }
            Action::ToServer(id, request) => {
                let stream = self
                    .server_streams
                    .iter_mut()
                    .find(|stream| stream.id == id);
                stream
                    .expect("a request without a recipient")
                    .to_server
                    .push_back(request);
            }
            Action::Rejected(rejected) => self.rejected.push(rejected.type_url),
            Action::Accepted { .. } => {}
            Action::CloseEnvoy(id, refusal) => {
                let place = self
                    .other_clients
                    .iter()
                    .position(|one| one.stream_id == id);
                self.other_clients
                    .remove(place.expect("an Envoy was refused"));
                self.refused.push((id, refusal));
            }
            Action::Unexpected(_) | Action::RenewServer => panic!("{action:?}"),
        }
    }

    pub(super) fn start_envoy(&mut self) {
        self.envoys.push(Envoy::default());
        self.connect_envoy(self.envoys.len() - 1);
    }

    pub(super) fn connect_envoy(&mut self, place: usize) {
        let id = EnvoyStreamId(self.number());
        self.envoys[place].connect(id);
        self.handle(Event::EnvoyConnected(id));
    }

    pub(super) fn disconnect_envoy(&mut self, place: usize) {
        if let Some(id) = self.envoys[place].stream_id.take() {
            self.handle(Event::EnvoyGone(id));
        }
    }

    pub(super) fn stop_envoy(&mut self, place: usize) {
        self.disconnect_envoy(place);
        self.envoys.remove(place);
    }

    pub(super) fn open_server_stream(&mut self) {
        let id = ServerStreamId(self.number());
        let mut stream = Stream::new(id.0, self.resends_children);
        stream.splits = self.splits;
        let (to_server, to_relay) = (VecDeque::new(), VecDeque::new());
        self.server_streams.push(ServerStream {
            id,
            server: stream,
            to_server,
            to_relay,
        });
        self.handle(Event::ServerConnected(id));
    }

    pub(super) fn lose_server_stream(&mut self, place: usize) {
        if place < self.server_streams.len() {
            let stream = self.server_streams.remove(place);
            self.handle(Event::ServerGone(stream.id));
            if self.renewal == Some(stream.id) {
                self.renew_server_stream();
            }
        }
    }

    /// Restarts the dataplane. Envoys reconnect with their resources.
    pub(super) fn restart_relay(&mut self) {
        self.core = Core::with_limits(LIMITS);
        self.server_streams.clear();
        self.renewal = None;
        self.other_clients.clear();
        self.unanswered.clear();
        for place in 0..self.envoys.len() {
            self.connect_envoy(place);
        }
    }

    /// Changes the server's resources and notifies its streams.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.snapshot);
        for stream in &mut self.server_streams {
            stream.to_relay.extend(stream.server.push(&self.snapshot));
        }
    }

    pub(super) fn answered(&mut self, id: EnvoyStreamId, url: &str) {
        self.unanswered.entry(id).or_default().remove(url);
    }

    pub(super) fn envoy_to_relay(&mut self, place: usize) -> bool {
        let envoy = &mut self.envoys[place];
        let Some(id) = envoy.stream_id else {
            return false;
        };
        let Some(request) = envoy.to_relay.pop_front() else {
            return false;
        };
        if !request.response_nonce.is_empty() {
            self.answered(id, &request.type_url);
        }
        self.handle(Event::EnvoyRequest(id, Box::new(request)));
        true
    }

    pub(super) fn relay_to_envoy(&mut self, place: usize) -> bool {
        let envoy = &mut self.envoys[place];
        let any = !envoy.from_relay.is_empty();
        envoy.receive(&self.snapshot);
        any
    }

    pub(super) fn relay_to_server(&mut self, place: usize) -> bool {
        let Some(stream) = self.server_streams.get_mut(place) else {
            return false;
        };
        let Some(request) = stream.to_server.pop_front() else {
            return false;
        };
        stream
            .to_relay
            .extend(stream.server.request(&self.snapshot, request));
        true
    }

    /// Only the newest stream is read, and only while the relay has room. Once a server responds it
    /// has taken over, and earlier streams end.
    pub(super) fn server_to_relay(&mut self) -> bool {
        if !self.core.wants_upstream() {
            return false;
        }
        let Some(stream) = self.server_streams.last_mut() else {
            return false;
        };
        let Some(response) = stream.to_relay.pop_front() else {
            return false;
        };
        let id = stream.id;
        self.renewal.take_if(|renewal| *renewal == id);
        while self.server_streams.len() > 1 {
            self.lose_server_stream(0);
        }
        self.handle(Event::ServerResponse(id, Box::new(response)));
        true
    }

    /// Delivers messages until none is in flight.
    pub(super) fn run(&mut self) {
        for _ in 0..100_000 {
            let mut busy = self.server_to_relay();
            for place in 0..self.envoys.len() {
                busy |= self.relay_to_envoy(place);
                busy |= self.envoy_to_relay(place);
            }
            for place in 0..self.server_streams.len() {
                busy |= self.relay_to_server(place);
            }
            if !busy {
                return;
            }
        }
        panic!("messages go round for ever");
    }

    pub(super) fn assert_converged(&self, when: &str) {
        for envoy in &self.envoys {
            envoy.assert_holds(&self.snapshot, when);
        }
    }

    /// Panics unless every stream is within the limits, and nothing is stored without a subscriber.
    fn assert_bounded(&self) {
        for stream in self.core.downstream.streams() {
            let (types, asked, resumed) = stream.usage();
            assert!(types <= LIMITS.types, "{stream:?}");
            for usage in [asked, resumed] {
                assert!(usage.names <= LIMITS.names, "{stream:?}");
                assert!(usage.bytes <= LIMITS.bytes, "{stream:?}");
            }
        }
        assert!(self.core.cache.len() <= LIMITS.all_types());
        for (kind, cached) in self.core.cache.iter() {
            let holds = |name: &str| cached.resource(name).is_some();
            for name in cached.names() {
                let mut subscriptions = self.core.downstream.subscriptions(kind);
                let asked = subscriptions.any(|one| one.names().contains(name));
                assert!(asked || holds(name), "{name} has no subscriber");
            }
            for name in cached.entries().keys() {
                let known = cached.names().contains(name) || (cached.is_wildcard() && holds(name));
                assert!(known, "{name} is cached without a subscriber");
            }
        }
    }

    /// Panics unless relay and server hold exactly the subscriptions of Envoys.
    pub(super) fn assert_nothing_is_left(&self) {
        for (kind, cached) in self.core.cache.iter() {
            let mut names: Vec<&str> = Vec::new();
            for subscription in self.core.downstream.subscriptions(kind) {
                names.extend(subscription.names().iter().map(|name| &**name));
            }
            names.sort_unstable();
            names.dedup();
            let known: Vec<&str> = cached.names().iter().map(|name| &**name).collect();
            assert_eq!(known, names, "{}", cached.url());
            let mut subscriptions = self.core.downstream.subscriptions(kind);
            let wildcard = subscriptions.any(|one| one.is_wildcard());
            assert_eq!(cached.is_wildcard(), wildcard, "{}", cached.url());
            for stream in &self.server_streams {
                let asked = stream.server.names(cached.url());
                if asked.is_some() || !names.is_empty() {
                    assert_eq!(asked.unwrap_or_default(), names, "{}", cached.url());
                }
            }
        }
    }
}
