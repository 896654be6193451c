//! Periodically checks certificates, keys and the bearer token for changes.
//!
//! A check reads metadata only. Files are read when their metadata has changed.

use super::Driver;
use crate::bearer;
use crate::machine::Event;
use crate::tls::Tls;

impl Driver {
    /// The changes since the last check, if any.
    pub(super) fn changed_files(&mut self) -> Option<Event> {
        let tls = self.dialer.tls.as_ref().is_some_and(Tls::has_changed);
        if tls {
            tracing::info!(target: "server-connection-manager", "TLS files have changed");
        }
        let bearer = self.bearer_has_changed();
        (tls || bearer).then_some(Event::FilesChanged { tls, bearer })
    }

    fn bearer_has_changed(&mut self) -> bool {
        let Some(login) = &self.login else {
            return false;
        };
        let stamp = bearer::stamp(&login.bearer);
        if self.bearer.as_ref() == Some(&stamp) {
            return false;
        }
        self.bearer = Some(stamp);
        // A file that is currently being replaced is detected by the next check.
        let Ok(token) = bearer::read(&login.bearer) else {
            return false;
        };
        tracing::debug!(target: "server-connection-manager", "the bearer token has changed");
        let expires = bearer::expires(&token);
        self.snapshot
            .send_modify(|snapshot| snapshot.bearer_expires = expires);
        true
    }
}
