//! Listeners: a port, its certificates, and what is behind it.

use crate::rule::{VirtualHost, WeightedBackend};

/// What a gateway serves on one port. Its listeners have different ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listener {
    /// The port.
    pub port: u16,
    /// How connections are accepted, by server name. Without TLS one chain.
    pub chains: Vec<Chain>,
    /// What is behind all of them.
    pub content: Content,
}

/// How connections for some server names are accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Its name in statistics; `None` for that of the listener.
    pub name: Option<String>,
    /// Lower-case host names of the TLS handshake, `*.` first for all below. Empty for connections
    /// that no other chain accepts.
    pub server_names: Vec<String>,
    /// `None` for plaintext.
    pub tls: Option<ServerTls>,
}

/// What a chain presents to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerTls {
    /// At least one.
    pub certificates: Vec<Certificate>,
    /// The lowest version, as in `TLSv1_2`; empty for the default.
    pub min_version: String,
    /// The highest version.
    pub max_version: String,
    /// `TLS_…` names; empty for the default.
    pub cipher_suites: Vec<String>,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Certificate {
    /// The one that the mesh issues for the gateway.
    OfGateway,
    /// The secret with this name.
    Secret(String),
}

/// What is behind a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// HTTP requests, by host. No two hosts have a domain in common.
    Http(Vec<VirtualHost>),
    /// Connections.
    Tcp(WeightedBackend),
}
