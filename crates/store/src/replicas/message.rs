//! Messages between servers, and their encoding: protocol buffers in frames with their length.

use std::io;
use std::sync::Arc;

use legate_model::Tenancy;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncReadExt};
use uuid::Uuid;

use crate::backend::Rows;
use crate::renewals::SessionKey;

/// The protocol, negotiated by TLS. Servers with different protocols refuse each other.
pub(crate) const PROTOCOL: &str = "legate-store/1";

/// The maximum size of a frame in bytes. Above the size of all parts that a leader remembers.
const MAX_FRAME: usize = 64 * 1024 * 1024;

/// The changed rows of some transactions, in stored form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) id: Uuid,
    /// The index before them.
    pub(crate) base: u64,
    /// The index after them.
    pub(crate) index: u64,
    pub(crate) rows: Rows,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The follower has transactions. `at` is the index of its last commit.
    Wants { at: u64 },
    /// The follower ran transactions in its turn. `index` is the one after them; without rows,
    /// nothing changed. `more`: others did not fit.
    Ran {
        turn: Uuid,
        index: u64,
        rows: Rows,
        more: bool,
    },
    /// The follower could not use its turn, because its last part is none of those that the leader
    /// sent. `at` is the index of its last commit.
    Stale { turn: Uuid, at: u64 },
    /// The follower wants to replace everything, alone.
    WantsAll,
    /// The follower has replaced everything, or has failed to.
    Done,
    /// The follower may run transactions on the state after these parts, which follow the part or
    /// commit `parent`. They may change so many `rows`; the first may exceed this if `exceed`.
    Turn {
        turn: Uuid,
        parent: Uuid,
        parts: Vec<Arc<Part>>,
        rows: u64,
        exceed: bool,
    },
    /// The follower may replace everything.
    All,
    /// The part of a turn was not stored. With a reason, its transactions failed. Otherwise nothing
    /// after `after` will be stored, and they run again.
    Refused {
        turn: Uuid,
        after: Uuid,
        reason: Option<String>,
    },
    /// The follower's clients renew sessions.
    Renew { sessions: Vec<SessionKey> },
    /// For each session of the last [`Message::Renew`], whether it exists and is renewed.
    Renewed { exist: Vec<bool> },
}

impl Message {
    /// The message as a frame.
    pub(crate) fn to_frame(&self) -> Vec<u8> {
        let body = wire::Envelope {
            message: Some(self.to_wire()),
        };
        let length = body.encoded_len();
        let mut frame = Vec::with_capacity(4 + length);
        frame.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        // The vector grows.
        let _ = body.encode(&mut frame);
        frame
    }

