//! State machine that schedules checks and derives their statuses from results. Pure: events in,
//! actions out; the time is an argument.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use legate_model::{CheckStatus, CheckType, Tenancy};
use legate_store::AgentCheck;
use tokio::time::Instant;

use crate::count::Count;
use crate::settings::Settings;

/// The minimum interval of a check, as in Consul.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time in critical state before a service is deregistered, as in Consul.
const MIN_REMOVAL: Duration = Duration::from_secs(60);
/// The maximum number of concurrent runs.
const MAX_RUNNING: usize = 64;

/// Identifies a check of the node: tenancy and id.
pub(crate) type CheckKey = (Tenancy, String);

/// Unique number of a run.
pub(crate) type Run = u64;

/// A check in the store.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) check: AgentCheck,
    /// The check to run, possibly with the sidecar as its target.
    pub(crate) target: Arc<CheckType>,
    /// The check's port on the sidecar; 0 means none.
    pub(crate) exposed_port: u16,
    /// Id of the checked instance; empty for the node.
    pub(crate) service_id: String,
    pub(crate) status: CheckStatus,
    pub(crate) output: String,
}

/// Action for the caller.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// Run a check, and pass its result to [`Machine::finished`].
    Start { run: Run, target: Arc<CheckType> },
    /// Abort a run whose result is no longer needed.
    Cancel { run: Run },
    /// Write the result of a check.
    Store {
        check: AgentCheck,
        status: CheckStatus,
        output: String,
    },
    /// Change the port of a check on the sidecar; 0 means none.
    Expose { check: AgentCheck, port: u16 },
    /// Deregister an instance that was critical for too long.
    Deregister {
        tenancy: Tenancy,
        service_id: String,
        check_id: String,
    },
}

#[derive(Debug)]
struct Entry {
    known: Known,
    schedule: Schedule,
    count: Count,
    /// When the output was last written, and how long to wait before writing a changed output again.
    written: Instant,
    output_interval: Duration,
    critical_since: Option<Instant>,
    removal_started: bool,
}

#[derive(Debug)]
enum Schedule {
    /// It runs at this time.
    Waiting {
        due: Instant,
    },
    Running {
        run: Run,
    },
    /// It becomes critical at this time, unless a report is received.
    Reported {
        until: Instant,
    },
    /// Its status is read from the store. Aliases of each other could cause an endless loop, so after
    /// a change the next read is delayed.
    Alias {
        changed: Option<Instant>,
        again: Option<Instant>,
    },
    /// Never run here; it retains its registered status.
    NotRun,
}

/// All checks of one node.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    settings: Settings,
    checks: BTreeMap<CheckKey, Entry>,
    next_run: Run,
    running: usize,
}

impl Machine {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// Sets the current checks. Checks with unchanged definitions continue.
    pub(crate) fn define(&mut self, now: Instant, all: Vec<Known>) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut before = std::mem::take(&mut self.checks);
        for known in all {
            let id = (known.check.tenancy.clone(), known.check.check_id.clone());
            let entry = match before.remove(&id) {
                Some(entry) if entry.known.check == known.check => entry.refreshed(now, known),
                other => {
                    before.extend(other.map(|entry| (id.clone(), entry)));
                    Entry::new(now, known, &self.settings)
                }
            };
            self.checks.insert(id, entry);
        }
        for gone in before.into_values() {
            if let Schedule::Running { run } = gone.schedule {
                self.running -= 1;
                actions.push(Action::Cancel { run });
            }
        }
        actions
    }

    /// The definitions of the alias checks.
    pub(crate) fn aliases(&self) -> Vec<(CheckKey, Arc<CheckType>)> {
        let all = self.checks.iter();
        let aliases = all.filter(|(_, entry)| matches!(entry.schedule, Schedule::Alias { .. }));
        aliases
            .map(|(id, entry)| (id.clone(), Arc::clone(&entry.known.check.definition)))
            .collect()
    }

    /// Processes the status of an alias check.
    pub(crate) fn aliased(
        &mut self,
        now: Instant,
        id: &CheckKey,
        status: CheckStatus,
        output: String,
    ) -> Option<Action> {
        let entry = self.checks.get_mut(id)?;
        let Schedule::Alias { changed, again } = &mut entry.schedule else {
            return None;
        };
        *again = None;
        if status != entry.known.status {
            let pause = changed.map(|at| at + MIN_INTERVAL);
            if let Some(at) = pause.filter(|at| now < *at) {
                *again = Some(at);
                return None;
            }
            *changed = Some(now);
        }
        entry.found(now, status, output)
    }

    /// Whether the statuses of aliases must be read from the store again.
    pub(crate) fn aliases_are_due(&self, now: Instant) -> bool {
        let is_due = |entry: &Entry| match entry.schedule {
            Schedule::Alias { again, .. } => again.is_some_and(|at| at <= now),
            _ => false,
        };
        self.checks.values().any(is_due)
    }

    /// Processes the result of a run.
    pub(crate) fn finished(
        &mut self,
        now: Instant,
        run: Run,
        status: CheckStatus,
        output: String,
    ) -> Option<Action> {
        let is_it =
            |one: &&mut Entry| matches!(one.schedule, Schedule::Running { run: r } if r == run);
        let entry = self.checks.values_mut().find(is_it)?;
        self.running -= 1;
        let definition = Arc::clone(&entry.known.check.definition);
        let due = now + definition.interval.max(MIN_INTERVAL);
        entry.schedule = Schedule::Waiting { due };
        let status = entry.count.result(&definition, status)?;
        entry.found(now, status, output)
    }

    /// Processes a report for a TTL check; the caller writes the reported status. Returns whether
    /// there is such a check.
    pub(crate) fn reported(&mut self, now: Instant, tenancy: &Tenancy, id: &str) -> bool {
        let found = self
            .checks
            .iter_mut()
            .find(|((within, own), _)| within == tenancy && own.eq_ignore_ascii_case(id));
        match found {
            Some((
                _,
                Entry {
                    schedule: Schedule::Reported { until },
                    known,
                    ..
                },
            )) => {
                *until = now + known.check.definition.ttl;
                true
            }
            _ => false,
        }
    }

    /// Processes a failed write of these actions. The caller then calls [`Self::define`] with the
    /// store's state. Expiries and deregistrations become due again; probes write at their next run.
    pub(crate) fn not_stored(&mut self, now: Instant, actions: &[Action]) {
        for entry in self.checks.values_mut() {
            entry.removal_started = false;
        }
        for action in actions {
            if let Action::Store { check, .. } = action
                && let Some(entry) = self
                    .checks
                    .get_mut(&(check.tenancy.clone(), check.check_id.clone()))
                && let Schedule::Reported { until } = &mut entry.schedule
            {
                *until = now;
            }
        }
    }

    /// Returns the actions that are due.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut due = Vec::new();
        for (id, entry) in &mut self.checks {
            if let Schedule::Reported { until } = entry.schedule
                && until <= now
            {
                // Until the next report.
                entry.schedule = Schedule::Reported {
                    until: now + entry.known.check.definition.ttl.max(MIN_INTERVAL),
                };
                actions.extend(entry.expired(now));
            }
            actions.extend(entry.removal(now));
            if let Schedule::Waiting { due: at } = entry.schedule
                && at <= now
            {
                due.push((at, id.clone()));
            }
        }
        due.sort();
        for (_, id) in due {
            if self.running == MAX_RUNNING {
                break;
            }
            let Some(entry) = self.checks.get_mut(&id) else {
                continue;
            };
            let run = self.next_run;
            self.next_run += 1;
            self.running += 1;
            entry.schedule = Schedule::Running { run };
            let target = Arc::clone(&entry.known.target);
            actions.push(Action::Start { run, target });
        }
        actions
    }

    /// When to call [`Self::tick`] next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let may_start = self.running < MAX_RUNNING;
        let entries = self.checks.values();
        let times = entries.flat_map(|entry| {
            let next = match entry.schedule {
                Schedule::Waiting { due } => may_start.then_some(due),
                Schedule::Reported { until } => Some(until),
                Schedule::Alias { again, .. } => again,
                Schedule::Running { .. } | Schedule::NotRun => None,
            };
            [next, entry.removal_at()]
        });
        times.flatten().min()
    }
}

