//! The servers that are known, and whose turn it is.
//!
//! There are two sources: the configured addresses, and the list that servers send. The list comes
//! first as long as it holds the server that sent it. When it does not, the configured addresses
//! lead to servers by a way of their own, such as a load balancer, and the list's addresses may
//! not be reachable from here: then the configured ones come first.
//!
//! Time is a counter here: only the order of attempts and updates matters.

use std::collections::BTreeMap;
use std::net::SocketAddr;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// When it was last tried; `None` for never.
    attempt: Option<u64>,
    /// When it was last heard of.
    update: u64,
    configured: bool,
    listed: bool,
    /// The last attempt to connect failed.
    out_of_reach: bool,
}

impl Entry {
    fn attempted(self) -> bool {
        self.attempt.is_some_and(|attempt| attempt >= self.update)
    }

    fn is_from(self, origin: Origin) -> bool {
        match origin {
            Origin::Configured => self.configured,
            Origin::Watch => self.listed,
        }
    }
}

/// Where addresses came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From resolving the configured addresses.
    Configured,
    /// From a server's list of servers.
    Watch,
}

/// Known servers.
#[derive(Debug)]
pub(crate) struct Addresses {
    entries: BTreeMap<SocketAddr, Entry>,
    /// Those whose turn comes first.
    first: Origin,
    clock: u64,
}

