//! Ownership of tasks: whoever starts a task holds the [`Scope`] that ends and joins it.
//!
//! A failure or panic of a task is kept for the owner and never lost in a detached handle. It also
//! reaches every scope above, so that one look at a program's root scope sees all of them.
//! Nothing here restarts a task: that decision belongs to the owner.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What a task may fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long [`Scope::stop`] waits for tasks that it has dropped after the deadline.
///
/// A dropped task is gone at its next await point; one that blocks its thread never reaches it,
/// and must not hold up the end of the process.
const DROP_WAIT: Duration = Duration::from_secs(1);

/// Owner of a set of tasks.
///
/// Dropping a scope cancels its token and drops every task that is still running, at that task's
/// next await point. [`Scope::stop`] is the orderly way.
#[derive(Debug)]
pub struct Scope {
    spawner: Spawner,
}

impl Scope {
    /// An empty scope with none above it; `name` stands in every error about its tasks.
    ///
    /// Its owner has to wait for [`Scope::failed`]: nobody else hears of a failure. A program has
    /// one such scope; the others are children of it ([`Spawner::child`]).
    #[must_use]
    pub fn new(name: &'static str) -> Scope {
        Scope::under(name, None, CancellationToken::new())
    }

    fn under(name: &'static str, parent: Option<Arc<Shared>>, token: CancellationToken) -> Scope {
        let shared = Shared {
            name,
            parent,
            token,
            kill: CancellationToken::new(),
            running: watch::Sender::new(Running::default()),
            failure: watch::Sender::new(None),
        };
        Scope {
            spawner: Spawner {
                shared: Arc::new(shared),
            },
        }
    }

    /// A handle that starts tasks in this scope, for those who must not be able to stop it.
    #[must_use]
    pub fn spawner(&self) -> Spawner {
        self.spawner.clone()
    }

    /// Starts a task that this scope owns. See [`Spawner::spawn`].
    pub fn spawn<F, E>(&self, name: impl Into<Cow<'static, str>>, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.spawner.spawn(name, task);
    }

    /// Cancelled as soon as [`Scope::stop`] starts. Tasks watch it and end by themselves.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.spawner.token()
    }

    /// Waits for the first task of this scope, or of one below it, that returns an error or
    /// panics; pending for ever otherwise.
    ///
    /// Cancel safe: the failure is kept, and every later call returns the same one.
    pub async fn failed(&self) -> TaskError {
        let mut failure = self.spawner.shared.failure.subscribe();
        let failure = failure.wait_for(Option::is_some).await;
        match failure.ok().and_then(|failure| failure.clone()) {
            Some(error) => error,
            // The sender lives as long as `self`, so there is always something to wait for.
            None => std::future::pending().await,
        }
    }

    /// Cancels the token, waits for the tasks to end and drops those that outlive `deadline`.
    ///
    /// # Errors
    ///
    /// [`StopError`] names the tasks that had to be dropped, and holds what [`Scope::failed`]
    /// returns, also when it happened before the stop.
    pub async fn stop(&self, deadline: Duration) -> Result<(), StopError> {
        let shared = &self.spawner.shared;
        shared.token.cancel();
        let ended = tokio::time::timeout(deadline, shared.idle()).await;
        let mut dropped = Vec::new();
        if ended.is_err() {
            shared.running.send_modify(|running| {
                running.closed = true;
                dropped = running.tasks.values().map(ToString::to_string).collect();
            });
            shared.kill.cancel();
            if tokio::time::timeout(DROP_WAIT, shared.idle())
                .await
                .is_err()
            {
                tracing::error!(scope = shared.name, "a dropped task still blocks a thread");
            }
        }
        let failure = shared.failure.borrow().clone();
        if dropped.is_empty() && failure.is_none() {
            return Ok(());
        }
        Err(StopError {
            scope: shared.name,
            dropped,
            deadline,
            failure,
        })
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let shared = &self.spawner.shared;
        shared.running.send_modify(|running| running.closed = true);
        shared.token.cancel();
        shared.kill.cancel();
    }
}

