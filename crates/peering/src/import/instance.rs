//! Conversion of one instance with its node and checks.

use std::collections::BTreeSet;
use std::sync::Arc;

use legate_api::internal::common::{EnterpriseMeta, Locality as LocalityMessage};
use legate_api::internal::service as message;
use legate_model::name::{validate_datacenter, validate_service_name};
use legate_model::{
    CheckServiceNode, CheckStatus, ConnectProxy, HealthCheck, Invalid, Locality, Node, PeerMeta,
    RegisterRequest, ServiceAddress, ServiceConnect, ServiceInstance, ServiceKind, SpiffeId,
    TenancyName, TrustDomain, Weights,
};
use prost::Message;

use super::{CHECKS, INSTANCE_BYTES, Rules, at_most};
use crate::export::{OWN_VIRTUAL_IP, destination};

/// The longest TLS server name and the longest name of a protocol, in bytes.
const SNI_BYTES: usize = 253;
const PROTOCOL_BYTES: usize = 64;
/// The tagged address with an IP by which the callers in one cluster reach a service, such as that of a service of
/// Kubernetes. In another cluster it may be the address of something else.
const VIRTUAL_IP: &str = "virtual";

/// Converts an instance of the service or mesh form `id`.
pub(super) fn read(
    id: &str,
    one: message::CheckServiceNode,
    rules: &Rules,
) -> Result<CheckServiceNode, Invalid> {
    at_most("", "bytes", one.encoded_len(), INSTANCE_BYTES)?;
    let missing = |field: &str| Invalid::new(field, "it is missing");
    let node = one.node.ok_or_else(|| missing("Node"))?;
    let service = one.service.ok_or_else(|| missing("Service"))?;
    let within = |error: Invalid| error.within("Service");
    let service = match destination(id) {
        None => instance(id, ServiceKind::Typical, service).map_err(within)?,
        Some(of) => sidecar(id, of, service, rules).map_err(within)?,
    };
    at_most("Checks", "checks", one.checks.len(), CHECKS)?;
    let (node, checks) = node_and_checks(node, one.checks, &service)?;
    Ok(CheckServiceNode {
        node: Arc::new(node),
        service: Arc::new(service),
        checks: checks.into_iter().map(Arc::new).collect(),
    })
}

/// What both forms have in common. The proxy and its mesh settings are left out.
fn instance(
    name: &str,
    kind: ServiceKind,
    service: message::NodeService,
) -> Result<ServiceInstance, Invalid> {
    if service.kind != kind.as_str() {
        let (own, given) = (kind.as_str(), &service.kind);
        let reason = format!("it must be {own:?} for a service of this name, not {given:?}");
        return Err(Invalid::new("Kind", reason));
    }
    if service.service.to_lowercase() != name.to_lowercase() {
        let reason = format!("it is not that of the resource, {name:?}");
        return Err(Invalid::new("Service", reason));
    }
    if service.id.is_empty() {
        return Err(Invalid::new("ID", "it is missing"));
    }
    default_namespace(service.enterprise_meta.as_ref())?;
    let mut tagged = Vec::new();
    for (purpose, address) in service.tagged_addresses {
        if purpose != OWN_VIRTUAL_IP && purpose != VIRTUAL_IP {
            let port = port(&format!("TaggedAddresses.{purpose}.Port"), address.port)?;
            let address = address.address;
            tagged.push((purpose, ServiceAddress { address, port }));
        }
    }
    let instance = ServiceInstance {
        kind,
        id: service.id,
        service: service.service,
        tags: service.tags,
        address: service.address,
        tagged_addresses: tagged.into_iter().collect(),
        meta: service.meta,
        port: port("Port", service.port)?,
        socket_path: service.socket_path,
        weights: weights(service.weights.unwrap_or_default())?,
        enable_tag_override: service.enable_tag_override,
        locality: locality(service.locality),
        ..ServiceInstance::default()
    };
    instance.validate_imported()?;
    Ok(instance)
}

