//! The task that runs the checks of one node: reads them from the store, executes the actions of the
//! state machine, and writes the results.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use legate_model::{CheckStatus, ServiceInstance, ServiceKind, Tenancy};
use legate_runtime::{BoxError, CancellationToken};
use legate_store::{ReadTxn, Reader, Unavailable, Watch, WriteTxn, Writer};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::alias;
use crate::expose::{self, Sidecars};
use crate::machine::{Action, Known, Machine};
use crate::runs::Runs;
use crate::settings::Settings;

/// The maximum number of queued reports for TTL checks.
const MAX_REPORTS: usize = 256;
/// Delay after a failed write to the store.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// The runner has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server is shutting down")]
pub struct Gone;

/// Sends reports for TTL checks to the runner.
#[derive(Debug, Clone)]
pub struct Reports {
    reports: mpsc::Sender<Report>,
}

#[derive(Debug)]
struct Report {
    tenancy: Tenancy,
    check_id: String,
    taken: oneshot::Sender<bool>,
}

impl Reports {
    /// Restarts the timer of a TTL check. The caller is authorized to report for the check and writes
    /// the status afterwards. After this call, no earlier expiry overwrites that status. Returns
    /// `false` if the runner has no TTL check with this id.
    ///
    /// # Errors
    /// [`Gone`] when the server is stopping.
    pub async fn renew(&self, tenancy: &Tenancy, check_id: &str) -> Result<bool, Gone> {
        let (taken, answer) = oneshot::channel();
        let report = Report {
            tenancy: tenancy.clone(),
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
    runs: Runs,
    settings: Settings,
    exposes_checks: ExposesChecks,
}

/// Whether a sidecar exposes its service's checks, by its registration or config entries.
pub type ExposesChecks = fn(&ReadTxn<'_>, &ServiceInstance) -> bool;

impl Runner {
    /// Creates a runner for the node with this name, and the handle for reports.
    pub fn new(
        node: &str,
        reader: Reader,
        writer: Writer,
        exposes_checks: ExposesChecks,
        settings: Settings,
    ) -> (Self, Reports) {
        let (sender, reports) = mpsc::channel(MAX_REPORTS);
        let runner = Self {
            node: node.to_owned(),
            reader,
            writer,
            reports,
            machine: Machine::new(settings.clone()),
            runs: Runs::new(settings.clone()),
            settings,
            exposes_checks,
        };
        (runner, Reports { reports: sender })
    }

    /// Runs checks until the token is cancelled.
    ///
    /// # Errors
    /// None: failures of checks are written to the store, and those of the store are logged.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), BoxError> {
        let (mut watch, mut actions) = self.refresh();
        loop {
            if self.machine.aliases_are_due(Instant::now()) {
                let (next, more) = self.refresh();
                watch = next;
                actions.extend(more);
            }
            actions.extend(self.machine.tick(Instant::now()));
            let writes = self.begin(std::mem::take(&mut actions));
            if !writes.is_empty() {
                let Some((stored, meanwhile)) = self.store(writes, &stop).await else {
                    return Ok(());
                };
                actions = meanwhile;
                if stored.is_err() {
                    let (next, more) = self.refresh();
                    watch = next;
                    actions.extend(more);
                    // Reports are answered however long the store is unavailable.
                    for _ in 0..MAX_REPORTS {
                        let Ok(report) = self.reports.try_recv() else {
                            break;
                        };
                        self.renew(report, &mut watch, &mut actions);
                    }
                }
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
                () = watch.changed() => (watch, actions) = self.refresh(),
                (run, (status, output)) = self.runs.next() => {
                    actions.extend(self.machine.finished(Instant::now(), run, status, output));
                }
                Some(report) = self.reports.recv() => self.renew(report, &mut watch, &mut actions),
                () = timer => {}
            }
        }
    }

    /// Handles a report. The check may have been registered just now, so the checks are read again if
    /// necessary.
    fn renew(&mut self, report: Report, watch: &mut Watch, actions: &mut Vec<Action>) {
        let Report {
            tenancy,
            check_id,
            taken,
        } = report;
        let mut known = self.machine.reported(Instant::now(), &tenancy, &check_id);
        if !known {
            let (next, more) = self.refresh();
            *watch = next;
            actions.extend(more);
            known = self.machine.reported(Instant::now(), &tenancy, &check_id);
        }
        // The caller may have stopped waiting.
        let _ = taken.send(known);
    }

    /// Reads the current checks of the node and the statuses of aliases.
    fn refresh(&mut self) -> (Watch, Vec<Action>) {
        let now = Instant::now();
        let state = self.reader.state();
        let txn = state.read();
        let namespaces = txn.tenancies_here();
        let mut known = Vec::new();
        let mut sidecars = Sidecars::new();
        for tenancy in &namespaces {
            txn.in_tenancy(tenancy, |txn| {
                known.extend(self.known(txn));
                sidecars.extend(self.sidecars(txn));
            });
        }
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
        let aliases = self.machine.aliases();
        for one in aliases.chunk_by(|((a, _), _), ((b, _), _)| a == b) {
            let Some(((tenancy, _), _)) = one.first() else {
                continue;
            };
            txn.in_tenancy(tenancy, |txn| {
                let mut nodes = alias::Nodes::new(txn, &self.settings);
                for (key, definition) in one {
                    let (status, output) = nodes.status(&self.node, &key.1, definition);
                    actions.extend(self.machine.aliased(now, key, status, output));
                }
            });
        }
        (self.reader.watch(&txn.into_reads()), actions)
    }

    /// The checks of the node in one namespace.
    fn known(&self, txn: &ReadTxn<'_>) -> Vec<Known> {
        // In the store, ids are case-insensitive.
        let shown: HashMap<_, _> = txn
            .checks_on(&self.node)
            .into_iter()
            .map(|check| (check.check_id.to_lowercase(), check))
            .collect();
        let checks = txn.agent_checks(&self.node).into_iter();
        let known = checks.filter_map(|check| {
            let shown = shown.get(&check.check_id.to_lowercase())?;
            Some(Known {
                service_id: shown.service_id.clone(),
                status: shown.status,
                output: shown.output.clone(),
                exposed_port: shown.exposed_port,
                target: Arc::clone(&check.definition),
                check,
            })
        });
        known.collect()
    }

    /// The sidecars on the node that expose the checks of their services.
    fn sidecars(&self, txn: &ReadTxn<'_>) -> Sidecars {
        let proxies = txn.instances_on(&self.node).into_iter();
        let proxies = proxies.filter(|one| one.kind == ServiceKind::ConnectProxy);
        let exposing = proxies.filter(|one| (self.exposes_checks)(txn, one));
        exposing
            .map(|one| {
                let service = one.proxy.destination_service_id.clone();
                ((txn.tenancy().clone(), service), one.address.clone())
            })
            .collect()
    }

    /// Starts and aborts runs; returns the remaining actions, which are writes.
    fn begin(&mut self, actions: Vec<Action>) -> Vec<Action> {
        let mut writes = Vec::new();
        for action in actions {
            match action {
                Action::Start { run, target } => self.runs.start(run, target),
                Action::Cancel { run } => self.runs.cancel(run),
                write => writes.push(write),
            }
        }
        writes
    }

    /// Writes in one transaction. Runs continue meanwhile, but reports wait, so that an expiry in
    /// progress cannot overwrite them. Returns the next actions, or `None` if the token was
    /// cancelled.
    async fn store(
        &mut self,
        writes: Vec<Action>,
        stop: &CancellationToken,
    ) -> Option<(Result<(), Unavailable>, Vec<Action>)> {
        let (node, writer) = (self.node.clone(), self.writer.clone());
        let writes = Arc::new(writes);
        let all = Arc::clone(&writes);
        let stored = stop.run_until_cancelled(async move {
            let written = writer.write(move |txn| {
                all.iter().for_each(|one| write(txn, &node, one));
                Ok::<_, Unavailable>(())
            });
            let stored = written.await.map(|_| ());
            if let Err(error) = &stored {
                tracing::warn!(%error, "cannot write results of checks: trying again");
                sleep(STORE_PAUSE).await;
            }
            stored
        });
        let mut next = Vec::new();
        let machine = &mut self.machine;
        let finished = |run, (status, output)| {
            next.extend(machine.finished(Instant::now(), run, status, output));
        };
        let stored = self.runs.while_waiting(stored, finished).await?;
        if stored.is_err() {
            self.machine.not_stored(Instant::now(), &writes);
        }
        Some((stored, next))
    }
}

/// Applies one action to the store.
fn write(txn: &mut WriteTxn, node: &str, action: &Action) {
    match action {
        Action::Store {
            check,
            status,
            output,
        } => {
            txn.in_tenancy(&check.tenancy, |txn| {
                txn.put_check_result(node, check, *status, output);
            });
        }
        Action::Deregister {
            tenancy,
            service_id,
            check_id,
        } => txn.in_tenancy(tenancy, |txn| deregister(txn, node, service_id, check_id)),
        Action::Expose { check, port } => {
            txn.in_tenancy(&check.tenancy, |txn| txn.expose_check(node, check, *port));
        }
        Action::Start { .. } | Action::Cancel { .. } => {}
    }
}

/// Deregisters an instance if its check is still critical.
fn deregister(txn: &mut WriteTxn, node: &str, service_id: &str, check_id: &str) {
    // A report may have arrived meanwhile, or the service may have been replaced.
    let check = txn.read().check(node, check_id);
    let still = check.is_some_and(|check| {
        check.status == CheckStatus::Critical && check.service_id == *service_id
    });
    if still {
        tracing::info!(
            service = service_id,
            check = check_id,
            "deregistering a service that was critical for too long"
        );
        txn.deregister_with_sidecar(node, service_id);
    }
}

#[cfg(test)]
mod tests;