/// Starts tasks in a [`Scope`] that someone else owns.
#[derive(Clone, Debug)]
pub struct Spawner {
    shared: Arc<Shared>,
}

impl Spawner {
    /// Starts a task that the scope owns; `name` stands in errors about it.
    ///
    /// An error or a panic of the task is handed to the owner of the scope, and to those of the
    /// scopes above it. Once the scope has ended the task is dropped without running, because nobody would be left to join it.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn spawn<F, E>(&self, name: impl Into<Cow<'static, str>>, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        // One type for all tasks: tokio's part of a task would be compiled for each of them.
        let task = task.map(|outcome| outcome.map_err(Into::into)).boxed();
        self.start(name.into(), task);
    }

    fn start(&self, name: Cow<'static, str>, task: BoxFuture<'static, Result<(), BoxError>>) {
        let Some(entry) = Shared::enter(&self.shared, name.clone()) else {
            tracing::debug!(scope = self.shared.name, task = %name, "scope has ended: task not started");
            return;
        };
        let kill = self.shared.kill.clone();
        let run = async move {
            let outcome = AssertUnwindSafe(kill.run_until_cancelled(task))
                .catch_unwind()
                .await;
            let cause = match outcome {
                Ok(None | Some(Ok(()))) => return,
                Ok(Some(Err(error))) => TaskCause::Failed(error),
                Err(panic) => TaskCause::Panicked(panic_text(panic.as_ref())),
            };
            entry.fail(cause);
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the place that owns what it spawns: the entry joins it"
        )]
        drop(tokio::spawn(run));
    }

    /// Starts a task that cannot fail, and that is dropped at its next await point when the scope
    /// starts to stop.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn spawn_until_stop<F>(&self, name: impl Into<Cow<'static, str>>, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.token();
        self.spawn(name, async move {
            stop.run_until_cancelled(task).await;
            Ok::<_, Infallible>(())
        });
    }

    /// A place in the scope for something that ends by itself, or `None` when the scope has ended.
    /// The scope waits until it is given up.
    pub(crate) fn enter(&self, name: Cow<'static, str>) -> Option<Entry> {
        Shared::enter(&self.shared, name)
    }

    /// The token of the scope, cancelled when it starts to stop.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.shared.token.clone()
    }

    /// A scope whose token is cancelled with this one's, and whose failures reach this one. The
    /// caller owns, stops and joins it.
    #[must_use]
    pub fn child(&self, name: &'static str) -> Scope {
        let token = self.shared.token.child_token();
        Scope::under(name, Some(Arc::clone(&self.shared)), token)
    }

    /// Like [`Spawner::child`], with a token of its own: for tasks that are needed until after the
    /// stop of this scope has begun. Only its owner stops it.
    #[must_use]
    pub fn child_with_own_token(&self, name: &'static str) -> Scope {
        let token = CancellationToken::new();
        Scope::under(name, Some(Arc::clone(&self.shared)), token)
    }
}

/// What the scope, its spawners and its tasks share. The scope alone cancels the tokens.
#[derive(Debug)]
struct Shared {
    name: &'static str,
    /// The scope that hears of failures too.
    parent: Option<Arc<Shared>>,
    /// Asks tasks to end.
    token: CancellationToken,
    /// Drops tasks at their next await point.
    kill: CancellationToken,
    running: watch::Sender<Running>,
    failure: watch::Sender<Option<TaskError>>,
}

#[derive(Debug, Default)]
struct Running {
    next: u64,
    tasks: BTreeMap<u64, Cow<'static, str>>,
    closed: bool,
}

