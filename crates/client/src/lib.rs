//! Finds control-plane servers, logs in, and maintains a session that survives server changes.
//!
//! [`connect`] starts a session. A pure state machine decides (`machine`, with the algorithm in
//! `machine/README.md`), and one task performs its actions (`driver`). The session makes no calls
//! for its users: they take the current [`Connection`] and report calls that fail.
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
mod greeting;
mod http_proxy;
mod machine;
mod metrics;
mod resolve;
mod session;
mod snapshot;
mod tls;

use legate_runtime::Spawner;
use legate_runtime::metrics::Registry;

pub use self::addresses::{Addresses, AddressesError};
pub use self::config::{
    Bearer, ClientConfig, ConfigError, Credentials, LoginConfig, Timing, TlsConfig,
};
pub use self::connection::{AuthenticatedChannel, Connection};
pub use self::error::{ErrorClass, ErrorKind, SessionError, classify, is_no_proxy};
pub use self::http_proxy::HttpProxy;
pub use self::session::{Session, SessionState};
pub use self::snapshot::{LastError, SessionSnapshot, Stage};

use self::driver::Driver;

/// Starts a session. It runs in the spawner's scope until it is closed, or until the scope stops,
/// which also closes it. Close the session before the scope if its connections are needed until
/// then.
///
/// # Errors
///
/// When the settings are invalid, or the registry already contains the metrics of a session.
pub fn connect(
    config: ClientConfig,
    spawner: &Spawner,
    registry: &Registry,
) -> Result<Session, ConfigError> {
    let (driver, session) = Driver::new(config, spawner, registry)?;
    spawner.spawn("server session", driver.run());
    Ok(session)
}
