//! Listeners: a port, its certificates, and what is behind it.

use crate::rule::{VirtualHost, WeightedBackend};

/// What a gateway serves on one port. Its listeners have different ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listener {
    /// The port.
    pub port: u16,
    /// How connections are accepted, by server name: no two chains have a server name in common.
    /// Without TLS one chain.
    pub chains: Vec<Chain>,
    /// What is behind the chains. Each is behind at least one.
    pub contents: Vec<Content>,
    /// Which ports the hosts of requests may name.
    pub host_ports: HostPorts,
}

/// Which ports the host of a request may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostPorts {
    /// That of the listener, or none. A request for another port has no host.
    Own,
    /// All: clients may have used another port than the listener's, which was translated.
    Any,
}

/// What a gateway serves on one port of UDP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Datagrams {
    /// The port.
    pub port: u16,
    /// Where they go, by weight. Empty for nowhere.
    pub backends: Vec<WeightedBackend>,
}

/// How connections for some server names are accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Its name in statistics; `None` for that of the listener.
    pub name: Option<String>,
    /// Lower-case host names of the TLS handshake, `*.` first for all below. Empty for connections
    /// that no other chain accepts.
    pub server_names: Vec<String>,
    /// How the handshake is answered.
    pub tls: Tls,
    /// The place of its content among those of the listener.
    pub content: usize,
}

/// How a TLS handshake is answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Tls {
    /// Connections are in plain text.
    None,
    /// Here.
    Terminated(ServerTls),
    /// By the backend, which gets all bytes of the connection.
    PassedThrough,
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
    /// How certificates of clients are verified; `None` if they are not asked for one.
    pub clients: Option<Clients>,
}

/// How certificates of clients are verified.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Clients {
    /// The certificates of authorities in PEM.
    pub authorities: String,
    /// Whether a client needs a valid certificate. Otherwise it is asked for one, and any or none
    /// will do.
    pub required: bool,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Connections, by weight. Empty if all are closed.
    Tcp(Vec<WeightedBackend>),
}
