//! Ends Envoy, and derives the outcome of the process from it.

use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use legate_envoy::admin::AdminClient;
use legate_envoy::supervision::{Ended, EnvoyConfig, Handle, Outcome};
use legate_runtime::{Spawner, TaskError};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::signals::Urgency;

/// Time limit for reading and writing Envoy's configuration. Envoy's end waits for it, and a pod
/// has 30 s in total by default.
const DUMP: Duration = Duration::from_secs(5);

/// The outcome of the process once supervision has ended.
pub(super) fn process_outcome(ended: Ended, failure: Option<TaskError>) -> anyhow::Result<()> {
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    match ended.outcome {
        Outcome::Stopped { forced: true } => tracing::warn!("envoy had to be killed"),
        Outcome::Unkillable => tracing::warn!("envoy did not end after SIGKILL"),
        Outcome::Released => tracing::info!("envoy runs on without this dataplane"),
        Outcome::Stopped { forced: false } | Outcome::Ended => {}
        Outcome::Spent => {
            let last = ended.last.map(|exit| exit.reason);
            match (last, ended.refusal) {
                (Some(reason), Some(refusal)) if ended.refused => bail!(
                    "envoy {reason}, because it refuses its configuration: {refusal}; see the \
                     envoy_ keys of the proxy's configuration and what follows --"
                ),
                (Some(reason), refusal) => {
                    // The reason often only repeats the exit status.
                    let refusal = refusal.filter(|text| !text.ends_with(&reason.to_string()));
                    let refusal = refusal.map(|text| format!("; {text}")).unwrap_or_default();
                    bail!("envoy ended by itself and all retries are exhausted: {reason}{refusal}");
                }
                (None, refusal) => bail!(
                    "envoy could not be started: {}",
                    refusal.unwrap_or_default()
                ),
            }
        }
    }
    Ok(())
}

/// Ends Envoy on request.
pub(super) struct Ending {
    pub(super) handle: Handle<EnvoyConfig>,
    /// Whether Envoy can outlive this process.
    pub(super) outlives: bool,
    /// Set if the configuration has to be written to standard output first.
    pub(super) dump: Option<AdminClient>,
    /// Spawns the configuration dump.
    pub(super) spawner: Spawner,
}

impl Ending {
    /// Asks the supervisor to end Envoy with this urgency.
    pub(super) fn ask(&mut self, urgency: Urgency) {
        match urgency {
            Urgency::None => return,
            Urgency::Now => return self.handle.kill(),
            Urgency::Release if self.outlives => return self.handle.release(),
            Urgency::Release | Urgency::Graceful => {}
        }
        tracing::info!("initiating shutdown");
        match self.dump.take() {
            Some(admin) => {
                tracing::info!("writing Envoy's configuration to standard output");
                let handle = self.handle.clone();
                self.spawner
                    .spawn_until_stop("configuration dump", async move {
                        dump(admin).await;
                        handle.stop();
                    });
            }
            None => self.handle.stop(),
        }
    }
}

/// Dumps Envoy's configuration. Failures are only logged: Envoy's end does not depend on it.
async fn dump(admin: AdminClient) {
    match timeout(DUMP, write_configuration(admin)).await {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => tracing::warn!(reason, "Envoy's configuration could not be written"),
        Err(_) => tracing::warn!(
            limit = ?DUMP,
            "Envoy's configuration is not complete on standard output, which was not read in time"
        ),
    }
}

/// Writes in a separate thread: standard output may be a pipe that is not read.
async fn write_configuration(admin: AdminClient) -> Result<(), String> {
    // Includes endpoints. Envoy redacts private keys.
    let document = admin.get("/config_dump?include_eds").await;
    let document = document.map_err(|error| error.to_string())?;
    let written = spawn_blocking(move || {
        let mut output = std::io::stdout().lock();
        output.write_all(&document).and_then(|()| output.flush())
    });
    let written = written.await.map_err(|error| error.to_string())?;
    written.map_err(|error| error.to_string())
}
