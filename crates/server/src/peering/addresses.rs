//! Where the servers of this cluster are reached by those of others: directly or through mesh gateways.

use legate_model::{CheckServiceNode, ConfigEntry, ConfigKind, ServiceKind, Tenancy};
use legate_store::ReadTxn;

use crate::config::ServerConfig;
use crate::own_node::OWN_SERVICE;

/// Why no address can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAddress {
    #[error(
        "servers are configured to PeerThroughMeshGateways, but no mesh gateway instances are registered"
    )]
    NoGateway,
    #[error("a grpc bind port must be specified in the configuration for all servers")]
    NoPort,
}

/// Whether servers of peered clusters reach each other through mesh gateways.
pub(crate) fn through_gateways(txn: &ReadTxn<'_>) -> bool {
    txn.in_tenancy(&Tenancy::default(), |txn| {
        let entry = txn.config_entry(ConfigKind::Mesh, "mesh");
        match entry.as_deref() {
            Some(ConfigEntry::Mesh(mesh)) => {
                let peering = mesh.peering.as_ref();
                peering.is_some_and(|peering| peering.peer_through_mesh_gateways)
            }
            _ => false,
        }
    })
}

/// The addresses at which servers of other clusters reach those of this one.
pub(crate) fn advertised(
    txn: &ReadTxn<'_>,
    config: &ServerConfig,
) -> Result<Vec<String>, NoAddress> {
    if through_gateways(txn) {
        let gateways = gateways(txn, CheckServiceNode::wan_address);
        return match gateways.is_empty() {
            true => Err(NoAddress::NoGateway),
            false => Ok(gateways),
        };
    }
    let servers = txn.in_tenancy(&Tenancy::default(), |txn| txn.service(OWN_SERVICE));
    // Not what somebody else registers with the name.
    let servers = servers
        .iter()
        .filter(|server| server.service.id == OWN_SERVICE);
    let mut addresses: Vec<_> = servers.filter_map(of_server).collect();
    addresses.sort();
    addresses.dedup();
    if addresses.is_empty() {
        let port = config.grpc_tls.or(config.grpc).ok_or(NoAddress::NoPort)?;
        addresses.push(host_and_port(&config.advertise.to_string(), port.port()));
    }
    Ok(addresses)
}

/// The address of a server's gRPC port, with TLS if it has one.
fn of_server(server: &CheckServiceNode) -> Option<String> {
    let node = &server.node;
    let wan = node
        .tagged_addresses
        .get("wan")
        .filter(|wan| !wan.is_empty());
    let port = ["grpc_tls_port", "grpc_port"].into_iter().find_map(|key| {
        let port = server.service.meta.get(key)?.parse::<u16>().ok()?;
        (port != 0).then_some(port)
    })?;
    Some(host_and_port(wan.unwrap_or(&node.address), port))
}

/// The mesh gateways of this cluster, for its own servers.
pub(crate) fn own_gateways(txn: &ReadTxn<'_>) -> Vec<String> {
    gateways(txn, CheckServiceNode::address)
}

fn gateways(txn: &ReadTxn<'_>, address: fn(&CheckServiceNode) -> (&str, u16)) -> Vec<String> {
    let all = txn.in_tenancy(&Tenancy::default(), |txn| {
        txn.gateways_of_kind(ServiceKind::MeshGateway)
    });
    let addresses = all.iter().map(address);
    let mut addresses: Vec<_> = addresses
        .filter(|(host, _)| !host.is_empty())
        .map(|(host, port)| host_and_port(host, port))
        .collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

fn host_and_port(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}
