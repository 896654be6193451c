//! `?dry-run` on writes of config entries: what a write would change, told without making it.
//!
//! The write is applied to the state as a value, which nobody else sees. The same functions that
//! configure proxies compute what is now and what would be, and the answer is the difference. A write
//! that would be refused is answered as the write.

mod difference;

use std::collections::BTreeMap;
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
use super::change::Change;
use super::error::ApiError;
use super::graph;
use crate::handles::Handles;

/// The most proxies that are computed.
const PROXIES: usize = 2_000;
/// How many are computed at a time, before others have their turn in the pool.
const AT_A_TIME: usize = 16;
/// The most chains of which differences are told.
const CHAINS: usize = 200;
/// The most fields and resources that are told.
const FIELDS: usize = 5_000;
/// The most proxies that one group names.
const NAMED: usize = 20;

/// Computes what writes would change, in a thread of its own.
#[derive(Clone)]
pub(super) struct DryRuns {
    manager: Manager,
    generator: Arc<Generator>,
    pool: Pool,
}

/// The answer.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    /// The index of the state that was looked at.
    index: u64,
    /// What the write would be answered: `false` where the index of `?cas` is not the entry's.
    written: bool,
    /// The services whose discovery chains change.
    chains: Vec<ChainChange>,
    /// Chains that change and that the token may not see, or that are too many to be told.
    more_chains: usize,
    proxies: Proxies,
    /// What changes, each with the proxies that it changes for.
    changes: Vec<Group>,
    /// Whether there are more differences than are told.
    truncated: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ChainChange {
    service: String,
    fields: Vec<Field>,
}

/// The proxies that are connected to this server.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Proxies {
    connected: usize,
    /// Those that would have another configuration.
    changed: usize,
    /// Those of `Changed` that the token may not see, and whose changes are not told.
    hidden: usize,
    /// Those that have no configuration yet.
    waiting: usize,
    /// Those beyond what one dry run computes: any of them may change as well.
    not_computed: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Group {
    /// The kind of proxy, such as `connect-proxy`.
    kind: &'static str,
    /// How many proxies change so.
    count: usize,
    /// The first of them, as `node/id`.
    proxies: Vec<String>,
    resources: Vec<ResourceChange>,
    /// Resources that could not be made then.
    failures: Vec<String>,
}

/// What changes for one proxy.
struct ProxyChange {
    proxy: ProxyId,
    service: String,
    kind: &'static str,
    resources: Vec<ResourceChange>,
    failures: Vec<String>,
}

/// What is known of one proxy.
enum Seen {
    Waiting,
    Same,
    Changed(ProxyChange),
}

impl DryRuns {
    pub(super) fn new(handles: &Handles) -> Self {
        Self {
            manager: handles.manager.clone(),
            generator: Arc::clone(&handles.generator),
            pool: Pool::with(handles.spawner.clone(), NonZeroUsize::MIN),
        }
    }

    /// Answers a write that the caller may make.
    pub(super) async fn show(
        &self,
        call: &Call,
        authorizer: &Authorizer,
        change: &Change,
    ) -> Result<Response, ApiError> {
        let datacenter = &call.config.datacenter;
        let before = call.reader.state();
        let (after, written) = before.after(|txn| change.apply(txn, datacenter))?;
        let after = Arc::new(after);
        let mut answer = Answer {
            index: before.index(),
            written,
            ..Answer::default()
        };
        if written {
            let mut budget = Budget { left: FIELDS };
            answer.compare_chains(
                (&before, &after),
                change,
                authorizer,
                datacenter,
                &mut budget,
            );
            self.compare_proxies((before, after), authorizer, &mut answer, &mut budget)
                .await?;
            answer.truncated = budget.left == 0;
        }
        call.json(&answer)
    }