/// The sidecar of a mesh form, which is a mesh gateway of the other cluster.
fn sidecar(
    name: &str,
    of: &str,
    mut service: message::NodeService,
    rules: &Rules,
) -> Result<ServiceInstance, Invalid> {
    let proxy = service.proxy.take().unwrap_or_default();
    if proxy.destination_service_name.to_lowercase() != of.to_lowercase() {
        let reason = format!("it must be {of:?}, of which {name:?} is the mesh form");
        return Err(Invalid::new("Proxy.DestinationServiceName", reason));
    }
    let destination_id = validate_service_name(&proxy.destination_service_id);
    destination_id
        .map_err(|error| Invalid::new("Proxy.DestinationServiceID", error.to_string()))?;
    let meta = service.connect.take().and_then(|connect| connect.peer_meta);
    let meta = peer_meta(meta.unwrap_or_default(), rules)
        .map_err(|error| error.within("Connect.PeerMeta"))?;
    Ok(ServiceInstance {
        proxy: ConnectProxy {
            destination_service_name: proxy.destination_service_name,
            destination_service_id: proxy.destination_service_id,
            ..ConnectProxy::default()
        },
        connect: ServiceConnect {
            peer_meta: Some(Box::new(meta)),
            ..ServiceConnect::default()
        },
        ..instance(name, ServiceKind::ConnectProxy, service)?
    })
}

/// Names and identities must be in one trust domain, which belongs to no one else: a mesh gateway routes by these
/// names, together with those of its own cluster.
fn peer_meta(meta: message::PeeringServiceMeta, rules: &Rules) -> Result<PeerMeta, Invalid> {
    let Some(first) = meta.spiffe_id.first() else {
        return Err(Invalid::new("SpiffeID", "there must be at least one"));
    };
    let parse = |uri: &str| {
        let id = uri.parse::<SpiffeId>();
        id.map_err(|error| Invalid::new("SpiffeID", error.to_string()))
    };
    let trust_domain = parse(first)?.trust_domain().clone();
    rules.check(&trust_domain)?;
    for uri in &meta.spiffe_id {
        let id = parse(uri)?;
        let serves = matches!(id, SpiffeId::Service { .. } | SpiffeId::MeshGateway { .. });
        if !serves || *id.trust_domain() != trust_domain {
            let reason = format!("{uri:?} must be a service or a mesh gateway in {trust_domain}");
            return Err(Invalid::new("SpiffeID", reason));
        }
    }
    if meta.sni.is_empty() {
        return Err(Invalid::new("SNI", "there must be at least one"));
    }
    let end = format!(".external.{trust_domain}");
    for sni in &meta.sni {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b".-_".contains(&b);
        let valid = sni.len() <= SNI_BYTES
            && sni.bytes().all(allowed)
            && sni.len() > end.len()
            && sni.to_ascii_lowercase().ends_with(&end);
        if !valid {
            let sni: String = sni.chars().take(80).collect();
            let reason = format!("{sni:?} must be a host name that ends with {end:?}");
            return Err(Invalid::new("SNI", reason));
        }
    }
    at_most("Protocol", "bytes", meta.protocol.len(), PROTOCOL_BYTES)?;
    Ok(PeerMeta {
        sni: meta.sni,
        spiffe_ids: meta.spiffe_id,
        protocol: meta.protocol,
    })
}