impl Entry {
    fn new(now: Instant, known: Known, settings: &Settings) -> Self {
        let definition = &known.check.definition;
        let schedule = match definition.type_name() {
            "http" | "tcp" | "udp" | "grpc" | "h2ping" => Schedule::Waiting { due: now },
            "script" | "docker" if settings.scripts.permit(known.check.source) => {
                Schedule::Waiting { due: now }
            }
            "alias" => Schedule::Alias {
                changed: None,
                again: None,
            },
            "ttl" => Schedule::Reported {
                until: now + definition.ttl,
            },
            _ => Schedule::NotRun,
        };
        let critical = known.status == CheckStatus::Critical;
        Self {
            schedule,
            count: Count::default(),
            written: now,
            output_interval: settings.output_interval,
            critical_since: critical.then_some(now),
            removal_started: false,
            known,
        }
    }

    /// The same check with updated values from the store.
    fn refreshed(mut self, now: Instant, known: Known) -> Self {
        self.known = known;
        self.note_status(now);
        self
    }

    fn note_status(&mut self, now: Instant) {
        if self.known.status != CheckStatus::Critical {
            self.critical_since = None;
            self.removal_started = false;
        } else if self.critical_since.is_none() {
            self.critical_since = Some(now);
        }
    }

    /// Records a result; returns a write if it differs from the stored one.
    fn found(&mut self, now: Instant, status: CheckStatus, output: String) -> Option<Action> {
        let same_status = self.known.status == status;
        let too_early = now < self.written + self.output_interval && !self.known.output.is_empty();
        if same_status && (self.known.output == output || too_early) {
            return None;
        }
        self.written = now;
        self.known.status = status;
        self.known.output.clone_from(&output);
        self.note_status(now);
        let check = self.known.check.clone();
        Some(Action::Store {
            check,
            status,
            output,
        })
    }

    fn expired(&mut self, now: Instant) -> Option<Action> {
        if self.known.status == CheckStatus::Critical {
            return None;
        }
        let last = match self.known.output.as_str() {
            "" => String::new(),
            output => format!(" (last output before timeout follows): {output}"),
        };
        self.found(now, CheckStatus::Critical, format!("TTL expired{last}"))
    }

    fn removal_at(&self) -> Option<Instant> {
        let after = self
            .known
            .check
            .definition
            .deregister_critical_service_after;
        let removes =
            !after.is_zero() && !self.known.service_id.is_empty() && !self.removal_started;
        let since = self.critical_since.filter(|_| removes)?;
        Some(since + after.max(MIN_REMOVAL))
    }

    fn removal(&mut self, now: Instant) -> Option<Action> {
        self.removal_at().filter(|at| *at <= now)?;
        self.removal_started = true;
        Some(Action::Deregister {
            tenancy: self.known.check.tenancy.clone(),
            service_id: self.known.service_id.clone(),
            check_id: self.known.check.check_id.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
