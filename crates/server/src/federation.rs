//! The mesh gateways of all datacenters, which lead to their services and, where they expose them, to their servers.
//!
//! The leader of each datacenter compares the gateways in its catalog with what is stored of it, and stores the
//! difference: the primary does it itself, a secondary asks the primary to, and gets it back by replication.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use legate_model::{CheckServiceNode, CheckStatus};
use legate_runtime::{Backoff, BackoffPolicy, BoxError, CancellationToken, Clock};
use legate_store::{ReadTxn, Store, Watch, WriteTxn};
use legate_wan::{GatewayAddress, KnownGateways, ServerName, Wan};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::acl::Rights;
use crate::own_node::OWN_SERVICE;
use crate::problems::Problems;
use crate::wan;

/// What fails while the gateways of this datacenter cannot be stored.
const PROBLEM: &str = "mesh gateways of this datacenter, as others know them";
/// The shortest time between two writes.
const PACE: Duration = Duration::from_secs(1);
/// The time in which a write comes back from the primary. Afterwards it is repeated.
const RETURN: Duration = Duration::from_secs(10);
/// The time in which the primary must answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How often datacenters are forgotten that have left, as in Consul.
const PRUNE_EVERY: Duration = Duration::from_hours(1);
/// The time after which a server knows all members: those that fail are forgotten then, too.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(72);
/// How often servers of this datacenter that are not known are joined again.
const JOIN_AGAIN: Duration = Duration::from_secs(10);
/// The largest answer of the primary, which is a text at most.
const LARGEST_ANSWER: usize = 64 * 1024;

/// What a datacenter says to the primary.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OwnGateways {
    /// The datacenter.
    pub(crate) datacenter: String,
    /// All its mesh gateways of the default partition.
    pub(crate) gateways: Vec<CheckServiceNode>,
}

/// Keeps what is stored about this datacenter as it is.
pub(crate) struct Federation {
    pub(crate) datacenter: String,
    /// The primary datacenter, if it is another one.
    pub(crate) primary: Option<String>,
    pub(crate) store: Store,
    pub(crate) wan: Option<Wan>,
    pub(crate) rights: Rights,
    pub(crate) clock: Clock,
    pub(crate) problems: Problems,
}

impl Federation {
    /// Keeps it until `stop`.
    ///
    /// # Errors
    /// Never: failures are retried.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), Infallible> {
        let keep = async { tokio::join!(self.keep(), self.prune()) };
        stop.run_until_cancelled(keep).await;
        Ok(())
    }

    async fn keep(&self) {
        let mut backoff = Backoff::new(BackoffPolicy::DATACENTER);
        loop {
            self.store.leadership().held().await;
            let (different, mut watch) = self.compare();
            let Some(gateways) = different else {
                self.problems.solved(PROBLEM);
                watch.changed().await;
                continue;
            };
            match self.report(gateways).await {
                Ok(()) => {
                    backoff.reset();
                    sleep(PACE).await;
                    // A secondary sees it when it is replicated. An error of `timeout` says that it is time to repeat it.
                    let _ = timeout(RETURN, watch.changed()).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "the mesh gateways of this datacenter are not stored; trying again");
                    self.problems.report(PROBLEM, &error);
                    tokio::select! {
                        () = sleep(backoff.next(rand::random())) => {}
                        () = watch.changed() => sleep(PACE).await,
                    }
                }
            }
        }
    }

    /// The gateways of this datacenter if others do not know them, and a watch of both.
    fn compare(&self) -> (Option<Vec<CheckServiceNode>>, Watch) {
        let state = self.store.state();
        let txn = state.read();
        let mut gateways = txn.own_mesh_gateways();
        // They change often, are long, and nobody elsewhere needs them.
        for check in gateways.iter_mut().flat_map(|gateway| &mut gateway.checks) {
            if !check.output.is_empty() {
                Arc::make_mut(check).output.clear();
            }
        }
        let is_known = match txn.federation_state(&self.datacenter) {
            Some(known) => known.has_gateways(&gateways),
            None => gateways.is_empty(),
        };
        let watch = self.store.watch(&txn.into_reads());
        ((!is_known).then_some(gateways), watch)
    }

    async fn report(&self, gateways: Vec<CheckServiceNode>) -> Result<(), BoxError> {
        let Some(primary) = &self.primary else {
            let (datacenter, now) = (self.datacenter.clone(), self.clock.now());
            let put = move |txn: &mut WriteTxn| txn.put_mesh_gateways(&datacenter, &gateways, now);
            return self.write(put).await;
        };
        let wan = self.wan.as_ref().ok_or("there is no port for servers")?;
        let own = serde_json::to_vec(&OwnGateways {
            datacenter: self.datacenter.clone(),
            gateways,
        })?;
        let (token, path) = (self.rights.replication_token(), "gateways");
        let asked = wan::ask_up_to(wan, primary, path, &token, own, LARGEST_ANSWER);
        timeout(ANSWER, asked).await??;
        Ok(())
    }

    /// Writes as the leader: what a server that leads no more has found may be older than what its successor wrote.
    async fn write(
        &self,
        mut change: impl FnMut(&mut WriteTxn) + Send + 'static,
    ) -> Result<(), BoxError> {
        let leadership = self.store.leadership().clone();
        let written = self.store.write(move |txn| match leadership.is_held() {
            true => {
                change(txn);
                Ok(())
            }
            false => Err(BoxError::from(
                "another server of this datacenter leads now",
            )),
        });
        written.await?;
        Ok(())
    }

    /// In the primary, forgets datacenters that have left.
    async fn prune(&self) {
        let Some(wan) = self.wan.as_ref().filter(|_| self.primary.is_none()) else {
            return;
        };
        let started = Instant::now();
        let mut seen = HashSet::new();
        let mut times = interval(PRUNE_EVERY);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            let members: HashSet<String> = wan.datacenters().into_iter().collect();
            // A server that has just started does not know all members.
            let knows_all = started.elapsed() > FORGOTTEN_AFTER;
            let stored = self.store.state().read().federation_states();
            let stored = stored.iter().map(|state| state.datacenter.clone());
            let has_left = |name: &String| {
                *name != self.datacenter
                    && !members.contains(name)
                    && (knows_all || seen.contains(name))
            };
            let gone: Vec<String> = stored.filter(has_left).collect();
            seen.extend(members.iter().cloned());
            if gone.is_empty() || !self.store.leadership().is_held() {
                continue;
            }
            tracing::info!(datacenters = ?gone, "the mesh gateways of datacenters that have left are forgotten");
            let forget = move |txn: &mut WriteTxn| {
                for name in &gone {
                    txn.remove_mesh_gateways(name);
                }
            };
            if let Err(error) = self.write(forget).await {
                tracing::warn!(%error, "datacenters that have left are not forgotten; trying again in an hour");
            }
        }
    }
}

