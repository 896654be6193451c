//! Envoys, the relay's core and a server, joined by queues that deliver one message at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};

use super::super::core::{Action, Core, Epoch, Event, SessionId};
use super::envoy::{Envoy, SECRETS};
use super::server::{Snapshot, Stream};

/// A stream between the relay and the server.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) epoch: Epoch,
    pub(super) stream: Stream,
    pub(super) to_server: VecDeque<DeltaDiscoveryRequest>,
    pub(super) to_relay: VecDeque<DeltaDiscoveryResponse>,
}

#[derive(Debug)]
pub(super) struct Mesh {
    pub(super) core: Core,
    pub(super) snapshot: Snapshot,
    pub(super) envoys: Vec<Envoy>,
    pub(super) lanes: Vec<Lane>,
    pub(super) resends_children: bool,
    next: u64,
    /// Types of which a response is with a stream of an Envoy's.
    unanswered: BTreeMap<SessionId, BTreeSet<String>>,
    pub(super) rejected: Vec<String>,
}

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
            core: Core::new(),
            snapshot,
            envoys: Vec::new(),
            lanes: Vec::new(),
            resends_children: false,
            next: 0,
            unanswered: BTreeMap::new(),
            rejected: Vec::new(),
        };
        mesh.start_envoy();
        mesh
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn handle(&mut self, event: Event) {
        for action in self.core.handle(event) {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::ToEnvoy(id, response) => {
                let unanswered = self.unanswered.entry(id).or_default();
                assert!(
                    unanswered.insert(response.type_url.clone()),
                    "two unanswered responses"
                );
                let envoy = self
                    .envoys
                    .iter_mut()
                    .find(|envoy| envoy.session == Some(id));
                envoy
                    .expect("a response to nobody")
                    .from_relay
                    .push_back(response);
            }
            Action::ToServer(epoch, request) => {
                let lane = self.lanes.iter_mut().find(|lane| lane.epoch == epoch);
                lane.expect("a request to nobody")
                    .to_server
                    .push_back(request);
            }
            Action::RenewServer => {
                self.lose_lane(0);
                self.open_lane();
            }
            Action::Rejected(rejected) => self.rejected.push(rejected.type_url),
            Action::Accepted(_) => {}
            Action::CloseServer(epoch) => self.lanes.retain(|lane| lane.epoch != epoch),
            Action::CloseEnvoy(_) | Action::Unexpected(_) => panic!("{action:?}"),
        }
    }

    pub(super) fn start_envoy(&mut self) {
        self.envoys.push(Envoy::default());
        self.connect_envoy(self.envoys.len() - 1);
    }

    pub(super) fn connect_envoy(&mut self, place: usize) {
        let id = SessionId(self.number());
        self.envoys[place].connect(id);
        self.handle(Event::EnvoyConnected(id));
    }

    pub(super) fn disconnect_envoy(&mut self, place: usize) {
        if let Some(id) = self.envoys[place].session.take() {
            self.handle(Event::EnvoyGone(id));
        }
    }

    pub(super) fn stop_envoy(&mut self, place: usize) {
        self.disconnect_envoy(place);
        self.envoys.remove(place);
    }

    pub(super) fn open_lane(&mut self) {
        let epoch = Epoch(self.number());
        let stream = Stream::new(epoch.0, self.resends_children);
        let (to_server, to_relay) = (VecDeque::new(), VecDeque::new());
        self.lanes.push(Lane {
            epoch,
            stream,
            to_server,
            to_relay,
        });
        self.handle(Event::ServerConnected(epoch));
    }

    pub(super) fn lose_lane(&mut self, place: usize) {
        if place < self.lanes.len() {
            let lane = self.lanes.remove(place);
            self.handle(Event::ServerGone(lane.epoch));
        }
    }

    /// The server's resources change, and its streams hear of it.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.snapshot);
        for lane in &mut self.lanes {
            lane.to_relay.extend(lane.stream.push(&self.snapshot));
        }
    }

    pub(super) fn envoy_to_relay(&mut self, place: usize) -> bool {
        let envoy = &mut self.envoys[place];
        let Some(id) = envoy.session else {
            return false;
        };
        let Some(request) = envoy.to_relay.pop_front() else {
            return false;
        };
        if !request.response_nonce.is_empty() {
            self.unanswered
                .entry(id)
                .or_default()
                .remove(&request.type_url);
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
        let Some(lane) = self.lanes.get_mut(place) else {
            return false;
        };
        let Some(request) = lane.to_server.pop_front() else {
            return false;
        };
        lane.to_relay
            .extend(lane.stream.request(&self.snapshot, request));
        true
    }

    /// Only the newest stream is read, and only when the relay has room.
    pub(super) fn server_to_relay(&mut self) -> bool {
        if !self.core.wants_upstream() {
            return false;
        }
        let Some(lane) = self.lanes.last_mut() else {
            return false;
        };
        let Some(response) = lane.to_relay.pop_front() else {
            return false;
        };
        let epoch = lane.epoch;
        self.handle(Event::ServerResponse(epoch, Box::new(response)));
        true
    }

    /// Delivers everything until nothing is on its way.
    pub(super) fn run(&mut self) {
        for _ in 0..100_000 {
            let mut busy = self.server_to_relay();
            for place in 0..self.envoys.len() {
                busy |= self.relay_to_envoy(place);
                busy |= self.envoy_to_relay(place);
            }
            for place in 0..self.lanes.len() {
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
}
