//! The servers that are known, and whose turn it is.
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
}

impl Entry {
    fn attempted(self) -> bool {
        self.attempt.is_some_and(|attempt| attempt >= self.update)
    }
}

/// Where the known addresses came from.
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
    origin: Origin,
    clock: u64,
}

impl Addresses {
    pub(crate) fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            origin: Origin::Configured,
            clock: 0,
        }
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Replaces the set. Servers that stay keep when they were last tried, but count as
    /// unattempted again.
    pub(crate) fn replace(&mut self, servers: &[SocketAddr], origin: Origin) {
        self.clock += 1;
        let known = std::mem::take(&mut self.entries);
        self.entries = servers
            .iter()
            .map(|server| {
                let attempt = known.get(server).and_then(|entry| entry.attempt);
                (
                    *server,
                    Entry {
                        attempt,
                        update: self.clock,
                    },
                )
            })
            .collect();
        self.origin = origin;
    }

    /// The server whose turn it is, among those that `allowed` lets through: unattempted ones
    /// before others, those never tried first, then those whose last attempt is longest ago.
    /// `random` (0 to 1) decides between equals.
    pub(crate) fn pick(
        &self,
        random: f64,
        allowed: impl Fn(&SocketAddr) -> bool,
    ) -> Option<SocketAddr> {
        let order = |entry: &Entry| (entry.attempted(), entry.attempt);
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

    #[test]
    fn unattempted_first_then_least_recently_tried() {
        let mut book = Addresses::new();
        assert_eq!(book.pick(0.0, all), None);
        book.replace(&[server(1), server(2), server(3)], Origin::Configured);
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
        book.replace(&[server(1), server(2)], Origin::Configured);
        book.attempt(server(2));
        book.attempt(server(1));
        book.replace(&[server(1), server(2), server(4)], Origin::Watch);
        assert_eq!(book.origin(), Origin::Watch);
        assert_eq!(book.pick(0.9, all), Some(server(4)));
        book.attempt(server(4));
        assert_eq!(book.pick(0.9, all), Some(server(2)));
        book.attempt(server(2));
        assert_eq!(book.pick(0.9, all), Some(server(1)));
        book.replace(&[server(4)], Origin::Watch);
        assert_eq!(book.iter().collect::<Vec<_>>(), [server(4)]);
    }
}
