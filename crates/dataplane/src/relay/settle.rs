//! What follows from the core's state: which Envoy is told what, which response is offered to
//! which Envoy, what a server still has to be asked. It runs after every event and does nothing
//! when there is nothing to do.

use std::collections::HashSet;
use std::sync::Arc;

use legate_api::discovery::DeltaDiscoveryResponse;

use super::cache::{Candidate, Name, Role, TypeKey};
use super::core::{Action, Core, SessionId};
use super::session::{Origin, Update};

/// What is to be done with a response that is not with an Envoy.
enum Plan {
    /// No Envoy that is there asks for this type: the next one will.
    Hold,
    /// An Envoy has to answer something else first.
    Wait,
    /// It says nothing that an Envoy does not know.
    Accept,
    /// This Envoy decides.
    Offer(SessionId, Update),
}

impl Core {
    pub(super) fn settle(&mut self) {
        loop {
            self.serve_cached();
            if !self.offer_candidates() {
                break;
            }
        }
        self.ask_servers();
    }

    /// Tells every Envoy what the cache has and it lacks.
    fn serve_cached(&mut self) {
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        let order = self.in_order.clone();
        for id in ids {
            for key in &order {
                let removals = !self.types[key.0].role.is_referred_to();
                self.serve_type(id, *key, removals);
            }
            if self.has_told_referrers(id) {
                for key in &order {
                    self.serve_type(id, *key, true);
                }
            }
        }
    }

    fn serve_type(&mut self, id: SessionId, key: TypeKey, removals: bool) {
        let state = &self.types[key.0];
        if self.is_gated(id, key) {
            return;
        }
        let Some(subscription) = self.sessions.get_mut(&id).and_then(|s| s.get_mut(key)) else {
            return;
        };
        if subscription.is_waiting() {
            return;
        }
        let update = subscription.take_changes(&state.entries, removals);
        // Envoy waits for an answer to "all", also when there is nothing.
        let first = subscription.wildcard && !subscription.responded && state.answered;
        if first || !update.is_empty() {
            let version = state.system_version.clone();
            self.send(id, key, Origin::Cache, update, version);
        }
    }

    /// Whether a type has to wait until Envoy has all clusters and endpoints that are known.
    fn is_gated(&self, id: SessionId, key: TypeKey) -> bool {
        let Some(session) = self.sessions.get(&id) else {
            return false;
        };
        let pending = |role| {
            let Some(key) = self.key_of(role) else {
                return false;
            };
            session.get(key).is_some_and(|subscription| {
                subscription.is_waiting() || subscription.has_upserts(&self.types[key.0].entries)
            })
        };
        self.types[key.0].role.refers() && (pending(Role::Cluster) || pending(Role::Endpoint))
    }

    /// Whether listeners and routes are up to date, so that what they no longer use may go.
    fn has_told_referrers(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(&id) else {
            return false;
        };
        let keys = [Role::Listener, Role::Route]
            .into_iter()
            .filter_map(|role| self.key_of(role));
        keys.filter_map(|key| session.get(key))
            .all(|subscription| subscription.is_clean())
    }

    fn send(
        &mut self,
        id: SessionId,
        key: TypeKey,
        origin: Origin,
        update: Update,
        system_version_info: String,
    ) {
        self.next_nonce += 1;
        let nonce = format!("{:08x}", self.next_nonce);
        let state = &self.types[key.0];
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let updated = update.items.iter().filter(|(_, version)| version.is_some());
        let updated: HashSet<Name> = updated.map(|(name, _)| Arc::clone(name)).collect();
        let response = DeltaDiscoveryResponse {
            system_version_info,
            resources: update.resources,
            type_url: state.url.clone(),
            nonce: nonce.clone(),
            removed_resources: update.removed,
        };
        session.open(key).sending(nonce, origin, update.items);
        self.actions.push(Action::ToEnvoy(id, response));
        self.resend_children(id, self.types[key.0].role, updated);
    }

