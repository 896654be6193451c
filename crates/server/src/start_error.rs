//! Why a server does not start, whichever of its parts it is that cannot. Each part says it in its own
//! words; the texts name the setting to look at.

use std::net::SocketAddr;
use std::path::PathBuf;

use legate_ca::CaError;
use legate_model::Invalid;
use legate_store::{OpenError, WriteError};

use crate::audit::AuditError;
use crate::certificate::CertificateError;
use crate::telemetry::TelemetryError;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened at.
    #[error(
        "{api} cannot listen at {address}: {reason}; choose another address or port, or end what uses it"
    )]
    Listen {
        /// Which API.
        api: &'static str,
        /// The address from the settings.
        address: SocketAddr,
        /// What the system says. It is no source: the text holds it, and a chain of causes would
        /// tell it twice.
        reason: std::io::Error,
    },
    /// The store cannot be opened.
    #[error("the store cannot be opened: {0}")]
    Store(#[from] OpenError),
    /// The mesh CA cannot be set up.
    #[error("the mesh CA cannot start: {0}")]
    Ca(#[from] CaError),
    /// A socket in the file system cannot be listened at.
    #[error("the HTTP API cannot listen at {}: {reason}; choose another path", path.display())]
    Socket {
        /// The socket's file.
        path: PathBuf,
        /// What the system says.
        reason: std::io::Error,
    },
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// What takes metrics or traces cannot be used.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// Two parts have metrics of one name.
    #[error("the metrics cannot be put together: {0}")]
    Metrics(#[from] legate_runtime::metrics::Error),
    /// There is no certificate for a listener with TLS.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A name in the settings cannot be used.
    #[error("{0}; check the datacenter and node name in the settings")]
    Name(#[from] legate_model::name::InvalidName),
    /// The initial management token cannot be used.
    #[error("the initial management token (LEGATE_INITIAL_MANAGEMENT_TOKEN) cannot be used: {0}")]
    Token(#[from] Invalid),
    /// The tokens that the API has set cannot be read.
    #[error(
        "{file}: the tokens that were set cannot be read: {reason}; correct the file, or remove it and set them again"
    )]
    Tokens {
        /// The file.
        file: String,
        /// What the system says.
        reason: std::io::Error,
    },
    /// A service, check or config entry of the settings cannot be registered.
    #[error("{what} of the settings cannot be registered: {reason}")]
    Registration {
        /// Which one.
        what: String,
        /// Why not.
        reason: String,
    },
    /// The server's own node or token cannot be stored.
    #[error("the store refuses {what}: {source}")]
    Refused {
        /// What was to be written.
        what: &'static str,
        /// Why not.
        source: WriteError,
    },
}
