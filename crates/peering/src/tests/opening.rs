//! The acceptor's decisions.

use legate_api::internal::peerstream::ReplicationMessage;
use legate_api::internal::peerstream::replication_message::{Heartbeat, Payload as Content};
use legate_model::Secret;

use super::*;
use crate::opening::{Known, Lifecycle, Opening, StreamSecrets, decide, first};
use crate::{Refusal, code};

fn known() -> Known {
    Known {
        lifecycle: Lifecycle::Active,
        dials: false,
        secrets: Some(StreamSecrets {
            active: Some(Secret::new("old")),
            pending: Some(Secret::new("stream-secret")),
        }),
    }
}

#[test]
fn the_first_message_opens_the_stream() {
    let refused = |content: Option<Content>| {
        first(ReplicationMessage { payload: content })
            .unwrap_err()
            .message
    };
    let text = "first message when initiating a peering must be: Open";
    assert_eq!(refused(None), text);
    assert_eq!(refused(Some(Content::Heartbeat(Heartbeat {}))), text);
    let without_id = Open {
        peer_id: String::new(),
        ..opening_message()
    };
    assert_eq!(
        refused(Some(Content::Open(without_id))),
        "initial subscription request must specify a PeerID"
    );
    let opened = first(message(Content::Open(opening_message())));
    assert_eq!(opened, Ok(opening_message()));
    assert!(!format!("{opened:?}").contains("stream-secret"));
}

#[test]
fn each_row_of_the_table_has_its_answer() {
    let with = |change: fn(&mut Known)| {
        let mut known = known();
        change(&mut known);
        decide(&opening_message(), Some(&known))
    };
    let refuse = |code: i32, message: &str, terminated: bool| Opening::Refuse {
        refusal: Refusal {
            code,
            message: message.to_owned(),
        },
        terminated,
    };
    let wrong = refuse(
        code::PERMISSION_DENIED,
        "invalid peering stream secret",
        false,
    );
    let deleted = |terminated| {
        refuse(
            code::ABORTED,
            "peering is marked as deleted: peering-id",
            terminated,
        )
    };
    assert_eq!(
        decide(&opening_message(), None),
        refuse(
            code::INVALID_ARGUMENT,
            "initial subscription for unknown PeerID: peering-id",
            false
        )
    );
    assert_eq!(
        with(|known| known.lifecycle = Lifecycle::Deleting),
        deleted(true)
    );
    assert_eq!(
        with(|known| known.lifecycle = Lifecycle::Terminated),
        deleted(false)
    );
    assert_eq!(
        with(|known| known.secrets = None),
        refuse(
            code::INTERNAL,
            "unable to authorize connection, peering must be re-established",
            false
        )
    );
    assert_eq!(with(|_| {}), Opening::Accept { promote: true });
    assert_eq!(
        with(|known| known.secrets.as_mut().unwrap().active = Some("stream-secret".into())),
        Opening::Accept { promote: false }
    );
    assert_eq!(
        with(|known| known.secrets.as_mut().unwrap().pending = None),
        wrong
    );
    assert_eq!(
        with(|known| known.secrets = Some(StreamSecrets::default())),
        wrong
    );
    assert_eq!(
        with(|known| known.dials = true),
        refuse(
            code::INVALID_ARGUMENT,
            "expected PeerID to be empty; the wrong end of peering is being dialed",
            false
        )
    );
}

#[test]
fn an_empty_secret_opens_nothing() {
    let mut known = known();
    known.secrets = Some(StreamSecrets {
        active: Some(Secret::default()),
        pending: Some(Secret::default()),
    });
    let open = Open {
        stream_secret_id: String::new(),
        ..opening_message()
    };
    assert!(matches!(
        decide(&open, Some(&known)),
        Opening::Refuse { refusal, .. } if refusal.code == code::PERMISSION_DENIED
    ));
}
