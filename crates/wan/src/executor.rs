//! Runs the tasks of HTTP/2 connections in a scope, so that they end with it.

use std::convert::Infallible;

use legate_runtime::Spawner;

/// The scope of the tasks.
#[derive(Clone)]
pub(crate) struct Tasks(pub(crate) Spawner);

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn("HTTP/2", async move {
            task.await;
            Ok::<_, Infallible>(())
        });
    }
}
