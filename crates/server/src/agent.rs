//! The server in its role as agent of its node: reload and leave. Registrations are in the store;
//! [`crate::seed`] writes the services and checks of the configuration files.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use legate_runtime::logging::LogLevel;
use legate_runtime::{CancellationToken, Clock, Spawner};
use legate_store::Store;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::acl::AgentTokens;
use crate::config::{Definitions, ServerConfig};
use crate::dns::CurrentDns;
use crate::problems::Problems;
use crate::rates::Rates;
use crate::seed;
use crate::start_error::StartError;

/// How often the server tries to write the rows of its settings that could not be stored at the start.
const SEED_AGAIN: Duration = Duration::from_secs(5);
/// Delay before a definition that could not be registered is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Reloads the configuration files of an agent.
#[derive(Clone)]
pub struct Reload {
    read: Arc<dyn Fn() -> Result<Definitions, String> + Send + Sync>,
    log: Option<LogLevel>,
}

impl Reload {
    /// `read` may block. Its error names the file and key at fault.
    pub fn new(read: impl Fn() -> Result<Definitions, String> + Send + Sync + 'static) -> Self {
        Self {
            read: Arc::new(read),
            log: None,
        }
    }

    /// Also applies the files' log level to the process's log.
    #[must_use]
    pub fn with_log(mut self, log: LogLevel) -> Self {
        self.log = Some(log);
        self
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}

/// Why a reload failed. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A file cannot be read or contains an invalid value.
    #[error("the configuration cannot be reloaded: {0}")]
    Read(String),
    /// A definition in the files is refused.
    #[error(transparent)]
    Refused(#[from] StartError),
}

/// What became of the definitions in the files.
#[derive(Debug, Default)]
struct Files {
    /// Whether they were reloaded after the start.
    reloaded: bool,
    /// The definitions that are not registered, because their namespaces do not exist.
    missing: Definitions,
}

/// The agent of the server's node.
#[derive(Debug)]
pub(crate) struct Agent {
    config: Arc<ServerConfig>,
    store: Store,
    reload: Option<Reload>,
    /// Serialises reloads, so that an older version of the files does not overwrite a newer one.
    files: Mutex<Files>,
    problems: Problems,
    leaving: CancellationToken,
    /// The agent's own tokens.
    pub(crate) tokens: Arc<AgentTokens>,
    rates: Rates,
    dns: CurrentDns,
}

impl Agent {
    pub(crate) fn new(
        config: Arc<ServerConfig>,
        store: Store,
        reload: Option<Reload>,
        tokens: Arc<AgentTokens>,
        rates: Rates,
        dns: CurrentDns,
    ) -> Self {
        Self {
            config,
            store,
            reload,
            files: Mutex::default(),
            problems: Problems::default(),
            leaving: CancellationToken::new(),
            tokens,
            rates,
            dns,
        }
    }

    /// Reports definitions that cannot be registered here.
    #[must_use]
    pub(crate) fn with_problems(self, problems: Problems) -> Self {
        Self { problems, ..self }
    }

    /// Reloads the configuration files and applies their definitions. No-op for a server without files.
    ///
    /// # Errors
    /// [`ReloadError`]
    pub(crate) async fn reload(&self) -> Result<(), ReloadError> {
        let mut files = self.files.lock().await;
        let Some(Reload { read, log }) = self.reload.clone() else {
            return Ok(());
        };
        let read = spawn_blocking(move || read()).await;
        let read = read.unwrap_or_else(|error| Err(error.to_string()));
        let definitions = read.map_err(ReloadError::Read)?;
        seed::define(&self.config, &self.store, &definitions).await?;
        files.reloaded = true;
        seed::solved(&std::mem::take(&mut files.missing), &self.problems);
        self.tokens.reload(definitions.tokens).await;
        self.rates.set(definitions.request_limits);
        self.dns.set(definitions.dns);
        if let (Some(log), Some(level)) = (log, definitions.log_level) {
            log.set(level);
        }
        tracing::info!("configuration reloaded");
        Ok(())
    }

    /// Writes the rows of the settings that could not be stored at the start, as soon as that is possible.
    ///
    /// # Errors
    /// [`StartError`] if a setting is refused.
    pub(crate) async fn seed_later(
        self: Arc<Self>,
        clock: Clock,
        spawner: Spawner,
    ) -> Result<(), StartError> {
        let seeding = async {
            loop {
                sleep(SEED_AGAIN).await;
                let files = self.files.lock().await;
                let (config, store) = (&self.config, &self.store);
                let seeded = match files.reloaded {
                    // The definitions of the start are outdated.
                    true => {
                        let written = seed::own_rows(config, store, &clock).await;
                        written.map(|()| Definitions::default())
                    }
                    false => seed::seed(config, store, &clock).await,
                };
                match seeded {
                    Err(error) if error.is_unavailable() => {}
                    seeded => return seeded,
                }
            }
        };
        if let Some(seeded) = spawner.token().run_until_cancelled(seeding).await {
            self.define_later(seeded?, &spawner);
        }
        Ok(())
    }

    /// Starts a task that registers definitions whose namespaces do not exist, as soon as they do.
    pub(crate) fn define_later(self: &Arc<Self>, missing: Definitions, spawner: &Spawner) {
        if missing.services.is_empty() && missing.checks.is_empty() {
            return;
        }
        let define = self.clone().define_missing(missing, spawner.token());
        spawner.spawn("definitions without a namespace", define);
    }

    /// Registers definitions until none is left, or a reload of the files has replaced them.
    async fn define_missing(
        self: Arc<Self>,
        missing: Definitions,
        stop: CancellationToken,
    ) -> Result<(), Infallible> {
        seed::report_missing(&self.store, &missing, &self.problems);
        self.files.lock().await.missing = missing;
        loop {
            let mut namespaces = {
                let mut files = self.files.lock().await;
                let missing = &mut files.missing;
                let watch = seed::watch_namespaces(&self.store, missing);
                let before = std::mem::take(missing);
                let store = &self.store;
                *missing = seed::define_missing(&self.config, store, before, &self.problems).await;
                if missing.services.is_empty() && missing.checks.is_empty() {
                    return Ok(());
                }
                watch
            };
            tokio::select! {
                () = namespaces.changed() => {}
                () = sleep(RETRY) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    /// Requests the server to stop.
    pub(crate) fn leave(&self) {
        tracing::info!("leaving");
        self.leaving.cancel();
    }

    /// Waits until a client requests the server to leave. Cancel safe.
    pub(crate) async fn left(&self) {
        self.leaving.cancelled().await;
    }
}
