//! What shall run, when somebody wants something else. Starts nothing.

use super::{Machine, Trial, Wanted};

impl<D: Clone + PartialEq> Machine<D> {
    pub(super) fn schedule(&mut self, config: D) {
        if config == self.wanted.config {
            return;
        }
        // Back to what still serves: then there is nothing to start.
        let running = self
            .serving()
            .filter(|epoch| epoch.config.as_ref() == Some(&config))
            .map(|epoch| epoch.serial);
        self.want(config, running);
    }

    pub(super) fn restart(&mut self) {
        // One that is on its way to replace what serves has not been started yet.
        let wanted = self.wanted.serial;
        let runs = self.epochs.iter().any(|epoch| epoch.serial == wanted);
        if !runs && self.wanted.failures == 0 && self.serving().is_some() {
            return;
        }
        // A process that only just starts is as fresh as one can be.
        let newest = self.epochs.last().map(|newest| newest.serial);
        if !self.starting() || newest != Some(self.wanted.serial) {
            self.want(self.wanted.config.clone(), None);
        }
    }

    /// A new wish: whatever failed before does not count against it.
    fn want(&mut self, config: D, running: Option<u64>) {
        let trial = running.map_or(Trial::Unknown, |_| Trial::Passed);
        let serial = running.unwrap_or_else(|| {
            self.last_serial += 1;
            self.last_serial
        });
        self.wanted = Wanted {
            serial,
            config,
            failures: 0,
            waiting: None,
            trial,
        };
        self.checking = None;
        self.pause = None;
        self.forget_failures();
    }
}
