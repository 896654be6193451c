//! Registrations of gateway pods, which the annotation `gateway-kind` marks. Their id is the pod's
//! name.

use legate_model::TenancyName;
use serde_json::{Value, json};

use super::facts::{Pod, Service};
use super::registration::{Context, Registration, scrape_port};
use crate::annotations::Annotations;

/// Port of the ready listener of ingress gateways and sidecars, which consul-k8s registers as
/// theirs.
const INGRESS_PORT: u16 = 21000;
const TERMINATING_PORT: u16 = 8443;

pub(super) fn registration(context: &Context<'_>, kind: &str) -> Result<Registration, String> {
    let pod = context.pod;
    let name = pod
        .annotation("gateway-consul-service-name")
        .ok_or("The gateway has no annotation gateway-consul-service-name")?;
    let mut meta = context.marks(name);
    let mut gateway = json!({
        "Kind": kind, "ID": pod.key.name, "Service": name, "Address": pod.ip,
    });
    let mut config = serde_json::Map::new();
    match kind {
        "mesh-gateway" => {
            let port = port(pod, "mesh-gateway-container-port")?;
            gateway["Port"] = port.into();
            gateway["TaggedAddresses"] = tagged(context, port)?;
            if pod.annotation("consul-wan-federation") == Some("1") {
                meta.insert("consul-wan-federation".to_owned(), "1".into());
            }
        }
        // Its ports are those of its listeners.
        "api-gateway" => bind_everywhere(pod, &mut config),
        "terminating-gateway" => gateway["Port"] = TERMINATING_PORT.into(),
        "ingress-gateway" => {
            gateway["Port"] = INGRESS_PORT.into();
            gateway["TaggedAddresses"] = tagged(context, INGRESS_PORT)?;
            bind_everywhere(pod, &mut config);
        }
        other => {
            return Err(format!(
                "annotation gateway-kind is {other:?}: use mesh-gateway, terminating-gateway, \
                 ingress-gateway or api-gateway"
            ));
        }
    }
    let parsed = Annotations::parse(&pod.annotations).map_err(|error| error.to_string())?;
    if let Some(port) = scrape_port(&parsed) {
        let address = format!("{}:{port}", pod.ip);
        config.insert("envoy_prometheus_bind_addr".to_owned(), address.into());
    }
    // The user's configuration is the base; required values override it.
    let mut whole = parsed.proxy_config;
    whole.extend(config);
    if !whole.is_empty() {
        gateway["Proxy"] = json!({"Config": whole});
    }
    gateway["Meta"] = meta.into();
    if let Some(locality) = context.locality() {
        gateway["Locality"] = locality;
    }
    let namespace = namespace(context, kind)?;
    Ok(context.registration(gateway, namespace.as_deref()))
}

/// Lets a gateway listen at every address of its pod, also at those that only the pod itself has, to which
/// `kubectl port-forward` connects.
fn bind_everywhere(pod: &Pod, config: &mut serde_json::Map<String, Value>) {
    const EVERY: [&str; 2] = ["0.0.0.0", "::"];
    let version = usize::from(pod.ip.contains(':'));
    let mut addresses = json!({"all-interfaces": {"address": EVERY[version]}});
    if pod.both_versions {
        addresses["all-interfaces-of-other-version"] = json!({"address": EVERY[1 - version]});
    }
    config.insert("envoy_gateway_no_default_bind".to_owned(), true.into());
    config.insert("envoy_gateway_bind_addresses".to_owned(), addresses);
}

/// A mesh gateway belongs to its whole partition, as do others without the annotation.
fn namespace(context: &Context<'_>, kind: &str) -> Result<Option<String>, String> {
    let Some(default) = context.settings.tenants.default_namespace() else {
        return Ok(None);
    };
    let own = context.pod.annotation("gateway-namespace");
    let Some(own) = own.filter(|_| kind != "mesh-gateway") else {
        return Ok(Some(default));
    };
    // Normalized like the servers do, because the registration is compared with their response.
    let named = own.parse::<TenancyName>().ok();
    let named = named.filter(|name| !name.is_empty() && !name.is_every());
    let named = named.ok_or_else(|| {
        format!("annotation gateway-namespace is {own:?}, which is not a valid namespace")
    })?;
    Ok(Some(named.as_str().to_owned()))
}

/// The LAN and WAN addresses.
fn tagged(context: &Context<'_>, port: u16) -> Result<Value, String> {
    let pod = context.pod;
    let (address, wan_port) = wan(pod, context.service)?;
    Ok(json!({
        "lan": {"Address": pod.ip, "Port": port},
        "wan": {"Address": address, "Port": wan_port},
    }))
}

fn wan(pod: &Pod, service: Option<&Service>) -> Result<(String, u16), String> {
    let port = port(pod, "gateway-wan-port")?;
    let source = pod
        .annotation("gateway-wan-address-source")
        .unwrap_or("Service");
    let address = match source {
        "NodeName" => pod.node.clone(),
        "NodeIP" => pod.host_ip.clone(),
        "Static" => pod
            .annotation("gateway-wan-address-static")
            .ok_or("The gateway has no annotation gateway-wan-address-static")?
            .to_owned(),
        "Service" => {
            let service = service.ok_or(
                "The gateway's WAN address is that of its Service, but no Service selects the gateway",
            )?;
            service_address(pod, service)?
        }
        other => {
            return Err(format!(
                "annotation gateway-wan-address-source is {other:?}: use NodeName, NodeIP, Static or \
                 Service"
            ));
        }
    };
    Ok((address, port))
}

fn service_address(pod: &Pod, service: &Service) -> Result<String, String> {
    match service.kind.as_str() {
        "NodePort" => Ok(pod.host_ip.clone()),
        "ClusterIP" => Ok(service.cluster_ip.clone()),
        "LoadBalancer" => service.balancer.clone().ok_or_else(|| {
            format!(
                "The load balancer of the Service {} has no address yet",
                service.key.name
            )
        }),
        other => Err(format!(
            "The Service {} is of type {other}, which has no address for gateways",
            service.key.name
        )),
    }
}

fn port(pod: &Pod, annotation: &str) -> Result<u16, String> {
    let text = pod
        .annotation(annotation)
        .ok_or_else(|| format!("The gateway has no annotation {annotation}"))?;
    let port: Option<u16> = text.parse().ok();
    port.filter(|port| *port > 0)
        .ok_or_else(|| format!("annotation {annotation} is {text:?}, which is not a port"))
}