/// The rules are those of a registration.
fn node_and_checks(
    node: message::Node,
    checks: Vec<message::HealthCheck>,
    service: &ServiceInstance,
) -> Result<(Node, Vec<HealthCheck>), Invalid> {
    if !node.datacenter.is_empty() {
        let named = validate_datacenter(&node.datacenter);
        named.map_err(|error| Invalid::new("Node.Datacenter", error.to_string()))?;
    }
    let mut ids = BTreeSet::new();
    let mut converted = Vec::with_capacity(checks.len());
    for (i, one) in checks.into_iter().enumerate() {
        let within = |error: Invalid| error.within(format_args!("Checks[{i}]"));
        if !ids.insert(one.check_id.to_lowercase()) {
            let reason = format!("{:?} is there twice", one.check_id);
            return Err(within(Invalid::new("CheckID", reason)));
        }
        converted.push(check(one, service).map_err(within)?);
    }
    let request = RegisterRequest {
        datacenter: node.datacenter,
        id: node.id,
        node: node.node,
        address: node.address,
        tagged_addresses: node.tagged_addresses,
        node_meta: node.meta,
        locality: locality(node.locality),
        checks: converted,
        ..RegisterRequest::default()
    };
    request
        .validate()
        .map_err(|error| match error.path().starts_with("Checks[") {
            true => error,
            false => error.within("Node"),
        })?;
    let parts = request.into_parts("");
    Ok((parts.node, parts.checks))
}

fn check(check: message::HealthCheck, service: &ServiceInstance) -> Result<HealthCheck, Invalid> {
    if check.check_id.is_empty() {
        return Err(Invalid::new("CheckID", "it is missing"));
    }
    let of_service = !check.service_id.is_empty();
    if of_service && check.service_id != service.id {
        let reason = format!(
            "it is neither empty nor that of the instance, {:?}",
            service.id
        );
        return Err(Invalid::new("ServiceID", reason));
    }
    Ok(HealthCheck {
        node: check.node,
        check_id: check.check_id,
        name: check.name,
        // `maintenance` of Consul's exporters, and whatever is not known: no traffic.
        status: check.status.parse().unwrap_or(CheckStatus::Critical),
        notes: check.notes,
        output: check.output,
        service_name: match of_service {
            true => service.service.clone(),
            false => String::new(),
        },
        service_id: check.service_id,
        service_tags: check.service_tags,
        r#type: check.r#type,
        interval: check.interval,
        timeout: check.timeout,
        exposed_port: port("ExposedPort", check.exposed_port)?,
        ..HealthCheck::default()
    })
}

/// Reads a trust domain.
pub(super) fn trust_domain(field: &str, text: &str) -> Result<TrustDomain, Invalid> {
    let domain = text.parse::<TrustDomain>();
    domain.map_err(|error| Invalid::new(field, error.to_string()))
}

/// Resources are identified by bare names, which would be mistaken for those of the namespace `default`.
fn default_namespace(of: Option<&EnterpriseMeta>) -> Result<(), Invalid> {
    let namespace = of.map_or("", |of| of.namespace.as_str());
    match namespace.parse::<TenancyName>() {
        Ok(name) if name.is_default() => Ok(()),
        _ => {
            let namespace: String = namespace.chars().take(80).collect();
            let reason = format!(
                "{namespace:?} is not served: only services of the namespace default are imported"
            );
            Err(Invalid::new("EnterpriseMeta.Namespace", reason))
        }
    }
}

fn port(field: &str, port: i32) -> Result<u16, Invalid> {
    u16::try_from(port).map_err(|_| Invalid::new(field, format!("{port} must be from 0 to 65535")))
}

fn weights(weights: message::Weights) -> Result<Weights, Invalid> {
    let read = |field: &str, value: i32| {
        let error = |_| Invalid::new(field, format!("{value} must not be negative"));
        u32::try_from(value).map_err(error)
    };
    match (weights.passing, weights.warning) {
        // Unset, as in registrations.
        (0, 0) => Ok(Weights::default()),
        (passing, warning) => Ok(Weights {
            passing: read("Weights.Passing", passing)?,
            warning: read("Weights.Warning", warning)?,
        }),
    }
}

fn locality(locality: Option<LocalityMessage>) -> Option<Box<Locality>> {
    let locality = locality.filter(|one| !one.region.is_empty() || !one.zone.is_empty())?;
    Some(Box::new(Locality {
        region: locality.region,
        zone: locality.zone,
    }))
}
