//! Finds control-plane servers, logs in, and holds a session that survives server changes.
//!
//! [`connect`] starts a session. Its decisions are made by a machine without IO (`machine`), its
//! work is done by one task (`driver`). The session never makes calls for others: they take the
//! [`Connection`] of the moment and report how it went.
//!
//! ```no_run
//! # async fn example(scope: &legate_runtime::Scope) -> Result<(), Box<dyn std::error::Error>> {
//! use legate_client::{ClientConfig, Credentials, connect};
//! let registry = legate_runtime::metrics::Registry::new();
//! let config = ClientConfig {
//!     addresses: "consul.example".parse()?,
//!     grpc_port: 8502,
//!     server_watch_disabled: false,
//!     tls: None,
//!     credentials: Credentials::None,
//! };
//! let session = connect(config, &scope.spawner(), &registry)?;
//! let connection = session.connected().await?;
//! let mut dns = connection.dns();
//! # Ok(())
//! # }
//! ```

mod calls;
mod config;
mod connection;
mod dial;
mod driver;
mod error;
mod machine;
mod metrics;
mod resolve;
mod session;

use std::sync::Arc;

use legate_runtime::metrics::Registry;
use legate_runtime::{CancellationToken, Scope, Spawner};
use tokio::sync::{mpsc, watch};

pub use self::config::{
    Addresses, Bearer, ClientConfig, ConfigError, Credentials, LoginConfig, TlsConfig,
};
pub use self::connection::{AuthenticatedChannel, Connection};
pub use self::error::{ErrorClass, SessionError, classify};
pub use self::session::{Session, SessionState};

use self::connection::Token;
use self::dial::{Dialer, Tls};
use self::driver::Driver;
use self::machine::{Credential, Machine, Settings};
use self::metrics::Metrics;

/// Starts a session. It runs in the spawner's scope until it is closed, or until the scope stops,
/// which closes it too; close it first where its connections are needed until the end.
///
/// # Errors
///
/// When the settings cannot work, or the registry holds metrics of another session already.
pub fn connect(
    config: ClientConfig,
    spawner: &Spawner,
    registry: &Registry,
) -> Result<Session, ConfigError> {
    config.check()?;
    let tls = match &config.tls {
        None => None,
        Some(tls) => Some(Tls::new(tls.options.clone(), config.server_name(tls)?)?),
    };
    let (credential, token, login) = match config.credentials {
        Credentials::None => (Credential::None, None, None),
        Credentials::Static(secret) if secret.expose().is_empty() => (Credential::None, None, None),
        Credentials::Static(secret) => {
            let token = Token::new(secret, None).ok_or(ConfigError::Token)?;
            (Credential::Static, Some(token), None)
        }
        Credentials::Login(login) => (Credential::Login, None, Some(Arc::new(login))),
    };
    let metrics = Arc::new(Metrics::new(registry)?);
    // Not a child of the caller's scope: connections must outlast its token for the logout.
    let scope = Scope::new("server connections");
    let (state, states) = watch::channel(SessionState::Connecting { last_error: None });
    let (reports, reported) = mpsc::channel(session::REPORTS);
    let (close, ended) = (CancellationToken::new(), CancellationToken::new());
    let driver = Driver {
        addresses: Arc::new(config.addresses),
        port: config.grpc_port,
        credential,
        login,
        token,
        dialer: Arc::new(Dialer::new(tls, scope.spawner())),
        metrics: Arc::clone(&metrics),
        state,
        reports: reported,
        close: close.clone(),
        scope,
        ended: ended.clone().drop_guard(),
    };
    let settings = Settings {
        watch: !config.server_watch_disabled,
        credential,
    };
    let machine = Machine::new(settings, Box::new(rand::random::<f64>));
    spawner.spawn("server session", driver.run(machine, spawner.token()));
    Ok(Session {
        state: states,
        reports,
        close,
        ended,
        metrics,
    })
}