    /// Envoy waits anew for the endpoints of a cluster and the routes of a listener that it was
    /// told about, and a server that already sent them does not always send them again. Endpoints
    /// have the name of their cluster; which routes a listener uses only its body says.
    fn resend_children(&mut self, id: SessionId, role: Role, updated: HashSet<Name>) {
        let child = match role {
            Role::Cluster => Role::Endpoint,
            Role::Listener => Role::Route,
            _ => return,
        };
        if updated.is_empty() {
            return;
        }
        let Some(key) = self.key_of(child) else {
            return;
        };
        let Some(subscription) = self.sessions.get_mut(&id).and_then(|s| s.get_mut(key)) else {
            return;
        };
        match child {
            Role::Route => {
                let all = self.types[key.0].entries.keys().cloned().collect();
                subscription.resend(&all);
            }
            _ => subscription.resend(&updated),
        }
    }

    /// Gives responses to the Envoys that decide, in the order in which they arrived. Answers
    /// whether something changed.
    fn offer_candidates(&mut self) -> bool {
        let mut changed = false;
        let mut place = 0;
        while let Some(candidate) = self.queue.get(place) {
            match self.plan(candidate) {
                Plan::Hold => place += 1,
                Plan::Wait => break,
                Plan::Accept => {
                    if let Some(candidate) = self.queue.remove(place) {
                        self.accept(candidate);
                    }
                    changed = true;
                }
                Plan::Offer(id, update) => {
                    if let Some(candidate) = self.queue.remove(place) {
                        self.offer(id, update, candidate);
                    }
                    changed = true;
                }
            }
        }
        changed
    }

    fn plan(&self, candidate: &Candidate) -> Plan {
        if self.is_held(candidate) {
            return Plan::Hold;
        }
        let key = candidate.key;
        let state = &self.types[key.0];
        if state.in_flight.is_some() {
            return Plan::Wait;
        }
        // The newest Envoy decides: during a hot restart it is the one that stays.
        for (id, session) in self.sessions.iter().rev() {
            let Some(subscription) = session.get(key) else {
                continue;
            };
            let concerned = subscription.wildcard
                || candidate.names().any(|name| subscription.interested(name));
            if !concerned || !subscription.is_active() {
                continue;
            }
            let busy = subscription.is_waiting() || subscription.has_upserts(&state.entries);
            if busy || self.is_gated(*id, key) {
                return Plan::Wait;
            }
            let update = subscription.select(&state.entries, candidate);
            let first = subscription.wildcard && !subscription.responded;
            if update.is_empty() && !first {
                return Plan::Accept;
            }
            return Plan::Offer(*id, update);
        }
        Plan::Accept
    }

    fn offer(&mut self, id: SessionId, update: Update, mut candidate: Candidate) {
        candidate.judge = Some(id);
        let (key, version) = (candidate.key, candidate.system_version.clone());
        self.types[key.0].in_flight = Some(candidate);
        self.send(id, key, Origin::Candidate, update, version);
    }

    /// Asks every stream for the types it has not been asked for. A type with a response of
    /// another stream waits: what Envoy has of it is not decided.
    fn ask_servers(&mut self) {
        for place in 0..self.lanes.len() {
            let epoch = self.lanes[place].epoch;
            for key in &self.in_order {
                let state = &self.types[key.0];
                let undecided = state.in_flight.iter().chain(&self.queue);
                let undecided = undecided
                    .filter(|c| c.key == *key && c.epoch != epoch)
                    .count()
                    > 0;
                if self.lanes[place].has_asked(*key) || !state.is_wanted() || undecided {
                    continue;
                }
                let held_elsewhere = match state.wildcard {
                    true => self.held_elsewhere(*key),
                    false => Vec::new(),
                };
                let requests = self.lanes[place].ask(*key, state, &self.node, held_elsewhere);
                let requests = requests
                    .into_iter()
                    .map(|request| Action::ToServer(epoch, request));
                self.actions.extend(requests);
            }
        }
    }
}
