//! Whether a cluster that accepts streams takes one, and the first message of the cluster that dials.
//!
//! A pure decision about the first message and what the cluster has stored. The caller reads the peering, performs the
//! promotion of the secret, and answers.

use legate_api::internal::peering::RemoteInfo;
use legate_api::internal::peerstream::ReplicationMessage;
use legate_api::internal::peerstream::replication_message::{Open, Payload, Terminated};
use legate_model::Secret;
use subtle::ConstantTimeEq;

use crate::refusal::{Refusal, code, shown};

/// What an accepting cluster knows of the peering that a stream is opened for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Whether the peering is in use, being deleted, or deleted by the other cluster.
    pub lifecycle: Lifecycle,
    /// Whether this cluster dials. Then the other one is not to dial it.
    pub dials: bool,
    /// The secrets of streams; `None` if the peering has none.
    pub secrets: Option<StreamSecrets>,
}

/// The part of a peering's state that a stream depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifecycle {
    /// In use.
    Active,
    /// Deleted here, with data that is not removed yet.
    Deleting,
    /// Deleted by the other cluster, and that is known here.
    Terminated,
}

/// The secrets of a peering's streams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamSecrets {
    /// The secret of the last stream.
    pub active: Option<Secret>,
    /// A secret that was handed out, but not used yet.
    pub pending: Option<Secret>,
}

/// A decision about a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Opening {
    /// The stream is taken.
    Accept {
        /// Whether the pending secret becomes the active one first, and `Open.remote` is stored.
        promote: bool,
    },
    /// The stream ends with an error.
    Refuse {
        /// The error.
        refusal: Refusal,
        /// Whether [`terminated`] is sent before.
        terminated: bool,
    },
}

impl From<Refusal> for Opening {
    fn from(refusal: Refusal) -> Self {
        Self::Refuse {
            refusal,
            terminated: false,
        }
    }
}

/// The opening message of a stream, from its first message.
///
/// # Errors
///
/// The error with which the stream ends: it is another message, or names no peering.
pub fn first(message: ReplicationMessage) -> Result<Open, Refusal> {
    match message.payload {
        Some(Payload::Open(open)) if open.peer_id.is_empty() => Err(Refusal::invalid(
            "initial subscription request must specify a PeerID",
        )),
        Some(Payload::Open(open)) => Ok(open),
        _ => Err(Refusal::invalid(
            "first message when initiating a peering must be: Open",
        )),
    }
}

/// Decides about a stream. `known` is the peering of [`Open::peer_id`], if there is one.
///
/// In Consul's order, except that a pending secret is promoted only for a stream that is taken. An open stream of the peering
/// does not matter: the new one replaces it.
pub fn decide(open: &Open, known: Option<&Known>) -> Opening {
    let id = shown(&open.peer_id);
    let Some(known) = known else {
        let text = format!("initial subscription for unknown PeerID: {id}");
        return Refusal::invalid(text).into();
    };
    if known.lifecycle != Lifecycle::Active {
        let text = format!("peering is marked as deleted: {id}");
        return Opening::Refuse {
            refusal: Refusal::new(code::ABORTED, text),
            terminated: known.lifecycle == Lifecycle::Deleting,
        };
    }
    let Some(secrets) = &known.secrets else {
        let text = "unable to authorize connection, peering must be re-established";
        return Refusal::new(code::INTERNAL, text).into();
    };
    let is = |secret: &Option<Secret>| {
        secret.as_ref().is_some_and(|secret| {
            let (own, given) = (secret.expose(), &open.stream_secret_id);
            !own.is_empty() && bool::from(own.as_bytes().ct_eq(given.as_bytes()))
        })
    };
    let promote = match (is(&secrets.active), is(&secrets.pending)) {
        (true, _) => false,
        (false, true) => true,
        (false, false) => {
            let text = "invalid peering stream secret";
            return Refusal::new(code::PERMISSION_DENIED, text).into();
        }
    };
    if known.dials {
        let text = "expected PeerID to be empty; the wrong end of peering is being dialed";
        return Refusal::invalid(text).into();
    }
    Opening::Accept { promote }
}

/// A peering cannot be read or its secret cannot be promoted. `action` is `find PeerID: <id>` or
/// `persist peering: <error>`.
pub fn storage_failed(action: &str) -> Refusal {
    Refusal::new(code::INTERNAL, format!("failed to {action}"))
}

/// The cluster has no certificate authority yet.
pub fn no_authority() -> Refusal {
    Refusal::new(code::UNAVAILABLE, "Connect CA is not yet initialized")
}

/// The first message of a cluster that dials. `peer_id` is the peering's id in the other cluster.
pub fn open(peer_id: &str, secret: &Secret, remote: RemoteInfo) -> Open {
    Open {
        peer_id: peer_id.to_owned(),
        stream_secret_id: secret.expose().to_owned(),
        remote: Some(remote),
    }
}

/// Tells the other cluster that the peering is deleted.
pub fn terminated() -> ReplicationMessage {
    ReplicationMessage {
        payload: Some(Payload::Terminated(Terminated {})),
    }
}
