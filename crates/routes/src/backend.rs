//! Backends outside of the mesh.

use crate::listener::Certificate;

/// A port of a Kubernetes Service, as a gateway calls it. Gateways that call it in different ways
/// have different backends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// The namespace of the Service.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The number of its port.
    pub port: u16,
    /// What it understands.
    pub protocol: BackendProtocol,
    /// How it is called by TLS; `None` for plain text.
    pub tls: Option<BackendTls>,
}

/// What a backend understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendProtocol {
    /// HTTP/1.1, also for WebSockets.
    Http1,
    /// HTTP/2, in plain text without asking first.
    Http2,
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// How a backend is called by TLS.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendTls {
    /// The server name of the handshake.
    pub server_name: String,
    /// Who may have signed its certificate.
    pub authorities: Authorities,
    /// The names of which the certificate must have one. At least one.
    pub names: Vec<AltName>,
    /// What the gateway presents.
    pub presented: Option<Certificate>,
}

/// Who may have signed a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Authorities {
    /// Those of the gateway's image.
    OfSystem,
    /// These certificates in PEM.
    Pem(String),
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AltName {
    /// A host.
    Host(String),
    /// A URI.
    Uri(String),
}
