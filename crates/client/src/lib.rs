//! Finds control-plane servers, logs in, and holds a session that survives server changes.
//!
//! [`connect`] starts a session. A state machine without IO decides (`machine`, with the algorithm
//! in `machine/README.md`); one task does the work (`driver`). The session never makes calls for
//! its users: they take the current [`Connection`] and report calls that fail.
//!
//! ```no_run
//! # async fn example(scope: &legate_runtime::Scope) -> Result<(), Box<dyn std::error::Error>> {
//! use legate_client::{ClientConfig, connect};
//! let registry = legate_runtime::metrics::Registry::new();
//! let config = ClientConfig::new("consul.example".parse()?, 8502);
//! let session = connect(config, &scope.spawner(), &registry)?;
//! let connection = session.connected().await?;
//! let mut dns = connection.dns();
//! # Ok(())
//! # }
//! ```

mod addresses;
mod bearer;
mod calls;
mod config;
mod connection;
mod dial;
mod driver;
mod error;
mod facts;
mod greeting;
mod http_proxy;
mod machine;
mod metrics;
mod resolve;
mod session;
mod tls;

use std::sync::Arc;

use legate_runtime::metrics::Registry;
use legate_runtime::{CancellationToken, Spawner};
use tokio::sync::{mpsc, watch};

pub use self::addresses::{Addresses, AddressesError};
pub use self::config::{
    Bearer, ClientConfig, ConfigError, Credentials, LoginConfig, Timing, TlsConfig,
};
pub use self::connection::{AuthenticatedChannel, Connection};
pub use self::error::{ErrorClass, ErrorKind, SessionError, classify, is_no_proxy};
pub use self::facts::{LastError, SessionSnapshot, Stage};
pub use self::http_proxy::HttpProxy;
pub use self::session::{Session, SessionState};

use self::connection::Token;
use self::dial::Dialer;
use self::driver::Parts;
use self::facts::Facts;
use self::http_proxy::Routes;
use self::machine::{Credential, Machine, Settings};
use self::metrics::Metrics;
use self::tls::Tls;

/// Starts a session. It runs in the spawner's scope until it is closed, or until the scope stops,
/// which closes it too. Close the session before the scope, to keep its connections until then.
///
/// # Errors
///
/// When the settings cannot work, or the registry holds metrics of another session already.
pub fn connect(
    config: ClientConfig,
    spawner: &Spawner,
    registry: &Registry,
) -> Result<Session, ConfigError> {
    let tls = match &config.tls {
        None => None,
        Some(tls) => Some(Tls::new(tls.options(), config.server_name(tls)?)?),
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
    let facts = Arc::new(Facts::new());
    let proxy = config.proxy.as_ref();
    let routes = proxy.map(|proxy| Routes::new(proxy, config.grpc_port));
    // Connections must outlast the token of the caller's scope for the logout.
    let scope = spawner.child_with_own_token("server connections");
    let (state, states) = watch::channel(SessionState::Connecting { last_error: None });
    let (reports, reported) = mpsc::channel(session::REPORTS);
    let (close, ended) = (CancellationToken::new(), CancellationToken::new());
    let configured = CancellationToken::new();
    let parts = Parts {
        addresses: Arc::new(config.addresses),
        port: config.grpc_port,
        login,
        token,
        dialer: Arc::new(Dialer {
            tls,
            routes,
            spawner: scope.spawner(),
        }),
        timing: config.timing,
        metrics: Arc::clone(&metrics),
        facts: Arc::clone(&facts),
        state,
        reports: reported,
        configured: configured.clone(),
        close: close.clone(),
        scope,
        _ended: ended.clone().drop_guard(),
    };
    let settings = Settings {
        watch: !config.server_watch_disabled,
        credential,
        silence: config.timing.silence,
        spread: config.timing.files / 3,
    };
    let machine = Machine::new(settings, Box::new(rand::random::<f64>));
    spawner.spawn(
        "server session",
        driver::run(parts, machine, spawner.token()),
    );
    Ok(Session {
        state: states,
        reports,
        configured,
        close,
        ended,
        metrics,
        facts,
    })
}