    /// Reads a frame. `None` at the end of the stream.
    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let length = match from.read_u32().await {
            Ok(length) => usize::try_from(length).unwrap_or(usize::MAX),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        };
        let bad = |reason: &str| io::Error::new(io::ErrorKind::InvalidData, reason.to_owned());
        if length > MAX_FRAME {
            return Err(bad("a message is too large"));
        }
        let mut frame = vec![0; length];
        from.read_exact(&mut frame).await?;
        let envelope = wire::Envelope::decode(&*frame).map_err(|error| bad(&error.to_string()))?;
        let message = envelope.message.and_then(Self::from_wire);
        message
            .map(Some)
            .ok_or_else(|| bad("a message is not valid"))
    }

    fn to_wire(&self) -> wire::Message {
        match self {
            Self::Wants { at } => wire::Message::Wants(wire::Wants { at: *at }),
            Self::Ran {
                turn,
                index,
                rows,
                more,
            } => wire::Message::Ran(wire::Ran {
                turn: bytes(turn),
                index: *index,
                rows: wire_rows(rows),
                more: *more,
            }),
            Self::Stale { turn, at } => wire::Message::Stale(wire::Stale {
                turn: bytes(turn),
                at: *at,
            }),
            Self::WantsAll => wire::Message::WantsAll(wire::Empty {}),
            Self::Done => wire::Message::Done(wire::Empty {}),
            Self::Turn {
                turn,
                parent,
                parts,
                rows,
                exceed,
            } => wire::Message::Turn(wire::Turn {
                turn: bytes(turn),
                parent: bytes(parent),
                parts: parts.iter().map(|part| wire_part(part)).collect(),
                rows: *rows,
                exceed: *exceed,
            }),
            Self::All => wire::Message::All(wire::Empty {}),
            Self::Refused {
                turn,
                after,
                reason,
            } => wire::Message::Refused(wire::Refused {
                turn: bytes(turn),
                after: bytes(after),
                reason: reason.clone(),
            }),
            Self::Renew { sessions } => wire::Message::Renew(wire::Renew {
                sessions: sessions.iter().map(wire_session).collect(),
            }),
            Self::Renewed { exist } => wire::Message::Renewed(wire::Renewed {
                exist: exist.clone(),
            }),
        }
    }

    fn from_wire(message: wire::Message) -> Option<Self> {
        Some(match message {
            wire::Message::Wants(wants) => Self::Wants { at: wants.at },
            wire::Message::Ran(ran) => Self::Ran {
                turn: id(&ran.turn)?,
                index: ran.index,
                rows: read_rows(ran.rows),
                more: ran.more,
            },
            wire::Message::Stale(stale) => Self::Stale {
                turn: id(&stale.turn)?,
                at: stale.at,
            },
            wire::Message::WantsAll(wire::Empty {}) => Self::WantsAll,
            wire::Message::Done(wire::Empty {}) => Self::Done,
            wire::Message::Turn(turn) => Self::Turn {
                turn: id(&turn.turn)?,
                parent: id(&turn.parent)?,
                parts: turn
                    .parts
                    .into_iter()
                    .map(|part| read_part(part).map(Arc::new))
                    .collect::<Option<_>>()?,
                rows: turn.rows,
                exceed: turn.exceed,
            },
            wire::Message::All(wire::Empty {}) => Self::All,
            wire::Message::Refused(refused) => Self::Refused {
                turn: id(&refused.turn)?,
                after: id(&refused.after)?,
                reason: refused.reason,
            },
            wire::Message::Renew(renew) => Self::Renew {
                sessions: renew.sessions.into_iter().map(read_session).collect(),
            },
            wire::Message::Renewed(renewed) => Self::Renewed {
                exist: renewed.exist,
            },
        })
    }
}

fn bytes(id: &Uuid) -> Vec<u8> {
    id.as_bytes().to_vec()
}

fn id(bytes: &[u8]) -> Option<Uuid> {
    Uuid::from_slice(bytes).ok()
}

fn wire_rows(rows: &Rows) -> Vec<wire::Row> {
    let rows = rows.iter().map(|(key, value)| wire::Row {
        key: key.to_vec(),
        value: value.clone(),
    });
    rows.collect()
}

fn read_rows(rows: Vec<wire::Row>) -> Rows {
    let rows = rows.into_iter();
    rows.map(|row| (Arc::from(row.key), row.value)).collect()
}

fn wire_part(part: &Part) -> wire::Part {
    wire::Part {
        id: bytes(&part.id),
        base: part.base,
        index: part.index,
        rows: wire_rows(&part.rows),
    }
}

fn read_part(part: wire::Part) -> Option<Part> {
    Some(Part {
        id: id(&part.id)?,
        base: part.base,
        index: part.index,
        rows: read_rows(part.rows),
    })
}

fn wire_session(session: &SessionKey) -> wire::Session {
    wire::Session {
        partition: session.tenancy.partition.to_string(),
        namespace: session.tenancy.namespace.to_string(),
        id: session.id.clone(),
    }
}

fn read_session(session: wire::Session) -> SessionKey {
    SessionKey {
        tenancy: Tenancy {
            partition: session.partition.into(),
            namespace: session.namespace.into(),
            ..Tenancy::default()
        },
        id: session.id,
    }
}

