//! What a server does as the agent of its node when somebody asks: it reads its configuration files
//! again, and it leaves. What is registered with it is in the store, which services and checks of the
//! files get into by [`crate::seed`].

use std::fmt;
use std::sync::Arc;

use legate_runtime::CancellationToken;
use legate_runtime::logging::LogLevel;
use legate_store::Store;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::acl::AgentTokens;
use crate::config::{Definitions, ServerConfig};
use crate::dns::CurrentDns;
use crate::rates::Rates;
use crate::seed;
use crate::start_error::StartError;

/// Reads the configuration files of an agent again.
#[derive(Clone)]
pub struct Reload {
    read: Arc<dyn Fn() -> Result<Definitions, String> + Send + Sync>,
    log: Option<LogLevel>,
}

impl Reload {
    /// `read` may block. Its error says which file and key is wrong.
    pub fn new(read: impl Fn() -> Result<Definitions, String> + Send + Sync + 'static) -> Self {
        Self {
            read: Arc::new(read),
            log: None,
        }
    }

    /// The log of the process follows the files, too.
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

/// Why the configuration was not read again. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A file cannot be read, or has a wrong value.
    #[error("the configuration cannot be read again: {0}")]
    Read(String),
    /// What the files register is refused.
    #[error(transparent)]
    Refused(#[from] StartError),
}

/// The agent of the server's node.
#[derive(Debug)]
pub(crate) struct Agent {
    config: Arc<ServerConfig>,
    store: Store,
    reload: Option<Reload>,
    /// One reading at a time, so that an older one does not win.
    reloading: Mutex<()>,
    leaving: CancellationToken,
    /// The tokens that the agent has of its own.
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
            reloading: Mutex::new(()),
            leaving: CancellationToken::new(),
            tokens,
            rates,
            dns,
        }
    }

    /// Reads the configuration files again and registers what they say. A server without files has
    /// nothing to read.
    ///
    /// # Errors
    /// [`ReloadError`]
    pub(crate) async fn reload(&self) -> Result<(), ReloadError> {
        let _one = self.reloading.lock().await;
        let Some(Reload { read, log }) = self.reload.clone() else {
            return Ok(());
        };
        let read = spawn_blocking(move || read()).await;
        let read = read.unwrap_or_else(|error| Err(error.to_string()));
        let definitions = read.map_err(ReloadError::Read)?;
        seed::define(&self.config, &self.store, &definitions).await?;
        self.tokens.reload(definitions.tokens).await;
        self.rates.set(definitions.request_limits);
        self.dns.set(definitions.dns);
        if let (Some(log), Some(level)) = (log, definitions.log_level) {
            log.set(level);
        }
        tracing::info!("the configuration was read again");
        Ok(())
    }

    /// The server is to end.
    pub(crate) fn leave(&self) {
        tracing::info!("leaving");
        self.leaving.cancel();
    }

    /// Returns when somebody has asked the server to end. Cancel safe.
    pub(crate) async fn left(&self) {
        self.leaving.cancelled().await;
    }
}
