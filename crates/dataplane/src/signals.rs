//! How the process is asked to end, as one value that only rises: nothing, graceful, now.
//! Reading operating-system signals is a task of `main.rs`; tests send the requests themselves.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How urgently the process shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nobody asked.
    None,
    /// Drain, then quit Envoy, within the configured times (first SIGINT or SIGTERM).
    Graceful,
    /// Kill Envoy and end (second SIGINT or SIGTERM).
    Now,
}

/// Sends requests to end.
#[derive(Debug, Clone)]
pub struct StopSender(watch::Sender<Urgency>);

impl StopSender {
    /// Raises the urgency by one step, as each further signal does.
    pub fn escalate(&self) -> Urgency {
        // Copied out first: the channel must not be borrowed while it is written to.
        let current = *self.0.borrow();
        self.request(match current {
            Urgency::None => Urgency::Graceful,
            Urgency::Graceful | Urgency::Now => Urgency::Now,
        })
    }

    /// Raises the urgency to `urgency`; it never falls. Answers what holds now.
    pub fn request(&self, urgency: Urgency) -> Urgency {
        self.0.send_if_modified(|current| {
            let rises = urgency > *current;
            if rises {
                *current = urgency;
            }
            rises
        });
        *self.0.borrow()
    }
}

/// Receives requests to end. Clones see the same requests, also those sent before the clone.
#[derive(Debug, Clone)]
pub struct Signals(watch::Receiver<Urgency>);

impl Signals {
    /// What was asked so far.
    pub fn urgency(&self) -> Urgency {
        *self.0.borrow()
    }

    /// Waits until at least `urgency` was asked for, also when that was before this call. Pending
    /// for ever when the sender is gone without having asked.
    pub async fn at_least(&mut self, urgency: Urgency) -> Urgency {
        loop {
            let current = *self.0.borrow_and_update();
            if current >= urgency {
                return current;
            }
            if self.0.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// A connected pair.
pub fn channel() -> (StopSender, Signals) {
    let (sender, receiver) = watch::channel(Urgency::None);
    (StopSender(sender), Signals(receiver))
}

/// Turns SIGINT and SIGTERM into requests: the first is graceful, any further one means now.
/// The handlers are in place when this returns; the future it returns has to be run by a task,
/// and ends with `stop`.
///
/// # Errors
/// When the operating system refuses a handler.
pub fn from_process(
    sender: StopSender,
    stop: CancellationToken,
) -> std::io::Result<impl Future<Output = std::io::Result<()>> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        loop {
            let name = tokio::select! {
                Some(()) = interrupt.recv() => "SIGINT",
                Some(()) = terminate.recv() => "SIGTERM",
                () = stop.cancelled() => return Ok(()),
                else => return Ok(()),
            };
            let urgency = sender.escalate();
            tracing::info!(
                signal = name,
                immediate = urgency == Urgency::Now,
                "received signal"
            );
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn urgency_only_rises_and_is_seen_by_late_receivers() {
        let (sender, mut signals) = channel();
        assert!(
            timeout(Duration::from_secs(60), signals.at_least(Urgency::Graceful))
                .await
                .is_err()
        );
        assert_eq!(sender.escalate(), Urgency::Graceful);
        let mut late = signals.clone();
        assert_eq!(signals.at_least(Urgency::Graceful).await, Urgency::Graceful);
        assert!(
            timeout(Duration::from_secs(60), signals.at_least(Urgency::Now))
                .await
                .is_err()
        );
        assert_eq!(sender.escalate(), Urgency::Now);
        assert_eq!(sender.request(Urgency::Graceful), Urgency::Now);
        assert_eq!(sender.escalate(), Urgency::Now);
        drop(sender);
        assert_eq!(late.at_least(Urgency::Graceful).await, Urgency::Now);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_that_goes_without_asking_ends_nothing() {
        let (sender, mut signals) = channel();
        drop(sender);
        assert!(
            timeout(Duration::from_secs(60), signals.at_least(Urgency::Graceful))
                .await
                .is_err()
        );
    }
}
