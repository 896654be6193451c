//! Queries that are the same but for their ids and come at the same time are one call.
//!
//! A call goes on for as long as one of those who ask is still there, and it does not matter
//! which. Nobody joins a call that has ended: its answer is of the past.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use super::forward::ForwardError;
use super::message::{Query, Transport};

/// Calls that somebody waits for.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<HashMap<Same, OpenCall>>);

/// How a query came, and what follows its id.
type Same = (Transport, Bytes);

type Answer = BoxFuture<'static, Result<Bytes, Arc<ForwardError>>>;

/// A call as long as somebody waits for it.
#[derive(Debug)]
struct OpenCall {
    answer: WeakShared<Answer>,
    asked_with: u16,
    claimed: Arc<AtomicBool>,
}

impl OpenCall {
    /// `None` when it has ended.
    fn join(&self) -> Option<Call> {
        let answer = self.answer.upgrade().filter(|one| one.peek().is_none())?;
        Some(Call {
            answer,
            asked_with: self.asked_with,
            claimed: Arc::clone(&self.claimed),
        })
    }
}

/// A call to a server, for everybody who has the same question now.
#[derive(Clone, Debug)]
pub(super) struct Call {
    answer: Shared<Answer>,
    /// The id that the server was asked with.
    asked_with: u16,
    /// Whether somebody waits for its end without needing the answer.
    claimed: Arc<AtomicBool>,
}

impl Calls {
    /// The call that asks this already, or else a new one. Nothing happens before somebody waits
    /// for it.
    pub(super) fn join<F>(&self, query: &Query, call: impl FnOnce() -> F) -> Call
    where
        F: Future<Output = Result<Bytes, ForwardError>> + Send + 'static,
    {
        let same = (query.transport, query.message().slice(2..));
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(call) = open.get(&same).and_then(OpenCall::join) {
            return call;
        }
        // So there are never more than there are who wait, and those that ended since.
        open.retain(|_, call| call.join().is_some());
        let call = Call {
            answer: call()
                .map(|answer| answer.map_err(Arc::new))
                .boxed()
                .shared(),
            asked_with: query.id(),
            claimed: Arc::default(),
        };
        if let Some(answer) = call.answer.downgrade() {
            let open_call = OpenCall {
                answer,
                asked_with: call.asked_with,
                claimed: Arc::clone(&call.claimed),
            };
            open.insert(same, open_call);
        }
        call
    }
}

impl Call {
    /// The answer for who sent `query`.
    pub(super) async fn answer(&self, query: &Query) -> Result<Bytes, Arc<ForwardError>> {
        let answer = self.answer.clone().await?;
        // An answer with an id of its own is the server's own fault.
        if self.asked_with == query.id() || !answer.starts_with(&self.asked_with.to_be_bytes()) {
            return Ok(answer);
        }
        let mut answer = BytesMut::from(answer);
        answer[..2].copy_from_slice(&query.id().to_be_bytes());
        Ok(answer.freeze())
    }

    /// Waits for the end, for who does not need the answer.
    pub(super) async fn finish(self) {
        // The answer has been kept by then.
        _ = self.answer.await;
    }

    /// True once: one is enough to wait for the end.
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

    fn open(calls: &Calls) -> usize {
        let open = calls.0.lock().unwrap();
        open.values().filter(|call| call.join().is_some()).count()
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
        assert_eq!(open(&calls), 1);
        assert!(one.claim() && !one.claim() && !two.claim());
        send.send(Bytes::from_static(b"\0\x01answer")).unwrap();
        assert_eq!(two.answer(&second).await.unwrap(), &b"\0\x02answer"[..]);
        // It has ended, although there is still one who could wait for it.
        assert_eq!(open(&calls), 0);
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
        let over_tcp = Query::parse(query(1, 0).message().clone(), Transport::Tcp).unwrap();
        let _calls = [
            calls.join(&query(1, 0), never),
            calls.join(&query(1, 1), never),
            calls.join(&over_tcp, never),
        ];
        assert_eq!(open(&calls), 3);
    }

    #[tokio::test]
    async fn it_goes_on_until_the_last_one_leaves() {
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
        assert_eq!(open(&calls), 1);
        assert!(!send.is_closed());
        drop(second);
        drop(two);
        assert_eq!(open(&calls), 0);
        assert!(send.is_closed());
        // Nobody has waited for this one.
        drop(calls.join(&asked, never));
        assert_eq!(open(&calls), 0);
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
