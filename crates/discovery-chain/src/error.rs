//! Why config entries do not compile. The texts are Consul's where Consul has the error.

/// Config entries that do not compile to a chain. A write that causes it is refused with this
/// error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// Services of one chain have different protocols.
    #[error(
        "discovery chain {chain:?} uses inconsistent protocols; service {service:?} has {protocol:?} \
         which is not {expected:?}"
    )]
    Protocols {
        /// The service that callers request.
        chain: String,
        /// The service that differs.
        service: String,
        /// Its protocol.
        protocol: String,
        /// The protocol of the services before it.
        expected: String,
    },
    /// Routes or splits with a protocol that is not HTTP.
    #[error(
        "discovery chain {chain:?} uses a protocol {protocol:?} that does not permit advanced routing \
         or splitting behavior"
    )]
    NotHttp {
        /// The service that callers request.
        chain: String,
        /// Its protocol.
        protocol: String,
    },
    /// Routes or splits form a cycle.
    #[error("detected circular reference: [{}]", .0.join(" -> "))]
    Circle(Vec<String>),
    /// Redirects form a cycle.
    #[error("detected circular resolver redirect: [{}]", .0.join(" -> "))]
    CircularRedirect(Vec<String>),
    /// A reference to a subset that the service does not have.
    #[error("service {service:?} does not have a subset named {subset:?}")]
    NoSubset {
        /// The service.
        service: String,
        /// The missing subset.
        subset: String,
    },
    /// A setting that a service outside of the mesh cannot have.
    #[error(
        "service {service:?} has an external SNI set; cannot define {what} for external services"
    )]
    External {
        /// The service.
        service: String,
        /// The setting: redirects, subsets or failover.
        what: &'static str,
    },
    /// Redirects or nested splits pass through too many services.
    #[error(
        "discovery chain {chain:?} passes through more than {limit} services in sequence: \
         shorten its redirects and splits"
    )]
    TooLong {
        /// The service that callers request.
        chain: String,
        /// The limit.
        limit: usize,
    },
    /// Nested splits multiply to more than a proxy should get.
    #[error(
        "discovery chain {chain:?} splits requests into more than {limit} parts in all: remove splits of \
         the services that it splits between, or header changes, of which each 100 bytes count as a part"
    )]
    TooManySplits {
        /// The service that callers request.
        chain: String,
        /// The limit.
        limit: usize,
    },
}
