//! The known servers, the order of attempts, and the failures of the current round.
//!
//! Addresses have two sources: the configured addresses, and the list that servers send. The list
//! is preferred as long as it contains the server that sent it. Otherwise, the configured addresses
//! are probably those of a load balancer, and the list's addresses may be unreachable, so the
//! configured ones are preferred.
//!
//! The order of attempts and updates is recorded with a counter.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::error::ErrorKind;

/// Age at which resolved addresses are resolved again before they are used.
pub(super) const NAMES: Duration = Duration::from_secs(60);

/// Longest delay before the next server of a round is tried.
pub(super) const FAILOVER: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Counter value of the last attempt; `None` for never.
    attempt: Option<u64>,
    /// Counter value of the last update.
    update: u64,
    /// Whether it is in each [`Origin`].
    from: [bool; 2],
    /// Whether the last attempt to connect failed.
    out_of_reach: bool,
}

impl Entry {
    fn attempted(self) -> bool {
        self.attempt.is_some_and(|attempt| attempt >= self.update)
    }

    fn is_from(self, origin: Origin) -> bool {
        self.from[origin as usize]
    }
}

/// Source of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Origin {
    /// The configured addresses.
    #[default]
    Configured,
    /// A server's list of servers.
    List,
}

/// Known servers, and the current round.
#[derive(Default)]
pub(crate) struct Servers {
    entries: BTreeMap<SocketAddr, Entry>,
    /// The preferred source.
    preferred: Origin,
    clock: u64,
    resolved_at: Option<Duration>,
    /// Servers that failed in this round, and how.
    round: BTreeMap<SocketAddr, ErrorKind>,
    /// A server that was lost in this round but is tried once more: its address may refer to
    /// several servers.
    second_chance: Option<SocketAddr>,
    /// Whether some server could be connected to in this round.
    reached: bool,
}

impl Servers {
    /// Replaces the configured servers, which are preferred from now on. Servers that remain keep
    /// the time of their last attempt, but count as unattempted again.
    pub(super) fn configure(&mut self, servers: &[SocketAddr], now: Duration) {
        self.replace(servers, Origin::Configured);
        self.preferred = Origin::Configured;
        self.resolved_at = Some(now);
    }

    /// Whether the configured addresses are preferred and were resolved too long ago.
    pub(super) fn are_stale(&self, now: Duration) -> bool {
        let resolved = self.resolved_at;
        let old = resolved.is_none_or(|resolved| now.saturating_sub(resolved) >= NAMES);
        old && self.preferred == Origin::Configured
    }

    /// Replaces the list; `sender` is the server that sent it.
    pub(super) fn list(&mut self, servers: &[SocketAddr], sender: SocketAddr) {
        self.replace(servers, Origin::List);
        self.preferred = if servers.contains(&sender) {
            Origin::List
        } else {
            Origin::Configured
        };
    }

    fn replace(&mut self, servers: &[SocketAddr], origin: Origin) {
        self.clock += 1;
        for (server, entry) in &mut self.entries {
            entry.from[origin as usize] = servers.contains(server);
        }
        for server in servers {
            let entry = self.entries.entry(*server).or_default();
            entry.update = self.clock;
            entry.from[origin as usize] = true;
        }
        self.entries.retain(|_, entry| entry.from != [false; 2]);
    }

    /// Whether this server's address is missing from a non-empty server list.
    fn is_detached(&self, server: SocketAddr) -> bool {
        let listed = |entry: &Entry| entry.is_from(Origin::List);
        !self.entries.get(&server).is_some_and(listed) && self.entries.values().any(listed)
    }

    /// The next server of this round. Addresses that are only in the list and were unreachable are
    /// skipped as long as other servers are reachable.
    pub(super) fn next(&self, random: f64) -> Option<SocketAddr> {
        self.pick(random, |server| {
            let unreachable = self.reached && self.is_out_of_reach(*server);
            !unreachable && !self.round.contains_key(server)
        })
    }

    /// Selects the next server among those that `allowed` accepts. The order is: the preferred
    /// source first; then servers without an attempt since their last update; then those never
    /// attempted; then the least recently attempted. `random` (0 to 1) decides between equals.
    fn pick(&self, random: f64, allowed: impl Fn(&SocketAddr) -> bool) -> Option<SocketAddr> {
        let order = |entry: &Entry| {
            (
                !entry.is_from(self.preferred),
                entry.attempted(),
                entry.attempt,
            )
        };
        let candidates = || self.entries.iter().filter(|(server, _)| allowed(server));
        let first = candidates().map(|(_, entry)| order(entry)).min()?;
        let equals: Vec<SocketAddr> = candidates()
            .filter(|(_, entry)| order(entry) == first)
            .map(|(server, _)| *server)
            .collect();
        // Truncation is intended: it maps 0 to 1 to an index. The value 1 is clamped.
        let index = (random.clamp(0.0, 1.0) * equals.len() as f64) as usize;
        equals.get(index.min(equals.len() - 1)).copied()
    }

    /// Records an attempt to use this server.
    pub(super) fn attempt(&mut self, server: SocketAddr) {
        self.clock += 1;
        let now = self.clock;
        if let Some(entry) = self.entries.get_mut(&server) {
            entry.attempt = Some(now);
        }
    }

    /// Records whether a connection to this server could be made.
    pub(super) fn reached(&mut self, server: SocketAddr, reached: bool) {
        self.reached |= reached;
        if let Some(entry) = self.entries.get_mut(&server) {
            entry.out_of_reach = !reached;
        }
    }

