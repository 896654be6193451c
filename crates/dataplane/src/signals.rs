//! What the process is asked for from outside: to end, as one value that only rises, and to start
//! a new Envoy. Reading operating-system signals is a task of `main.rs`; tests send the requests
//! themselves.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How urgently the process shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Urgency {
    /// Nobody asked.
    #[default]
    None,
    /// End, and leave Envoy to the next dataplane where it can live on (SIGUSR2); graceful
    /// elsewhere.
    Release,
    /// Drain, then quit Envoy, within the configured times (first SIGINT or SIGTERM).
    Graceful,
    /// Kill Envoy and end (second SIGINT or SIGTERM).
    Now,
}

#[derive(Debug, Clone, Copy, Default)]
struct Requests {
    urgency: Urgency,
    /// How often a new Envoy was asked for.
    restarts: u64,
}

/// Sends requests.
#[derive(Debug, Clone)]
pub struct StopSender(watch::Sender<Requests>);

impl StopSender {
    /// Raises the urgency by one step, as each further signal does.
    pub fn escalate(&self) -> Urgency {
        // Copied out first: the channel must not be borrowed while it is written to.
        let current = self.0.borrow().urgency;
        self.request(match current {
            Urgency::None | Urgency::Release => Urgency::Graceful,
            Urgency::Graceful | Urgency::Now => Urgency::Now,
        })
    }

    /// Raises the urgency to `urgency`; it never falls. Returns what holds now.
    pub fn request(&self, urgency: Urgency) -> Urgency {
        self.raise(urgency);
        self.0.borrow().urgency
    }

    /// Raises the urgency to `urgency`; it never falls. Returns whether it was lower before.
    pub fn raise(&self, urgency: Urgency) -> bool {
        self.0.send_if_modified(|requests| {
            let rises = urgency > requests.urgency;
            if rises {
                requests.urgency = urgency;
            }
            rises
        })
    }

    /// Asks for a new Envoy with the configuration of now (SIGHUP).
    pub fn restart(&self) {
        self.0.send_modify(|requests| requests.restarts += 1);
    }
}

/// Receives requests. Clones see the same requests, also those sent before the clone.
#[derive(Debug, Clone)]
pub struct Signals {
    requests: watch::Receiver<Requests>,
    restarts: u64,
}

impl Signals {
    /// What was asked so far.
    pub fn urgency(&self) -> Urgency {
        self.requests.borrow().urgency
    }

    /// Waits until at least `urgency` was asked for, also when that was before this call. Pending
    /// for ever when the sender is gone without having asked.
    pub async fn at_least(&mut self, urgency: Urgency) -> Urgency {
        let asked = |requests: &Requests| requests.urgency >= urgency;
        let asked = self.requests.wait_for(asked).await;
        match asked.map(|requests| requests.urgency) {
            Ok(urgency) => urgency,
            Err(_) => std::future::pending().await,
        }
    }

    /// Counts what was asked so far as done: the Envoy that is about to be started is a new one.
    pub fn forget_restarts(&mut self) {
        self.restarts = self.requests.borrow().restarts;
    }

    /// Waits until a new Envoy was asked for since the last time; several requests may count as
    /// one. Pending for ever when the sender is gone. Cancel safe.
    pub async fn restart(&mut self) {
        let seen = self.restarts;
        let requested = self
            .requests
            .wait_for(|requests| requests.restarts != seen)
            .await;
        let restarts = requested.map(|requests| requests.restarts);
        match restarts {
            Ok(restarts) => self.restarts = restarts,
            Err(_) => std::future::pending().await,
        }
    }
}

/// A connected pair.
pub fn channel() -> (StopSender, Signals) {
    let (sender, requests) = watch::channel(Requests::default());
    let signals = Signals {
        requests,
        restarts: 0,
    };
    (StopSender(sender), signals)
}

/// Turns signals into requests: the first SIGINT or SIGTERM is graceful, any further one means now;
/// SIGHUP asks for a new Envoy; SIGUSR2 for an end that leaves Envoy running.
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
    async fn each_request_for_a_restart_is_seen_once_and_ends_nothing() {
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
        assert_eq!(sender.request(Urgency::Release), Urgency::Release);
        assert_eq!(signals.at_least(Urgency::Release).await, Urgency::Release);
        assert_eq!(sender.escalate(), Urgency::Graceful);
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
