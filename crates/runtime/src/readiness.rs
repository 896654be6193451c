//! Whether the parts of a process are ready, and if not, which and why.
//!
//! Ready is a call. A component that ends without a word counts as failed, never as ready.

use std::sync::Arc;

use tokio::sync::watch;

/// State of one component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyState {
    /// Not ready yet, and what it waits for.
    Pending(String),
    /// It does its work.
    Ready,
    /// It cannot do its work, and why.
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

/// The components of a process. Copies share them.
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
    /// Nothing registered is not ready: the process has not said yet what it consists of.
    fn is_ready(&self) -> bool {
        !self.entries.is_empty()
            && self
                .entries
                .iter()
                .all(|(_, component)| component.state == ReadyState::Ready)
    }
}

impl Readiness {
    /// Without components, and therefore not ready.
    #[must_use]
    pub fn new() -> Readiness {
        let board = watch::Sender::new(Board::default());
        let seen = board.subscribe();
        Readiness {
            board: Arc::new(board),
            seen,
        }
    }

    /// Adds a component, pending until its handle says otherwise.
    ///
    /// A component that starts again takes the place of the earlier one of the same name.
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

    /// True when there is at least one component and all of them are ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.board.borrow().is_ready()
    }

    /// Waits for the next change that this copy has not seen. Cancel safe.
    pub async fn changed(&mut self) {
        // `self` holds the sender, so the channel cannot close.
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

/// With which a component reports its own state.
///
/// Dropping it means failed: a component that still works holds its handle.
#[derive(Debug)]
pub struct ReadyHandle {
    board: Arc<watch::Sender<Board>>,
    id: u64,
}

impl ReadyHandle {
    /// The component does its work.
    pub fn ready(&self) {
        self.set(ReadyState::Ready);
    }

    /// The component is not ready, because of `why`.
    pub fn pending(&self, why: impl Into<String>) {
        self.set(ReadyState::Pending(why.into()));
    }

    /// The component cannot work, because of `why`.
    pub fn failed(&self, why: impl Into<String>) {
        self.set(ReadyState::Failed(why.into()));
    }

    /// Takes the component off the list: it ended on purpose and is not waited for.
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
        // A reason given earlier says more than the end that followed it.
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
    fn nothing_registered_is_not_ready() {
        assert!(!Readiness::new().is_ready());
    }

    #[test]
    fn ready_when_all_say_so_and_a_lost_handle_is_a_failure() {
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
    fn a_component_that_starts_again_replaces_the_old_one() {
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
    async fn waiters_see_changes() {
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
        // Saying the same again is no change.
        envoy.ready();
        assert!(futures_util::FutureExt::now_or_never(readiness.changed()).is_none());
    }
}
