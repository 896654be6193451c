//! How messages with secrets are printed.

use std::fmt;

use crate::internal::peerstream::replication_message::Open;
use crate::internal::peerstream::{ExchangeSecretRequest, ExchangeSecretResponse};

/// Instead of a secret.
const HIDDEN: &str = "***";

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("peer_id", &self.peer_id)
            .field("stream_secret_id", &HIDDEN)
            .field("remote", &self.remote)
            .finish()
    }
}

impl fmt::Debug for ExchangeSecretRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangeSecretRequest")
            .field("peer_id", &self.peer_id)
            .field("establishment_secret", &HIDDEN)
            .finish()
    }
}

impl fmt::Debug for ExchangeSecretResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangeSecretResponse")
            .field("stream_secret", &HIDDEN)
            .finish()
    }
}
