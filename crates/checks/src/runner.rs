//! The task that runs the checks of one node: reads them from the store, does what the machine says,
//! and writes what was found.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, abortable};
use futures_util::stream::FuturesUnordered;
use legate_model::{CheckStatus, ServiceInstance, ServiceKind};
use legate_runtime::{BoxError, CancellationToken};
use legate_store::{ReadTxn, Reader, Unavailable, Watch, Writer};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::alias;
use crate::expose::{self, Sidecars};
use crate::machine::{Action, Known, Machine, Run};
use crate::probe::{Found, Prober};

/// How many reports of TTL checks may wait.
const MAX_REPORTS: usize = 256;
/// How long the runner waits after the store refused a write.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// The runner has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server is shutting down")]
pub struct Gone;

/// Tells the runner of reports for TTL checks.
#[derive(Debug, Clone)]
pub struct Reports {
    reports: mpsc::Sender<Report>,
}

#[derive(Debug)]
struct Report {
    check_id: String,
    taken: oneshot::Sender<bool>,
}

impl Reports {
    /// Starts the time of a TTL check again. Whoever calls this may report for the check, and writes
    /// the status afterwards: from then on no expiry of before is written over it. `false` when the
    /// runner has no TTL check of this id.
    ///
    /// # Errors
    /// [`Gone`] when the server stops.
    pub async fn renew(&self, check_id: &str) -> Result<bool, Gone> {
        let (taken, answer) = oneshot::channel();
        let report = Report {
            check_id: check_id.to_owned(),
            taken,
        };
        self.reports.send(report).await.map_err(|_| Gone)?;
        answer.await.map_err(|_| Gone)
    }
}

/// Runs the checks of one node.
#[derive(Debug)]
pub struct Runner {
    node: String,
    reader: Reader,
    writer: Writer,
    reports: mpsc::Receiver<Report>,
    machine: Machine,
    prober: Arc<Prober>,
    exposes_checks: ExposesChecks,
}

