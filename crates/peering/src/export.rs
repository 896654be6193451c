//! Conversion of instances to messages for another cluster.
//!
//! A service is sent in two forms. The plain form has its instances as they are registered, for callers outside the
//! mesh. The mesh form has one sidecar for each mesh gateway of this cluster, because callers in the mesh of the other
//! cluster reach the service only through these. No real sidecar is sent.
//!
//! Pure. Which services are exported, and to whom, the caller decides.

use legate_api::internal::common::Locality as LocalityMessage;
use legate_api::internal::peerstream::ExportedService;
use legate_api::internal::service as message;
use legate_model::{CheckServiceNode, HealthCheck, Locality, Node, ServiceInstance, ServiceKind};

/// Ends the name of a mesh form.
const SIDECAR: &str = "-sidecar-proxy";
/// The tagged address with the virtual IP of a cluster, which has no meaning in another one.
pub(crate) const OWN_VIRTUAL_IP: &str = "consul-virtual";

/// The id and service name of the mesh form of a service.
pub fn mesh_id(service: &str) -> String {
    format!("{service}{SIDECAR}")
}

/// The service of a mesh form; `None` if the name is not that of one.
pub(crate) fn destination(id: &str) -> Option<&str> {
    id.strip_suffix(SIDECAR)
        .filter(|service| !service.is_empty())
}

/// The plain form of a service from all its instances: without proxies, with one check for each instance. `None` if
/// the service has the name of a mesh form, with which it would be mistaken.
pub fn plain(service: &str, instances: &[CheckServiceNode]) -> Option<ExportedService> {
    if service.ends_with(SIDECAR) {
        return None;
    }
    let typical = |one: &&CheckServiceNode| one.service.kind == ServiceKind::Typical;
    let nodes = sorted(instances).into_iter().filter(typical);
    let nodes = nodes.map(|one| message::CheckServiceNode {
        node: Some(node(&one.node)),
        service: Some(plain_instance(&one.service)),
        checks: overall_check(one, &one.service.id, &one.service.service),
    });
    Some(ExportedService {
        nodes: nodes.collect(),
    })
}

/// What the mesh form of a service is made of.
#[derive(Debug, Clone, Copy)]
pub struct MeshForm<'a> {
    /// The service's name.
    pub service: &'a str,
    /// All mesh gateways of the partition, healthy or not.
    pub gateways: &'a [CheckServiceNode],
    /// The protocol of the service's chain.
    pub protocol: &'a str,
    /// The TLS server name that leads to the service at the gateways:
    /// `<service>.<namespace>.<partition>.<this cluster's name of the peering>.external.<trust domain>`.
    pub sni: &'a str,
    /// The URIs that the certificate of the server may have: that of the service, of the gateways, and of the targets
    /// of its chain if its protocol is tcp.
    pub spiffe_ids: &'a [String],
}

/// The mesh form of a service. Its health is that of the gateways.
pub fn mesh(form: &MeshForm<'_>) -> ExportedService {
    let gateways = sorted(form.gateways);
    let nodes = gateways.into_iter().enumerate();
    let nodes = nodes.map(|(i, gateway)| sidecar(form, i, gateway));
    ExportedService {
        nodes: nodes.collect(),
    }
}

fn sidecar(form: &MeshForm<'_>, i: usize, gateway: &CheckServiceNode) -> message::CheckServiceNode {
    let instance = |name: &str| match gateway.service.id.as_str() {
        "" => name.to_owned(),
        _ => format!("{name}-instance-{i}"),
    };
    let service = mesh_id(form.service);
    let id = instance(&service);
    message::CheckServiceNode {
        node: Some(node(&gateway.node)),
        checks: overall_check(gateway, &id, &service),
        service: Some(message::NodeService {
            kind: ServiceKind::ConnectProxy.as_str().to_owned(),
            id,
            service,
            proxy: Some(message::ConnectProxyConfig {
                destination_service_name: form.service.to_owned(),
                destination_service_id: instance(form.service),
            }),
            connect: Some(message::ServiceConnect {
                native: false,
                peer_meta: Some(message::PeeringServiceMeta {
                    sni: vec![form.sni.to_owned()],
                    spiffe_id: form.spiffe_ids.to_vec(),
                    protocol: form.protocol.to_owned(),
                }),
            }),
            ..reached_at(&gateway.service)
        }),
    }
}

