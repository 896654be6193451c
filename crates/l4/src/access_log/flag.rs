//! Envoy's response flags: why a connection ended otherwise than by its ends.

/// Declares the flags with their short names; the long names are those of the variants.
macro_rules! flags {
    ($($(#[$doc:meta])* $variant:ident $short:literal,)*) => {
        /// A response flag. In the order in which Envoy prints several. A TCP proxy sets only some of them; a filter may
        /// name all.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Flag {
            $($(#[$doc])* $variant,)*
        }

        impl Flag {
            /// Every flag.
            pub const ALL: &[Flag] = &[$(Flag::$variant,)*];

            /// The short name, as in `%RESPONSE_FLAGS%`.
            pub fn short(self) -> &'static str {
                match self {
                    $(Flag::$variant => $short,)*
                }
            }

            /// The long name, as in `%RESPONSE_FLAGS_LONG%`.
            pub fn long(self) -> &'static str {
                match self {
                    $(Flag::$variant => stringify!($variant),)*
                }
            }
        }
    };
}

flags! {
    /// The host failed its health check.
    FailedLocalHealthCheck "LH",
    /// No healthy host.
    NoHealthyUpstream "UH",
    /// A request took too long.
    UpstreamRequestTimeout "UT",
    /// The connection was reset by the proxy.
    LocalReset "LR",
    /// The connection was reset by the host.
    UpstreamRemoteReset "UR",
    /// No connection to a host.
    UpstreamConnectionFailure "UF",
    /// The host closed the connection.
    UpstreamConnectionTermination "UC",
    /// The cluster's limit of connections.
    UpstreamOverflow "UO",
    /// No filter chain or no cluster for the connection.
    NoRouteFound "NR",
    /// A delay was injected.
    DelayInjected "DI",
    /// A fault was injected.
    FaultInjected "FI",
    /// Over a limit of the rate.
    RateLimited "RL",
    /// An external service denied it.
    UnauthorizedExternalService "UAEX",
    /// The service for limits of the rate failed.
    RateLimitServiceError "RLSE",
    /// The caller closed the connection early.
    DownstreamConnectionTermination "DC",
    /// All attempts to connect failed.
    UpstreamRetryLimitExceeded "URX",
    /// A stream was idle for too long.
    StreamIdleTimeout "SI",
    /// A request had an invalid value in a header of Envoy.
    InvalidEnvoyRequestHeaders "IH",
    /// The caller broke the protocol.
    DownstreamProtocolError "DPE",
    /// A stream lasted too long.
    UpstreamMaxStreamDurationReached "UMSDR",
    /// From the cache.
    ResponseFromCacheFilter "RFCF",
    /// A filter had no configuration.
    NoFilterConfigFound "NFCF",
    /// The connection lasted too long.
    DurationTimeout "DT",
    /// The host broke the protocol.
    UpstreamProtocolError "UPE",
    /// The cluster does not exist.
    NoClusterFound "NC",
    /// The proxy was overloaded.
    OverloadManagerTerminated "OM",
    /// A name was not resolved.
    DnsResolutionFailed "DF",
    /// Dropped by a load policy.
    DropOverload "DO",
    /// The connection was reset by the caller.
    DownstreamRemoteReset "DR",
    /// Dropped, whatever the load.
    UnconditionalDropOverload "UDO",
}

impl Flag {
    /// The flag with this short name.
    pub fn named(short: &str) -> Option<Flag> {
        let mut all = Flag::ALL.iter().copied();
        all.find(|flag| flag.short() == short)
    }
}
