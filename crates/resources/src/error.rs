//! Which resource cannot be made from a snapshot, and why.

use legate_discovery_chain::ChainError;

use crate::resource_type::Type;

/// The longest server name that Envoy takes, in bytes: `UpstreamTlsContext.sni` in its API.
pub(crate) const MAX_SERVER_NAME: usize = 255;

/// The resource was not made: without this it would be wrong or unsafe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// An address to listen on is not an IP address.
    #[error(
        "{setting} is {value:?}, which is not an IP address that Envoy can listen on; set it to one"
    )]
    BindAddress {
        /// The setting, as people write it.
        setting: String,
        /// What it holds.
        value: String,
    },
    /// A provider of JSON Web Tokens has no keys that tokens could be verified with.
    #[error(
        "the keys of the jwt-provider {0:?} cannot be read, so no token of it could be verified; correct its JSONWebKeySet"
    )]
    JwtKeys(String),
    /// The public listener has no port.
    #[error(
        "the proxy has no port for the mesh to connect to; set Port in its registration, or bind_port in its Proxy.Config"
    )]
    NoPort,
    /// The permissions of a unix socket cannot be read.
    #[error(
        "LocalBindSocketMode of upstream {upstream:?} is {value:?}; set it to octal permissions like \"0600\", or leave it out"
    )]
    SocketMode {
        /// The upstream.
        upstream: String,
        /// What it holds.
        value: String,
    },
    /// The mesh entry names a TLS version that does not exist.
    #[error(
        "{setting} of the mesh config entry is {value:?}; set it to TLS_AUTO, TLSv1_0, TLSv1_1, TLSv1_2 or TLSv1_3"
    )]
    TlsVersion {
        /// The setting.
        setting: String,
        /// What it holds.
        value: String,
    },
    /// The mesh entry names a cipher suite that Envoy does not have.
    #[error(
        "{setting} of the mesh config entry names {value:?}, which Envoy does not have; remove it"
    )]
    CipherSuite {
        /// The setting.
        setting: String,
        /// What it names.
        value: String,
    },
    /// There is nothing to verify peers against.
    #[error("the CA has no root certificate, so no peer could be verified; initialise the CA")]
    NoRoots,
    /// There is nothing to show to peers.
    #[error(
        "service {0:?} has no certificate or no key, so it could not identify itself; see the CA's log"
    )]
    NoLeaf(String),
    /// The mesh entry asks for a treatment of requests that does not exist.
    #[error(
        "{setting} of the mesh config entry is {value:?}, which does not exist; correct it or leave it out"
    )]
    Normalization {
        /// The setting.
        setting: &'static str,
        /// What it holds.
        value: String,
    },
    /// The server name of a service outside the mesh is longer than Envoy takes.
    #[error(
        "the server name {0:?} of a destination is {len} bytes long, and Envoy takes at most {MAX_SERVER_NAME}; give the service a shorter name, or a shorter address",
        len = .0.len()
    )]
    LongServerName(String),
    /// A resource that a user wrote is not what Envoy takes.
    #[error("{setting} cannot be used: {reason}")]
    Custom {
        /// The setting.
        setting: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An intention has a condition on a header that says nothing.
    #[error(
        "the intention of source {source_name:?} has a condition on header {header:?} that says nothing; give it one of Present, Exact, Prefix, Suffix, Contains, Regex"
    )]
    EmptyHeaderCondition {
        /// The source of the intention.
        source_name: String,
        /// The header.
        header: String,
    },
    /// The entries that decide where an upstream leads do not fit together.
    #[error("{0}; correct the config entries that it names")]
    Chain(ChainError),
    /// An extension without which the resource must not be served cannot be applied to it.
    #[error(
        "EnvoyExtensions: {name} is required and cannot be applied: {reason}; correct it, or leave Required out to go without it"
    )]
    Extension {
        /// The extension.
        name: String,
        /// Why not.
        reason: String,
    },
}

impl GenerateError {
    /// Whether it is the access rules themselves that cannot be made.
    pub(crate) fn is_about_access(&self) -> bool {
        matches!(self, Self::EmptyHeaderCondition { .. } | Self::JwtKeys(_))
    }
}

/// A resource that cannot be made from what is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    kind: Type,
    /// The resource's name; of a listener the part of the name that stands before its address.
    pub resource: String,
    /// What is wrong.
    pub reason: GenerateError,
    /// The proxy keeps the last good version. Otherwise it never had one.
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

    /// Whether it is about the resource of this type and name.
    pub(crate) fn is_about(&self, kind: Type, name: &str) -> bool {
        let rest = name.strip_prefix(self.resource.as_str());
        let named = rest
            .is_some_and(|rest| rest.is_empty() || kind == Type::Listener && rest.starts_with(':'));
        named && kind == self.kind
    }
}
