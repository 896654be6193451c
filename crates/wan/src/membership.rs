//! The servers of all datacenters as one of them knows them, without IO.
//!
//! Every server probes every other one. A probe and its answer are the same: the list of all servers that the sender
//! knows. So a server that knows one other server soon knows all. Whether a server can be reached, each server judges
//! for itself, because that is what it needs to know: a server that others reach may be out of its own reach.
//!
//! A server describes itself, and others pass its description on. It has an **incarnation**, which the server raises
//! when it starts and when others believe that it has left. Of two descriptions the higher incarnation counts; of the
//! same one, that it has left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use legate_model::name::{InvalidName, validate_datacenter, validate_node_name};
use legate_runtime::Throttle;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The time between two probes of a server that answers.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);
/// The longest time between two probes of a server that does not answer. With its jitter of a fifth, and 3 s for a probe
/// that was on its way, two servers find each other at most 25 s after the network works again.
const LONGEST: Duration = Duration::from_secs(18);
/// The number of failed probes after which a server has failed.
pub(crate) const FAILURES: u32 = 3;
/// How long a server that has failed or left is remembered. As `reconnect_timeout_wan` in Consul.
pub(crate) const REMEMBERED: Duration = Duration::from_hours(72);
/// The shortest time between two warnings about descriptions.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// The largest number of servers. Further ones are left out.
pub(crate) const MOST: usize = 512;
/// The highest incarnation, so that a server can always raise its own. In milliseconds since 1970, as they begin, it is
/// many thousand years away.
const HIGHEST: u64 = 1 << 53;
/// The largest number of tags of a server, and of bytes of a tag with its value. So the longest list fits into a
/// message.
const TAGS: (usize, usize) = (16, 128);

/// The name of a server: its node and its datacenter. Written as Consul does: `node.datacenter`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerName {
    /// The datacenter, in lower case.
    pub datacenter: String,
    /// The node.
    pub node: String,
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.datacenter)
    }
}

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) node: String,
    pub(crate) datacenter: String,
    /// Where other datacenters reach its port for servers.
    pub(crate) address: SocketAddr,
    pub(crate) incarnation: u64,
    pub(crate) left: bool,
    pub(crate) tags: BTreeMap<String, String>,
}

/// Why a description is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("{name} has too many tags, or tags that are too long or not plain text")]
    Tags { name: String },
    #[error("{name} has the incarnation {incarnation}, which is too high")]
    Incarnation { name: String, incarnation: u64 },
    #[error("{name} cannot be reached at {address}")]
    Address { name: String, address: IpAddr },
}

impl Description {
    pub(crate) fn name(&self) -> ServerName {
        ServerName {
            datacenter: self.datacenter.to_ascii_lowercase(),
            node: self.node.to_ascii_lowercase(),
        }
    }

    /// What counts of two descriptions of one server.
    fn rank(&self) -> (u64, bool) {
        (self.incarnation, self.left)
    }

    fn check(&self) -> Result<(), Refused> {
        validate_datacenter(&self.datacenter)?;
        validate_node_name(&self.node)?;
        let name = || self.name().to_string();
        let (most, longest) = TAGS;
        let is_plain = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let too_long = |(tag, value): (&String, &String)| {
            tag.len() + value.len() > longest || !is_plain(tag) || !is_plain(value)
        };
        if self.tags.len() > most || self.tags.iter().any(too_long) {
            return Err(Refused::Tags { name: name() });
        }
        if self.incarnation >= HIGHEST {
            return Err(Refused::Incarnation {
                name: name(),
                incarnation: self.incarnation,
            });
        }
        let address = self.address.ip();
        if address.is_unspecified() || address.is_multicast() || self.address.port() == 0 {
            return Err(Refused::Address {
                name: name(),
                address,
            });
        }
        Ok(())
    }
}

/// Whether a server takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It answers, or was not probed yet.
    Alive,
    /// It does not answer.
    Failed,
    /// It has left, or was removed.
    Left,
}

/// A server as this one knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: ServerName,
    /// Where its port for servers is.
    pub address: SocketAddr,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Whether it takes part.
    pub status: Status,
    /// The time that a probe takes. `None`: none has succeeded yet, or it is this server.
    pub round_trip: Option<Duration>,
    /// What the last probe failed with.
    pub error: Option<String>,
    /// The address of the mesh gateway through which it was reached last. `None`: none, or it was reached directly.
    pub gateway: Option<String>,
}

/// A server to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) to: ServerName,
    pub(crate) address: SocketAddr,
}