    /// Records a failure in this round.
    pub(super) fn failed(&mut self, server: SocketAddr, kind: ErrorKind) {
        self.round.insert(server, kind);
    }

    /// Records the loss of the connection in use. Behind a load balancer the same address may refer
    /// to another server, so it is tried once more.
    pub(super) fn lost(&mut self, server: SocketAddr, kind: ErrorKind) {
        let retry = kind == ErrorKind::Server
            && self.is_detached(server)
            && self.second_chance != Some(server);
        if retry {
            self.second_chance = Some(server);
        } else {
            self.failed(server, kind);
        }
    }

    /// Whether only an operator can fix the failures of this round.
    pub(super) fn have_all_failed_permanently(&self) -> bool {
        let permanent =
            |kind: &ErrorKind| matches!(kind, ErrorKind::Untrusted | ErrorKind::Rejected);
        self.round.values().all(permanent)
    }

    /// Whether servers were tried in this round and none of them accepted a TCP connection.
    pub(super) fn are_all_unreachable(&self) -> bool {
        let mut kinds = self.round.values();
        !self.round.is_empty() && kinds.all(|kind| *kind == ErrorKind::Unreachable)
    }

    /// Ends the round. Returns whether servers could be connected to, but not those that are only
    /// in the servers' list.
    pub(super) fn end_round(&mut self) -> bool {
        let misleads = |entry: &Entry| entry.out_of_reach && !entry.is_from(Origin::Configured);
        let list_misleads = self.reached && self.entries.values().any(misleads);
        self.clear_round();
        list_misleads
    }

    pub(super) fn clear_round(&mut self) {
        self.round.clear();
        self.second_chance = None;
        self.reached = false;
    }

    /// Whether this server is only in the source that is not preferred, and the last attempt to
    /// connect failed.
    fn is_out_of_reach(&self, server: SocketAddr) -> bool {
        let entry = self.entries.get(&server);
        entry.is_some_and(|entry| entry.out_of_reach && !entry.is_from(self.preferred))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SocketAddr> {
        self.entries.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 8502))
    }

    fn all(_: &SocketAddr) -> bool {
        true
    }

    /// The order in which servers are tried.
    fn turns(known: &mut Servers) -> Vec<SocketAddr> {
        let mut turns = Vec::new();
        while let Some(next) = known.pick(0.0, |server| !turns.contains(server)) {
            known.attempt(next);
            turns.push(next);
        }
        turns
    }

    #[test]
    fn unattempted_first_then_least_recently_tried() {
        let mut known = Servers::default();
        assert_eq!(known.pick(0.0, all), None);
        known.configure(&[server(1), server(2), server(3)], Duration::ZERO);
        assert_eq!(
            known.pick(0.99, all),
            Some(server(3)),
            "chance decides between equals"
        );
        known.attempt(server(3));
        known.attempt(server(1));
        assert_eq!(known.pick(1.0, all), Some(server(2)));
        known.attempt(server(2));
        assert_eq!(
            known.pick(0.5, all),
            Some(server(3)),
            "all are tried: the longest ago"
        );
        assert_eq!(
            known.pick(0.5, |other| *other != server(3)),
            Some(server(1))
        );
    }

    #[test]
    fn after_an_update_all_are_tried_again_the_last_one_last() {
        let mut known = Servers::default();
        known.configure(&[server(1), server(2)], Duration::ZERO);
        known.attempt(server(2));
        known.attempt(server(1));
        known.list(&[server(1), server(2), server(4)], server(1));
        assert_eq!(known.preferred, Origin::List);
        assert_eq!(turns(&mut known), [server(4), server(2), server(1)]);
        known.configure(&[], Duration::ZERO);
        known.list(&[server(4)], server(4));
        assert_eq!(known.iter().collect::<Vec<_>>(), [server(4)]);
    }

    #[test]
    fn the_list_is_preferred_and_configured_servers_are_the_fallback() {
        let mut known = Servers::default();
        known.configure(&[server(1), server(9)], Duration::ZERO);
        known.attempt(server(1));
        known.list(&[server(1), server(2)], server(1));
        assert!(!known.is_detached(server(1)));
        assert_eq!(turns(&mut known), [server(2), server(1), server(9)]);
        known.configure(&[server(9)], Duration::ZERO);
        assert_eq!(
            turns(&mut known),
            [server(9), server(2), server(1)],
            "names come first again"
        );
    }

    #[test]
    fn behind_a_load_balancer_its_own_address_comes_first() {
        let mut known = Servers::default();
        let balancer = server(100);
        known.configure(&[balancer], Duration::ZERO);
        known.attempt(balancer);
        assert!(!known.is_detached(balancer), "there is no list yet");
        known.list(&[server(1), server(2)], balancer);
        assert!(known.is_detached(balancer));
        assert_eq!(turns(&mut known), [balancer, server(1), server(2)]);
        known.reached(server(1), false);
        known.reached(balancer, false);
        assert!(known.is_out_of_reach(server(1)) && !known.is_out_of_reach(server(2)));
        assert!(
            !known.is_out_of_reach(balancer),
            "configured servers are always tried"
        );
        known.list(&[server(1), server(2)], server(2));
        assert!(
            !known.is_out_of_reach(server(1)),
            "the list is good: its servers are tried"
        );
    }
}
