//! Opens the streams of the peerings that were established here, from the server that leads.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use legate_api::internal::common::Locality;
use legate_api::internal::peering::RemoteInfo;
use legate_api::internal::peerstream::peer_stream_service_client::PeerStreamServiceClient;
use legate_model::{Peering, PeeringState, PeeringStream};
use legate_peering::{AddressRing, End, Refusal, Retry, RetryReason, Session, opening};
use legate_runtime::{CancellationToken, Scope};
use legate_store::{Unavailable, WriteTxn};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::removal::home;
use super::{Peerings, Stream, WRITE, addresses, dial};

/// How often it is checked whether this server leads, and which peerings there are.
const ROUND: Duration = Duration::from_millis(500);
/// The time for the answer to a stream's first message.
const OPEN: Duration = Duration::from_secs(10);
/// The largest message in either direction, in bytes. Consul's for the cluster that dials.
pub(crate) const LARGEST: usize = 8 * 1024 * 1024;
/// The number of messages between a stream and its connection.
pub(crate) const QUEUE: usize = 16;
/// The time in which a stream's tasks end.
const END: Duration = Duration::from_secs(2);
/// The time in which a stream says to the other cluster that the peering was deleted.
const FAREWELL: Duration = Duration::from_secs(20);

/// The task that keeps the stream of a peering.
struct Dialing {
    scope: Scope,
    /// Set when the task has ended by itself.
    has_ended: Arc<AtomicBool>,
    /// When the peering was found gone. The stream then says so to the other cluster.
    gone_since: Option<Instant>,
}

/// Dials until `stop`.
///
/// # Errors
/// Never: failures are retried.
pub(super) async fn dial_all(
    peerings: Peerings,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    let mut dialing = HashMap::<String, Dialing>::new();
    let keep = async {
        loop {
            let leads = peerings.store.leadership().is_held();
            let wanted = match leads {
                true => wanted(&peerings),
                false => HashMap::new(),
            };
            let now = Instant::now();
            let is_over = |id: &String, one: &mut Dialing| {
                if wanted.contains_key(id) {
                    one.gone_since = None;
                    return one.has_ended.load(Ordering::Acquire);
                }
                let since = *one.gone_since.get_or_insert(now);
                !leads
                    || one.has_ended.load(Ordering::Acquire)
                    || now.duration_since(since) > FAREWELL
            };
            let over: Vec<_> = dialing.extract_if(is_over).collect();
            join_all(over.into_iter().map(|(_, one)| end(one.scope))).await;
            for (id, name) in wanted {
                dialing
                    .entry(id.clone())
                    .or_insert_with(|| start(&peerings, id, name));
            }
            sleep(ROUND).await;
        }
    };
    let _: Option<()> = stop.run_until_cancelled(keep).await;
    join_all(dialing.into_values().map(|one| end(one.scope))).await;
    Ok(())
}

fn start(peerings: &Peerings, id: String, name: String) -> Dialing {
    let scope = peerings.spawner.child("stream to a peer");
    let has_ended = Arc::new(AtomicBool::new(false));
    let (peerings, ended, stop) = (peerings.clone(), Arc::clone(&has_ended), scope.token());
    scope.spawn(name, async move {
        keep_stream(peerings, id, stop).await;
        ended.store(true, Ordering::Release);
        Ok::<_, Infallible>(())
    });
    Dialing {
        scope,
        has_ended,
        gone_since: None,
    }
}

async fn end(scope: Scope) {
    if let Err(error) = scope.stop(END).await {
        tracing::debug!(%error, "what is done for a peer did not end in time");
    }
}

/// The peerings that are to be dialed, with their names. One that is being deleted keeps its stream, which says so.
fn wanted(peerings: &Peerings) -> HashMap<String, String> {
    let state = peerings.store.state();
    let all = state.read().peerings_of_all();
    let dials = |peering: &&Arc<Peering>| {
        peering.dials()
            && peering.state != PeeringState::Terminated
            && (peering.deleted_at.is_some() || !peering.active_secret.is_empty())
    };
    let wanted = all.iter().filter(dials);
    wanted
        .map(|peering| (peering.id.clone(), peering.name.clone()))
        .collect()
}

/// Keeps the stream of a peering open until the peering ends, or until `stop`.
async fn keep_stream(peerings: Peerings, id: String, stop: CancellationToken) {
    let mut ring = AddressRing::default();
    let mut retry = Retry::default();
    // A stream that is open ends by itself when `stop` is cancelled, and stores that.
    while !stop.is_cancelled() {
        let (peering, mut watch) = {
            let state = peerings.store.state();
            let txn = state.read();
            let peering = txn.peering_by_id(&id);
            if let Some(peering) = &peering {
                let gateways = match addresses::through_gateways(&txn) {
                    true => addresses::own_gateways(&txn),
                    false => Vec::new(),
                };
                ring.replace(AddressRing::new(&gateways, peering.addresses(), &[]));
            }
            (peering, peerings.store.watch(&txn.into_reads()))
        };
        let Some(peering) = peering.filter(|one| !one.active_secret.is_empty()) else {
            return;
        };
        let address = ring.next_address().map(str::to_owned);
        let (end, connected) = match &address {
            Some(address) => dial_once(&peerings, &peering, address, &stop).await,
            None => (
                failed("there is no address of a server of the other cluster"),
                Duration::ZERO,
            ),
        };
        let End::Failed(refusal) = end else {
            return;
        };
        let reason = RetryReason::of_code(refusal.code);
        let delay = retry.failed(reason, connected, rand::random());
        tracing::debug!(
            peer = peering.name,
            ?address,
            reason = refusal.message,
            ?delay,
            "no stream to a peer"
        );
        // The peering may have been established again, or have new addresses: its own rows do not count.
        tokio::select! {
            () = sleep(delay) => {}
            () = watch.changed() => sleep(delay.min(ROUND)).await,
            () = stop.cancelled() => {}
        }
    }
}

