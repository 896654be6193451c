//! Reads everything at one revision, and follows the commits of other servers from there.
//!
//! The follower is a separate task, so that waiting for etcd never delays a write. It never writes.
//! It reports whether etcd answers ([`Health`]).

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use legate_runtime::{Backoff, BackoffPolicy};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep};
use tonic::{Status, Streaming};

use super::api::watch_request::RequestUnion;
use super::api::{RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse};
use super::client::{Client, Failed, failed};
use super::layout::{Head, Layout, Revision, WrittenHead, read_head};
use super::pages::Pages;
use crate::backend::{Batch, Change, Loaded};

/// The number of rows per read.
const PAGE: u32 = 1000;
/// The timeout of one request of the follower, over all members.
const TIMEOUT: Duration = Duration::from_secs(6);
/// The backoff between attempts to reach etcd.
const PAUSES: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(100),
    multiplier: 2.0,
    jitter: 0.5,
    cap: Duration::from_secs(2),
};

/// Since when etcd has not answered, and why; `None` while it answers.
pub(crate) type Health = Option<Away>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Away {
    pub(crate) since: Instant,
    pub(crate) reason: Arc<str>,
}

/// A commit that was seen in etcd, from any server.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) revision: i64,
    pub(super) head: Head,
    pub(super) change: Change,
}

/// The contents at one revision.
pub(super) struct Read {
    /// The revision of the head.
    pub(super) revision: i64,
    pub(super) head: Head,
    pub(super) loaded: Loaded,
}

/// Reads everything. Also returns the revision of the read; `None` if nothing is stored.
pub(super) async fn read(client: &Client, layout: &Layout) -> Result<(i64, Option<Read>), Failed> {
    loop {
        match read_once(client, layout).await {
            // The read took longer than etcd keeps revisions.
            Err(Failed::Compacted) => sleep(PAUSES.initial).await,
            other => return other,
        }
    }
}

async fn read_once(client: &Client, layout: &Layout) -> Result<(i64, Option<Read>), Failed> {
    let (at, kv) = fetch_head(client, layout).await?;
    let Some((revision, head)) = kv else {
        return Ok((at, None));
    };
    let mut pages = Pages::new(layout.everything(&head.generation), PAGE);
    let mut header = None;
    let mut rows = Vec::new();
    while let Some((from, to)) = pages.next() {
        let request = RangeRequest {
            key: from,
            range_end: to,
            limit: PAGE.into(),
            revision: at,
        };
        let page = client.range(Instant::now() + TIMEOUT, request).await?;
        pages.read(&page.kvs, page.count);
        for kv in page.kvs {
            match layout.row_key(&head.generation, &kv.key) {
                Some(key) => rows.push((key, kv.value)),
                None if kv.key == layout.header(&head.generation) => header = Some(kv.value),
                None => {}
            }
        }
    }
    let missing = || {
        let key = String::from_utf8_lossy(&layout.header(&head.generation)).into_owned();
        Failed::Refused(format!(
            "the key {key} is missing: restore a backup of etcd"
        ))
    };
    let loaded = Loaded {
        header: header.ok_or_else(missing)?,
        index: head.index,
        rows,
    };
    Ok((
        at,
        Some(Read {
            revision,
            head,
            loaded,
        }),
    ))
}

/// The head with its revision, and the revision of the read.
async fn fetch_head(
    client: &Client,
    layout: &Layout,
) -> Result<(i64, Option<(i64, Head)>), Failed> {
    let request = RangeRequest {
        key: layout.head(),
        ..RangeRequest::default()
    };
    let answer = client.range(Instant::now() + TIMEOUT, request).await?;
    let at = answer.header.unwrap_or_default().revision;
    let Some(kv) = answer.kvs.first() else {
        return Ok((at, None));
    };
    let head = read_head(kv).ok_or_else(|| unreadable(layout))?;
    Ok((at, Some((kv.mod_revision, head))))
}

fn unreadable(layout: &Layout) -> Failed {
    let key = String::from_utf8_lossy(&layout.head()).into_owned();
    Failed::Refused(format!(
        "the key {key} is not what a server writes: use another prefix, or restore a backup of etcd"
    ))
}

fn removed(layout: &Layout) -> Failed {
    let key = String::from_utf8_lossy(&layout.head()).into_owned();
    Failed::Refused(format!(
        "the key {key} was removed: restore a backup of etcd, and restart all servers"
    ))
}

/// The follower task.
pub(super) struct Follower {
    pub(super) client: Client,
    pub(super) layout: Layout,
    /// The last revision that was processed.
    pub(super) revision: i64,
    /// The last head that was seen.
    pub(super) head: Option<Head>,
    /// The revision of the last commit that was forwarded, or read at the start.
    pub(super) sent: i64,
    pub(super) seen: mpsc::Sender<Seen>,
    pub(super) health: watch::Sender<Health>,
    /// Notified when the leader's key has changed.
    pub(super) leader: Arc<Notify>,
}

/// An open watch.
struct Watch {
    answers: Streaming<WatchResponse>,
    /// Dropping it ends the watch. Otherwise the watch, and with it the connection, would outlive
    /// its consumer.
    _requests: mpsc::Sender<WatchRequest>,
}

