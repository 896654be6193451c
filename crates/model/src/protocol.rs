//! The protocol of a service, which selects layer 4 or layer 7 handling.

use std::str::FromStr;

use crate::named::named;

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

named! {
    Protocol { Tcp = "tcp", Http = "http", Http2 = "http2", Grpc = "grpc" }
}

impl Protocol {
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
        if text.is_empty() {
            return Ok(Protocol::Tcp);
        }
        let named = |protocol: &Protocol| protocol.as_str().eq_ignore_ascii_case(text);
        let found = Self::ALL.into_iter().find(named);
        found.ok_or_else(|| UnknownProtocol(text.to_owned()))
    }
}
