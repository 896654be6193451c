//! What the other end of a connection says first: it tells whether an HTTP/2 server is there at
//! all. Looks at a few bytes and changes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Length of an HTTP/2 frame's header, in bytes. A server's first frame tells its settings.
const HEADER: usize = 9;
const SETTINGS: u8 = 4;
/// First byte of the records with which a TLS server answers what is no TLS.
const TLS_ALERT: u8 = 21;
const TLS_HANDSHAKE: u8 = 22;
/// Second byte of all TLS records.
const TLS_MAJOR: u8 = 3;

/// What is wrong when an answer of HTTP/1 comes first.
pub(crate) const HTTP1: &str = "what listens there speaks HTTP/1 and no gRPC: check -grpc-port";

/// The first bytes that a connection's other end has sent. Clones are not needed: the connection
/// and whoever explains its errors share one.
#[derive(Debug, Default)]
pub(crate) struct Greeting {
    first: Mutex<Vec<u8>>,
    /// Nothing more is looked at.
    full: AtomicBool,
}

impl Greeting {
    /// These bytes have arrived.
    pub(crate) fn arrived(&self, bytes: &[u8]) {
        if self.full.load(Ordering::Relaxed) {
            return;
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = HEADER.saturating_sub(first.len());
        first.extend(bytes.iter().take(missing));
        self.full.store(first.len() >= HEADER, Ordering::Relaxed);
    }

    /// Whether an answer of HTTP/1 came first.
    pub(crate) fn is_http1(&self) -> bool {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.starts_with(b"HTTP/")
    }

    /// What may be wrong with the settings when a connection has broken after this greeting;
    /// `tls`: whether it arrived encrypted.
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
