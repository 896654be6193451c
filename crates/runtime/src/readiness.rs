//! Readiness of a process: which components are ready, and why others are not.
//!
//! Readiness must be reported explicitly. A component that ends without a report counts as failed,
//! never as ready.

use std::sync::Arc;

use tokio::sync::watch;

/// State of one component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyState {
    /// Not ready yet; the text is what it waits for.
    Pending(String),
    /// It does its work.
    Ready,
    /// Not able to work; the text is the reason.
    Failed(String),
}

/// A component and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// The name it was registered with.
    pub name: &'static str,
    /// Its current state.
    pub state: ReadyState,
}

/// The components of a process. Clones share them.
#[derive(Clone, Debug)]
pub struct Readiness {
    board: Arc<watch::Sender<Board>>,
    seen: watch::Receiver<Board>,
}

#[derive(Debug, Default)]
struct Board {
    next: u64,
    entries: Vec<(u64, Component)>,
}

impl Board {
    /// Without components, the process is not ready: it has not registered its components yet.
    fn is_ready(&self) -> bool {
        !self.entries.is_empty()
            && self
                .entries
                .iter()
                .all(|(_, component)| component.state == ReadyState::Ready)
    }
}

impl Readiness {
    /// An instance without components, which is therefore not ready.
    #[must_use]
    pub fn new() -> Readiness {
        let board = watch::Sender::new(Board::default());
        let seen = board.subscribe();
        Readiness {
            board: Arc::new(board),
            seen,
        }
    }

    /// Registers a component, which is pending until its handle reports otherwise.
    ///
    /// A restarted component replaces the earlier one of the same name.
    #[must_use = "dropping the handle reports the component as failed"]
    pub fn register(&self, name: &'static str) -> ReadyHandle {
        let mut id = 0;
        self.board.send_modify(|board| {
            id = board.next;
            board.next += 1;
            let component = Component {
                name,
                state: ReadyState::Pending("starting".to_owned()),
            };
            match board.entries.iter_mut().find(|(_, old)| old.name == name) {
                Some(entry) => *entry = (id, component),
                None => board.entries.push((id, component)),
            }
        });
        ReadyHandle {
            board: Arc::clone(&self.board),
            id,
        }
    }

    /// All components in the order of their registration.
    #[must_use]
    pub fn report(&self) -> Vec<Component> {
        let board = self.board.borrow();
        let components = board.entries.iter().map(|(_, component)| component.clone());
        components.collect()
    }

    /// Whether there is at least one component and all of them are ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.board.borrow().is_ready()
    }

    /// Waits for the next change that this clone has not seen. Cancel safe.
    pub async fn changed(&mut self) {
        // `self` contains the sender, so the channel cannot be closed.
        let _ = self.seen.changed().await;
    }

    /// Waits until everything is ready. Cancel safe.
    pub async fn wait_ready(&self) {
        let mut board = self.board.subscribe();
        let _ = board.wait_for(Board::is_ready).await;
    }
}

impl Default for Readiness {
    fn default() -> Readiness {
        Readiness::new()
    }
}

/// Handle with which a component reports its own state.
///
/// Dropping it means failed, so a component must hold its handle while it works.
#[derive(Debug)]
pub struct ReadyHandle {
    board: Arc<watch::Sender<Board>>,
    id: u64,
}

impl ReadyHandle {
    /// Reports that the component is ready.
    pub fn ready(&self) {
        self.set(ReadyState::Ready);
    }

    /// Reports that the component is not ready, because of `why`.
    pub fn pending(&self, why: impl Into<String>) {
        self.set(ReadyState::Pending(why.into()));
    }

    /// Reports that the component cannot work, because of `why`.
    pub fn failed(&self, why: impl Into<String>) {
        self.set(ReadyState::Failed(why.into()));
    }

    /// Removes the component, which ended intentionally.
    pub fn remove(self) {
        let id = self.id;
        self.board.send_if_modified(|board| {
            let before = board.entries.len();
            board.entries.retain(|(other, _)| *other != id);
            board.entries.len() != before
        });
    }

    fn set(&self, state: ReadyState) {
        self.change(|old| (*old != state).then_some(state));
    }

    /// Applies `decide` to this component, unless a later registration has replaced it.
    fn change(&self, decide: impl FnOnce(&ReadyState) -> Option<ReadyState>) {
        self.board.send_if_modified(|board| {
            let entry = board.entries.iter_mut().find(|(id, _)| *id == self.id);
            let Some((_, component)) = entry else {
                return false;
            };
            match decide(&component.state) {
                Some(state) => {
                    component.state = state;
                    true
                }
                None => false,
            }
        });
    }
}

impl Drop for ReadyHandle {
    fn drop(&mut self) {
        // An earlier reason is more informative than the end that followed it.
        self.change(|old| match old {
            ReadyState::Failed(_) => None,
            ReadyState::Pending(_) | ReadyState::Ready => {
                Some(ReadyState::Failed("stopped".to_owned()))
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(readiness: &Readiness) -> Vec<(&'static str, ReadyState)> {
        let report = readiness.report().into_iter();
        report.map(|part| (part.name, part.state)).collect()
    }

    #[test]
    fn without_components_it_is_not_ready() {
        assert!(!Readiness::new().is_ready());
    }

    #[test]
    fn ready_when_all_components_are_and_a_dropped_handle_is_a_failure() {
        let readiness = Readiness::new();
        let envoy = readiness.register("envoy");
        let dns = readiness.register("dns");
        envoy.ready();
        assert!(!readiness.is_ready());
        dns.ready();
        assert!(readiness.is_ready());
        drop(envoy);
        let stopped = ReadyState::Failed("stopped".to_owned());
        assert_eq!(
            states(&readiness),
            [("envoy", stopped), ("dns", ReadyState::Ready)]
        );
    }

    #[test]
    fn the_reason_of_a_failure_outlives_the_handle() {
        let readiness = Readiness::new();
        let envoy = readiness.register("envoy");
        envoy.failed("exit code 1");
        drop(envoy);
        let failed = ReadyState::Failed("exit code 1".to_owned());
        assert_eq!(states(&readiness), [("envoy", failed)]);
    }

    #[test]
    fn a_restarted_component_replaces_the_old_one() {
        let readiness = Readiness::new();
        let old = readiness.register("envoy");
        let new = readiness.register("envoy");
        new.ready();
        old.failed("late news of the first life");
        drop(old);
        assert!(readiness.is_ready());
        new.remove();
        assert!(readiness.report().is_empty());
    }

    #[tokio::test]
    async fn waiters_are_notified_of_changes() {
        let mut readiness = Readiness::new();
        let observer = readiness.clone();
        let envoy = readiness.register("envoy");
        readiness.changed().await;
        let waiting = observer.wait_ready();
        tokio::pin!(waiting);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        envoy.ready();
        waiting.await;
        readiness.changed().await;
        // Reporting the same state again is not a change.
        envoy.ready();
        assert!(futures_util::FutureExt::now_or_never(readiness.changed()).is_none());
    }
}
