//! The protocol of a service, which selects layer 4 or layer 7 handling.

use std::fmt;
use std::str::FromStr;

/// Protocol of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Opaque bytes (TCP); the default.
    #[default]
    Tcp,
    /// HTTP/1.1.
    Http,
    /// HTTP/2.
    Http2,
    /// gRPC over HTTP/2.
    Grpc,
}

/// An unknown protocol name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a protocol: it must be tcp, http, http2 or grpc (or empty, which is tcp)")]
pub struct UnknownProtocol(String);

impl Protocol {
    /// The name in configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Http => "http",
            Protocol::Http2 => "http2",
            Protocol::Grpc => "grpc",
        }
    }

    /// Whether individual requests are processed, not only connections.
    pub const fn is_http(self) -> bool {
        !matches!(self, Protocol::Tcp)
    }

    /// Whether it uses HTTP/2.
    pub const fn is_http2(self) -> bool {
        matches!(self, Protocol::Http2 | Protocol::Grpc)
    }
}

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    /// Case-insensitive; empty means [`Protocol::Tcp`].
    fn from_str(text: &str) -> Result<Self, UnknownProtocol> {
        match text.to_ascii_lowercase().as_str() {
            "" | "tcp" => Ok(Protocol::Tcp),
            "http" => Ok(Protocol::Http),
            "http2" => Ok(Protocol::Http2),
            "grpc" => Ok(Protocol::Grpc),
            _ => Err(UnknownProtocol(text.to_owned())),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
