//! `?dry-run` on writes of config entries: shows the effects of a write without performing it.
//!
//! The write is applied to a copy of the state. The functions that configure proxies compute their
//! configuration before and after, and the response is the difference. If the write would be rejected, so is
//! the dry run.

mod difference;

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::response::Response;
use legate_model::acl::Authorizer;
use legate_proxycfg::{Manager, Preview, ProxyId};
use legate_resources::Generator;
use legate_runtime::{Pool, Share};
use legate_store::State;
use serde::Serialize;
use serde_json::Value;

use self::difference::{Budget, Change as Field, ResourceChange};
use super::call::Call;
use crate::api_error::ApiError;
use crate::entries::change::Change;
use crate::entries::graph;
use crate::handles::Handles;

/// Maximum proxies that are computed.
const PROXIES: usize = 2_000;
/// Proxies computed per step; between steps, other work in the pool gets its turn.
const AT_A_TIME: usize = 16;
/// Maximum chains in a response.
const CHAINS: usize = 200;
/// Maximum proxies named per group.
const NAMED: usize = 20;

/// Computes the effects of writes, on a thread of its own.
#[derive(Clone)]
pub(super) struct DryRuns {
    manager: Manager,
    generator: Arc<Generator>,
    pool: Pool,
}

/// The response.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    /// The index of the state that was used.
    index: u64,
    /// The result of the write: `false` if the `?cas` index does not match the entry's.
    written: bool,
    /// The services whose discovery chains change, with the differences.
    chains: Vec<ChainChange>,
    /// Number of changed chains that the token may not see, or that exceed the limit.
    more_chains: usize,
    proxies: Proxies,
    /// The changes, each with the proxies that they apply to.
    changes: Vec<Group>,
    /// Whether differences were omitted because of the budget.
    truncated: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ChainChange {
    service: String,
    fields: Vec<Field>,
}

/// Counts of the proxies that are connected to this server.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Proxies {
    connected: usize,
    /// Proxies whose configuration changes.
    changed: usize,
    /// Changed proxies that the token may not see. Their changes are not shown.
    hidden: usize,
    /// Proxies without a configuration yet.
    waiting: usize,
    /// Proxies beyond the limit. They may change as well.
    not_computed: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Group {
    /// The kind of proxy, such as `connect-proxy`.
    kind: &'static str,
    /// The number of proxies with these changes.
    count: usize,
    /// The first of them, as `node/id`.
    proxies: Vec<String>,
    resources: Vec<ResourceChange>,
    /// Resources that cannot be built after the write.
    failures: Vec<String>,
}

/// The changes of one proxy.
struct ProxyChange {
    proxy: ProxyId,
    service: String,
    kind: &'static str,
    resources: Vec<ResourceChange>,
    failures: Vec<String>,
    /// Whether differences were omitted because of the budget.
    truncated: bool,
}

/// The result of comparing one proxy.
enum Comparison {
    Waiting,
    Same,
    Changed(ProxyChange),
}

/// The results so far.
#[derive(Default)]
struct Results {
    proxies: Proxies,
    groups: Vec<Group>,
    /// Index into `groups` by kind and hash of the changes. Hashed, because the changes may be long.
    places: HashMap<(&'static str, u64), usize>,
    hasher: RandomState,
    budget: Budget,
}

impl DryRuns {
    pub(super) fn new(handles: &Handles) -> Self {
        Self {
            manager: handles.manager.clone(),
            generator: Arc::clone(&handles.generator),
            pool: Pool::with(handles.spawner.clone(), NonZeroUsize::MIN),
        }
    }

    /// Performs the dry run of a write that the caller is authorized to make.
    pub(super) async fn show(
        &self,
        call: &Call,
        authorizer: &Authorizer,
        change: &Change,
    ) -> Result<Response, ApiError> {
        let (state, datacenter) = (call.reader.state(), &call.config.datacenter);
        let answer = self.answer(state, datacenter, authorizer, change).await?;
        call.json(&answer)
    }

    async fn answer(
        &self,
        before: Arc<State>,
        datacenter: &str,
        authorizer: &Authorizer,
        change: &Change,
    ) -> Result<Answer, ApiError> {
        let share = Share::default();
        let written = {
            let (before, change) = (Arc::clone(&before), change.clone());
            let (authorizer, datacenter) = (authorizer.clone(), datacenter.to_owned());
            move || write_on_copy(&before, &change, &authorizer, &datacenter)
        };
        let (mut answer, after, budget) = self.run(&share, written).await??;
        if answer.written {
            let states = (before, Arc::new(after));
            let found = self.compare_all(states, authorizer, &share, budget).await?;
            answer.proxies = found.proxies;
            answer.changes = found.groups;
            answer.truncated = found.budget.exceeded;
        }
        Ok(answer)
    }

    /// Runs one step in the pool.
    async fn run<T: Send + 'static>(
        &self,
        share: &Share,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let done = self.pool.run("a dry run", share, work).await;
        let stopping =
            || ApiError::unavailable("The server is shutting down: retry with another one");
        done.ok_or_else(stopping)
    }