fn failed(reason: impl Into<String>) -> End {
    End::Failed(super::refusal(reason))
}

/// Dials an address, and runs the stream until it ends. Also returns how long it was open.
async fn dial_once(
    peerings: &Peerings,
    peering: &Peering,
    address: &str,
    stop: &CancellationToken,
) -> (End, Duration) {
    let tasks = peerings.spawner.child("connection to a peer");
    let opened = stop
        .run_until_cancelled(open(peerings, peering, address, &tasks))
        .await;
    let opened = opened.unwrap_or_else(|| Err(super::refusal("the server stops")));
    let ended = match opened {
        Ok(stream) => stream.run(stop.clone()).await,
        Err(refusal) => {
            let reason = format!("server at {address}: {}", refusal.message);
            report(peerings, peering, reason).await;
            (End::Failed(refusal), Duration::ZERO)
        }
    };
    end(tasks).await;
    ended
}

async fn open(
    peerings: &Peerings,
    peering: &Peering,
    address: &str,
    tasks: &Scope,
) -> Result<Stream, Refusal> {
    let channel = dial::connect(peering, address, &tasks.spawner())
        .await
        .map_err(super::refusal)?;
    let mut client = PeerStreamServiceClient::new(channel)
        .max_decoding_message_size(LARGEST)
        .max_encoding_message_size(LARGEST);
    let open = opening::open(
        &peering.peer_id,
        &peering.active_secret,
        remote_info(peerings, peering),
    );
    let (rules, imported) = Stream::inputs(peerings, peering);
    let mut session = Session::dialer(open, rules, imported);
    // The other cluster answers when it has read the first message.
    let (outgoing, messages) = mpsc::channel(QUEUE);
    if let Some(first) = session.next_message() {
        outgoing
            .try_send(first)
            .map_err(|error| super::refusal(error.to_string()))?;
    }
    let asked = client.stream_resources(ReceiverStream::new(messages));
    let answered = match timeout(OPEN, asked).await {
        Ok(Ok(answer)) => answer.into_inner(),
        Ok(Err(status)) => return Err(of_status(&status)),
        Err(_) => return Err(super::refusal(format!("no answer within {OPEN:?}"))),
    };
    Stream::open(
        peerings.clone(),
        peering,
        session,
        (answered.boxed(), outgoing),
    )
    .await
    .map_err(|error| super::refusal(error.to_string()))
}

fn of_status(status: &tonic::Status) -> Refusal {
    Refusal {
        code: status.code().into(),
        message: status.message().to_owned(),
    }
}

/// Where this cluster is.
fn remote_info(peerings: &Peerings, peering: &Peering) -> RemoteInfo {
    let config = &peerings.config;
    RemoteInfo {
        partition: peering.partition.to_string(),
        datacenter: config.datacenter.clone(),
        locality: config.agent.locality.as_ref().map(|own| Locality {
            region: own.region.clone(),
            zone: own.zone.clone(),
        }),
    }
}

/// Stores why there is no stream, so that operators see it.
async fn report(peerings: &Peerings, peering: &Peering, reason: String) {
    let (name, home, now) = (peering.name.clone(), home(peering), peerings.clock.now());
    let write = peerings.store.write(move |txn: &mut WriteTxn| {
        txn.in_tenancy(&home, |txn| {
            let stored = txn.read().peering_stream(&name);
            // Another server may hold a stream by now.
            let is_open = |row: &Arc<PeeringStream>| row.is_connected_at(now);
            let known = stored
                .as_ref()
                .is_some_and(|row| is_open(row) || row.error == reason);
            if known || txn.read().peering(&name).is_none() {
                return;
            }
            let mut row = match stored {
                Some(stored) => PeeringStream::clone(&stored),
                None => PeeringStream {
                    peer: name.clone(),
                    ..PeeringStream::default()
                },
            };
            row.is_connected = false;
            row.error.clone_from(&reason);
            row.written_at = Some(now);
            txn.open_peering_stream(row);
        });
        Ok::<_, Unavailable>(())
    });
    if !matches!(timeout(WRITE, write).await, Ok(Ok(_))) {
        tracing::debug!(
            peer = peering.name,
            "why there is no stream to a peer is not stored"
        );
    }
}