/// All servers as one of them knows them.
#[derive(Debug)]
pub(crate) struct Membership {
    own: Description,
    others: BTreeMap<ServerName, Other>,
    /// Whether servers were left out because there are too many.
    full: bool,
    /// Of warnings about descriptions, which come with every list.
    warnings: Throttle,
}

#[derive(Debug)]
struct Other {
    description: Description,
    /// Hidden although it is remembered.
    pruned: bool,
    failures: u32,
    round_trip: Option<Duration>,
    error: Option<String>,
    gateway: Option<String>,
    /// `None` during a probe.
    probe_at: Option<Instant>,
    /// Since when it has its status.
    since: Instant,
}

impl Other {
    fn status(&self) -> Status {
        match self.description.left {
            true => Status::Left,
            false if self.failures >= FAILURES => Status::Failed,
            false => Status::Alive,
        }
    }

    fn member(&self) -> Member {
        Member {
            name: self.description.name(),
            address: self.description.address,
            tags: self.description.tags.clone(),
            status: self.status(),
            round_trip: self.round_trip,
            error: self.error.clone(),
            gateway: self.gateway.clone(),
        }
    }
}

impl Membership {
    pub(crate) fn new(own: Description) -> Self {
        Self {
            own,
            others: BTreeMap::new(),
            full: false,
            warnings: Throttle::new(WARN_EVERY),
        }
    }

    pub(crate) fn own(&self) -> &Description {
        &self.own
    }

    /// The list for other servers: this one, who is alive, and who has left.
    pub(crate) fn list(&self) -> Vec<Description> {
        let others = self.others.values();
        let known = others.filter(|other| other.status() != Status::Failed);
        let known = known.map(|other| other.description.clone());
        std::iter::once(self.own.clone()).chain(known).collect()
    }

    /// Merges the list of another server. Its first description is that of this other server.
    pub(crate) fn merge_list(&mut self, list: Vec<Description>, now: Instant) {
        for (position, description) in list.into_iter().take(MOST + 1).enumerate() {
            if let Err(refused) = description.check() {
                if self.warnings.pass().is_some() {
                    tracing::warn!(%refused, "a server of another datacenter is left out");
                }
                continue;
            }
            let name = description.name();
            if name == self.own.name() {
                self.refute(&description);
                continue;
            }
            self.merge(&name, description, now);
            if let Some(other) = self.others.get_mut(&name)
                && position == 0
                && other.status() == Status::Failed
                && other.probe_at.is_some()
            {
                // It reaches this server, so it may be in reach again.
                other.probe_at = Some(now);
            }
        }
    }

    /// Raises the own incarnation if others have a description of this server that counts more than its own: they
    /// believe that it has left, or there is another server of its name.
    fn refute(&mut self, known: &Description) {
        if known.rank() <= self.own.rank() {
            return;
        }
        self.own.incarnation = known.incarnation + 1;
        if known.address != self.own.address && self.warnings.pass().is_some() {
            let (address, name) = (known.address, self.own.name());
            tracing::warn!(%name, %address, "another server has the name of this one: rename one of them");
        }
    }

    fn merge(&mut self, name: &ServerName, description: Description, now: Instant) {
        let Some(known) = self.others.get_mut(name) else {
            if self.others.len() >= MOST {
                if !std::mem::replace(&mut self.full, true) {
                    tracing::warn!(
                        most = MOST,
                        "further servers of other datacenters are ignored"
                    );
                }
                return;
            }
            let probe_at = (!description.left).then_some(now);
            let other = Other {
                description,
                pruned: false,
                failures: 0,
                round_trip: None,
                error: None,
                gateway: None,
                probe_at,
                since: now,
            };
            self.others.insert(name.clone(), other);
            return;
        };
        if description.rank() <= known.description.rank() {
            return;
        }
        let (left, moved) = (
            description.left,
            description.address != known.description.address,
        );
        if left != known.description.left || moved {
            known.since = now;
            known.failures = 0;
        }
        if !left {
            known.pruned = false;
            if known.description.left || moved {
                known.probe_at = Some(now);
            }
        }
        known.description = description;
    }

