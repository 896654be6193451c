//! The upstreams of a pod: those that the installation supports, on unused ports, with the
//! environment variables that the application reads.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::api::core::v1::PodSpec;

use super::installation::Installation;
use super::request::Refusal;
use super::service;
use crate::annotations::{Annotations, Port, UPSTREAMS, Upstream};

/// Upstreams with numeric ports.
#[derive(Debug, Default)]
pub(super) struct Upstreams {
    all: Vec<Upstream>,
    /// Whether a port was given by name.
    renamed: bool,
}

impl Upstreams {
    /// # Errors
    /// If an upstream is not supported, or two use the same port.
    pub(super) fn resolve(
        installation: &Installation,
        annotations: &Annotations,
        spec: &PodSpec,
    ) -> Result<Upstreams, Refusal> {
        let mut resolved = Upstreams::default();
        let mut taken = BTreeSet::new();
        for upstream in &annotations.upstreams {
            let mut upstream = upstream.clone();
            known_tenant(installation, &upstream)?;
            if !installation.config.external_servers.enabled {
                served(installation, &upstream)?;
            }
            if let Port::Name(_) = upstream.port {
                let port =
                    service::number(Some(spec), "connect-service-upstreams", &upstream.port)?;
                upstream.port = Port::Number(port);
                resolved.renamed = true;
            }
            if !taken.insert((address(&upstream), upstream.port.to_string())) {
                return Err(Refusal::new(format!(
                    "annotation {UPSTREAMS} has two upstreams on port {} of {}: use different ports",
                    upstream.port,
                    address(&upstream)
                )));
            }
            resolved.all.push(upstream);
        }
        Ok(resolved)
    }

    /// The annotation with numeric ports, if it had names.
    pub(super) fn rewritten(&self) -> Option<String> {
        let items: Vec<String> = self.all.iter().map(ToString::to_string).collect();
        self.renamed.then(|| items.join(","))
    }

    /// Names and values of the environment variables with the upstreams' addresses. Prepared
    /// queries have none.
    pub(super) fn variables(&self) -> impl Iterator<Item = (String, String)> {
        let services = self.all.iter().filter(|one| one.kind.is_service());
        services.flat_map(|upstream| {
            let name = upstream.name.to_uppercase().replace('-', "_");
            let host = (
                format!("{name}_CONNECT_SERVICE_HOST"),
                address(upstream).to_string(),
            );
            let port = (
                format!("{name}_CONNECT_SERVICE_PORT"),
                upstream.port.to_string(),
            );
            [host, port]
        })
    }
}

fn address(upstream: &Upstream) -> IpAddr {
    upstream.bind_address.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Refuses another tenant if tenants are not used.
fn known_tenant(installation: &Installation, upstream: &Upstream) -> Result<(), Refusal> {
    let tenancy = &installation.servers.http.tenancy;
    let (what, name, value) = if !upstream.partition.is_empty() && tenancy.partition.is_none() {
        ("partition", &upstream.partition, "adminPartitions.enabled")
    } else if !upstream.namespace.is_empty() && !installation.tenants().has_namespaces() {
        ("namespace", &upstream.namespace, "enableConsulNamespaces")
    } else {
        return Ok(());
    };
    Err(Refusal::new(format!(
        "annotation {UPSTREAMS} names the {what} {name} ({}), but the installation uses none: set \
         global.{value}, or remove it",
        upstream.name
    )))
}

/// Refuses upstreams that the chart's own servers do not reach: without peering in other clusters, and without federation in
/// other datacenters.
fn served(installation: &Installation, upstream: &Upstream) -> Result<(), Refusal> {
    let Upstream {
        name,
        datacenter,
        peer,
        ..
    } = upstream;
    let own = &installation.servers.datacenter;
    let refused = if !peer.is_empty() {
        if installation.config.peering.enabled {
            return Ok(());
        }
        format!(
            "a cluster peer ({name} of {peer}), but the installation has none: set global.peering.enabled, or \
             remove it"
        )
    } else if installation.config.federation.enabled || datacenter.is_empty() || datacenter == own {
        return Ok(());
    } else {
        format!(
            "another datacenter ({name} in {datacenter}), but the installation knows only {own}: set \
             global.federation.enabled, or remove it"
        )
    };
    Err(Refusal::new(format!(
        "annotation {UPSTREAMS} names {refused}"
    )))
}
