//! Notices the end of a burst of connections. It counts ticks and knows no time.

/// Notices the end of a burst of connections, after which much memory is free.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// The most connections since the last burst.
    most: usize,
    /// Ticks since there were few.
    quiet: u32,
}

impl Burst {
    /// A burst has fewer connections than this in no case.
    const LEAST: usize = 64;
    /// Ticks with few connections that end a burst.
    const QUIET: u32 = 10;

    /// Takes the number of connections at a tick. Returns whether a burst has ended.
    pub(super) fn tick(&mut self, connections: usize) -> bool {
        self.most = self.most.max(connections);
        if self.most < Burst::LEAST || connections > self.most / 2 {
            self.quiet = 0;
            return false;
        }
        self.quiet += 1;
        if self.quiet < Burst::QUIET {
            return false;
        }
        *self = Burst {
            most: connections,
            quiet: 0,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_ends_once() {
        let mut burst = Burst::default();
        let mut ends = |connections, ticks| (0..ticks).filter(|_| burst.tick(connections)).count();
        assert_eq!(ends(10, 100), 0);
        assert_eq!(ends(1_000, 5), 0);
        assert_eq!(ends(600, 100), 0);
        assert_eq!(ends(400, 9), 0);
        assert_eq!(ends(600, 1), 0);
        assert_eq!(ends(400, 100), 1);
        assert_eq!(ends(0, 100), 1);
        assert_eq!(ends(0, 100), 0);
    }
}