impl Follower {
    /// Follows until the receiver is dropped.
    pub(super) async fn run(mut self) {
        let mut pauses = Backoff::new(PAUSES);
        loop {
            let listener = self.seen.clone();
            let followed = tokio::select! {
                () = listener.closed() => return,
                followed = self.follow(&mut pauses) => followed,
            };
            let reason = match followed {
                Ok(()) => continue,
                Err(failed) => failed.into_reason(),
            };
            tracing::warn!(reason, "etcd cannot be watched; retrying");
            mark_away(&self.health, Instant::now(), &reason);
            tokio::select! {
                () = listener.closed() => return,
                () = sleep(pauses.next(rand::random())) => {}
            }
        }
    }

    /// Follows until the watch ends. `Ok` means that it should restart at once.
    async fn follow(&mut self, pauses: &mut Backoff) -> Result<(), Failed> {
        // A partitioned member would watch silently; this read needs a majority.
        let (_, head) = fetch_head(&self.client, &self.layout).await?;
        if head.is_none() && self.head.is_some() {
            return Err(removed(&self.layout));
        }
        // `usize::MAX`: a failed attempt to watch has already dropped its connection.
        let mut number = usize::MAX;
        let watch = self.watch(&mut number).await;
        let ended = match watch {
            Ok(mut watch) => {
                self.health.send_replace(None);
                pauses.reset();
                self.listen(&mut watch, number).await
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(()) => Ok(()),
            Err(Failed::Compacted) => self.read_again().await,
            Err(error) => {
                self.client.discard(number).await;
                Err(error)
            }
        }
    }

    async fn watch(&self, number: &mut usize) -> Result<Watch, Failed> {
        let (key, range_end) = self.layout.watched();
        let create = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
                key,
                range_end,
                start_revision: self.revision + 1,
            })),
        };
        let (requests, mut sent) = mpsc::channel(1);
        // Succeeds: the channel has capacity, and its receiver exists.
        drop(requests.try_send(create));
        let sent = stream::poll_fn(move |context| sent.poll_recv(context));
        let answers = self.client.attempt(|connection| {
            *number = connection.number();
            let request = connection.request(sent);
            async move { connection.watch().watch(request).await }
        });
        Ok(Watch {
            answers: answers.await?,
            _requests: requests,
        })
    }

    /// Forwards the events of a watch while its connection is the current one.
    async fn listen(&mut self, watch: &mut Watch, connection: usize) -> Result<(), Failed> {
        let client = self.client.clone();
        let mut health = self.health.subscribe();
        let gone = || Failed::Away("the watch ended".to_owned());
        loop {
            let answer = tokio::select! {
                // A commit noticed first that etcd is away.
                _ = health.wait_for(Option::is_some) => {
                    return Err(Failed::Away("a write was not answered".to_owned()));
                }
                () = client.discarded(connection) => return Ok(()),
                answer = watch.answers.message() => answer,
            };
            let answer = answer.map_err(|status: Status| failed(&status))?;
            let answer = answer.ok_or_else(gone)?;
            if answer.compact_revision != 0 {
                return Err(Failed::Compacted);
            }
            if answer.canceled {
                return Err(Failed::Away(answer.cancel_reason));
            }
            for revision in self.layout.revisions(answer.events) {
                self.take(revision).await?;
            }
        }
    }

    /// Forwards the changes of a transaction.
    async fn take(&mut self, revision: Revision) -> Result<(), Failed> {
        let number = revision.revision;
        if revision.leader {
            self.leader.notify_one();
        }
        // Included in an earlier full read.
        if number <= self.revision {
            return Ok(());
        }
        let head = match revision.head {
            None => {
                self.revision = number;
                return Ok(());
            }
            Some(WrittenHead::Put(head)) => head,
            Some(WrittenHead::Removed) => return Err(removed(&self.layout)),
            Some(WrittenHead::Unreadable) => return Err(unreadable(&self.layout)),
        };
        let follows = self
            .head
            .as_ref()
            .is_some_and(|last| last.generation == head.generation && last.index == head.base);
        if !follows {
            self.head.get_or_insert(head);
            return self.read_again().await;
        }
        let rows = revision.data.into_iter().filter_map(|(key, value)| {
            let key = self.layout.row_key(&head.generation, &key)?;
            Some((key, value))
        });
        let change = Change::Batch(Arc::new(Batch {
            base: head.base,
            index: head.index,
            rows: rows.collect(),
            commit: head.commit(),
        }));
        self.pass_on(number, head, change).await;
        self.revision = number;
        Ok(())
    }

    /// Reads everything, because the changes in between are unknown.
    async fn read_again(&mut self) -> Result<(), Failed> {
        let (at, read) = read(&self.client, &self.layout).await?;
        let Some(read) = read else {
            if self.head.is_some() {
                return Err(removed(&self.layout));
            }
            self.revision = at;
            return Ok(());
        };
        if self.sent < read.revision {
            let change = Change::Everything(Arc::new(read.loaded));
            self.pass_on(read.revision, read.head, change).await;
        }
        self.revision = at;
        Ok(())
    }

    async fn pass_on(&mut self, revision: i64, head: Head, change: Change) {
        let seen = Seen {
            revision,
            head: head.clone(),
            change,
        };
        // Without a receiver, `run` ends.
        drop(self.seen.send(seen).await);
        self.head = Some(head);
        self.sent = revision;
    }
}

/// Records that etcd does not answer, keeping the start of an existing outage.
pub(super) fn mark_away(health: &watch::Sender<Health>, since: Instant, reason: &str) {
    health.send_if_modified(|health| {
        let news = health.is_none();
        let since = health.as_ref().map_or(since, |away| away.since);
        *health = Some(Away {
            since,
            reason: reason.into(),
        });
        news
    });
}