    async fn compare_all(
        &self,
        (before, after): (Arc<State>, Arc<State>),
        authorizer: &Authorizer,
        share: &Share,
        budget: Budget,
    ) -> Result<Results, ApiError> {
        let mut proxies = self.manager.proxies();
        proxies.sort();
        let mut found = Results {
            budget,
            ..Results::default()
        };
        found.proxies.connected = proxies.len();
        found.proxies.not_computed = proxies.len().saturating_sub(PROXIES);
        proxies.truncate(PROXIES);
        for some in proxies.chunks(AT_A_TIME) {
            let (this, some, authorizer) = (self.clone(), some.to_vec(), authorizer.clone());
            let (before, after) = (Arc::clone(&before), Arc::clone(&after));
            let work = move || {
                for proxy in some {
                    found.add(this.compare(proxy, &before, &after), &authorizer);
                }
                found
            };
            found = self.run(share, work).await?;
        }
        Ok(found)
    }

    /// Compares the configuration of one proxy before and after.
    fn compare(&self, proxy: ProxyId, before: &State, after: &State) -> Comparison {
        let (old, new) = match self.manager.preview(&proxy, before, after) {
            Preview::Waiting => return Comparison::Waiting,
            Preview::Same => return Comparison::Same,
            Preview::Changed(both) => *both,
        };
        let had = self.generator.generate(&old, None);
        let has = self.generator.generate(&new, Some((&old, &had)));
        let mut budget = Budget::default();
        let resources = difference::resources(&had, &has, &mut budget);
        let known = had.failures();
        let failures = has.failures().iter().filter(|one| !known.contains(one));
        let failures: Vec<String> = failures
            .map(|failure| format!("{}: {}", failure.resource, failure.reason))
            .collect();
        if resources.is_empty() && failures.is_empty() {
            return Comparison::Same;
        }
        Comparison::Changed(ProxyChange {
            service: new.proxy.instance.identity().to_owned(),
            kind: new.proxy.instance.kind.as_str(),
            proxy,
            resources,
            failures,
            truncated: budget.exceeded,
        })
    }
}

impl Results {
    /// Counts a proxy, and adds it to the group with the same changes. Only changes that are shown use the
    /// budget.
    fn add(&mut self, seen: Comparison, authorizer: &Authorizer) {
        let mut change = match seen {
            Comparison::Same => return,
            Comparison::Waiting => {
                self.proxies.waiting += 1;
                return;
            }
            Comparison::Changed(change) => change,
        };
        self.proxies.changed += 1;
        let ProxyId {
            tenancy,
            node,
            service_id,
        } = &change.proxy;
        let authorizer = authorizer.within(tenancy);
        if !authorizer.service_read(&change.service) || !authorizer.node_read(node) {
            self.proxies.hidden += 1;
            return;
        }
        let alike = serde_json::to_string(&(&change.resources, &change.failures));
        let alike = self.hasher.hash_one(alike.unwrap_or_default());
        let place = match self.places.entry((change.kind, alike)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.budget.exceeded |= change.truncated;
                self.budget.limit(&mut change.resources);
                change.failures.retain(|_| self.budget.take());
                self.groups.push(Group {
                    kind: change.kind,
                    count: 0,
                    proxies: Vec::new(),
                    resources: change.resources,
                    failures: change.failures,
                });
                *new.insert(self.groups.len() - 1)
            }
        };
        let group = &mut self.groups[place];
        group.count += 1;
        if group.proxies.len() < NAMED {
            group.proxies.push(format!("{node}/{service_id}"));
        }
    }
}

/// Applies the write to a copy of the state, and compares the chains that contain the entry.
fn write_on_copy(
    before: &State,
    change: &Change,
    authorizer: &Authorizer,
    datacenter: &str,
) -> Result<(Answer, State, Budget), ApiError> {
    let (after, written) = before.after(|txn| change.apply(txn, datacenter))?;
    let mut answer = Answer {
        index: before.index(),
        written,
        ..Answer::default()
    };
    let mut budget = Budget::default();
    if written {
        let states = (before, &after);
        answer.compare_chains(states, change, authorizer, datacenter, &mut budget);
    }
    Ok((answer, after, budget))
}

impl Answer {
    /// Compares the chains that contain the entry, before or after.
    fn compare_chains(
        &mut self,
        (before, after): (&State, &State),
        change: &Change,
        authorizer: &Authorizer,
        datacenter: &str,
        budget: &mut Budget,
    ) {
        let (before, after) = (before.read(), after.read());
        let (kind, name) = change.target();
        let mut services = graph::services(&before, kind, &name);
        services.extend(graph::services(&after, kind, &name));
        for service in services {
            let shown = |state| match graph::chain_in_mesh(state, &service, datacenter) {
                Ok(chain) => serde_json::to_value(chain).unwrap_or_default(),
                Err(error) => Value::String(error),
            };
            let (old, new) = (shown(&before), shown(&after));
            if old == new {
                continue;
            }
            let there = authorizer.within(&service.tenancy);
            if self.chains.len() >= CHAINS || !there.service_read(&service.name) {
                self.more_chains += 1;
                continue;
            }
            let mut fields = Vec::new();
            difference::documents(Some(&old), Some(&new), &mut fields, budget);
            let service = service.to_string();
            self.chains.push(ChainChange { service, fields });
        }
    }
}

#[cfg(test)]
mod tests;
