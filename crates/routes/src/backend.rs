//! Backends that are not services of the mesh, although some of their endpoints may be in it.

use std::net::IpAddr;

use legate_model::ServiceName;
use serde::{Deserialize, Serialize};

use crate::form;
use crate::listener::Certificate;

/// A port of a Kubernetes Service, as a gateway calls it. Gateways that call it in different ways
/// have different backends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<BackendTls>,
}

impl Backend {
    /// The port that it is.
    pub fn service_port(&self) -> ServicePort {
        ServicePort {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            port: self.port,
            transport: match self.protocol {
                BackendProtocol::Udp => Transport::Udp,
                BackendProtocol::Http1 | BackendProtocol::Http2 | BackendProtocol::Tcp => {
                    Transport::Tcp
                }
            },
        }
    }
}

/// A port of a Kubernetes Service, however it is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct ServicePort {
    /// The namespace of the Service.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The number of its port.
    pub port: u16,
    /// What is below the protocol.
    #[serde(default)]
    pub transport: Transport,
}

/// The protocol below the one that a port understands.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Transport {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// As in the keys of stores, which never change.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// The most endpoints of a port of a Service.
pub const MAX_ENDPOINTS: usize = 5_000;

/// Something that can be called, behind the port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Endpoint {
    /// Its IP address.
    pub address: IpAddr,
    /// Its port; that of its sidecar if it has an identity.
    pub port: u16,
    /// The service of the mesh that it belongs to. It is called by mutual TLS, whatever the backend
    /// says of TLS, and must prove to be this service.
    #[serde(
        default,
        with = "form::some_service",
        skip_serializing_if = "Option::is_none"
    )]
    pub identity: Option<ServiceName>,
    /// The port of the application, if it is another one than that which its sidecar leads to. Only of an
    /// endpoint with an identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<u16>,
}

/// How callers in the mesh reach a Service of a Kubernetes cluster. Its listeners are not those of a
/// gateway: each sidecar of the cluster has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Frontend {
    /// The namespace of the Service.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The IP addresses of the Service. At least one.
    pub addresses: Vec<IpAddr>,
    /// The namespace of Kubernetes whose pods are the callers; `None` for those of every namespace without a
    /// frontend of its own for the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callers: Option<String>,
    /// The ports of its listeners that callers reach through the service of the mesh with its name, with the
    /// chain of that, if they can call this service at the same address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mesh_ports: Vec<u16>,
}

/// What a backend understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct BackendTls {
    /// The server name of the handshake.
    pub server_name: String,
    /// Who may have signed its certificate.
    pub authorities: Authorities,
    /// The names of which the certificate must have one. At least one.
    pub names: Vec<AltName>,
    /// What the gateway presents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presented: Option<Certificate>,
}

/// Who may have signed a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Authorities {
    /// Those of the gateway's image.
    OfSystem,
    /// These certificates in PEM.
    Pem(String),
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AltName {
    /// A host.
    Host(String),
    /// A URI.
    Uri(String),
}
