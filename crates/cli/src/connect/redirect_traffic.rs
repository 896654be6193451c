//! `connect redirect-traffic`: redirects the traffic of this machine or container to its proxy.

use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use legate_kubernetes::redirect::{Redirection, apply};
use serde_json::{Value, json};

use super::envoy_proxy::registration;
use crate::output::{line, list, text};
use crate::server_api::ApiOptions;

/// The default port for outbound connections.
const OUTBOUND: u16 = 15001;

#[derive(Args)]
pub(crate) struct Options {
    /// Node of the proxy, if it is not registered with an agent
    #[arg(long, default_value = "", value_name = "NAME")]
    node_name: String,
    /// Address of the DNS server for redirected queries
    #[arg(long, default_value = "", value_name = "ADDRESS")]
    consul_dns_ip: String,
    /// Port of that DNS server
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    consul_dns_port: u16,
    /// User id of the proxy
    #[arg(long, default_value = "", value_name = "UID")]
    proxy_uid: String,
    /// Id of the proxy, whose registration has the ports
    #[arg(long, default_value = "", value_name = "ID")]
    proxy_id: String,
    /// The proxy's port for inbound connections
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    proxy_inbound_port: u16,
    /// The proxy's port for outbound connections
    #[arg(long, default_value_t = OUTBOUND, value_name = "PORT")]
    proxy_outbound_port: u16,
    /// Inbound port to exclude; may be repeated
    #[arg(long, value_name = "PORT")]
    exclude_inbound_port: Vec<String>,
    /// Outbound port to exclude; may be repeated
    #[arg(long, value_name = "PORT")]
    exclude_outbound_port: Vec<String>,
    /// Destination network to exclude; may be repeated
    #[arg(long, value_name = "CIDR")]
    exclude_outbound_cidr: Vec<String>,
    /// User id to exclude; may be repeated
    #[arg(long, value_name = "UID")]
    exclude_uid: Vec<String>,
    /// Not supported: a network namespace other than that of this program
    #[arg(long, default_value = "", value_name = "PATH")]
    netns: String,
    #[command(flatten)]
    api: ApiOptions,
}

pub(super) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let done = redirect(options).await;
    done.map_err(|error| anyhow!("==> {error:#}"))?;
    line("    Successfully applied traffic redirection rules")?;
    Ok(ExitCode::SUCCESS)
}

async fn redirect(options: Options) -> anyhow::Result<()> {
    ensure!(!options.proxy_uid.is_empty(), "-proxy-uid is required");
    let by_id = !options.proxy_id.is_empty();
    ensure!(
        by_id || options.proxy_inbound_port != 0,
        "either -proxy-id or -proxy-inbound-port are required"
    );
    ensure!(
        !by_id || (options.proxy_inbound_port == 0 && options.proxy_outbound_port == OUTBOUND),
        "-proxy-inbound-port or -proxy-outbound-port cannot be provided together with -proxy-id. \
         Proxy's inbound and outbound ports are retrieved from the proxy's configuration instead."
    );
    ensure!(
        options.netns.is_empty(),
        "-netns is not supported: run this in the namespace, as `ip netns exec` does"
    );
    let failed = "Failed to create configuration to apply traffic redirection rules";
    let config = options.config().await.context(failed)?;
    let redirection = Redirection::parse(&config.to_string()).context(failed)?;
    apply::apply(&redirection).context("Error setting up traffic redirection rules")?;
    Ok(())
}

impl Options {
    async fn config(&self) -> anyhow::Result<Value> {
        let mut ports = (self.proxy_inbound_port, self.proxy_outbound_port);
        let mut excluded = Vec::new();
        if !self.proxy_id.is_empty() {
            let api = self.api.connect()?;
            let registered = registration(&api, &self.node_name, &self.proxy_id).await;
            let registered = registered.context("failed to fetch proxy service from Consul")?;
            let service = &registered.service;
            if !service["Proxy"].is_object() {
                bail!("service {} is not a proxy service", self.proxy_id);
            }
            (ports, excluded) = of_proxy(service)?;
        }
        excluded.extend(self.exclude_inbound_port.iter().cloned());
        Ok(json!({
            "ConsulDNSIP": self.consul_dns_ip,
            "ConsulDNSPort": self.consul_dns_port,
            "ProxyUserID": self.proxy_uid,
            "ProxyInboundPort": ports.0,
            "ProxyOutboundPort": ports.1,
            "ExcludeInboundPorts": excluded,
            "ExcludeOutboundPorts": self.exclude_outbound_port,
            "ExcludeOutboundCIDRs": self.exclude_outbound_cidr,
            "ExcludeUIDs": self.exclude_uid,
        }))
    }
}

/// The ports of a proxy, and the ports to exclude.
fn of_proxy(service: &Value) -> anyhow::Result<((u16, u16), Vec<String>)> {
    let proxy = &service["Proxy"];
    let port = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
    let set = |value: &Value| port(value).filter(|port| *port != 0);
    let inbound = set(&proxy["Config"]["bind_port"]).or(set(&service["Port"]));
    let outbound = set(&proxy["TransparentProxy"]["OutboundListenerPort"]);
    let mut excluded = Vec::new();
    for key in ["envoy_prometheus_bind_addr", "envoy_stats_bind_addr"] {
        let address = text(&proxy["Config"], key);
        if address.is_empty() {
            continue;
        }
        let port = address.rsplit_once(':').map(|(_, port)| port.to_owned());
        excluded.push(port.with_context(|| format!("failed parsing host and port from {key}"))?);
    }
    for path in list(&proxy["Expose"], "Paths") {
        excluded.extend(set(&path["ListenerPort"]).map(|port| port.to_string()));
    }
    let ports = (inbound.unwrap_or_default(), outbound.unwrap_or(OUTBOUND));
    Ok((ports, excluded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_from_the_registration() {
        let service = json!({"Port": 20000, "Proxy": {
            "Config": {"bind_port": 20001, "envoy_prometheus_bind_addr": "0.0.0.0:9102"},
            "TransparentProxy": {"OutboundListenerPort": 15002},
            "Expose": {"Paths": [{"ListenerPort": 21500}]},
        }});
        let (ports, excluded) = of_proxy(&service).unwrap();
        assert_eq!(ports, (20001, 15002));
        assert_eq!(excluded, ["9102", "21500"]);
    }
}
