//! The server's own entry in the catalog: its node and, if it registers itself, the service and the check by
//! which Consul clients recognise servers.

use std::collections::BTreeMap;

use legate_model::{CheckStatus, HealthCheck, Node, ServiceInstance};
use legate_store::Registration;
use uuid::Uuid;

use crate::config::ServerConfig;

/// The Consul version whose API is implemented. Every answer that has Consul's version has this one, because
/// clients compare it, and the program reports it when invoked as `consul`.
pub const CONSUL_VERSION: &str = "1.21.0";

/// Legate's own version, in the fields for Consul's revision.
pub(crate) const REVISION: &str = concat!("legate-", env!("CARGO_PKG_VERSION"));

/// The id and name of the server's own service. The name is reserved.
pub(crate) const OWN_SERVICE: &str = "consul";

/// The check of a node that runs an agent. Consul derives it from gossip; here it passes while the server runs.
pub(crate) const SERF_HEALTH: &str = "serfHealth";

/// Port of the service `consul` without a port for servers: that of Consul's server RPC. Nothing listens on it then, but
/// clients expect it in the catalog.
pub(crate) const OWN_PORT: u16 = 8300;

/// The node and, if the server registers itself, its service and check.
pub(crate) fn registration(config: &ServerConfig) -> Registration {
    let address = config.advertise.to_string();
    let id = config.agent.node_id.clone();
    let node = Node {
        id: id.unwrap_or_else(|| Uuid::new_v4().to_string()),
        node: config.node_name.clone(),
        address: address.clone(),
        datacenter: config.datacenter.clone(),
        meta: config.agent.node_meta.clone(),
        locality: config.agent.locality.clone().map(Box::new),
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
    let mut meta = BTreeMap::from([("version".to_owned(), CONSUL_VERSION.to_owned())]);
    for (key, api) in [
        ("grpc_port", config.grpc),
        ("grpc_tls_port", config.grpc_tls),
    ] {
        if let Some(api) = api {
            meta.insert(key.to_owned(), api.port().to_string());
        }
    }
    // Metadata that Consul's servers set on their nodes.
    let mut node_meta = node.meta.clone();
    for (key, value) in [
        ("consul-network-segment", ""),
        ("consul-version", CONSUL_VERSION),
    ] {
        node_meta.insert(key.to_owned(), value.to_owned());
    }
    Registration {
        node: Node {
            meta: node_meta,
            tagged_addresses: tagged
                .chain(config.agent.tagged_addresses.clone())
                .collect(),
            ..node
        },
        service: Some(ServiceInstance {
            id: OWN_SERVICE.to_owned(),
            service: OWN_SERVICE.to_owned(),
            port: config
                .wan
                .as_ref()
                .map_or(OWN_PORT, |wan| wan.listen.port()),
            meta,
            ..ServiceInstance::default()
        }),
        checks: vec![serf_health(
            CheckStatus::Passing,
            "Agent alive and reachable",
        )],
        skip_node_update: false,
    }
}

/// The health check of the node.
pub(crate) fn serf_health(status: CheckStatus, output: &str) -> HealthCheck {
    HealthCheck {
        check_id: SERF_HEALTH.to_owned(),
        name: "Serf Health Status".to_owned(),
        status,
        output: output.to_owned(),
        ..HealthCheck::default()
    }
}