/// Whether a sidecar exposes the checks of its service, by its registration or by config entries.
pub type ExposesChecks = fn(&ReadTxn<'_>, &ServiceInstance) -> bool;

/// The runs that are going on. One that was given up has found nothing.
type Running =
    FuturesUnordered<std::pin::Pin<Box<dyn Future<Output = (Run, Option<Found>)> + Send>>>;

impl Runner {
    /// A runner for the node of this name, and what it is told of reports by.
    pub fn new(
        node: &str,
        reader: Reader,
        writer: Writer,
        exposes_checks: ExposesChecks,
    ) -> (Self, Reports) {
        let (sender, reports) = mpsc::channel(MAX_REPORTS);
        let runner = Self {
            node: node.to_owned(),
            reader,
            writer,
            reports,
            machine: Machine::default(),
            prober: Arc::default(),
            exposes_checks,
        };
        (runner, Reports { reports: sender })
    }

    /// Runs checks until the token is cancelled.
    ///
    /// # Errors
    /// None: what a check or the store does wrong is written or logged.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), BoxError> {
        let mut running = Running::new();
        let mut handles = HashMap::new();
        let (mut watch, mut actions) = self.look();
        loop {
            actions.extend(self.machine.tick(Instant::now()));
            let stored = self.act(std::mem::take(&mut actions), &mut running, &mut handles);
            if stored.await.is_err() {
                tokio::select! {
                    () = sleep(STORE_PAUSE) => {}
                    () = stop.cancelled() => return Ok(()),
                }
                (watch, actions) = self.look();
                continue;
            }
            let deadline = self.machine.deadline();
            let timer = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = watch.changed() => (watch, actions) = self.look(),
                Some((run, found)) = running.next() => {
                    handles.remove(&run);
                    if let Some((status, output)) = found {
                        actions.extend(self.machine.finished(Instant::now(), run, status, output));
                    }
                }
                Some(report) = self.reports.recv() => self.renew(report, &mut watch, &mut actions),
                () = timer => {}
            }
        }
    }

    /// A check that was registered a moment ago may not have been looked at yet.
    fn renew(&mut self, report: Report, watch: &mut Watch, actions: &mut Vec<Action>) {
        let mut known = self.machine.reported(Instant::now(), &report.check_id);
        if !known {
            let (next, more) = self.look();
            *watch = next;
            actions.extend(more);
            known = self.machine.reported(Instant::now(), &report.check_id);
        }
        // Whoever reported may have gone away.
        let _ = report.taken.send(known);
    }

    /// Reads the checks of the node as they are now, and what the aliases among them say.
    fn look(&mut self) -> (Watch, Vec<Action>) {
        let now = Instant::now();
        let state = self.reader.state();
        let txn = state.read();
        let shown: HashMap<_, _> = txn
            .checks_on(&self.node)
            .into_iter()
            .map(|check| (check.check_id.clone(), check))
            .collect();
        let sidecars = self.sidecars(&txn);
        let known = txn
            .agent_checks(&self.node)
            .into_iter()
            .filter_map(|check| {
                let shown = shown.get(&check.check_id)?;
                Some(Known {
                    service_id: shown.service_id.clone(),
                    status: shown.status,
                    output: shown.output.clone(),
                    exposed_port: shown.exposed_port,
                    target: Arc::clone(&check.definition),
                    check,
                })
            });
        let mut known: Vec<Known> = known.collect();
        let moves = expose::changes(&known, &sidecars);
        let moves = moves.into_iter().map(|(known, port)| Action::Expose {
            check: known.check.clone(),
            port,
        });
        let mut actions: Vec<Action> = moves.collect();
        for one in &mut known {
            one.target = expose::target(one, &sidecars);
        }
        actions.extend(self.machine.define(now, known));
        for (id, definition) in self.machine.aliases() {
            let (status, output) = alias::status(&txn, &self.node, &id, &definition);
            actions.extend(self.machine.aliased(now, &id, status, output));
        }
        (self.reader.watch(&txn.into_reads()), actions)
    }

    /// The sidecars on the node that expose the checks of their services.
    fn sidecars(&self, txn: &ReadTxn<'_>) -> Sidecars {
        let proxies = txn.instances_on(&self.node).into_iter();
        let proxies = proxies.filter(|one| one.kind == ServiceKind::ConnectProxy);
        let exposing = proxies.filter(|one| (self.exposes_checks)(txn, one));
        exposing
            .map(|one| {
                (
                    one.proxy.destination_service_id.clone(),
                    one.address.clone(),
                )
            })
            .collect()
    }

    /// Does what the machine says. What is to be written is one transaction.
    async fn act(
        &mut self,
        actions: Vec<Action>,
        running: &mut Running,
        handles: &mut HashMap<Run, AbortHandle>,
    ) -> Result<(), Unavailable> {
        let mut writes = Vec::new();
        for action in actions {
            match action {
                Action::Start { run, target } => {
                    let prober = Arc::clone(&self.prober);
                    let (probe, handle) = abortable(async move { prober.run(&target).await });
                    handles.insert(run, handle);
                    running.push(Box::pin(async move { (run, probe.await.ok()) }));
                }
                Action::Cancel { run } => {
                    if let Some(handle) = handles.remove(&run) {
                        handle.abort();
                    }
                }
                other => writes.push(other),
            }
        }
        if writes.is_empty() {
            return Ok(());
        }
        let (node, all) = (self.node.clone(), writes.clone());
        let written = self.writer.write(move |txn| {
            for write in &all {
                match write {
                    Action::Store {
                        check,
                        status,
                        output,
                    } => {
                        txn.put_check_result(&node, check, *status, output);
                    }
                    Action::Deregister {
                        service_id,
                        check_id,
                    } => {
                        // A report may have come meanwhile, or another service in its place.
                        let check = txn.read().check(&node, check_id);
                        let still = check.is_some_and(|check| {
                            check.status == CheckStatus::Critical && check.service_id == *service_id
                        });
                        if still {
                            tracing::info!(
                                service = service_id,
                                check = check_id,
                                "a service was critical for too long and is deregistered"
                            );
                            txn.deregister_with_sidecar(&node, service_id);
                        }
                    }
                    Action::Expose { check, port } => {
                        txn.expose_check(&node, check, *port);
                    }
                    Action::Start { .. } | Action::Cancel { .. } => {}
                }
            }
            Ok::<_, Unavailable>(())
        });
        let Err(error) = written.await else {
            return Ok(());
        };
        tracing::warn!(%error, "results of checks could not be written; they are written again");
        self.machine.not_stored();
        Err(error)
    }
}
