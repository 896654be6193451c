//! When which check is run, and what its results make of its status. It does nothing itself: events
//! go in, actions come out, and the time is an argument.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use legate_model::{CheckStatus, CheckType, Tenancy};
use legate_store::AgentCheck;
use tokio::time::Instant;

use crate::count::Count;
use crate::settings::Settings;

/// The shortest time between two runs of a check. Consul's.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time that a service may be critical before it is removed. Consul's.
const MIN_REMOVAL: Duration = Duration::from_secs(60);
/// How many checks are run at one time.
const MAX_RUNNING: usize = 64;

/// Which check of the node: where it is, and its id.
pub(crate) type CheckKey = (Tenancy, String);

/// The number of a run. No two runs have the same one.
pub(crate) type Run = u64;

/// A check as the store has it.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) check: AgentCheck,
    /// The definition as it is run, which may be through a sidecar.
    pub(crate) target: Arc<CheckType>,
    /// The port that it has at the sidecar; 0 is none.
    pub(crate) exposed_port: u16,
    /// The instance that it is of; empty for the node.
    pub(crate) service_id: String,
    pub(crate) status: CheckStatus,
    pub(crate) output: String,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// Run a check, and hand its result to [`Machine::finished`].
    Start { run: Run, target: Arc<CheckType> },
    /// Give up a run whose result is no longer needed.
    Cancel { run: Run },
    /// Write what a check found.
    Store {
        check: AgentCheck,
        status: CheckStatus,
        output: String,
    },
    /// Give a check another port at the sidecar, or none.
    Expose { check: AgentCheck, port: u16 },
    /// Remove an instance that was critical for too long.
    Deregister {
        tenancy: Tenancy,
        service_id: String,
        check_id: String,
    },
}

#[derive(Debug)]
struct Entry {
    known: Known,
    how: How,
    count: Count,
    /// When the output was written last, and how long it stays then.
    written: Instant,
    output_interval: Duration,
    critical_since: Option<Instant>,
    removal_started: bool,
}

#[derive(Debug)]
enum How {
    /// It is run when the time has come.
    Waiting {
        due: Instant,
    },
    Running {
        run: Run,
    },
    /// It is critical when nothing was reported until then.
    Reported {
        until: Instant,
    },
    /// Its status is read from the store. Aliases of each other could change it without an end: once
    /// changed, it is read again after a pause.
    Alias {
        changed: Option<Instant>,
        again: Option<Instant>,
    },
    /// This server does not run it, and it keeps the status that it was registered with.
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

    /// Takes the checks that there are now. Those that are defined as before go on.
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
            if let How::Running { run } = gone.how {
                self.running -= 1;
                actions.push(Action::Cancel { run });
            }
        }
        actions
    }

    /// The definitions of the checks whose status is read from the store.
    pub(crate) fn aliases(&self) -> Vec<(CheckKey, Arc<CheckType>)> {
        let all = self.checks.iter();
        let aliases = all.filter(|(_, entry)| matches!(entry.how, How::Alias { .. }));
        aliases
            .map(|(id, entry)| (id.clone(), Arc::clone(&entry.known.check.definition)))
            .collect()
    }

    /// Takes the status of an alias check.
    pub(crate) fn aliased(
        &mut self,
        now: Instant,
        id: &CheckKey,
        status: CheckStatus,
        output: String,
    ) -> Option<Action> {
        let entry = self.checks.get_mut(id)?;
        let How::Alias { changed, again } = &mut entry.how else {
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

    /// Whether the statuses of aliases are to be read from the store again.
    pub(crate) fn aliases_are_due(&self, now: Instant) -> bool {
        let is_due = |entry: &Entry| match entry.how {
            How::Alias { again, .. } => again.is_some_and(|at| at <= now),
            _ => false,
        };
        self.checks.values().any(is_due)
    }

    /// Takes the result of a run.
    pub(crate) fn finished(
        &mut self,
        now: Instant,
        run: Run,
        status: CheckStatus,
        output: String,
    ) -> Option<Action> {
        let is_it =
            |entry: &&mut Entry| matches!(entry.how, How::Running { run: own } if own == run);
        let entry = self.checks.values_mut().find(is_it)?;
        self.running -= 1;
        let definition = Arc::clone(&entry.known.check.definition);
        let due = now + definition.interval.max(MIN_INTERVAL);
        entry.how = How::Waiting { due };
        let status = entry.count.result(&definition, status)?;
        entry.found(now, status, output)
    }

    /// A status was reported for a TTL check, and is written by whoever took the report. Returns
    /// whether there is such a check.
    pub(crate) fn reported(&mut self, now: Instant, tenancy: &Tenancy, id: &str) -> bool {
        let found = self
            .checks
            .iter_mut()
            .find(|((within, own), _)| within == tenancy && own.eq_ignore_ascii_case(id));
        match found {
            Some((
                _,
                Entry {
                    how: How::Reported { until },
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

    /// The store did not take these actions. [`Self::define`] comes next, with what the store has;
    /// then expiries and removals are due again, and probes at their next run.
    pub(crate) fn not_stored(&mut self, now: Instant, actions: &[Action]) {
        for entry in self.checks.values_mut() {
            entry.removal_started = false;
        }
        for action in actions {
            if let Action::Store { check, .. } = action
                && let Some(entry) = self
                    .checks
                    .get_mut(&(check.tenancy.clone(), check.check_id.clone()))
                && let How::Reported { until } = &mut entry.how
            {
                *until = now;
            }
        }
    }

    /// What is due by now.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut due = Vec::new();
        for (id, entry) in &mut self.checks {
            if let How::Reported { until } = entry.how
                && until <= now
            {
                // Until the next report.
                entry.how = How::Reported {
                    until: now + entry.known.check.definition.ttl.max(MIN_INTERVAL),
                };
                actions.extend(entry.expired(now));
            }
            actions.extend(entry.removal(now));
            if let How::Waiting { due: at } = entry.how
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
            entry.how = How::Running { run };
            let target = Arc::clone(&entry.known.target);
            actions.push(Action::Start { run, target });
        }
        actions
    }

    /// When [`Self::tick`] is to be called next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let may_start = self.running < MAX_RUNNING;
        let entries = self.checks.values();
        let times = entries.flat_map(|entry| {
            let next = match entry.how {
                How::Waiting { due } => may_start.then_some(due),
                How::Reported { until } => Some(until),
                How::Alias { again, .. } => again,
                How::Running { .. } | How::NotRun => None,
            };
            [next, entry.removal_at()]
        });
        times.flatten().min()
    }
}

impl Entry {
    fn new(now: Instant, known: Known, settings: &Settings) -> Self {
        let definition = &known.check.definition;
        let how = match definition.type_name() {
            "http" | "tcp" | "udp" | "grpc" | "h2ping" => How::Waiting { due: now },
            "script" | "docker" if settings.scripts.permit(known.check.source) => {
                How::Waiting { due: now }
            }
            "alias" => How::Alias {
                changed: None,
                again: None,
            },
            "ttl" => How::Reported {
                until: now + definition.ttl,
            },
            _ => How::NotRun,
        };
        let critical = known.status == CheckStatus::Critical;
        Self {
            how,
            count: Count::default(),
            written: now,
            output_interval: settings.output_interval,
            critical_since: critical.then_some(now),
            removal_started: false,
            known,
        }
    }

    /// The same check, with what the store has of it now.
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

    /// Takes over what was found; it is written when it differs from what is there.
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
