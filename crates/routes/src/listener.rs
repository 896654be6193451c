//! Listeners: a port, its certificates, and what is behind it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::rule::{Action, Rule, Target, VirtualHost, WeightedBackend};

/// What a gateway serves on one port. Its listeners have different ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HostPorts {
    /// That of the listener, or none. A request for another port has no host.
    Own,
    /// All: clients may have used another port than the listener's, which was translated.
    Any,
}

/// What a gateway serves on one port of UDP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Datagrams {
    /// The port.
    pub port: u16,
    /// Where they go, by weight. If empty, they are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<WeightedBackend>,
}

/// How connections for some server names are accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Chain {
    /// Its name in statistics; `None` for that of the listener.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Lower-case host names of the TLS handshake, `*.` first for all below. Empty for connections
    /// that no other chain accepts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_names: Vec<String>,
    /// How the handshake is answered.
    pub tls: Tls,
    /// The place of its content among those of the listener.
    pub content: usize,
}

/// How a TLS handshake is answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tls {
    /// Connections are in plain text.
    None,
    /// Here.
    Terminated(ServerTls),
    /// By the backend, which gets all bytes of the connection.
    PassedThrough,
}

/// What a chain presents to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct ServerTls {
    /// At least one.
    pub certificates: Vec<Certificate>,
    /// The lowest version, as in `TLSv1_2`; empty for the default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub min_version: String,
    /// The highest version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub max_version: String,
    /// `TLS_…` names; empty for the default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cipher_suites: Vec<String>,
    /// How certificates of clients are verified; `None` if they are not asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<Clients>,
}

/// How certificates of clients are verified.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Clients {
    /// The certificates of authorities in PEM.
    pub authorities: String,
    /// Whether a client needs a valid certificate. Otherwise it is asked for one, and any or none
    /// will do.
    pub required: bool,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Certificate {
    /// The one that the mesh issues for the gateway.
    OfGateway,
    /// The secret with this name.
    Secret(String),
}

/// What is behind a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Content {
    /// HTTP requests, by host. No two hosts have a domain in common.
    Http(Vec<VirtualHost>),
    /// Connections, by weight. Empty if all are closed.
    Tcp(Vec<WeightedBackend>),
}

impl Datagrams {
    /// The backends that it leads to, in order and each once.
    pub fn backends(&self) -> BTreeSet<&Arc<Backend>> {
        let targets = self.backends.iter().map(|one| &one.target);
        targets.filter_map(Target::backend).collect()
    }
}

impl Listener {
    /// All rules.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        let hosts = self.contents.iter().flat_map(|content| match content {
            Content::Http(hosts) => &hosts[..],
            Content::Tcp(_) => &[],
        });
        hosts.flat_map(|host| &host.rules)
    }

    /// What gets requests, connections or copies.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let connections = self.contents.iter().flat_map(|content| match content {
            Content::Tcp(backends) => &backends[..],
            Content::Http(_) => &[],
        });
        let forwarded = self.rules().flat_map(|rule| match &rule.action {
            Action::Forward(backends) => &backends[..],
            Action::Redirect(_) | Action::Answer(_) => &[],
        });
        let mirrors = self.rules().flat_map(|rule| &rule.mirrors);
        let backends = connections.chain(forwarded).map(|one| &one.target);
        backends.chain(mirrors.map(|one| &one.target))
    }

    /// The backends outside of the mesh that it leads to, in order and each once.
    pub fn backends(&self) -> BTreeSet<&Arc<Backend>> {
        self.targets().filter_map(Target::backend).collect()
    }

    /// The names of the secrets that it presents to clients and backends.
    pub fn secrets(&self) -> BTreeSet<&str> {
        let terminated = self.chains.iter().filter_map(|chain| match &chain.tls {
            Tls::Terminated(tls) => Some(&tls.certificates),
            Tls::None | Tls::PassedThrough => None,
        });
        let of_backends = self.backends().into_iter();
        let of_backends = of_backends.filter_map(|one| one.tls.as_ref()?.presented.as_ref());
        let all = terminated.flatten().chain(of_backends);
        let all = all.filter_map(|one| match one {
            Certificate::Secret(name) => Some(name.as_str()),
            Certificate::OfGateway => None,
        });
        all.collect()
    }
}
