//! The layout of the store in etcd. Pure: values in, values out.
//!
//! ```text
//! legate/committer                     JSON: the address of the server that leads, with its lease
//! legate/data/<generation>/header      written when the generation is created
//! legate/data/<generation>/rows/<key>  one for each row
//! legate/head                          JSON: index, generation, ...; written by every commit
//! ```
//!
//! Only the generation that the head names is valid. To replace everything, a new generation is
//! written, and then the head is switched to it atomically.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::api::compare::{CompareResult, CompareTarget, TargetUnion};
use super::api::event::EventType;
use super::api::request_op::Request;
use super::api::{Compare, DeleteRangeRequest, Event, KeyValue, PutRequest, RequestOp, TxnRequest};
use crate::backend::{Commit, KeyBytes};

/// etcd's default limit of operations per transaction (`--max-txn-ops`).
const OPERATIONS: usize = 128;
/// The maximum number of rows in one transaction with the head.
pub(super) const ROWS: usize = OPERATIONS - 1;
/// Larger commits use nested transactions. etcd limits the operations of each level and the sum
/// over the levels.
const LEVEL: usize = OPERATIONS / 2;
/// The maximum number of rows of one commit.
pub(super) const MOST_ROWS: usize = (LEVEL - 1) * LEVEL;

/// The head, which every commit writes and is guarded by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// The index of the commit.
    pub(super) index: u64,
    /// The previous index.
    pub(super) base: u64,
    /// The generation of the rows.
    pub(super) generation: String,
    /// A unique id of the commit, by which its server recognizes it.
    pub(super) commit: String,
    /// The turns of other servers in it ([`Commit::turns`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) turns: Vec<String>,
}

impl Head {
    /// The ids in it. Only another program writes something else than UUIDs.
    pub(super) fn commit(&self) -> Commit {
        let id = |text: &String| text.parse().unwrap_or(Uuid::nil());
        Commit {
            id: id(&self.commit),
            turns: self.turns.iter().map(id).collect(),
        }
    }
}

/// The server that leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leader {
    /// Where other servers reach it: `address:port`.
    pub(super) address: String,
}

/// The changes of one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Revision {
    pub(super) revision: i64,
    /// `None` if it was not a commit.
    pub(super) head: Option<WrittenHead>,
    /// Keys below `data/` with their new values.
    pub(super) data: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Whether the leader's key was written or removed.
    pub(super) leader: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WrittenHead {
    Put(Head),
    Removed,
    /// Not a valid head.
    Unreadable,
}