    async fn compare_proxies(
        &self,
        (before, after): (Arc<State>, Arc<State>),
        authorizer: &Authorizer,
        answer: &mut Answer,
        budget: &mut Budget,
    ) -> Result<(), ApiError> {
        let mut proxies = self.manager.proxies();
        proxies.sort();
        answer.proxies.connected = proxies.len();
        answer.proxies.not_computed = proxies.len().saturating_sub(PROXIES);
        proxies.truncate(PROXIES);
        let share = Share::default();
        let mut groups = BTreeMap::<(&str, String), Group>::new();
        for some in proxies.chunks(AT_A_TIME) {
            let (this, some) = (self.clone(), some.to_vec());
            let (before, after, mut left) = (Arc::clone(&before), Arc::clone(&after), *budget);
            let work = move || {
                let seen = |proxy| this.compare(proxy, &before, &after, &mut left);
                let seen: Vec<Seen> = some.into_iter().map(seen).collect();
                (seen, left)
            };
            let done = self.pool.run("a dry run".to_owned(), &share, work).await;
            let stopping = || ApiError::unavailable("The server is shutting down: ask another one");
            let (seen, left) = done.ok_or_else(stopping)?;
            *budget = left;
            for one in seen {
                answer.proxies.add(one, authorizer, &mut groups);
            }
        }
        answer.changes = groups.into_values().collect();
        Ok(())
    }

    /// What changes for one proxy.
    fn compare(&self, proxy: ProxyId, before: &State, after: &State, budget: &mut Budget) -> Seen {
        let (old, new) = match self.manager.preview(&proxy, before, after) {
            Preview::Waiting => return Seen::Waiting,
            Preview::Same => return Seen::Same,
            Preview::Changed(both) => *both,
        };
        let had = self.generator.generate(&old, None);
        let has = self.generator.generate(&new, Some((&old, &had)));
        let resources = difference::resources(&had, &has, budget);
        let known = had.failures();
        let failures = has.failures().iter().filter(|one| !known.contains(one));
        let failures: Vec<String> = failures
            .map(|failure| format!("{}: {}", failure.resource, failure.reason))
            .collect();
        if resources.is_empty() && failures.is_empty() {
            return Seen::Same;
        }
        Seen::Changed(ProxyChange {
            service: new.instance.identity().to_owned(),
            kind: new.instance.kind.as_str(),
            proxy,
            resources,
            failures,
        })
    }
}

impl Proxies {
    /// Counts a proxy, and puts it to those that change alike.
    fn add(
        &mut self,
        seen: Seen,
        authorizer: &Authorizer,
        groups: &mut BTreeMap<(&'static str, String), Group>,
    ) {
        let change = match seen {
            Seen::Same => return,
            Seen::Waiting => {
                self.waiting += 1;
                return;
            }
            Seen::Changed(change) => change,
        };
        self.changed += 1;
        let ProxyId { node, service_id } = &change.proxy;
        if !authorizer.service_read(&change.service) || !authorizer.node_read(node) {
            self.hidden += 1;
            return;
        }
        let alike = serde_json::to_string(&(&change.resources, &change.failures));
        let key = (change.kind, alike.unwrap_or_default());
        let group = groups.entry(key).or_insert_with(|| Group {
            kind: change.kind,
            count: 0,
            proxies: Vec::new(),
            resources: change.resources,
            failures: change.failures,
        });
        group.count += 1;
        if group.proxies.len() < NAMED {
            group.proxies.push(format!("{node}/{service_id}"));
        }
    }
}

impl Answer {
    /// The chains that the entry is a part of, before or after.
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
        let mut services = graph::services(&before, kind, name);
        services.extend(graph::services(&after, kind, name));
        for service in services {
            let shown = |state| match graph::chain_in_mesh(state, &service, datacenter) {
                Ok(chain) => serde_json::to_value(chain).unwrap_or_default(),
                Err(error) => Value::String(error),
            };
            let (old, new) = (shown(&before), shown(&after));
            if old == new {
                continue;
            }
            if self.chains.len() >= CHAINS || !authorizer.service_read(&service) {
                self.more_chains += 1;
                continue;
            }
            let mut fields = Vec::new();
            difference::documents(Some(&old), Some(&new), &mut fields, budget);
            self.chains.push(ChainChange { service, fields });
        }
    }
}

#[cfg(test)]
mod tests;
