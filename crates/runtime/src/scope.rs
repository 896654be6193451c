//! Ownership of tasks: every task belongs to a [`Scope`], whose owner stops and joins it.
//!
//! A task's failure or panic is stored for the owner and never lost in a detached handle. It also
//! reaches every scope above, so that a program's root scope sees all failures. Nothing here restarts
//! tasks: that is up to the owner.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::{self, Handle};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Error type of tasks.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long [`Scope::stop`] waits for tasks that it dropped after the deadline.
///
/// A dropped task ends at its next await point. One that blocks its thread never reaches it, and must
/// not delay the end of the process.
const DROP_WAIT: Duration = Duration::from_secs(1);

/// Owner of a set of tasks.
///
/// Dropping a scope cancels its token and drops every running task at its next await point.
/// [`Scope::stop`] stops tasks gracefully.
#[derive(Debug)]
pub struct Scope {
    spawner: Spawner,
}

impl Scope {
    /// A root scope without tasks; `name` is part of every error of its tasks.
    ///
    /// Its owner must await [`Scope::failed`], since failures are not reported elsewhere. A program
    /// has one root scope; the others are its children ([`Spawner::child`]).
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
                runtime: None,
            },
        }
    }

    /// A handle that starts tasks in this scope but cannot stop it.
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

    /// A token that is cancelled when [`Scope::stop`] starts. Tasks watch it and then end by
    /// themselves.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.spawner.token()
    }

    /// Waits for the first task of this scope, or of a child scope, that returns an error or panics;
    /// pending forever otherwise.
    ///
    /// Cancel safe: the failure is stored, and every later call returns it again.
    pub async fn failed(&self) -> TaskError {
        let mut failure = self.spawner.shared.failure.subscribe();
        let failure = failure.wait_for(Option::is_some).await;
        match failure.ok().and_then(|failure| failure.clone()) {
            Some(error) => error,
            // The sender lives as long as `self`, so the channel is never closed.
            None => std::future::pending().await,
        }
    }

    /// Cancels the token, waits for the tasks to end, and drops those that are still running at
    /// `deadline`.
    ///
    /// # Errors
    ///
    /// [`StopError`] contains the names of dropped tasks, and the failure that [`Scope::failed`]
    /// returns, even if it occurred before the stop.
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

/// Starts tasks in a [`Scope`] that is owned elsewhere.
#[derive(Clone, Debug)]
pub struct Spawner {
    shared: Arc<Shared>,
    /// The runtime of the scope's own thread; `None` for the caller's.
    runtime: Option<Handle>,
}

impl Spawner {
    /// Starts a task in the scope; `name` is part of its errors.
    ///
    /// An error or panic of the task is reported to the owner of the scope and to those of the scopes
    /// above it. If the scope has ended, the task is dropped without running, since it could not be
    /// joined any more.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, unless the scope has its own thread.
    pub fn spawn<F, E>(&self, name: impl Into<Cow<'static, str>>, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        // One type for all tasks, so that tokio's code is not instantiated for each of them.
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
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(run)),
            None => drop(tokio::spawn(run)),
        }
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

    /// Registers something in the scope that ends by itself; `None` if the scope has ended. The scope
    /// waits until the entry is dropped.
    pub(crate) fn enter(&self, name: Cow<'static, str>) -> Option<Entry> {
        Shared::enter(&self.shared, name)
    }

    /// The token of the scope, cancelled when it starts to stop.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.shared.token.clone()
    }

    /// A child scope: its token is cancelled with this one's, and its failures reach this one. The
    /// caller owns, stops and joins it.
    #[must_use]
    pub fn child(&self, name: &'static str) -> Scope {
        let token = self.shared.token.child_token();
        let mut scope = Scope::under(name, Some(Arc::clone(&self.shared)), token);
        scope.spawner.runtime.clone_from(&self.runtime);
        scope
    }

    /// As [`Spawner::child`], but its tasks run on a thread of their own, with its own runtime: they neither delay the
    /// tasks of other threads nor are delayed by them. The thread ends when the scope is dropped, and this scope waits
    /// for that.
    ///
    /// # Errors
    ///
    /// When the system refuses another thread, or the resources of a runtime.
    pub fn child_on_own_thread(&self, name: &'static str) -> io::Result<Scope> {
        let mut scope = self.child(name);
        let entry = self.enter(name.into());
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        scope.spawner.runtime = Some(runtime.handle().clone());
        let ends = scope.spawner.shared.kill.clone();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(ends.cancelled());
                // Tasks that are left end before the scope above may end.
                drop(runtime);
                drop(entry);
            })?;
        Ok(scope)
    }

    /// As [`Spawner::child`], but with an independent token: for tasks that are still needed while
    /// this scope stops. Only its owner stops it.
    #[must_use]
    pub fn child_with_own_token(&self, name: &'static str) -> Scope {
        let token = CancellationToken::new();
        let mut scope = Scope::under(name, Some(Arc::clone(&self.shared)), token);
        scope.spawner.runtime.clone_from(&self.runtime);
        scope
    }
}

/// State that the scope, its spawners and its tasks share. Only the scope cancels the tokens.
#[derive(Debug)]
struct Shared {
    name: &'static str,
    /// The scope to which failures are reported as well.
    parent: Option<Arc<Shared>>,
    /// Requests tasks to end.
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
    /// Registers a task; `None` if the scope has ended.
    fn enter(shared: &Arc<Shared>, name: Cow<'static, str>) -> Option<Entry> {
        let mut id = None;
        shared.running.send_if_modified(|running| {
            if !running.closed {
                running.tasks.insert(running.next, name.clone());
                id = Some(running.next);
                running.next += 1;
            }
            // Waiters wait for an empty set, so adding a task does not concern them.
            false
        });
        id.map(|id| Entry {
            shared: Arc::clone(shared),
            id,
            name,
        })
    }

    /// Waits until no task runs, and closes the scope atomically.
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

/// A running task's entry in its scope, removed when it is dropped.
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
            // Owners only get the first failure; this line reports the others.
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

/// Cause of a task's failure.
#[derive(Debug)]
pub enum TaskCause {
    /// It returned this error.
    Failed(BoxError),
    /// It panicked with this message, which indicates a bug.
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

    /// Name of the task.
    #[must_use]
    pub fn task(&self) -> &str {
        &self.task
    }

    /// The cause.
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
            // This error's text includes the error itself, so the chain continues after it.
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
