//! The errors of starting a server. Each part has its own error type; the texts name the setting at fault.

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
    /// The address cannot be bound.
    #[error(
        "{api} cannot listen at {address}: {reason}; choose another address or port, or stop the process that uses it"
    )]
    Listen {
        /// The API's name.
        api: &'static str,
        /// The address from the settings.
        address: SocketAddr,
        /// The system's error. Not a `source`: the text already contains it, and error chains would print it
        /// twice.
        reason: std::io::Error,
    },
    /// The store cannot be opened.
    #[error("the store cannot be opened: {0}")]
    Store(#[from] OpenError),
    /// The mesh CA cannot be initialised.
    #[error("the mesh CA cannot start: {0}")]
    Ca(#[from] CaError),
    /// The UNIX socket cannot be bound.
    #[error("the HTTP API cannot listen at {}: {reason}; choose another path", path.display())]
    Socket {
        /// The socket's file.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The exporter of metrics or traces cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// Two metrics have the same name.
    #[error("the metrics cannot be registered: {0}")]
    Metrics(#[from] legate_runtime::metrics::Error),
    /// The certificate of a TLS listener cannot be loaded or issued.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The certificate of this server, or the CA of servers, cannot be used.
    #[error("the port for servers cannot be opened: {0}; check tls.internal_rpc")]
    Wan(#[from] legate_identity::tls::TlsError),
    /// A secondary datacenter has no port for servers.
    #[error(
        "primary_datacenter is {primary:?}, but servers of other datacenters cannot be reached: set ports.server, and \
         ca_file, cert_file and key_file in tls.internal_rpc"
    )]
    Alone {
        /// The primary datacenter.
        primary: String,
    },
    /// Mesh gateways cannot find a server with this name.
    #[error(
        "node_name {0:?} may have up to 63 letters, digits and - only, since other datacenters reach this server through mesh \
         gateways (connect.enable_mesh_gateway_wan_federation)"
    )]
    NodeBehindGateways(String),
    /// The datacenter or node name is invalid.
    #[error("{0}; check the datacenter and node name in the settings")]
    Name(#[from] legate_model::name::InvalidName),
    /// The initial management token is invalid.
    #[error("the initial management token (LEGATE_INITIAL_MANAGEMENT_TOKEN) cannot be used: {0}")]
    Token(#[from] Invalid),
    /// The file of tokens set through the API cannot be read.
    #[error(
        "{file}: the tokens that were set cannot be read: {reason}; correct the file, or remove it and set them again"
    )]
    Tokens {
        /// The file.
        file: String,
        /// The system's error.
        reason: std::io::Error,
    },
    /// A service, check or config entry of the settings cannot be registered.
    #[error("{what} of the settings cannot be registered: {reason}")]
    Registration {
        /// The service, check or config entry.
        what: String,
        /// The reason.
        reason: String,
    },
    /// A service, check or config entry of the settings cannot be stored.
    #[error("{what} of the settings cannot be stored: {reason}")]
    NotStored {
        /// The service, check or config entry.
        what: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The server's own node or token cannot be stored.
    #[error("the store refuses {what}: {source}")]
    Refused {
        /// The row that was to be written.
        what: &'static str,
        /// The reason.
        source: WriteError,
    },
}

impl StartError {
    /// Whether something could not be stored, for example because the disk is full. A retry may succeed.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(
            self,
            Self::NotStored { .. }
                | Self::Refused {
                    source: WriteError::Unavailable(_),
                    ..
                }
        )
    }
}