/// Builds keys.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    prefix: String,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    pub(super) fn head(&self) -> Vec<u8> {
        format!("{}/head", self.prefix).into_bytes()
    }

    pub(super) fn leader(&self) -> Vec<u8> {
        format!("{}/committer", self.prefix).into_bytes()
    }

    fn data(&self) -> Vec<u8> {
        format!("{}/data/", self.prefix).into_bytes()
    }

    fn generation(&self, generation: &str) -> Vec<u8> {
        format!("{}/data/{generation}/", self.prefix).into_bytes()
    }

    pub(super) fn header(&self, generation: &str) -> Vec<u8> {
        [self.generation(generation), b"header".to_vec()].concat()
    }

    pub(super) fn row(&self, generation: &str, key: &[u8]) -> Vec<u8> {
        [&self.generation(generation), &b"rows/"[..], key].concat()
    }

    /// The row key in an etcd key, `None` if it is not a row of this generation.
    pub(super) fn row_key(&self, generation: &str, key: &[u8]) -> Option<KeyBytes> {
        let key = key.strip_prefix(&*self.generation(generation))?;
        key.strip_prefix(b"rows/").map(Arc::from)
    }

    /// The watched range: `committer`, `data/` and `head`, which are adjacent in key order.
    pub(super) fn watched(&self) -> (Vec<u8>, Vec<u8>) {
        (self.leader(), [self.head(), vec![0]].concat())
    }

    /// All keys of a generation: its header and rows.
    pub(super) fn everything(&self, generation: &str) -> (Vec<u8>, Vec<u8>) {
        let first = self.generation(generation);
        let last = behind(&first);
        (first, last)
    }

    /// The transaction of a commit, conditional on the head's revision. `None` if there are more
    /// rows than etcd accepts.
    pub(super) fn commit<'a>(
        &self,
        revision: i64,
        head: &Head,
        rows: impl IntoIterator<Item = (&'a KeyBytes, &'a Option<Vec<u8>>)>,
    ) -> Option<TxnRequest> {
        let rows = rows.into_iter().map(|(key, value)| {
            let key = self.row(&head.generation, key);
            match value {
                Some(value) => put(key, value.clone()),
                None => delete(key, Vec::new()),
            }
        });
        let mut rows: Vec<_> = rows.collect();
        if rows.len() > MOST_ROWS {
            return None;
        }
        if rows.len() > ROWS {
            let levels = rows.chunks(LEVEL).map(|level| {
                operation(Request::RequestTxn(TxnRequest {
                    success: level.to_vec(),
                    ..TxnRequest::default()
                }))
            });
            rows = levels.collect();
        }
        Some(self.guarded(revision, head, rows))
    }

    /// The transaction that activates another generation and removes all others.
    ///
    /// This includes generations that are being written: their guard fails from now on.
    pub(super) fn switch(&self, revision: i64, head: &Head) -> TxnRequest {
        let (first, last) = (self.data(), behind(&self.data()));
        let valid = self.generation(&head.generation);
        let others = vec![delete(first, valid.clone()), delete(behind(&valid), last)];
        self.guarded(revision, head, others)
    }

    fn guarded(&self, revision: i64, head: &Head, mut operations: Vec<RequestOp>) -> TxnRequest {
        // A struct of strings and numbers always serializes.
        let value = serde_json::to_vec(head).unwrap_or_default();
        operations.push(put(self.head(), value));
        TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Mod.into(),
                key: self.head(),
                target_union: Some(TargetUnion::ModRevision(revision)),
            }],
            success: operations,
            failure: Vec::new(),
        }
    }

    /// Removes a generation that was never activated.
    pub(super) fn remove(&self, generation: &str) -> TxnRequest {
        let (first, last) = self.everything(generation);
        TxnRequest {
            success: vec![delete(first, last)],
            ..TxnRequest::default()
        }
    }

    /// Groups the events of a watch, which are ordered by revision.
    pub(super) fn revisions(&self, events: Vec<Event>) -> Vec<Revision> {
        let (head, leader) = (self.head(), self.leader());
        let mut revisions: Vec<Revision> = Vec::new();
        for event in events {
            let removed = event.r#type() == EventType::Delete;
            let kv = event.kv.unwrap_or_default();
            if revisions
                .last()
                .is_none_or(|r| r.revision != kv.mod_revision)
            {
                revisions.push(Revision {
                    revision: kv.mod_revision,
                    head: None,
                    data: Vec::new(),
                    leader: false,
                });
            }
            let Some(revision) = revisions.last_mut() else {
                continue;
            };
            if kv.key == leader {
                revision.leader = true;
            } else if kv.key != head {
                revision.data.push((kv.key, (!removed).then_some(kv.value)));
            } else if removed {
                revision.head = Some(WrittenHead::Removed);
            } else {
                let read = read_head(&kv).map(WrittenHead::Put);
                revision.head = Some(read.unwrap_or(WrittenHead::Unreadable));
            }
        }
        revisions
    }
}

/// Parses a head.
pub(super) fn read_head(kv: &KeyValue) -> Option<Head> {
    serde_json::from_slice(&kv.value).ok()
}

pub(super) fn put(key: Vec<u8>, value: Vec<u8>) -> RequestOp {
    operation(Request::RequestPut(PutRequest {
        key,
        value,
        lease: 0,
    }))
}

fn delete(key: Vec<u8>, range_end: Vec<u8>) -> RequestOp {
    operation(Request::RequestDeleteRange(DeleteRangeRequest {
        key,
        range_end,
    }))
}

fn operation(request: Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

/// The end of the range of a prefix that ends with a slash.
fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