impl Shared {
    /// Registers a task, or `None` when the scope has ended.
    fn enter(shared: &Arc<Shared>, name: Cow<'static, str>) -> Option<Entry> {
        let mut id = None;
        shared.running.send_if_modified(|running| {
            if !running.closed {
                running.tasks.insert(running.next, name.clone());
                id = Some(running.next);
                running.next += 1;
            }
            // Waiters look for an empty set, and adding a task cannot make it empty.
            false
        });
        id.map(|id| Entry {
            shared: Arc::clone(shared),
            id,
            name,
        })
    }

    /// Waits until no task runs, and closes the scope in the same step.
    async fn idle(&self) {
        let mut running = self.running.subscribe();
        loop {
            let mut idle = false;
            self.running.send_if_modified(|running| {
                idle = running.tasks.is_empty();
                running.closed |= idle;
                false
            });
            // The sender is `self`, so waiting cannot fail.
            if idle || running.changed().await.is_err() {
                return;
            }
        }
    }
}

/// A running task's place in its scope, given up when it is dropped.
pub(crate) struct Entry {
    shared: Arc<Shared>,
    id: u64,
    name: Cow<'static, str>,
}

impl Entry {
    fn fail(&self, cause: TaskCause) {
        let error = TaskError {
            scope: self.shared.name,
            task: self.name.clone(),
            cause: Arc::new(cause),
        };
        let mut first = false;
        let mut next = Some(&self.shared);
        while let Some(scope) = next {
            first |= scope.failure.send_if_modified(|failure| {
                let first = failure.is_none();
                if first {
                    *failure = Some(error.clone());
                }
                first
            });
            next = scope.parent.as_ref();
        }
        if !first {
            // Owners get the first failure only; the others would be lost without this line.
            tracing::warn!(%error, "another task failed");
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared
            .running
            .send_modify(|running| drop(running.tasks.remove(&self.id)));
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&'static str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a text".to_owned())
}

/// Why a task ended early.
#[derive(Debug)]
pub enum TaskCause {
    /// It returned this error.
    Failed(BoxError),
    /// It panicked with this text: a defect in the program.
    Panicked(String),
}

/// A task that returned an error or panicked.
#[derive(Clone, Debug)]
pub struct TaskError {
    scope: &'static str,
    task: Cow<'static, str>,
    cause: Arc<TaskCause>,
}

impl TaskError {
    /// Name of the scope that owned the task.
    #[must_use]
    pub fn scope(&self) -> &'static str {
        self.scope
    }

    /// Name the task was started with.
    #[must_use]
    pub fn task(&self) -> &str {
        &self.task
    }

    /// What happened.
    #[must_use]
    pub fn cause(&self) -> &TaskCause {
        &self.cause
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scope, task) = (self.scope, &self.task);
        match &*self.cause {
            TaskCause::Failed(error) => write!(f, "{scope}: {task} failed: {error}"),
            TaskCause::Panicked(text) => write!(f, "{scope}: {task} panicked: {text}"),
        }
    }
}

impl std::error::Error for TaskError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.cause {
            // The error itself stands in this one's text; the chain goes on behind it.
            TaskCause::Failed(error) => error.source(),
            TaskCause::Panicked(_) => None,
        }
    }
}

/// A scope that did not end cleanly.
#[derive(Clone, Debug)]
pub struct StopError {
    /// Name of the scope.
    pub scope: &'static str,
    /// Tasks that were still running at the deadline and were dropped.
    pub dropped: Vec<String>,
    /// The deadline that was given.
    pub deadline: Duration,
    /// The first task that failed, before or during the stop.
    pub failure: Option<TaskError>,
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.dropped.is_empty() {
            write!(
                f,
                "{}: dropped after {:?} without having ended: {}",
                self.scope,
                self.deadline,
                self.dropped.join(", ")
            )?;
            if self.failure.is_some() {
                f.write_str("; ")?;
            }
        }
        match &self.failure {
            Some(failure) => write!(f, "{failure}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for StopError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.failure
            .as_ref()
            .and_then(|failure| std::error::Error::source(failure))
    }
}

#[cfg(test)]
mod tests;
