//! `builtin/property-override`: fields of Envoy's messages are set or removed by their path.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::direction::{Direction, validate_proxy_type};
use super::target::TargetService;
use crate::invalid::Invalid;

/// The arguments.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PropertyOverride {
    /// `connect-proxy`, or left out.
    pub proxy_type: String,
    /// The changes, in their order.
    pub patches: Vec<PropertyPatch>,
    /// Errors name all fields that there are, instead of the first ten.
    pub debug: bool,
}

/// One change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PropertyPatch {
    /// The resources that are changed.
    pub resource_filter: ResourceFilter,
    /// `add` or `remove`.
    pub op: String,
    /// The names of fields, after slashes.
    pub path: String,
    /// What the field says from then on; with `add` only.
    pub value: Value,
}

/// Which resources are changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ResourceFilter {
    /// Their type.
    pub resource_type: PatchedResource,
    /// Whether they are the proxy's own side, or for upstreams.
    pub traffic_direction: Direction,
    /// The upstreams that they are for; all when there are none.
    pub services: Vec<TargetService>,
}

/// A type of resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PatchedResource {
    /// Not said.
    #[default]
    #[serde(rename = "")]
    Default,
    /// `envoy.config.cluster.v3.Cluster`.
    Cluster,
    /// `envoy.config.endpoint.v3.ClusterLoadAssignment`.
    ClusterLoadAssignment,
    /// `envoy.config.listener.v3.Listener`.
    Listener,
    /// `envoy.config.route.v3.RouteConfiguration`.
    Route,
}

impl PatchedResource {
    /// The full name of the message.
    pub fn message(self) -> Option<&'static str> {
        match self {
            Self::Default => None,
            Self::Cluster => Some("envoy.config.cluster.v3.Cluster"),
            Self::ClusterLoadAssignment => Some("envoy.config.endpoint.v3.ClusterLoadAssignment"),
            Self::Listener => Some("envoy.config.listener.v3.Listener"),
            Self::Route => Some("envoy.config.route.v3.RouteConfiguration"),
        }
    }

    /// The fields that are never changed: what a resource is called, and what holds TLS and access
    /// rules. Consul cannot set most of these, and can remove them.
    fn protected(self, direction: Direction) -> &'static [&'static str] {
        let inbound = direction == Direction::Inbound;
        match self {
            Self::Default => &[],
            Self::Cluster if inbound => &["name"],
            Self::Cluster => &["name", "transport_socket", "transport_socket_matches"],
            Self::ClusterLoadAssignment => &["cluster_name"],
            Self::Listener if inbound => &[
                "name",
                "filter_chains",
                "default_filter_chain",
                "filter_chain_matcher",
            ],
            Self::Listener => &["name", "filter_chains"],
            Self::Route if inbound => &["name", "virtual_hosts", "vhds", "typed_per_filter_config"],
            Self::Route => &["name"],
        }
    }
}

impl PropertyOverride {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        if self.patches.is_empty() {
            return Err(Invalid::new("Patches", "at least one patch is required"));
        }
        for (i, patch) in self.patches.iter().enumerate() {
            patch
                .validate()
                .map_err(|error| error.within(format!("Patches[{i}]")))?;
        }
        validate_proxy_type(&self.proxy_type)
    }
}

impl PropertyPatch {
    fn validate(&self) -> Result<(), Invalid> {
        let filter = &self.resource_filter;
        filter
            .validate()
            .map_err(|error| error.within("ResourceFilter"))?;
        match self.op.as_str() {
            "add" => {}
            "remove" if self.value.is_null() => {}
            "remove" => {
                let reason = "field Value is not supported for remove operation";
                return Err(Invalid::new("Value", reason));
            }
            "" => return Err(Invalid::new("Op", "field Op is required")),
            other => {
                let reason = format!("invalid Op {other:?}; supported values: add, remove");
                return Err(Invalid::new("Op", reason));
            }
        }
        let path = self.path.trim_start_matches('/');
        let field = path.split('/').next().unwrap_or_default();
        let protected = filter.resource_type.protected(filter.traffic_direction);
        if protected.contains(&field) {
            let reason = format!(
                "{field} of these resources is not changed: it is what they are called by, or holds \
                 their TLS or access rules"
            );
            return Err(Invalid::new("Path", reason));
        }
        Ok(())
    }
}

impl ResourceFilter {
    fn validate(&self) -> Result<(), Invalid> {
        if self.resource_type == PatchedResource::Default {
            let reason = "field ResourceType is required: cluster, cluster-load-assignment, listener \
                          or route";
            return Err(Invalid::new("ResourceType", reason));
        }
        self.traffic_direction.require("TrafficDirection")?;
        if !self.services.is_empty() && self.traffic_direction != Direction::Outbound {
            let reason = "patch contains non-empty ResourceFilter.Services but \
                          ResourceFilter.TrafficDirection is not \"outbound\"";
            return Err(Invalid::new("Services", reason));
        }
        for (at, service) in self.services.iter().enumerate() {
            let named = match service.name.is_empty() {
                true => Err(Invalid::new("Name", "service name is required")),
                false => service.validate(),
            };
            named.map_err(|error| error.within(format!("Services[{at}]")))?;
        }
        Ok(())
    }
}
