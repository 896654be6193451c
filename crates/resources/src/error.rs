//! Errors and failures in making resources.

use legate_discovery_chain::ChainError;

use crate::resource_type::Type;

/// The maximum length of a server name in Envoy, in bytes: `UpstreamTlsContext.sni` in its API.
pub(crate) const MAX_SERVER_NAME: usize = 255;

/// Why a resource was not made: it would be wrong or unsafe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// An address to listen on is not an IP address.
    #[error(
        "{setting} is {value:?}, which is not an IP address that Envoy can listen on; set it to one"
    )]
    BindAddress {
        /// The setting's name.
        setting: String,
        /// Its value.
        value: String,
    },
    /// The keys of a JWT provider cannot be parsed.
    #[error(
        "the keys of the jwt-provider {0:?} cannot be parsed, so none of its tokens can be verified; correct its JSONWebKeySet"
    )]
    JwtKeys(String),
    /// The public listener has no port.
    #[error(
        "the proxy has no port for the mesh to connect to; set Port in its registration, or bind_port in its Proxy.Config"
    )]
    NoPort,
    /// The permissions of a Unix socket cannot be parsed.
    #[error(
        "LocalBindSocketMode of upstream {upstream:?} is {value:?}; set it to octal permissions like \"0600\", or leave it out"
    )]
    SocketMode {
        /// The upstream.
        upstream: String,
        /// The value.
        value: String,
    },
    /// A config entry names a TLS version that does not exist.
    #[error("{setting} is {value:?}; set it to TLS_AUTO, TLSv1_0, TLSv1_1, TLSv1_2 or TLSv1_3")]
    TlsVersion {
        /// The setting and its entry.
        setting: String,
        /// The value.
        value: String,
    },
    /// A config entry names a cipher suite that Envoy does not support.
    #[error("{setting} names {value:?}, which Envoy does not have; remove it")]
    CipherSuite {
        /// The setting and its entry.
        setting: String,
        /// The name of the suite.
        value: String,
    },
    /// No root certificate to verify peers against.
    #[error("the CA has no root certificate, so no peer could be verified; initialise the CA")]
    NoRoots,
    /// No certificate to authenticate with.
    #[error("{0} has no certificate or no key, so it could not identify itself; see the CA's log")]
    NoLeaf(String),
    /// The mesh entry has an unknown value for request normalization.
    #[error(
        "{setting} of the mesh config entry is {value:?}, which does not exist; correct it or leave it out"
    )]
    Normalization {
        /// The setting.
        setting: &'static str,
        /// The value.
        value: String,
    },
    /// The server name of a service outside the mesh is too long for Envoy.
    #[error(
        "the server name {0:?} of a destination is {len} bytes long, and Envoy takes at most {MAX_SERVER_NAME}; give the service a shorter name, or a shorter address",
        len = .0.len()
    )]
    LongServerName(String),
    /// A resource that a user wrote cannot be used.
    #[error("{setting} cannot be used: {reason}")]
    Custom {
        /// The setting.
        setting: String,
        /// The reason.
        reason: String,
    },
    /// A header condition of an intention has no operator.
    #[error(
        "the intention of source {source_name:?} has a condition on header {header:?} without an operator; set one of Present, Exact, Prefix, Suffix, Contains, Regex"
    )]
    EmptyHeaderCondition {
        /// The source of the intention.
        source_name: String,
        /// The header.
        header: String,
    },
    /// A listener for connections leads to a service whose requests are routed.
    #[error(
        "the port {port} is for connections, and config entries route the requests to service {service:?}; give its listener the protocol of the service"
    )]
    RoutedRequests {
        /// The port.
        port: u16,
        /// The service.
        service: String,
    },
    /// A listener for connections leads to no service.
    #[error("the port {0} leads to no service; name one in its tcp-route")]
    NoService(u16),
    /// The source of a certificate is incomplete.
    #[error(
        "TLS.SDS for port {0} of the ingress-gateway config entry has no ClusterName, or no CertResource; set both"
    )]
    IncompleteSds(u16),
    /// A certificate that the gateway presents is missing.
    #[error("the gateway has no secret {0:?}; write it with its certificate and key")]
    NoSecret(String),
    /// A certificate is for every host.
    #[error(
        "service {service:?} on port {port} has a certificate in TLS.SDS and the host \"*\"; name its hosts, or set the certificate on the listener"
    )]
    CertificateForEveryHost {
        /// The port.
        port: u16,
        /// The service.
        service: String,
    },
    /// The config entries of an upstream's chain conflict.
    #[error("{0}; correct the config entries that it names")]
    Chain(ChainError),
    /// A required extension cannot be applied.
    #[error(
        "EnvoyExtensions: {name} is required and cannot be applied: {reason}; correct it, or leave Required out to go without it"
    )]
    Extension {
        /// The extension.
        name: String,
        /// The reason.
        reason: String,
    },
}

impl GenerateError {
    /// Whether the access rules themselves are the cause.
    pub(crate) fn is_about_access(&self) -> bool {
        matches!(self, Self::EmptyHeaderCondition { .. } | Self::JwtKeys(_))
    }
}

/// A resource that cannot be made from what is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    kind: Type,
    /// The resource's name; for a listener the part of the name before its address.
    pub resource: String,
    /// The cause.
    pub reason: GenerateError,
    /// Whether the proxy keeps the last good version. If false, there never was one.
    pub kept: bool,
}

impl Failure {
    pub(crate) fn new(kind: Type, resource: String, reason: GenerateError) -> Self {
        Self {
            kind,
            resource,
            reason,
            kept: false,
        }
    }

    /// The type of the resource.
    pub fn type_url(&self) -> &'static str {
        self.kind.url()
    }

    pub(crate) fn kind(&self) -> Type {
        self.kind
    }

    /// Whether the failure is about the resource of this type and name.
    pub(crate) fn is_about(&self, kind: Type, name: &str) -> bool {
        let rest = name.strip_prefix(self.resource.as_str());
        let named = rest
            .is_some_and(|rest| rest.is_empty() || kind == Type::Listener && rest.starts_with(':'));
        named && kind == self.kind
    }
}