    /// The servers to probe now. Forgets those that have failed or left long ago.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Probe> {
        self.others.retain(|_, other| {
            other.status() == Status::Alive || now.duration_since(other.since) < REMEMBERED
        });
        let mut due = Vec::new();
        for (name, other) in &mut self.others {
            if other.description.left || other.probe_at.is_none_or(|at| at > now) {
                continue;
            }
            other.probe_at = None;
            due.push(Probe {
                to: name.clone(),
                address: other.description.address,
            });
        }
        due
    }

    /// When the next server is to be probed.
    pub(crate) fn next_probe(&self) -> Option<Instant> {
        let others = self.others.values();
        let probed = others.filter(|other| !other.description.left);
        probed.filter_map(|other| other.probe_at).min()
    }

    /// A probe has succeeded, with the list of the server.
    pub(crate) fn succeeded(
        &mut self,
        name: &ServerName,
        round_trip: Duration,
        list: Vec<Description>,
        now: Instant,
    ) {
        self.merge_list(list, now);
        let Some(other) = self.others.get_mut(name) else {
            return;
        };
        if other.status() == Status::Failed {
            other.since = now;
            tracing::info!(server = %name, "the server of another datacenter answers again");
        }
        other.failures = 0;
        other.error = None;
        // A moving average: one slow answer does not change the order of datacenters.
        let average = other
            .round_trip
            .map_or(round_trip, |known| (known * 3 + round_trip) / 4);
        other.round_trip = Some(average);
        other.probe_at = Some(now + INTERVAL);
    }

    /// Notes the gateway through which a server was reached.
    pub(crate) fn set_gateway(&mut self, name: &ServerName, gateway: Option<String>) {
        if let Some(other) = self.others.get_mut(name) {
            other.gateway = gateway;
        }
    }

    /// A probe has failed. `random`, from 0 to 1, spreads the next probes of several servers.
    pub(crate) fn failed(&mut self, name: &ServerName, error: String, random: f64, now: Instant) {
        let Some(other) = self.others.get_mut(name) else {
            return;
        };
        other.failures = other.failures.saturating_add(1);
        if other.failures == FAILURES && !other.description.left {
            other.since = now;
            tracing::warn!(server = %name, %error, "the server of another datacenter does not answer");
        }
        other.error = Some(error);
        let doubled = other.failures.saturating_sub(FAILURES).min(8);
        let pause = (INTERVAL * 2_u32.pow(doubled)).min(LONGEST);
        other.probe_at = Some(now + pause.mul_f64(0.8 + random.clamp(0.0, 1.0) * 0.4));
    }

    /// This server leaves. Its lists say so from now on.
    pub(crate) fn leave(&mut self) {
        self.own.incarnation += 1;
        self.own.left = true;
    }

    /// Declares that a server has left, which spreads; if it is alive, it contradicts. `prune` also hides it.
    /// Returns whether there is such a server.
    pub(crate) fn force_leave(&mut self, name: &ServerName, prune: bool, now: Instant) -> bool {
        let Some(other) = self.others.get_mut(name) else {
            return false;
        };
        if !other.description.left {
            other.description.left = true;
            other.since = now;
        }
        other.pruned |= prune;
        true
    }

    /// The names of all servers but this one.
    pub(crate) fn names(&self) -> BTreeSet<ServerName> {
        self.others.keys().cloned().collect()
    }

    /// All servers but this one, without those that are hidden.
    pub(crate) fn members(&self) -> Vec<Member> {
        let others = self.others.values().filter(|other| !other.pruned);
        others.map(Other::member).collect()
    }

    /// The servers of a datacenter that are alive, the nearest first; those that have answered are preferred.
    pub(crate) fn servers(&self, datacenter: &str) -> Vec<Member> {
        let mut servers = self.members();
        servers.retain(|member| {
            member.status == Status::Alive
                && member.name.datacenter.eq_ignore_ascii_case(datacenter)
        });
        servers.sort_by_key(|member| (member.round_trip.is_none(), member.round_trip));
        servers
    }

    /// All datacenters that have servers: the own one first, the others by the median of their round-trip times.
    pub(crate) fn datacenters(&self) -> Vec<String> {
        let own = self.own.datacenter.to_ascii_lowercase();
        let others = self.distances().into_iter().map(|(name, _)| name);
        std::iter::once(own).chain(others).collect()
    }

    /// The other datacenters that have servers, and the medians of the servers' round-trip times, by these.
    pub(crate) fn distances(&self) -> Vec<(String, Option<Duration>)> {
        let mut times: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
        for member in self.members() {
            if member.status != Status::Left {
                let of_datacenter = times.entry(member.name.datacenter).or_default();
                of_datacenter.extend(member.round_trip.filter(|_| member.status == Status::Alive));
            }
        }
        let own = self.own.datacenter.to_ascii_lowercase();
        times.remove(&own);
        let mut others: Vec<_> = times
            .into_iter()
            .map(|(name, mut times)| {
                times.sort_unstable();
                (name, times.get(times.len() / 2).copied())
            })
            .collect();
        others.sort_by_key(|(_, median)| (median.is_none(), *median));
        others
    }
}

#[cfg(test)]
mod tests;
