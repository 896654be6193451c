//! The init container that redirects the pod's traffic, and its arguments.

use serde::Serialize;
use serde_json::{Value, json};

use super::installation::Installation;
use super::request::{DNS_PORT, INBOUND_PORT, Refusal, SIDECAR_USER};
use super::settings::Settings;
use super::sidecar;
use crate::annotations::TransparentProxy;

/// Name of the container.
pub(super) const NAME: &str = "mesh-redirect";
/// The proxy's port for outbound connections.
const OUTBOUND_PORT: u16 = 15001;

/// The configuration of `legate-k8s redirect`, with the names and types of consul-k8s.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Redirection {
    #[serde(rename = "ProxyUserID")]
    proxy_user_id: String,
    proxy_inbound_port: u16,
    proxy_outbound_port: u16,
    exclude_inbound_ports: Vec<String>,
    exclude_outbound_ports: Vec<String>,
    #[serde(rename = "ExcludeOutboundCIDRs")]
    exclude_outbound_cidrs: Vec<String>,
    #[serde(rename = "ExcludeUIDs")]
    exclude_uids: Vec<String>,
    #[serde(rename = "ConsulDNSIP", skip_serializing_if = "Option::is_none")]
    consul_dns_ip: Option<&'static str>,
    #[serde(rename = "ConsulDNSPort", skip_serializing_if = "Option::is_none")]
    consul_dns_port: Option<u16>,
}

/// The container. `open` are the ports served without mutual TLS.
///
/// # Errors
/// If the configuration cannot be serialized, which does not happen in practice.
pub(super) fn container(
    installation: &Installation,
    settings: &Settings,
    annotations: &TransparentProxy,
    open: &[u16],
) -> Result<Value, Refusal> {
    let texts = |ports: &mut dyn Iterator<Item = &u16>| -> Vec<String> {
        ports.map(ToString::to_string).collect()
    };
    let redirection = Redirection {
        proxy_user_id: SIDECAR_USER.to_string(),
        proxy_inbound_port: INBOUND_PORT,
        proxy_outbound_port: OUTBOUND_PORT,
        exclude_inbound_ports: texts(&mut open.iter().chain(&annotations.exclude_inbound_ports)),
        exclude_outbound_ports: texts(&mut annotations.exclude_outbound_ports.iter()),
        exclude_outbound_cidrs: annotations.exclude_outbound_cidrs.clone(),
        exclude_uids: annotations
            .exclude_uids
            .iter()
            .map(ToString::to_string)
            .collect(),
        consul_dns_ip: settings.dns.then_some("127.0.0.1"),
        consul_dns_port: settings.dns.then_some(DNS_PORT),
    };
    let redirection = serde_json::to_string(&redirection)
        .map_err(|error| Refusal::new(format!("the redirection cannot be written: {error}")))?;
    let mut container = json!({
        "name": NAME,
        "image": installation.sidecars.redirect_image,
        "args": ["redirect"],
        "env": [
            { "name": "CONSUL_REDIRECT_TRAFFIC_CONFIG", "value": redirection },
        ],
        "resources": {
            "requests": { "cpu": "50m", "memory": "25Mi" },
            "limits": { "memory": "150Mi" },
        },
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": false,
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"], "add": ["NET_ADMIN"] },
            "seccompProfile": { "type": "RuntimeDefault" },
        },
    });
    sidecar::set_pull_policy(&mut container, installation);
    Ok(container)
}