impl Addresses {
    pub(crate) fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            first: Origin::Configured,
            clock: 0,
        }
    }

    /// Whose turn comes first.
    pub(crate) fn first(&self) -> Origin {
        self.first
    }

    /// Replaces the configured servers, and lets them come first. Servers that stay keep when they
    /// were last tried, but count as unattempted again.
    pub(crate) fn configure(&mut self, servers: &[SocketAddr]) {
        self.replace(servers, Origin::Configured);
        self.first = Origin::Configured;
    }

    /// Replaces the list; `sender` is the server that sent it.
    pub(crate) fn list(&mut self, servers: &[SocketAddr], sender: SocketAddr) {
        self.replace(servers, Origin::Watch);
        self.first = if servers.contains(&sender) {
            Origin::Watch
        } else {
            Origin::Configured
        };
    }

    fn replace(&mut self, servers: &[SocketAddr], origin: Origin) {
        self.clock += 1;
        for (server, entry) in &mut self.entries {
            let stays = servers.contains(server);
            match origin {
                Origin::Configured => entry.configured = stays,
                Origin::Watch => entry.listed = stays,
            }
        }
        for server in servers {
            let entry = self.entries.entry(*server).or_default();
            entry.update = self.clock;
            match origin {
                Origin::Configured => entry.configured = true,
                Origin::Watch => entry.listed = true,
            }
        }
        self.entries
            .retain(|_, entry| entry.configured || entry.listed);
    }

    /// Whether this server was reached by an address that the servers' list does not hold.
    pub(crate) fn is_detached(&self, server: SocketAddr) -> bool {
        let listed = self.entries.get(&server).is_some_and(|entry| entry.listed);
        !listed && self.entries.values().any(|entry| entry.listed)
    }

    /// The server whose turn it is, among those that `allowed` lets through: those of the origin
    /// that comes first, of them unattempted ones before others, those never tried first, then
    /// those whose last attempt is longest ago. `random` (0 to 1) decides between equals.
    pub(crate) fn pick(
        &self,
        random: f64,
        allowed: impl Fn(&SocketAddr) -> bool,
    ) -> Option<SocketAddr> {
        let order = |entry: &Entry| (!entry.is_from(self.first), entry.attempted(), entry.attempt);
        let candidates = || self.entries.iter().filter(|(server, _)| allowed(server));
        let first = candidates().map(|(_, entry)| order(entry)).min()?;
        let equals: Vec<SocketAddr> = candidates()
            .filter(|(_, entry)| order(entry) == first)
            .map(|(server, _)| *server)
            .collect();
        // Truncation is meant: 0 to 1 picks an index; 1 itself is clamped.
        let index = (random.clamp(0.0, 1.0) * equals.len() as f64) as usize;
        equals.get(index.min(equals.len() - 1)).copied()
    }

    /// Notes that this server is being tried now.
    pub(crate) fn attempt(&mut self, server: SocketAddr) {
        self.clock += 1;
        let now = self.clock;
        if let Some(entry) = self.entries.get_mut(&server) {
            entry.attempt = Some(now);
        }
    }

    /// Notes whether a connection to this server could be made.
    pub(crate) fn reached(&mut self, server: SocketAddr, reached: bool) {
        if let Some(entry) = self.entries.get_mut(&server) {
            entry.out_of_reach = !reached;
        }
    }

    /// Whether only a list that does not come first names this server, and it could not be reached
    /// when it was last tried.
    pub(crate) fn is_out_of_reach(&self, server: SocketAddr) -> bool {
        let entry = self.entries.get(&server);
        entry.is_some_and(|entry| entry.out_of_reach && !entry.is_from(self.first))
    }

    /// Whether a server that only the list names could not be reached when it was last tried.
    pub(crate) fn is_list_out_of_reach(&self) -> bool {
        let mut only_listed = self.entries.values().filter(|entry| !entry.configured);
        only_listed.any(|entry| entry.out_of_reach)
    }

    /// All servers, and whether only the list names them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SocketAddr, bool)> {
        let entries = self.entries.iter();
        entries.map(|(server, entry)| (*server, !entry.configured))
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

    /// In which order servers are tried.
    fn turns(book: &mut Addresses) -> Vec<SocketAddr> {
        let mut turns = Vec::new();
        while let Some(next) = book.pick(0.0, |server| !turns.contains(server)) {
            book.attempt(next);
            turns.push(next);
        }
        turns
    }

    #[test]
    fn unattempted_first_then_least_recently_tried() {
        let mut book = Addresses::new();
        assert_eq!(book.pick(0.0, all), None);
        book.configure(&[server(1), server(2), server(3)]);
        assert_eq!(
            book.pick(0.99, all),
            Some(server(3)),
            "chance decides between equals"
        );
        book.attempt(server(3));
        book.attempt(server(1));
        assert_eq!(book.pick(1.0, all), Some(server(2)));
        book.attempt(server(2));
        assert_eq!(
            book.pick(0.5, all),
            Some(server(3)),
            "all are tried: the longest ago"
        );
        assert_eq!(book.pick(0.5, |other| *other != server(3)), Some(server(1)));
    }

    #[test]
    fn an_update_gives_everybody_another_turn_but_the_last_one_comes_last() {
        let mut book = Addresses::new();
        book.configure(&[server(1), server(2)]);
        book.attempt(server(2));
        book.attempt(server(1));
        book.list(&[server(1), server(2), server(4)], server(1));
        assert_eq!(book.first(), Origin::Watch);
        assert_eq!(turns(&mut book), [server(4), server(2), server(1)]);
        book.configure(&[]);
        book.list(&[server(4)], server(4));
        assert_eq!(book.iter().collect::<Vec<_>>(), [(server(4), true)]);
    }

    #[test]
    fn the_list_comes_first_and_configured_servers_stand_in() {
        let mut book = Addresses::new();
        book.configure(&[server(1), server(9)]);
        book.attempt(server(1));
        book.list(&[server(1), server(2)], server(1));
        assert!(!book.is_detached(server(1)));
        assert_eq!(turns(&mut book), [server(2), server(1), server(9)]);
        book.configure(&[server(9)]);
        assert_eq!(
            turns(&mut book),
            [server(9), server(2), server(1)],
            "names come first again"
        );
    }

    #[test]
    fn behind_a_load_balancer_its_own_address_comes_first() {
        let mut book = Addresses::new();
        let balancer = server(100);
        book.configure(&[balancer]);
        book.attempt(balancer);
        assert!(!book.is_detached(balancer), "there is no list yet");
        book.list(&[server(1), server(2)], balancer);
        assert!(book.is_detached(balancer));
        assert_eq!(turns(&mut book), [balancer, server(1), server(2)]);
        book.reached(server(1), false);
        book.reached(balancer, false);
        assert!(book.is_out_of_reach(server(1)) && !book.is_out_of_reach(server(2)));
        assert!(
            !book.is_out_of_reach(balancer),
            "what is configured is always tried"
        );
        book.list(&[server(1), server(2)], server(2));
        assert!(
            !book.is_out_of_reach(server(1)),
            "the list is good: its servers are tried"
        );
    }
}
