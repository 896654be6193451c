//! Signals that end the program: SIGINT (Ctrl-C), SIGTERM, and SIGHUP when the terminal is closed.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives signals from its creation on: a signal before [`Interrupt::wait`] is not lost.
pub(crate) struct Interrupt {
    ctrl_c: Signal,
    terminate: Signal,
    /// `None` if SIGHUP is ignored, as under `nohup`, which keeps the program running without the
    /// terminal.
    hangup: Option<Signal>,
}

impl Interrupt {
    /// Installs the signal handlers.
    ///
    /// # Errors
    ///
    /// If the operating system refuses.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        let ignored =
            std::fs::read_to_string("/proc/self/status").is_ok_and(|s| ignores_hangup(&s));
        Ok(Self {
            ctrl_c: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: match ignored {
                true => None,
                false => Some(listen(SignalKind::hangup())?),
            },
        })
    }

    /// Waits for a signal.
    pub(crate) async fn wait(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.ctrl_c.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }
}

/// Whether the set of ignored signals in `/proc/PID/status` has SIGHUP, its lowest bit.
fn ignores_hangup(status: &str) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_detected() {
        assert!(ignores_hangup("Name:\tlegate\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("SigIgn:\t0000000000001000\nSigCgt:\t1\n"));
        assert!(!ignores_hangup(""));
    }
}
