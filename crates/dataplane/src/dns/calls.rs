//! Queries that are the same but for their ids and come at the same time are one call.
//!
//! A call goes on for as long as one of those who ask is still there, and it does not matter
//! which. Nobody joins a call that has ended: its answer is of the past.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use super::forward::ForwardError;
use super::message::{Query, Transport};

/// Calls that somebody waits for: never more than there are who wait.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    open: HashMap<Same, Open>,
    /// How many there have been.
    count: u64,
}

/// How a query came, and what follows its id.
type Same = (Transport, Bytes);

#[derive(Debug)]
struct Open {
    number: u64,
    landing: WeakShared<BoxFuture<'static, Landed>>,
    claimed: Arc<AtomicBool>,
}

/// A call to a server, for everybody who has the same question now.
#[derive(Clone, Debug)]
pub(super) struct Call {
    landing: Shared<BoxFuture<'static, Landed>>,
    claimed: Arc<AtomicBool>,
}

/// What a call came to.
#[derive(Clone, Debug)]
struct Landed {
    /// The id that it was made with.
    id: [u8; 2],
    answer: Result<Bytes, Arc<ForwardError>>,
}

impl Calls {
    /// The call that asks this already, or else a new one. Nothing happens before somebody waits
    /// for it.
    pub(super) fn join<F>(
        self: &Arc<Self>,
        query: &Query,
        transport: Transport,
        call: impl FnOnce() -> F,
    ) -> Call
    where
        F: Future<Output = Result<Bytes, ForwardError>> + Send + 'static,
    {
        let same = (transport, query.bytes().slice(2..));
        let mut inner = self.inner();
        if let Some(open) = inner.open.get(&same)
            && let Some(landing) = open.landing.upgrade()
        {
            let claimed = Arc::clone(&open.claimed);
            return Call { landing, claimed };
        }
        inner.count += 1;
        let number = inner.count;
        let end = End {
            calls: Arc::clone(self),
            same: same.clone(),
            number,
        };
        let (id, call) = (query.id(), call());
        let landing = async move {
            let answer = call.await.map_err(Arc::new);
            drop(end);
            Landed { id, answer }
        };
        let landing = landing.boxed().shared();
        let claimed = Arc::<AtomicBool>::default();
        if let Some(weak) = landing.downgrade() {
            let open = Open {
                number,
                landing: weak,
                claimed: Arc::clone(&claimed),
            };
            inner.open.insert(same, open);
        }
        Call { landing, claimed }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call {
    /// The answer for who sent `query`.
    pub(super) async fn answer(&self, query: &Query) -> Result<Bytes, Arc<ForwardError>> {
        let landed = self.landing.clone().await;
        landed.answer.map(|answer| {
            // An answer with an id of its own is the server's own fault.
            if landed.id == query.id() || !answer.starts_with(&landed.id) {
                return answer;
            }
            let mut answer = BytesMut::from(answer);
            answer[..2].copy_from_slice(&query.id());
            answer.freeze()
        })
    }

    /// Waits for the end, for who does not need the answer.
    pub(super) async fn finish(self) {
        self.landing.await;
    }

    /// True once: one is enough to wait for the end.
    pub(super) fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::Relaxed)
    }
}

/// Ends a call: when there is an answer, and when everybody has left.
struct End {
    calls: Arc<Calls>,
    same: Same,
    number: u64,
}

impl Drop for End {
    fn drop(&mut self) {
        let mut inner = self.calls.inner();
        let open = inner.open.get(&self.same);
        if open.is_some_and(|open| open.number == self.number) {
            inner.open.remove(&self.same);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::Poll;

    use futures_util::poll;
    use tokio::sync::oneshot;

    use super::*;

    fn query(id: u8, rest: u8) -> Query {
        let mut bytes = [0; 12];
        (bytes[1], bytes[11]) = (id, rest);
        Query::parse(Bytes::copy_from_slice(&bytes)).unwrap()
    }

    fn open(calls: &Calls) -> usize {
        calls.inner().open.len()
    }

    fn never() -> impl Future<Output = Result<Bytes, ForwardError>> {
        pending()
    }

    #[tokio::test]
    async fn one_call_answers_all_with_their_ids() {
        let calls = Arc::<Calls>::default();
        let (send, receive) = oneshot::channel::<Bytes>();
        let first = query(1, 0);
        let one = calls.join(&first, Transport::Udp, || async {
            Ok(receive.await.unwrap())
        });
        let second = query(2, 0);
        let two = calls.join(&second, Transport::Udp, never);
        assert_eq!(open(&calls), 1);
        assert!(one.claim() && !one.claim() && !two.claim());
        send.send(Bytes::from_static(b"\0\x01answer")).unwrap();
        assert_eq!(two.answer(&second).await.unwrap(), &b"\0\x02answer"[..]);
        // It has ended, although there is still one who could wait for it.
        assert_eq!(open(&calls), 0);
        let anew = calls.join(&first, Transport::Udp, || ready(Ok(Bytes::new())));
        assert_eq!(anew.answer(&first).await.unwrap(), Bytes::new());
        assert_eq!(one.answer(&first).await.unwrap(), &b"\0\x01answer"[..]);
    }

    #[tokio::test]
    async fn an_answer_without_the_id_is_left_alone() {
        let calls = Arc::<Calls>::default();
        for answer in [&b"\0\x09answer"[..], b"\0", b""] {
            let (first, second) = (query(1, 0), query(2, 0));
            let one = calls.join(&first, Transport::Udp, || ready(Ok(answer.into())));
            let two = calls.join(&second, Transport::Udp, never);
            assert_eq!(two.answer(&second).await.unwrap(), answer);
            assert_eq!(one.answer(&first).await.unwrap(), answer);
        }
    }

    #[tokio::test]
    async fn other_questions_and_transports_are_other_calls() {
        let calls = Arc::<Calls>::default();
        let _calls = [
            calls.join(&query(1, 0), Transport::Udp, never),
            calls.join(&query(1, 1), Transport::Udp, never),
            calls.join(&query(1, 0), Transport::Tcp, never),
        ];
        assert_eq!(open(&calls), 3);
    }

    #[tokio::test]
    async fn it_goes_on_until_the_last_one_leaves() {
        let calls = Arc::<Calls>::default();
        let (send, receive) = oneshot::channel::<Bytes>();
        let asked = query(1, 0);
        let one = calls.join(&asked, Transport::Udp, || async {
            Ok(receive.await.unwrap())
        });
        let two = calls.join(&asked, Transport::Udp, never);
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
        drop(calls.join(&asked, Transport::Udp, never));
        assert_eq!(open(&calls), 0);
    }

    #[tokio::test]
    async fn failures_are_shared_too() {
        let calls = Arc::<Calls>::default();
        let asked = query(1, 0);
        let failure = || ready(Err(ForwardError::NoServer("none".to_owned())));
        let one = calls.join(&asked, Transport::Udp, failure);
        let two = calls.join(&asked, Transport::Udp, never);
        for call in [one, two] {
            let answer = Box::pin(call.answer(&asked));
            let Poll::Ready(Err(error)) = poll!(answer) else {
                panic!("no failure");
            };
            assert!(matches!(&*error, ForwardError::NoServer(_)));
        }
    }
}
