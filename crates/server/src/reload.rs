//! Settings that a server takes while it runs: what its files register, its tokens, and the rates of
//! requests. Everything else holds from the next start on.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use legate_store::{Deregistration, Store, WriteTxn};

use crate::config::{AgentConfig, ServerConfig};
use crate::http::{ApiError, Rates};
use crate::seed;
use crate::server::StartError;

/// What the settings have registered, by id.
#[derive(Debug, Default, PartialEq)]
struct Registered {
    services: BTreeSet<String>,
    checks: BTreeSet<String>,
}

impl Registered {
    fn of(agent: &AgentConfig) -> Self {
        let services = agent.services.iter().map(|service| service.service_id());
        let checks = agent.checks.iter().map(|check| {
            // The id of a check that has none does not depend on the node.
            check.clone().into_defined("").check.check_id
        });
        Self {
            services: services.map(str::to_owned).collect(),
            checks: checks.collect(),
        }
    }
}

/// What can change of one server.
pub(crate) struct Reloadable {
    registered: Mutex<Registered>,
    rights: crate::acl::Rights,
    rates: Rates,
}

impl fmt::Debug for Reloadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reloadable")
    }
}

impl Reloadable {
    pub(crate) fn new(config: &ServerConfig, rights: crate::acl::Rights, rates: Rates) -> Self {
        Self {
            registered: Mutex::new(Registered::of(&config.agent)),
            rights,
            rates,
        }
    }

    /// Takes what can change of `new`. What files registered before and do not any more is
    /// deregistered.
    pub(crate) async fn take(
        &self,
        running: &ServerConfig,
        new: &ServerConfig,
        store: &Store,
    ) -> Result<(), StartError> {
        // Names of where the agent stands are those it was started with.
        let applied = ServerConfig {
            agent: new.agent.clone(),
            ..running.clone()
        };
        seed::register(&applied, store).await?;
        let next = Registered::of(&new.agent);
        let (services, checks) = {
            let mut known = self
                .registered
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let known = std::mem::replace(&mut *known, Registered::of(&new.agent));
            let gone = |old: BTreeSet<String>, new: &BTreeSet<String>| -> Vec<String> {
                old.into_iter().filter(|id| !new.contains(id)).collect()
            };
            (
                gone(known.services, &next.services),
                gone(known.checks, &next.checks),
            )
        };
        let node = running.node_name.clone();
        let remove = move |txn: &mut WriteTxn| {
            for id in &services {
                txn.deregister_with_sidecar(&node, id);
            }
            for id in &checks {
                txn.deregister(&Deregistration {
                    node: node.clone(),
                    service_id: None,
                    check_id: Some(id.clone()),
                });
            }
            Ok(())
        };
        seed::write(store, "what is no longer in the files".to_owned(), remove).await?;
        self.rights.held().set(new.agent.tokens.clone());
        self.rates.set(new.request_limits);
        Ok(())
    }
}

/// Takes a node out of the catalog, with all that is registered on it.
///
/// # Errors
/// When the store cannot be written.
pub(crate) async fn leave(node: &str, store: &Store) -> Result<(), StartError> {
    let node = node.to_owned();
    let leave = move |txn: &mut WriteTxn| {
        txn.deregister(&Deregistration {
            node: node.clone(),
            service_id: None,
            check_id: None,
        });
        Ok::<_, ApiError>(())
    };
    seed::write(store, "the node's leave".to_owned(), leave).await
}
