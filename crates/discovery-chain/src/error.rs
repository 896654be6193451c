//! Why entries do not make a chain. The texts are Consul's.

/// Entries that do not make a chain together. Whoever writes an entry is refused with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// Services of one chain speak differently.
    #[error(
        "discovery chain {chain:?} uses inconsistent protocols; service {service:?} has {protocol:?} \
         which is not {expected:?}"
    )]
    Protocols {
        /// The service that callers ask for.
        chain: String,
        /// The one that differs.
        service: String,
        /// What it speaks.
        protocol: String,
        /// What those before it speak.
        expected: String,
    },
    /// What is spoken has no requests that could be routed or split.
    #[error(
        "discovery chain {chain:?} uses a protocol {protocol:?} that does not permit advanced routing \
         or splitting behavior"
    )]
    NotHttp {
        /// The service that callers ask for.
        chain: String,
        /// What it speaks.
        protocol: String,
    },
    /// Routes or splits lead back to where they come from.
    #[error("detected circular reference: [{}]", .0.join(" -> "))]
    Circle(Vec<String>),
    /// Redirects lead back to where they come from.
    #[error("detected circular resolver redirect: [{}]", .0.join(" -> "))]
    CircularRedirect(Vec<String>),
    /// A subset that the service does not have.
    #[error("service {service:?} does not have a subset named {subset:?}")]
    NoSubset {
        /// The service.
        service: String,
        /// The subset that something asks for.
        subset: String,
    },
    /// Something that a service outside of the mesh cannot have.
    #[error(
        "service {service:?} has an external SNI set; cannot define {what} for external services"
    )]
    External {
        /// The service.
        service: String,
        /// What it cannot have: redirects, subsets or failover.
        what: &'static str,
    },
    /// Redirects, or splits, lead on and on.
    #[error(
        "discovery chain {chain:?} leads through more than {limit} services one after the other: \
         shorten its redirects and splits"
    )]
    TooLong {
        /// The service that callers ask for.
        chain: String,
        /// The most that are served.
        limit: usize,
    },
    /// Splits lead to splits so often that a proxy would have too many.
    #[error(
        "discovery chain {chain:?} splits requests into more than {limit} parts in all: take splits out of \
         the services that it splits between, or changes of headers, of which 100 bytes count as a part"
    )]
    TooManySplits {
        /// The service that callers ask for.
        chain: String,
        /// The most that are served.
        limit: usize,
    },
}
