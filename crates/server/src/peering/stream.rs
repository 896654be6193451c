//! Drives an open stream of a peering: messages, imports, what is exported, time, and the end. Decides nothing that
//! [`Session`] decides.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use legate_api::internal::peerstream::ReplicationMessage;
use legate_model::{PeerTrustBundle, Peering, PeeringStream, STREAM_WRITTEN, TrustDomain};
use legate_peering::import::Rules;
use legate_peering::{End, Event, PendingImport, Refusal, Session};
use legate_runtime::CancellationToken;
use legate_store::{ReadTxn, Unavailable, Watch, WriteTxn};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tonic::Status;

use super::imports::{Importer, NotStored, Stored};
use super::pace::Pace;
use super::removal::home;
use super::{Peerings, WRITE, exports, imports, new_stream};

/// The shortest time between two writes of the status.
const WRITES_APART: Duration = Duration::from_secs(1);
/// The time for the other cluster to read that the peering has ended.
const DRAIN: Duration = Duration::from_secs(10);

/// The messages of the other cluster.
pub(crate) type Incoming = BoxStream<'static, Result<ReplicationMessage, Status>>;

/// An open stream.
pub(crate) struct Stream {
    peerings: Peerings,
    session: Session,
    row: PeeringStream,
    /// Id of the peering.
    id: String,
    importer: Importer,
    incoming: Incoming,
    outgoing: mpsc::Sender<ReplicationMessage>,
    opened: Instant,
    /// What waits for the imports that are being stored.
    waiting: VecDeque<PendingImport>,
    importing: Option<BoxFuture<'static, Result<Stored, NotStored>>>,
    /// Whether the session may have a message to send.
    may_send: bool,
    /// Whether the row differs from what is stored, in what readers wait for.
    is_row_changed: bool,
    /// From when on it may be written.
    write_from: Instant,
    /// Whether a refusal was logged. Further ones are at the level debug.
    has_warned: bool,
    /// What has changed since the last comparison with what is to be exported, and how often it is made.
    watch: Option<Watch>,
    pace: Pace,
}

impl Stream {
    /// What a session needs to know: the trust domains of others, and how many instances of each service are imported.
    pub(crate) fn inputs(
        peerings: &Peerings,
        peering: &Peering,
    ) -> (Rules, BTreeMap<String, usize>) {
        let state = peerings.store.state();
        let home = home(peering);
        let of_peer = state.read().within(home.of_peer(&peering.name));
        let rules = rules(&state.read().within(home), peering);
        (rules, of_peer.imported_instances())
    }

    /// Opens a stream: from now on it is the newest one of the peering.
    ///
    /// # Errors
    /// If that cannot be stored, or the peering has changed meanwhile.
    pub(crate) async fn open(
        peerings: Peerings,
        peering: &Peering,
        session: Session,
        (incoming, outgoing): (Incoming, mpsc::Sender<ReplicationMessage>),
    ) -> Result<Self, NotStored> {
        let row = new_stream(peering, &peerings.config, &peerings.clock);
        let (first, expected) = (row.clone(), peering.clone());
        let opened = peerings.store.write(move |txn: &mut WriteTxn| {
            let now = txn.read().peering_by_id(&expected.id);
            let is_same = now.is_some_and(|now| {
                now.is_active()
                    && now.peer_id == expected.peer_id
                    && now.peer_server_name == expected.peer_server_name
            });
            if !is_same {
                return Err(NotStored::Replaced);
            }
            let home = home(&expected);
            txn.in_tenancy(&home, |txn| txn.open_peering_stream(first.clone()));
            Ok(())
        });
        opened.await?;
        Ok(Self {
            importer: Importer {
                store: peerings.store.clone(),
                id: peering.id.clone(),
                of_peer: home(peering).of_peer(&peering.name),
                stream: row.id.clone(),
            },
            id: peering.id.clone(),
            peerings,
            session,
            row,
            incoming,
            outgoing,
            opened: Instant::now(),
            waiting: VecDeque::new(),
            importing: None,
            may_send: true,
            is_row_changed: false,
            write_from: Instant::now(),
            has_warned: false,
            watch: None,
            pace: Pace::new(Instant::now()),
        })
    }

