//! Requests to the process from outside: to stop, as an urgency that only rises, and to start a new
//! Envoy. Operating-system signals are received by a task that `main.rs` starts; tests send requests
//! directly.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// How urgently the process should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// No stop was requested.
    None,
    /// Stop, and leave Envoy running for the next dataplane where possible (SIGUSR2); otherwise like
    /// `Graceful`.
    Release,
    /// Drain, then stop Envoy within the configured times (first SIGINT or SIGTERM).
    Graceful,
    /// Kill Envoy and stop (second SIGINT or SIGTERM).
    Now,
}

/// Sends requests.
#[derive(Debug, Clone)]
pub struct StopSender {
    urgency: watch::Sender<Urgency>,
    restart: Arc<Notify>,
}

impl StopSender {
    /// Raises the urgency by one step, as each further SIGINT or SIGTERM does.
    pub fn escalate(&self) -> Urgency {
        self.urgency.send_modify(|urgency| {
            *urgency = match urgency {
                Urgency::None | Urgency::Release => Urgency::Graceful,
                Urgency::Graceful | Urgency::Now => Urgency::Now,
            };
        });
        *self.urgency.borrow()
    }

    /// Raises the urgency to `urgency`; it is never lowered. Returns whether it was lower before.
    pub fn request(&self, urgency: Urgency) -> bool {
        self.urgency.send_if_modified(|present| {
            let rises = urgency > *present;
            *present = urgency.max(*present);
            rises
        })
    }

    /// Requests a new Envoy with the current configuration (SIGHUP).
    pub fn restart(&self) {
        self.restart.notify_one();
    }
}

/// Receives requests. Clones share the urgency, including requests from before the clone. A request
/// for a new Envoy is received by one of them.
#[derive(Debug, Clone)]
pub struct Signals {
    urgency: watch::Receiver<Urgency>,
    restart: Arc<Notify>,
}

impl Signals {
    /// The urgency requested so far.
    pub fn urgency(&self) -> Urgency {
        *self.urgency.borrow()
    }

    /// Waits until more than `urgency` is requested; returns at once if it has been. Never completes
    /// if the sender is dropped without a request.
    pub async fn beyond(&mut self, urgency: Urgency) -> Urgency {
        let asked = self.urgency.wait_for(|asked| *asked > urgency).await;
        match asked.map(|asked| *asked) {
            Ok(asked) => asked,
            Err(_) => std::future::pending().await,
        }
    }

    /// Discards earlier restart requests: the Envoy that is about to be started fulfils them.
    pub fn forget_restarts(&self) {
        self.restart().now_or_never();
    }

    /// Waits for a restart request since the last call; several requests may be merged into one.
    /// Cancel safe.
    pub async fn restart(&self) {
        self.restart.notified().await;
    }
}

/// A connected pair.
pub fn channel() -> (StopSender, Signals) {
    let (sender, urgency) = watch::channel(Urgency::None);
    let restart = Arc::new(Notify::new());
    let stop = StopSender {
        urgency: sender,
        restart: Arc::clone(&restart),
    };
    (stop, Signals { urgency, restart })
}

/// Turns signals into requests: the first SIGINT or SIGTERM means graceful, any further one means now;
/// SIGHUP requests a new Envoy; SIGUSR2 requests a stop that leaves Envoy running. The handlers are
/// installed when this returns. The returned future must be run by a task; it ends when `stop` is
/// cancelled.
///
/// # Errors
/// When the operating system rejects a handler.
pub fn from_process(
    sender: StopSender,
    stop: CancellationToken,
) -> io::Result<impl Future<Output = Result<(), Infallible>> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut release = signal(SignalKind::user_defined2())?;
    Ok(async move {
        loop {
            let name = tokio::select! {
                Some(()) = interrupt.recv() => "SIGINT",
                Some(()) = terminate.recv() => "SIGTERM",
                Some(()) = hangup.recv() => {
                    tracing::info!(signal = "SIGHUP", "received signal");
                    sender.restart();
                    continue;
                }
                Some(()) = release.recv() => {
                    tracing::info!(signal = "SIGUSR2", "received signal");
                    sender.request(Urgency::Release);
                    continue;
                }
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
            timeout(Duration::from_secs(60), signals.beyond(Urgency::None))
                .await
                .is_err()
        );
        assert_eq!(sender.escalate(), Urgency::Graceful);
        let mut late = signals.clone();
        assert_eq!(signals.beyond(Urgency::Release).await, Urgency::Graceful);
        assert!(
            timeout(Duration::from_secs(60), signals.beyond(Urgency::Graceful))
                .await
                .is_err()
        );
        assert_eq!(sender.escalate(), Urgency::Now);
        assert!(!sender.request(Urgency::Graceful));
        assert_eq!(sender.escalate(), Urgency::Now);
        drop(sender);
        assert_eq!(late.beyond(Urgency::Release).await, Urgency::Now);
    }

    #[tokio::test(start_paused = true)]
    async fn each_restart_request_is_received_once_and_does_not_stop() {
        let (sender, mut signals) = channel();
        let wait = Duration::from_secs(60);
        assert!(timeout(wait, signals.restart()).await.is_err());
        sender.restart();
        sender.restart();
        signals.restart().await;
        assert!(timeout(wait, signals.restart()).await.is_err());
        sender.restart();
        signals.forget_restarts();
        assert!(timeout(wait, signals.restart()).await.is_err());
        sender.restart();
        signals.restart().await;
        assert_eq!(signals.urgency(), Urgency::None);
        assert!(sender.request(Urgency::Release));
        assert_eq!(signals.beyond(Urgency::None).await, Urgency::Release);
        assert_eq!(sender.escalate(), Urgency::Graceful);
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_the_sender_does_not_stop() {
        let (sender, mut signals) = channel();
        drop(sender);
        assert!(
            timeout(Duration::from_secs(60), signals.beyond(Urgency::None))
                .await
                .is_err()
        );
    }
}
