//! The first bytes from a server, which show whether it speaks HTTP/2 at all.
//!
//! Records a few bytes for error messages without changing the stream.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Length of an HTTP/2 frame header, in bytes. A server's first frame is SETTINGS.
const HEADER: usize = 9;
const SETTINGS: u8 = 4;
/// First byte of the records that a TLS server sends to a client without TLS.
const TLS_ALERT: u8 = 21;
const TLS_HANDSHAKE: u8 = 22;
/// Second byte of all TLS records.
const TLS_MAJOR: u8 = 3;

/// The first bytes received on a connection.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// Whether TLS is used. The bytes are those inside TLS, or those received in the handshake.
    tls: bool,
    first: Mutex<Vec<u8>>,
}

impl Greeting {
    pub(crate) fn new(tls: bool) -> Self {
        let first = Mutex::default();
        Self { tls, first }
    }

    /// Adds received bytes.
    pub(crate) fn arrived(&self, bytes: &[u8]) {
        let mut first = self.first();
        let missing = HEADER.saturating_sub(first.len());
        first.extend(bytes.iter().take(missing));
    }

    /// The settings to check if the connection broke after these bytes.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match *self.first().as_slice() {
            [_, _, _, SETTINGS, _, 0, 0, 0, 0] => None,
            [b'H', b'T', b'T', b'P', b'/', ..] => {
                Some("it speaks HTTP/1, not gRPC: check -grpc-port")
            }
            _ if self.tls => None,
            [TLS_ALERT | TLS_HANDSHAKE, TLS_MAJOR, ..] => {
                Some("the server's port expects TLS: check -tls-disabled and -grpc-port")
            }
            [] => Some("the server's port may expect TLS: check -tls-disabled and -grpc-port"),
            _ => None,
        }
    }

    fn first(&self) -> MutexGuard<'_, Vec<u8>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(pieces: &[&[u8]], tls: bool) -> Option<&'static str> {
        let greeting = Greeting::new(tls);
        for piece in pieces {
            greeting.arrived(piece);
        }
        greeting.hint()
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
    fn other_protocols_are_distinguished() {
        let alert: &[u8] = &[21, 3, 3, 0, 2, 2, 10];
        assert!(hint(&[alert], false).unwrap().contains("expects TLS"));
        assert!(hint(&[], false).unwrap().contains("may expect TLS"));
        for tls in [true, false] {
            let http = hint(&[b"HT", b"TP/1.1 400 Bad Request\r\n"], tls);
            assert!(http.unwrap().contains("-grpc-port"));
            assert_eq!(hint(&[b"SSH-2.0-OpenSSH\r\n"], tls), None);
        }
        // Received inside TLS, these bytes do not indicate a missing TLS setting.
        assert_eq!(hint(&[], true), None);
        assert_eq!(hint(&[alert], true), None);
    }
}
