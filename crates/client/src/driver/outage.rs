//! Keeps the log readable while all servers are away: the session then tries them about every
//! second, and fails in the same way each time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{ErrorKind, SessionError};

/// How often the same failure is logged.
const REPEAT: Duration = Duration::from_secs(60);
/// Number of failures that are remembered. More servers than this are logged each time.
const MOST: usize = 64;

/// The failures since a server was last reached.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// When each was last logged, by its text.
    logged: BTreeMap<String, Instant>,
}

impl Outage {
    /// Whether servers could not be reached when they were last tried.
    pub(super) fn goes_on(&self) -> bool {
        !self.logged.is_empty()
    }

    /// A server was reached, or failed in another way.
    pub(super) fn end(&mut self) {
        self.logged.clear();
    }

    /// Records a failure. Returns whether it belongs in the log.
    pub(super) fn is_worth_a_line(&mut self, error: &SessionError, now: Instant) -> bool {
        if error.kind != ErrorKind::Unreachable {
            self.end();
            return true;
        }
        let last = self.logged.get(&error.text);
        let due = last.is_none_or(|last| now.duration_since(*last) >= REPEAT);
        if due && (last.is_some() || self.logged.len() < MOST) {
            self.logged.insert(error.text.clone(), now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn unreachable(port: u16) -> SessionError {
        SessionError::unreachable(SocketAddr::from(([10, 0, 0, 1], port)), "refused")
    }

    #[test]
    fn each_server_is_logged_once_a_minute() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let mut lines = 0;
        for second in 0..150 {
            for port in [1, 2] {
                let now = start + Duration::from_secs(second);
                lines += usize::from(outage.is_worth_a_line(&unreachable(port), now));
            }
        }
        assert_eq!(lines, 2 * 3);
        assert!(outage.goes_on());
        let failed = SessionError::lost(SocketAddr::from(([10, 0, 0, 1], 1)));
        assert!(outage.is_worth_a_line(&failed, start));
        assert!(!outage.goes_on());
        assert!(outage.is_worth_a_line(&unreachable(1), start));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        for port in 0..1_000 {
            assert!(outage.is_worth_a_line(&unreachable(port), now));
        }
        assert_eq!(outage.logged.len(), MOST);
    }
}
