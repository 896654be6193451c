//! What is in the tables from the first moment: the server's own node, what its settings register,
//! and the first token.

use std::collections::BTreeMap;

use legate_model::acl::Authorizer;
use legate_model::{CheckStatus, HealthCheck, Node, ServiceInstance};
use legate_runtime::Clock;
use legate_store::{Command, Registration, Store, WriteError, WriteTxn};
use uuid::Uuid;

use crate::acl;
use crate::config::ServerConfig;
use crate::http::{self, ApiError};
use crate::server::StartError;

/// The check of a node that runs an agent. Consul's gossip decides it; here it passes for as long as
/// the server runs, for it is the server itself.
pub(crate) const SERF_HEALTH: &str = "serfHealth";

/// Port of the service `consul`, which is Consul's RPC among servers. Nothing listens there; it is
/// what clients know the service by.
const OWN_PORT: u16 = 8300;

pub(crate) async fn seed(
    config: &ServerConfig,
    store: &Store,
    clock: &Clock,
) -> Result<(), StartError> {
    let refused = |what| move |source| StartError::Refused { what, source };
    let registration = own_node(config);
    let named = config.agent.node_id.is_some();
    store
        .write(move |txn| {
            let mut registration = registration.clone();
            let node = &mut registration.node;
            // Another server of this name may have been here first.
            if !named && let Some(known) = txn.read().node(&node.node) {
                node.id.clone_from(&known.id);
            }
            Ok::<_, WriteError>(txn.apply(Command::Register(Box::new(registration)))?)
        })
        .await
        .map_err(refused("the server's own node"))?;
    if let Some(token) = acl::initial_token(config, clock.now()) {
        token.validate()?;
        store
            .apply(Command::UpsertToken(Box::new(token)))
            .await
            .map_err(refused("the initial management token"))?;
    }
    register(config, store).await
}

/// The node, and where the server registers itself also its service.
fn own_node(config: &ServerConfig) -> Registration {
    let address = config.advertise.to_string();
    let id = config.agent.node_id.clone();
    let node = Node {
        id: id.unwrap_or_else(|| Uuid::new_v4().to_string()),
        node: config.node_name.clone(),
        address: address.clone(),
        datacenter: config.datacenter.clone(),
        meta: config.agent.node_meta.clone(),
        ..Node::default()
    };
    if !config.agent.registers_itself {
        return Registration {
            node,
            service: None,
            checks: Vec::new(),
            skip_node_update: false,
        };
    }
    let family = if config.advertise.is_ipv4() {
        "ipv4"
    } else {
        "ipv6"
    };
    let tagged = ["lan", "wan"].into_iter().flat_map(|network| {
        let names = [network.to_owned(), format!("{network}_{family}")];
        names.map(|name| (name, address.clone()))
    });
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let mut meta = BTreeMap::from([("version".to_owned(), version)]);
    for (key, api) in [
        ("grpc_port", config.grpc),
        ("grpc_tls_port", config.grpc_tls),
    ] {
        if let Some(api) = api {
            meta.insert(key.to_owned(), api.port().to_string());
        }
    }
    Registration {
        node: Node {
            tagged_addresses: tagged
                .chain(config.agent.tagged_addresses.clone())
                .collect(),
            ..node
        },
        service: Some(ServiceInstance {
            id: http::OWN_SERVICE.to_owned(),
            service: http::OWN_SERVICE.to_owned(),
            port: OWN_PORT,
            meta,
            ..ServiceInstance::default()
        }),
        checks: vec![HealthCheck {
            check_id: SERF_HEALTH.to_owned(),
            name: "Serf Health Status".to_owned(),
            status: CheckStatus::Passing,
            output: "Agent alive and reachable".to_owned(),
            ..HealthCheck::default()
        }],
        skip_node_update: false,
    }
}

/// Writes what the settings register, one after the other, so that an error says which it is about.
pub(crate) async fn register(config: &ServerConfig, store: &Store) -> Result<(), StartError> {
    let agent = &config.agent;
    let node = &config.node_name;
    for entry in &agent.config_entries {
        let what = format!("config entry {} {:?}", entry.kind().as_str(), entry.name());
        let (entry, datacenter) = (entry.clone(), config.datacenter.clone());
        write(store, what, move |txn| {
            http::bootstrap_entry(txn, entry.clone(), &datacenter)
        })
        .await?;
    }
    for service in &agent.services {
        let what = format!("service {:?}", service.service_id());
        let (service, node) = (service.clone(), node.clone());
        let datacenter = config.datacenter.clone();
        write(store, what, move |txn| {
            http::acceptable(&service, &datacenter)?;
            let all = Authorizer::manage_all();
            http::register_definition(txn, &all, &node, service.clone(), true)
        })
        .await?;
    }
    for check in &agent.checks {
        let what = format!("check {:?}", check.name);
        let (check, node) = (check.clone(), node.clone());
        write(store, what, move |txn| {
            check.validate()?;
            let all = Authorizer::manage_all();
            http::register_check(txn, &all, &node, check.clone())
        })
        .await?;
    }
    Ok(())
}

/// Writes what the settings ask for; `what` names it in errors.
pub(crate) async fn write(
    store: &Store,
    what: String,
    transaction: impl FnMut(&mut WriteTxn) -> Result<(), ApiError> + Send + 'static,
) -> Result<(), StartError> {
    let written = store.write(transaction).await;
    let failed = |error: ApiError| StartError::Registration {
        what,
        reason: error.text().to_owned(),
    };
    written.map(|_| ()).map_err(failed)
}
