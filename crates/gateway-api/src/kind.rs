//! The kinds of routes.

use std::fmt;

/// A kind of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// HTTPRoute.
    Http,
    /// GRPCRoute.
    Grpc,
    /// TLSRoute.
    Tls,
    /// TCPRoute.
    Tcp,
    /// UDPRoute.
    Udp,
}

impl RouteKind {
    /// Its name in the Gateway API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "HTTPRoute",
            Self::Grpc => "GRPCRoute",
            Self::Tls => "TLSRoute",
            Self::Tcp => "TCPRoute",
            Self::Udp => "UDPRoute",
        }
    }
}

impl fmt::Display for RouteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a listener understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Https,
    /// TLS that ends here, with connections in it.
    TlsTerminated,
    /// TLS that ends at the backend.
    TlsPassedThrough,
    Tcp,
    Udp,
}

impl Protocol {
    /// The kinds of routes that a listener can have.
    pub(crate) const fn kinds(self) -> &'static [RouteKind] {
        match self {
            Self::Http | Self::Https => &[RouteKind::Http, RouteKind::Grpc],
            Self::TlsTerminated | Self::TlsPassedThrough => &[RouteKind::Tls],
            Self::Tcp => &[RouteKind::Tcp],
            Self::Udp => &[RouteKind::Udp],
        }
    }

    /// Whether listeners of one port are distinguished by the server names of TLS.
    pub(crate) const fn is_secure(self) -> bool {
        matches!(
            self,
            Self::Https | Self::TlsTerminated | Self::TlsPassedThrough
        )
    }

    /// Whether it presents certificates.
    pub(crate) const fn presents(self) -> bool {
        matches!(self, Self::Https | Self::TlsTerminated)
    }
}
