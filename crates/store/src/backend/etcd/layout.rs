//! How the store is laid out in etcd. Pure: values in, values out.
//!
//! ```text
//! legate/head                          JSON: index, generation, ...; written by every commit
//! legate/data/<generation>/header      written when the generation is made
//! legate/data/<generation>/rows/<key>  one for each row
//! legate/leader                        who does what one server must do, with its lease
//! ```
//!
//! Everything that is valid is in the generation that the head names. To replace everything, a new
//! generation is written and then named in one step.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::api::compare::{CompareResult, CompareTarget, TargetUnion};
use super::api::event::EventType;
use super::api::request_op::Request;
use super::api::{
    Compare, DeleteRangeRequest, Event, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use crate::backend::KeyBytes;

/// How many operations etcd takes in a transaction (`--max-txn-ops`), by default.
const OPERATIONS: usize = 128;
/// The rows that fit in one transaction with the head.
pub(super) const ROWS: usize = OPERATIONS - 1;
/// More rows of one commit are put into transactions inside the transaction. etcd counts the
/// operations of each level and wants the levels together to be within the limit.
const LEVEL: usize = OPERATIONS / 2;
/// How many rows one commit can change.
pub(super) const MOST_ROWS: usize = (LEVEL - 1) * LEVEL;
/// How many rows are read at once.
const PAGE: i64 = 1000;

/// The row that every commit writes, and is guarded by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// The index of the commit.
    pub(super) index: u64,
    /// The index before it.
    pub(super) base: u64,
    /// Where the rows are.
    pub(super) generation: String,
    /// A name of the commit, by which the server that made it knows it again.
    pub(super) commit: String,
}

/// What one transaction of somebody changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Revision {
    pub(super) revision: i64,
    /// `None`: it was no commit.
    pub(super) head: Option<WrittenHead>,
    /// Keys below `data/` with their new values.
    pub(super) data: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WrittenHead {
    Put(Head),
    Removed,
    /// Not what a server writes.
    Unreadable,
}

/// The names of keys.
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
        format!("{}/leader", self.prefix).into_bytes()
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

    /// The key of a row of this generation.
    pub(super) fn row_key(&self, generation: &str, key: &[u8]) -> Option<KeyBytes> {
        let key = key.strip_prefix(&*self.generation(generation))?;
        key.strip_prefix(b"rows/").map(Arc::from)
    }

    /// What is watched: `data/`, `head` and no more, because the names are in this order.
    pub(super) fn watched(&self) -> (Vec<u8>, Vec<u8>) {
        (self.data(), [self.head(), vec![0]].concat())
    }

    /// One page of a generation: its header and its rows.
    pub(super) fn page(&self, generation: &str, from: Vec<u8>, revision: i64) -> RangeRequest {
        RangeRequest {
            key: from,
            range_end: behind(&self.generation(generation)),
            limit: PAGE,
            revision,
        }
    }

    pub(super) fn first_page(&self, generation: &str, revision: i64) -> RangeRequest {
        self.page(generation, self.generation(generation), revision)
    }

    /// The transaction that makes a commit when the head has not changed since `revision`. `None`
    /// when it changes more rows than etcd takes.
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

    /// The transaction that makes another generation the valid one and removes all others.
    ///
    /// Others that are being written are removed as well: their guard fails from now on.
    pub(super) fn switch(&self, revision: i64, head: &Head) -> TxnRequest {
        let (first, last) = (self.data(), behind(&self.data()));
        let valid = self.generation(&head.generation);
        let others = vec![delete(first, valid.clone()), delete(behind(&valid), last)];
        self.guarded(revision, head, others)
    }

    fn guarded(&self, revision: i64, head: &Head, mut operations: Vec<RequestOp>) -> TxnRequest {
        // A struct of strings and numbers always has a JSON form.
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

    /// Removes a generation that never became valid.
    pub(super) fn remove(&self, generation: &str) -> TxnRequest {
        let first = self.generation(generation);
        let last = behind(&first);
        TxnRequest {
            success: vec![delete(first, last)],
            ..TxnRequest::default()
        }
    }

    /// The events of a watch, which come in the order of their revisions.
    pub(super) fn revisions(&self, events: Vec<Event>) -> Vec<Revision> {
        let head = self.head();
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
                });
            }
            let Some(revision) = revisions.last_mut() else {
                continue;
            };
            if kv.key != head {
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

/// What is in the head.
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

/// The first key behind all that start with a prefix that ends with a slash.
fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