/// Sets the gateways through which servers of other datacenters are reached, until `stop`.
///
/// # Errors
/// Never.
pub(crate) async fn keep_routes(
    store: Store,
    wan: Wan,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    let own_datacenter = wan.own().name.datacenter;
    let keep = async {
        loop {
            let mut watch = {
                let state = store.state();
                let txn = state.read();
                wan.set_gateways(known_gateways(&txn, &own_datacenter));
                store.watch(&txn.into_reads())
            };
            watch.changed().await;
        }
    };
    let _: Option<()> = stop.run_until_cancelled(keep).await;
    Ok(())
}

/// The gateways that expose servers, by the datacenters that they lead into.
fn known_gateways(txn: &ReadTxn<'_>, own_datacenter: &str) -> KnownGateways {
    let own = txn.own_mesh_gateways();
    let states = txn.federation_states();
    let others = states
        .iter()
        .filter(|state| state.datacenter != own_datacenter);
    let elsewhere = others.map(|state| {
        let gateways = addresses(&state.mesh_gateways, CheckServiceNode::wan_address);
        (state.datacenter.clone(), gateways)
    });
    KnownGateways {
        own: addresses(&own, CheckServiceNode::address),
        elsewhere: elsewhere.collect(),
    }
}

/// The addresses of the gateways that expose servers: of those that are not critical or, if all are, of all. What is known
/// may be old.
fn addresses(
    gateways: &[CheckServiceNode],
    address: fn(&CheckServiceNode) -> (&str, u16),
) -> Vec<GatewayAddress> {
    let exposing = || gateways.iter().filter(|one| one.service.exposes_servers());
    let is_critical = |one: &CheckServiceNode| one.health() == CheckStatus::Critical;
    let all_are = exposing().all(is_critical);
    let tried = exposing().filter(|one| all_are || !is_critical(one));
    let address = |one| {
        let (host, port) = address(one);
        GatewayAddress {
            host: host.to_owned(),
            port,
        }
    };
    tried.map(address).collect()
}

/// Joins the other servers of this datacenter that are in the catalog, until `stop`: whoever joins one of them from
/// another datacenter then knows all.
///
/// # Errors
/// Never: failures are retried.
pub(crate) async fn join_own_servers(
    store: Store,
    wan: Wan,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    let keep = async {
        loop {
            let (servers, mut watch) = {
                let state = store.state();
                let txn = state.read();
                let servers = txn.service(OWN_SERVICE);
                (servers, store.watch(&txn.into_reads()))
            };
            let own = wan.own().name;
            let known: HashSet<ServerName> =
                wan.members().into_iter().map(|one| one.name).collect();
            for server in &servers {
                let name = ServerName {
                    node: server.node.node.to_ascii_lowercase(),
                    datacenter: own.datacenter.clone(),
                };
                // Others may have the name of the service.
                let is_server = server.service.id == OWN_SERVICE;
                if !is_server || name == own || known.contains(&name) {
                    continue;
                }
                let (host, port) = server.address();
                let address = GatewayAddress {
                    host: host.to_owned(),
                    port,
                };
                if let Err(error) = wan.join(&address.to_string()).await {
                    tracing::debug!(%error, "a server of this datacenter is not joined");
                }
            }
            // An error of `timeout` says that it is time to try again.
            let _ = timeout(JOIN_AGAIN, watch.changed()).await;
        }
    };
    let _: Option<()> = stop.run_until_cancelled(keep).await;
    Ok(())
}
