//! The first bytes that a server sends: they show whether it speaks HTTP/2 at all.
//!
//! It keeps a few bytes for error messages and never changes the stream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Length of an HTTP/2 frame's header, in bytes. A server's first frame is SETTINGS.
const HEADER: usize = 9;
const SETTINGS: u8 = 4;
/// First byte of the records that a TLS server sends to a client without TLS.
const TLS_ALERT: u8 = 21;
const TLS_HANDSHAKE: u8 = 22;
/// Second byte of all TLS records.
const TLS_MAJOR: u8 = 3;

/// The hint when the first bytes are an HTTP/1 response.
pub(crate) const HTTP1: &str = "what listens there speaks HTTP/1 and no gRPC: check -grpc-port";

/// The first bytes that arrived on a connection.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    first: Mutex<Vec<u8>>,
    /// There are enough bytes.
    full: AtomicBool,
}

impl Greeting {
    /// Adds bytes that have arrived.
    pub(crate) fn arrived(&self, bytes: &[u8]) {
        if self.full.load(Ordering::Relaxed) {
            return;
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = HEADER.saturating_sub(first.len());
        first.extend(bytes.iter().take(missing));
        self.full.store(first.len() >= HEADER, Ordering::Relaxed);
    }

    /// Whether the first bytes are an HTTP/1 response.
    pub(crate) fn is_http1(&self) -> bool {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.starts_with(b"HTTP/")
    }

    /// Which settings to check when the connection has broken after these bytes; `tls`: whether
    /// they arrived over TLS.
    pub(crate) fn hint(&self, tls: bool) -> Option<&'static str> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        match *first.as_slice() {
            [_, _, _, SETTINGS, _, 0, 0, 0, 0] => None,
            [b'H', b'T', b'T', b'P', b'/', ..] => Some(HTTP1),
            [TLS_ALERT | TLS_HANDSHAKE, TLS_MAJOR, ..] if !tls => {
                Some("the server's port expects TLS: check -tls-disabled and -grpc-port")
            }
            [] if !tls => {
                Some("the server's port may expect TLS: check -tls-disabled and -grpc-port")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(pieces: &[&[u8]], tls: bool) -> Option<&'static str> {
        let greeting = Greeting::default();
        for piece in pieces {
            greeting.arrived(piece);
        }
        greeting.hint(tls)
    }

    #[test]
    fn an_http2_server_needs_no_hint() {
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100];
        for tls in [true, false] {
            assert_eq!(hint(&[&settings], tls), None);
            assert_eq!(
                hint(&[&settings[..2], &settings[2..8], &settings[8..]], tls),
                None
            );
        }
    }

    #[test]
    fn others_are_told_apart() {
        let alert: &[u8] = &[21, 3, 3, 0, 2, 2, 10];
        assert!(hint(&[alert], false).unwrap().contains("expects TLS"));
        assert!(hint(&[], false).unwrap().contains("may expect TLS"));
        for tls in [true, false] {
            let http = hint(&[b"HT", b"TP/1.1 400 Bad Request\r\n"], tls);
            assert!(http.unwrap().contains("-grpc-port"));
            assert_eq!(hint(&[b"SSH-2.0-OpenSSH\r\n"], tls), None);
        }
        // Encrypted, these say nothing of the kind.
        assert_eq!(hint(&[], true), None);
        assert_eq!(hint(&[alert], true), None);
    }
}
