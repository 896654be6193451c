//! Applies the result of a job to the known state.

use tokio::time::Instant;

use super::Core;
use super::job::{Ended, Outcome};
use crate::sync::catalog::{Instance, NodeState};
use crate::sync::difference::Call;
use crate::sync::facts::Key;
use crate::sync::wanted::Reason;

impl Core {
    /// Applies the result of a job; `random` is a random number from 0 to 1.
    pub fn ended(&mut self, ended: Ended, now: Instant, random: f64) {
        self.jobs = self.jobs.saturating_sub(1);
        match ended {
            Ended::Nodes(Ok(names)) => {
                self.reached();
                self.reading.under_way = self.reading.under_way.saturating_sub(1);
                self.reading.nodes.extend(names);
                self.reading.nodes.extend(self.catalog.nodes().cloned());
                self.reading.listed = true;
                for (key, _) in self.pods.iter() {
                    self.queue.push(key.clone());
                }
                self.end_comparison();
            }
            Ended::Nodes(Err(_)) => {
                self.reading.under_way = self.reading.under_way.saturating_sub(1);
                self.reading.listing = true;
                self.unreachable(now, random);
            }
            Ended::Node(name, result) => {
                self.unlock_alone(&name);
                self.reading.under_way = self.reading.under_way.saturating_sub(1);
                match result {
                    Ok(state) => {
                        self.reached();
                        self.take_node(&name, state);
                        self.end_comparison();
                    }
                    Err(_) => {
                        self.reading.nodes.insert(name);
                        self.unreachable(now, random);
                    }
                }
            }
            Ended::Removed(name, gone) => {
                self.unlock_alone(&name);
                if gone {
                    self.catalog.replace(&name, None);
                }
            }
            Ended::Pod(key, results) => self.pod_ended(&key, results, now, random),
            Ended::Swept => {}
        }
    }

    fn take_node(&mut self, name: &str, state: Option<NodeState>) {
        let empty = state
            .as_ref()
            .is_some_and(|state| state.instances.is_empty());
        for key in self.catalog.replace(name, state) {
            self.queue.push(key);
        }
        if empty {
            self.removable.insert(name.to_owned());
        }
    }

    /// Completes the full difference if all nodes have been read.
    fn end_comparison(&mut self) {
        let reading = &mut self.reading;
        let left = reading.listing || reading.under_way > 0 || !reading.nodes.is_empty();
        if reading.comparing && !left {
            reading.comparing = false;
            reading.compared = true;
        }
    }

    fn unlock_alone(&mut self, node: &str) {
        self.locks.remove(node);
        self.queue.unpark(node);
    }

    fn pod_ended(&mut self, key: &Key, results: Vec<(Call, Outcome)>, now: Instant, random: f64) {
        let again = self.release(key);
        let (mut refused, mut unreachable) = (None, false);
        for (call, outcome) in results {
            match &outcome {
                Outcome::Refused(text) => refused = refused.or_else(|| Some(refusal(&call, text))),
                Outcome::Unreachable(_) => unreachable = true,
                Outcome::Done => self.lags.written(key),
                Outcome::Unserved => {}
            }
            self.note(call, &outcome);
        }
        if unreachable {
            self.unreachable(now, random);
            self.queue.push(key.clone());
            return;
        }
        self.reached();
        let Some(reason) = refused else {
            self.failures.remove(key);
            // The result is compared with the state that is wanted by now.
            self.queue.push(key.clone());
            return;
        };
        self.fail(key, now, random);
        if let Some(uid) = self.pods.get(key).map(|pod| pod.uid.clone()) {
            self.say(key, &uid, reason);
        }
        if again {
            self.queue.push(key.clone());
        }
    }

    /// Releases the nodes of a job; returns whether its pod has to be processed again.
    fn release(&mut self, key: &Key) -> bool {
        let Some(running) = self.running.remove(key) else {
            return false;
        };
        for node in running.nodes {
            if let Some(lock) = self.locks.get_mut(&node) {
                lock.pods = lock.pods.saturating_sub(1);
                if lock.pods == 0 && !lock.alone {
                    self.locks.remove(&node);
                }
            }
        }
        running.again
    }

    /// Records the effect of a call on the catalog.
    fn note(&mut self, call: Call, outcome: &Outcome) {
        match (call, outcome) {
            (Call::Namespace(name), Outcome::Done) => {
                self.known.namespaces.insert(name);
            }
            (Call::Register(wanted), Outcome::Done) => {
                let wanted = *wanted;
                self.catalog.put(&wanted.node, &wanted.id, wanted.instance);
            }
            (Call::Register(wanted), Outcome::Unreachable(_)) => {
                let wanted = *wanted;
                let unknown = Instance {
                    digest: None,
                    ..wanted.instance
                };
                self.catalog.put(&wanted.node, &wanted.id, unknown);
            }
            (
                Call::Checks {
                    node, ids, status, ..
                },
                Outcome::Done,
            ) => {
                for id in ids {
                    self.catalog.set_status(&node, &id, status);
                }
            }
            // The namespace may have been deleted.
            (Call::Register(wanted), Outcome::Refused(_)) => {
                self.known.namespaces.remove(&wanted.id.namespace);
            }
            (Call::Checks { node, ids, .. }, _) => {
                // The instance may be gone, so it is written as a whole.
                for id in ids {
                    self.catalog.doubt(&node, &id);
                }
            }
            (Call::Deregister { node, id }, Outcome::Done) => {
                self.catalog.remove(&node, &id);
                if self
                    .catalog
                    .node(&node)
                    .is_some_and(|node| node.instances.is_empty())
                {
                    self.removable.insert(node);
                }
            }
            (Call::VirtualIp(virtual_ip), Outcome::Done | Outcome::Unserved) => {
                let place = virtual_ip.place();
                self.known.virtual_ips.insert(place, virtual_ip.address);
            }
            (Call::Namespace(_) | Call::VirtualIp(_) | Call::RemoveTokens { .. }, _)
            | (Call::Register(_) | Call::Deregister { .. }, _) => {}
        }
    }

    fn reached(&mut self) {
        self.away.until = None;
        self.away.backoff.reset();
    }

    fn unreachable(&mut self, now: Instant, random: f64) {
        // Jobs that started together fail together and count as one failure.
        if self.away.until.is_none_or(|until| now >= until) {
            self.away.until = Some(now + self.away.backoff.next(random));
        }
    }
}

/// The event for a call that the servers refused.
fn refusal(call: &Call, text: &str) -> Reason {
    let (reason, what) = match call {
        Call::Namespace(name) => (
            "NamespaceRefused",
            format!("the namespace {name} of the mesh"),
        ),
        Call::VirtualIp(virtual_ip) => {
            let (address, service) = (&virtual_ip.address, &virtual_ip.service);
            (
                "VirtualIPRefused",
                format!("the virtual IP {address} of {service}"),
            )
        }
        _ => ("RegistrationRefused", "the registration".to_owned()),
    };
    let message = format!("The servers refused {what}: {text}");
    Reason { reason, message }
}
