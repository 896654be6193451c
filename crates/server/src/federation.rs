//! The mesh gateways of all datacenters, which lead to their services and, where they expose them, to their servers.
//!
//! The leader of each datacenter compares the gateways in its catalog with what is stored of it, and stores the
//! difference: the primary does it itself, a secondary asks the primary to, and gets it back by replication.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::Duration;

use legate_model::{CheckServiceNode, CheckStatus};
use legate_runtime::{Backoff, BackoffPolicy, BoxError, CancellationToken, Clock};
use legate_store::{ReadTxn, Store, Unavailable, Watch};
use legate_wan::{GatewayAddress, KnownGateways, ServerName, Wan};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

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
        let mut backoff = Backoff::new(BackoffPolicy::SERVER);
        loop {
            self.store.leadership().held().await;
            let (different, mut watch) = self.compare();
            let Some(gateways) = different else {
                self.problems.solved(PROBLEM);
                watch.changed().await;
                continue;
            };
            match self.say(gateways).await {
                Ok(()) => {
                    backoff.reset();
                    sleep(PACE).await;
                    // A secondary sees it when it is replicated. An error of `timeout` says that it is time to repeat it.
                    let _ = timeout(RETURN, watch.changed()).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "the mesh gateways of this datacenter are not stored; trying again");
                    self.problems.report(PROBLEM, &error);
                    sleep(backoff.next(rand::random())).await;
                }
            }
        }
    }

    /// The gateways of this datacenter if others do not know them, and a watch of both.
    fn compare(&self) -> (Option<Vec<CheckServiceNode>>, Watch) {
        let state = self.store.state();
        let txn = state.read();
        let gateways = txn.own_mesh_gateways();
        let is_known = match txn.federation_state(&self.datacenter) {
            Some(known) => known.has_gateways(&gateways),
            None => gateways.is_empty(),
        };
        let watch = self.store.watch(&txn.into_reads());
        ((!is_known).then_some(gateways), watch)
    }

    async fn say(&self, gateways: Vec<CheckServiceNode>) -> Result<(), BoxError> {
        let Some(primary) = &self.primary else {
            let (datacenter, now) = (self.datacenter.clone(), self.clock.now());
            let written = self.store.write(move |txn| {
                txn.put_mesh_gateways(&datacenter, &gateways, now);
                Ok::<_, Unavailable>(())
            });
            written.await?;
            return Ok(());
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

    /// In the primary, forgets datacenters that are not members any more.
    async fn prune(&self) {
        if self.primary.is_some() {
            return;
        }
        // Not at the start, when members are not known yet.
        let mut times = interval_at(Instant::now() + PRUNE_EVERY, PRUNE_EVERY);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            if !self.store.leadership().is_held() {
                continue;
            }
            let members = self.wan.as_ref().map(Wan::datacenters).unwrap_or_default();
            if let Err(error) = self.forget_all_but(members).await {
                tracing::warn!(%error, "datacenters that have left are not forgotten; trying again in an hour");
            }
        }
    }

    async fn forget_all_but(&self, members: Vec<String>) -> Result<(), Unavailable> {
        let own = self.datacenter.clone();
        let written = self.store.write(move |txn| {
            let states = txn.read().federation_states();
            let names = states.iter().map(|state| &state.datacenter);
            for name in names.filter(|name| **name != own && !members.contains(name)) {
                tracing::info!(datacenter = %name, "the mesh gateways of a datacenter that has left are forgotten");
                txn.remove_mesh_gateways(name);
            }
            Ok::<_, Unavailable>(())
        });
        written.await.map(drop)
    }
}

/// Sets the gateways through which servers of other datacenters are reached, until `stop`.
///
/// # Errors
/// Never.
pub(crate) async fn keep_ways(
    store: Store,
    wan: Wan,
    primary: Option<String>,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    let keep = async {
        loop {
            let mut watch = {
                let state = store.state();
                let txn = state.read();
                wan.set_gateways(known_gateways(&txn, primary.as_deref()));
                store.watch(&txn.into_reads())
            };
            watch.changed().await;
        }
    };
    let _: Option<()> = stop.run_until_cancelled(keep).await;
    Ok(())
}

/// The gateways that expose servers: of this datacenter, and of the primary if it is another one.
fn known_gateways(txn: &ReadTxn<'_>, primary: Option<&str>) -> KnownGateways {
    let address = |(host, port): (&str, u16)| GatewayAddress {
        host: host.to_owned(),
        port,
    };
    let own = txn.own_mesh_gateways();
    let own = own.iter().filter(|gateway| leads_to_servers(gateway));
    let primary = primary.and_then(|primary| txn.federation_state(primary));
    let of_primary = primary.iter().flat_map(|state| &state.mesh_gateways);
    let of_primary = of_primary.filter(|gateway| leads_to_servers(gateway));
    KnownGateways {
        own: own.map(|gateway| address(gateway.address())).collect(),
        of_primary: of_primary
            .map(|gateway| address(gateway.wan_address()))
            .collect(),
    }
}

fn leads_to_servers(gateway: &CheckServiceNode) -> bool {
    gateway.service.exposes_servers() && gateway.health() != CheckStatus::Critical
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
                if name == own || known.contains(&name) {
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