/// The encoded form.
mod wire {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Envelope {
        #[prost(oneof = "Message", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
        pub(super) message: Option<Message>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Message {
        #[prost(message, tag = "1")]
        Wants(Wants),
        #[prost(message, tag = "2")]
        Ran(Ran),
        #[prost(message, tag = "3")]
        Stale(Stale),
        #[prost(message, tag = "4")]
        WantsAll(Empty),
        #[prost(message, tag = "5")]
        Done(Empty),
        #[prost(message, tag = "6")]
        Turn(Turn),
        #[prost(message, tag = "7")]
        All(Empty),
        #[prost(message, tag = "8")]
        Refused(Refused),
        #[prost(message, tag = "9")]
        Renew(Renew),
        #[prost(message, tag = "10")]
        Renewed(Renewed),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Empty {}

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Wants {
        #[prost(uint64, tag = "1")]
        pub(super) at: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Row {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) key: Vec<u8>,
        #[prost(bytes = "vec", optional, tag = "2")]
        pub(super) value: Option<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Part {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) id: Vec<u8>,
        #[prost(uint64, tag = "2")]
        pub(super) base: u64,
        #[prost(uint64, tag = "3")]
        pub(super) index: u64,
        #[prost(message, repeated, tag = "4")]
        pub(super) rows: Vec<Row>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Ran {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) turn: Vec<u8>,
        #[prost(uint64, tag = "2")]
        pub(super) index: u64,
        #[prost(message, repeated, tag = "3")]
        pub(super) rows: Vec<Row>,
        #[prost(bool, tag = "4")]
        pub(super) more: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Stale {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) turn: Vec<u8>,
        #[prost(uint64, tag = "2")]
        pub(super) at: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Turn {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) turn: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) parent: Vec<u8>,
        #[prost(message, repeated, tag = "3")]
        pub(super) parts: Vec<Part>,
        #[prost(uint64, tag = "4")]
        pub(super) rows: u64,
        #[prost(bool, tag = "5")]
        pub(super) exceed: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Refused {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) turn: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) after: Vec<u8>,
        #[prost(string, optional, tag = "3")]
        pub(super) reason: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Renew {
        #[prost(message, repeated, tag = "1")]
        pub(super) sessions: Vec<Session>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Session {
        #[prost(string, tag = "1")]
        pub(super) partition: String,
        #[prost(string, tag = "2")]
        pub(super) namespace: String,
        #[prost(string, tag = "3")]
        pub(super) id: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Renewed {
        #[prost(bool, repeated, tag = "1")]
        pub(super) exist: Vec<bool>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_are_read_as_written() {
        let id = Uuid::new_v4;
        let rows: Rows = [
            (Arc::from(&b"a"[..]), Some(b"x".to_vec())),
            (Arc::from(&b"b"[..]), None),
            (Arc::from(&b""[..]), Some(Vec::new())),
        ]
        .into();
        let part = Part {
            id: id(),
            base: 1,
            index: 3,
            rows: rows.clone(),
        };
        let messages = [
            Message::Wants { at: 7 },
            Message::Ran {
                turn: id(),
                index: 4,
                rows,
                more: true,
            },
            Message::Stale { turn: id(), at: 2 },
            Message::WantsAll,
            Message::Done,
            Message::Turn {
                turn: id(),
                parent: id(),
                parts: vec![Arc::new(part)],
                rows: 127,
                exceed: true,
            },
            Message::All,
            Message::Refused {
                turn: id(),
                after: id(),
                reason: Some("why".to_owned()),
            },
            Message::Renew {
                sessions: vec![SessionKey {
                    tenancy: Tenancy {
                        partition: "p".into(),
                        ..Tenancy::default()
                    },
                    id: "a session".to_owned(),
                }],
            },
            Message::Renewed {
                exist: vec![true, false],
            },
        ];
        let written: Vec<u8> = messages.iter().flat_map(Message::to_frame).collect();
        let mut from = &*written;
        for message in messages {
            assert_eq!(Message::read(&mut from).await.unwrap(), Some(message));
        }
        assert_eq!(Message::read(&mut from).await.unwrap(), None);
    }

    #[tokio::test]
    async fn bad_frames_are_refused() {
        for bad in [
            &[0xff, 0xff, 0xff, 0xff][..],
            // An id of one byte.
            &[0, 0, 0, 5, 0x1a, 3, 0x0a, 1, 0],
            // No message.
            &[0, 0, 0, 0],
            &[0, 0, 0, 9, 1],
        ] {
            assert!(Message::read(&mut &*bad).await.is_err(), "{bad:?}");
        }
    }
}