fn plain_instance(instance: &ServiceInstance) -> message::NodeService {
    message::NodeService {
        id: instance.id.clone(),
        service: instance.service.clone(),
        tags: instance.tags.clone(),
        meta: instance.meta.clone(),
        enable_tag_override: instance.enable_tag_override,
        locality: instance.locality.as_deref().map(locality),
        ..reached_at(instance)
    }
}

/// Where and with which weights an instance is reached.
fn reached_at(instance: &ServiceInstance) -> message::NodeService {
    let tagged = instance.tagged_addresses.iter();
    let tagged = tagged.filter(|(purpose, _)| purpose.as_str() != OWN_VIRTUAL_IP);
    let tagged = tagged.map(|(purpose, tagged)| {
        let address = message::ServiceAddress {
            address: tagged.address.clone(),
            port: tagged.port.into(),
        };
        (purpose.clone(), address)
    });
    message::NodeService {
        address: instance.address.clone(),
        port: instance.port.into(),
        socket_path: instance.socket_path.clone(),
        tagged_addresses: tagged.collect(),
        weights: Some(message::Weights {
            passing: i32::try_from(instance.weights.passing).unwrap_or(i32::MAX),
            warning: i32::try_from(instance.weights.warning).unwrap_or(i32::MAX),
        }),
        ..message::NodeService::default()
    }
}

fn node(node: &Node) -> message::Node {
    message::Node {
        id: node.id.clone(),
        node: node.node.clone(),
        address: node.address.clone(),
        datacenter: node.datacenter.clone(),
        tagged_addresses: node.tagged_addresses.clone(),
        meta: node.meta.clone(),
        locality: node.locality.as_deref().map(locality),
        ..message::Node::default()
    }
}

fn locality(locality: &Locality) -> LocalityMessage {
    LocalityMessage {
        region: locality.region.clone(),
        zone: locality.zone.clone(),
    }
}

/// All checks as one, with the worst status. Consul sends `maintenance` for some, which its importers do not treat as
/// critical; such a check is critical, so that `critical` is sent here.
fn overall_check(
    of: &CheckServiceNode,
    service_id: &str,
    service_name: &str,
) -> Vec<message::HealthCheck> {
    const NAME: &str = "overall-check";
    if of.checks.is_empty() {
        return Vec::new();
    }
    let service_id = match service_id {
        "" => service_name,
        id => id,
    };
    let maintenance = |check: &HealthCheck| {
        check.check_id == "_node_maintenance" || check.check_id.starts_with("_service_maintenance:")
    };
    let status = match of.checks.iter().any(|check| maintenance(check)) {
        true => legate_model::CheckStatus::Critical,
        false => of.health(),
    };
    vec![message::HealthCheck {
        node: of.node.node.clone(),
        check_id: format!("{service_id}:{NAME}"),
        name: NAME.to_owned(),
        status: status.as_str().to_owned(),
        service_id: service_id.to_owned(),
        service_name: service_name.to_owned(),
        ..message::HealthCheck::default()
    }]
}

/// By node and id, so that equal instances are sent as equal bytes.
fn sorted(instances: &[CheckServiceNode]) -> Vec<&CheckServiceNode> {
    let mut sorted: Vec<&CheckServiceNode> = instances.iter().collect();
    sorted.sort_by(|a, b| {
        let order = a.node.node.cmp(&b.node.node);
        order.then_with(|| a.service.id.cmp(&b.service.id))
    });
    sorted
}
