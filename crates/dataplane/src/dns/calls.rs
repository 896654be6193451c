//! Merges concurrent queries that differ only in their ids into one call.
//!
//! A call continues as long as at least one of its queries is waiting. A query never joins a call
//! that has ended: the answer may be out of date.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::{Bytes, BytesMut};
use futures_util::future::{BoxFuture, Shared};
use futures_util::{FutureExt, TryFutureExt};

use super::forward::ForwardError;
use super::message::{Query, Transport};

/// Calls that queries are waiting for.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<HashMap<CallKey, Weak<Call>>>);

/// Transport of the query, and its bytes after the id.
type CallKey = (Transport, Bytes);

type Answer = Result<Bytes, Arc<ForwardError>>;

/// A call to a server, shared by all concurrent queries for the same question.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) answer: Shared<BoxFuture<'static, Answer>>,
    /// The id in the query to the server.
    id: u16,
    /// Whether some task waits for its end without a query that needs the answer.
    claimed: AtomicBool,
}

impl Calls {
    /// The running call for the same question, or else a new one. The call does not start until it
    /// is awaited.
    pub(super) fn join<F>(&self, query: &Query, call: impl FnOnce() -> F) -> Arc<Call>
    where
        F: Future<Output = Result<Bytes, ForwardError>> + Send + 'static,
    {
        let key = (query.transport, query.message.slice(2..));
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(call) = calls.get(&key).and_then(open) {
            return call;
        }
        // Bounds the map by the number of queries in flight.
        calls.retain(|_, call| open(call).is_some());
        let call = Arc::new(Call {
            answer: call().map_err(Arc::new).boxed().shared(),
            id: query.metadata.id,
            claimed: AtomicBool::new(false),
        });
        calls.insert(key, Arc::downgrade(&call));
        call
    }
}

/// `None` for a call that has ended, or that no query is waiting for.
fn open(call: &Weak<Call>) -> Option<Arc<Call>> {
    call.upgrade().filter(|call| call.answer.peek().is_none())
}

impl Call {
    /// The answer, with the id of `query`.
    pub(super) async fn answer(&self, query: &Query) -> Answer {
        let answer = self.answer.clone().await?;
        // An answer with another id is passed on unchanged.
        if self.id == query.metadata.id || !answer.starts_with(&self.id.to_be_bytes()) {
            return Ok(answer);
        }
        let mut answer = BytesMut::from(answer);
        answer[..2].copy_from_slice(&query.metadata.id.to_be_bytes());
        Ok(answer.freeze())
    }

    /// Returns true to the first caller only: one waiter is enough.
    pub(super) fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::Poll;

    use futures_util::poll;
    use tokio::sync::oneshot;

    use super::super::message::Reason;
    use super::*;

    fn query(id: u8, rest: u8) -> Query {
        let mut bytes = [0; 12];
        (bytes[1], bytes[11]) = (id, rest);
        Query::parse(Bytes::copy_from_slice(&bytes), Transport::Udp).unwrap()
    }

    fn count(calls: &Calls) -> usize {
        let calls = calls.0.lock().unwrap();
        calls.values().filter_map(open).count()
    }

    fn never() -> impl Future<Output = Result<Bytes, ForwardError>> {
        pending()
    }

    #[tokio::test]
    async fn one_call_answers_all_with_their_ids() {
        let calls = Calls::default();
        let (send, receive) = oneshot::channel::<Bytes>();
        let first = query(1, 0);
        let one = calls.join(&first, || async { Ok(receive.await.unwrap()) });
        let second = query(2, 0);
        let two = calls.join(&second, never);
        assert_eq!(count(&calls), 1);
        assert!(one.claim() && !one.claim() && !two.claim());
        send.send(Bytes::from_static(b"\0\x01answer")).unwrap();
        assert_eq!(two.answer(&second).await.unwrap(), &b"\0\x02answer"[..]);
        // The call has ended, although its handle still exists.
        assert_eq!(count(&calls), 0);
        let anew = calls.join(&first, || ready(Ok(Bytes::new())));
        assert_eq!(anew.answer(&first).await.unwrap(), Bytes::new());
        assert_eq!(one.answer(&first).await.unwrap(), &b"\0\x01answer"[..]);
    }

    #[tokio::test]
    async fn an_answer_without_the_id_is_left_alone() {
        let calls = Calls::default();
        for answer in [&b"\0\x09answer"[..], b"\0", b""] {
            let (first, second) = (query(1, 0), query(2, 0));
            let one = calls.join(&first, || ready(Ok(answer.into())));
            let two = calls.join(&second, never);
            assert_eq!(two.answer(&second).await.unwrap(), answer);
            assert_eq!(one.answer(&first).await.unwrap(), answer);
        }
    }

    #[tokio::test]
    async fn other_questions_and_transports_are_other_calls() {
        let calls = Calls::default();
        let over_tcp = Query::parse(query(1, 0).message.clone(), Transport::Tcp).unwrap();
        let _calls = [
            calls.join(&query(1, 0), never),
            calls.join(&query(1, 1), never),
            calls.join(&over_tcp, never),
        ];
        assert_eq!(count(&calls), 3);
    }

    #[tokio::test]
    async fn it_continues_until_the_last_query_is_gone() {
        let calls = Calls::default();
        let (send, receive) = oneshot::channel::<Bytes>();
        let asked = query(1, 0);
        let one = calls.join(&asked, || async { Ok(receive.await.unwrap()) });
        let two = calls.join(&asked, never);
        let mut first = Box::pin(one.answer(&asked));
        assert!(poll!(&mut first).is_pending());
        drop(first);
        drop(one);
        let mut second = Box::pin(two.answer(&asked));
        assert!(poll!(&mut second).is_pending());
        assert_eq!(count(&calls), 1);
        assert!(!send.is_closed());
        drop(second);
        drop(two);
        assert_eq!(count(&calls), 0);
        assert!(send.is_closed());
        // A call that is dropped before it is awaited.
        drop(calls.join(&asked, never));
        assert_eq!(count(&calls), 0);
    }

    #[tokio::test]
    async fn failures_are_shared_too() {
        let calls = Calls::default();
        let asked = query(1, 0);
        let failure = || {
            ready(Err(ForwardError {
                reason: Reason::NoServer,
                is_outage: true,
                text: String::new(),
            }))
        };
        let one = calls.join(&asked, failure);
        let two = calls.join(&asked, never);
        for call in [one, two] {
            let answer = Box::pin(call.answer(&asked));
            let Poll::Ready(Err(error)) = poll!(answer) else {
                panic!("no failure");
            };
            assert_eq!(error.reason, Reason::NoServer);
        }
    }
}