    /// Runs until the stream ends, or until `stop`. Returns how it ended, and how long it was open.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> (End, Duration) {
        let end = match stop.run_until_cancelled(self.run_to_end()).await {
            Some(end) => end,
            None => {
                self.session.fail(Refusal::no_longer_leader());
                self.handle_events().unwrap_or(End::Deleted)
            }
        };
        let was_open = self.opened.elapsed();
        self.close(&end).await;
        (end, was_open)
    }

    async fn run_to_end(&mut self) -> End {
        let mut write = interval(STREAM_WRITTEN);
        write.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.export();
        loop {
            if let Some(end) = self.handle_events() {
                return end;
            }
            self.start_import();
            let due = self.opened + self.session.next_tick();
            let export_due = self.pace.due();
            let watch = self.watch.as_mut().filter(|_| export_due.is_none());
            let changed = OptionFuture::from(watch.map(Watch::changed));
            let export = OptionFuture::from(export_due.map(sleep_until));
            let imported = OptionFuture::from(self.importing.as_mut());
            tokio::select! {
                message = self.incoming.next(), if self.session.wants_messages() => {
                    let now = self.opened.elapsed();
                    match message {
                        Some(Ok(message)) => {
                            self.row.last_receive = Some(self.peerings.clock.now());
                            self.session.receive(message, now);
                        }
                        Some(Err(status)) => self.session.lost(Some(status.message())),
                        None => self.session.lost(None),
                    }
                    self.may_send = true;
                }
                permit = self.outgoing.clone().reserve_owned(), if self.may_send => match permit {
                    Ok(permit) => match self.session.next_message() {
                        Some(message) => {
                            permit.send(message);
                        }
                        None => self.may_send = false,
                    },
                    Err(_) => self.session.lost(None),
                },
                Some(stored) = imported => {
                    self.importing = None;
                    self.may_send = true;
                    match stored {
                        Ok(stored) => for (id, result) in stored {
                            self.session.imported(id, result);
                        },
                        Err(error) => self.session.fail(super::refusal(error.to_string())),
                    }
                }
                Some(()) = changed => self.pace.changed(),
                Some(()) = export => self.export(),
                () = sleep_until(self.write_from), if self.is_row_changed => {
                    self.is_row_changed = false;
                    self.write_row().await;
                    self.write_from = Instant::now() + WRITES_APART;
                }
                () = sleep_until(due) => {
                    self.session.tick(self.opened.elapsed());
                    self.may_send = true;
                }
                _ = write.tick() => self.is_row_changed = true,
            }
        }
    }

    /// Handles what has happened. Returns how the stream ends.
    fn handle_events(&mut self) -> Option<End> {
        let mut end = None;
        while let Some(event) = self.session.next_event() {
            let now = self.peerings.clock.now();
            let row = &mut self.row;
            // Times alone are written with the next regular write.
            match event {
                Event::Import(pending) => self.waiting.push_back(pending),
                Event::Imported(names) => {
                    self.is_row_changed |= names != row.imported;
                    row.imported = names;
                }
                Event::Exported(names) => {
                    self.is_row_changed |= *names != *row.exported;
                    row.exported = names.to_vec();
                }
                Event::Heartbeat => row.last_heartbeat = Some(now),
                Event::Sent => row.last_send = Some(now),
                Event::Received(Err(reason)) => {
                    self.note_error(format!("what the other cluster sent was refused: {reason}"));
                }
                Event::Nacked(reason) => self.note_error(reason),
                Event::Received(Ok(())) | Event::Acked => {}
                Event::End(ended) => end = Some(ended),
            }
        }
        end
    }

    /// Notes what was refused on either side. A peer decides how often that is.
    fn note_error(&mut self, reason: String) {
        let peer = &self.row.peer;
        match std::mem::replace(&mut self.has_warned, true) {
            false => tracing::warn!(peer, reason, "the stream of a peer"),
            true => tracing::debug!(peer, reason, "the stream of a peer"),
        }
        self.is_row_changed |= reason != self.row.error;
        self.row.error = reason;
    }

    fn start_import(&mut self) {
        if self.importing.is_none() && !self.waiting.is_empty() {
            let importer = self.importer.clone();
            let pending = self.waiting.drain(..).collect();
            self.importing = Some(async move { importer.store(pending).await }.boxed());
        }
    }

    /// Compares the state with what is to be exported, and whether the stream is still wanted.
    fn export(&mut self) {
        let state = self.peerings.store.state();
        let txn = state.read();
        let peering = txn.peering_by_id(&self.id);
        self.may_send = true;
        match peering.filter(|peering| peering.deleted_at.is_none()) {
            None => self.session.delete(),
            Some(peering) => {
                let config = &self.peerings.config;
                let found = txn.in_tenancy(&home(&peering), |txn| {
                    let row = txn.peering_stream(&peering.name);
                    // A peering that was established with another cluster has no row.
                    let is_newest = row.is_some_and(|row| row.id == self.row.id);
                    is_newest.then(|| {
                        (
                            exports::exports(txn, &peering, config),
                            rules(txn, &peering),
                        )
                    })
                });
                match found {
                    Some((exports, rules)) => {
                        self.session.set_rules(rules);
                        self.session.set_exports(Arc::new(exports));
                    }
                    None => self.session.fail(super::refusal(
                        "another stream of the peering has replaced this one",
                    )),
                }
            }
        }
        self.watch = Some(self.peerings.store.watch(&txn.into_reads()));
        self.pace.done(Instant::now(), self.row.exported.len());
    }

    async fn write_row(&mut self) {
        let mut row = self.row.clone();
        row.written_at = Some(self.peerings.clock.now());
        let id = self.id.clone();
        let write = self.peerings.store.write(move |txn: &mut WriteTxn| {
            let peering = txn.read().peering_by_id(&id);
            if let Some(peering) = peering {
                txn.in_tenancy(&home(&peering), |txn| txn.put_peering_stream(row.clone()));
            }
            Ok::<_, Unavailable>(())
        });
        // It is repeated with the next regular write.
        match timeout(WRITE, write).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the status of a stream is not stored"),
            Err(_) => tracing::debug!("the status of a stream is not stored in time"),
        }
    }

    /// Stores how the stream ended, and lets the other cluster read the last message.
    async fn close(mut self, end: &End) {
        self.row.is_connected = false;
        match end {
            End::Deleted => {}
            End::Terminated => {
                let (id, stream) = (self.id.clone(), self.row.id.clone());
                let terminate = self.peerings.store.write(move |txn: &mut WriteTxn| {
                    if imports::current(txn, &id, &stream).is_some() {
                        txn.terminate_peering(&id);
                    }
                    Ok::<_, Unavailable>(())
                });
                if !matches!(timeout(WRITE, terminate).await, Ok(Ok(_))) {
                    tracing::warn!(
                        peer = self.row.peer,
                        "that a peer has deleted the peering is not stored"
                    );
                }
            }
            End::Failed(refusal) => self.row.error.clone_from(&refusal.message),
        }
        self.write_row().await;
        if !matches!(end, End::Failed(_)) {
            drop(self.outgoing);
            let rest = async { while let Some(Ok(_)) = self.incoming.next().await {} };
            // The other cluster may not end its side.
            let _ = timeout(DRAIN, rest).await;
        }
    }
}

/// What the trust domain of a peer must not be: that of this cluster, or of another peer.
fn rules(txn: &ReadTxn<'_>, peering: &Peering) -> Rules {
    let others = txn.trust_bundles();
    let others = others
        .iter()
        .filter(|bundle| bundle.peer_name != peering.name);
    let domain = |bundle: &Arc<PeerTrustBundle>| {
        let domain = bundle.trust_domain.parse().ok()?;
        Some((domain, bundle.peer_name.clone()))
    };
    Rules {
        own: super::trust_domain(txn).unwrap_or_else(|| TrustDomain::of_cluster("")),
        others: others.filter_map(domain).collect(),
    }
}
