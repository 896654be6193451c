//! `builtin/property-override`: sets or removes fields of Envoy messages by path.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::direction::{Direction, validate_proxy_type};
use super::target::TargetService;
use crate::invalid::Invalid;

/// Arguments of the extension.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PropertyOverride {
    /// `connect-proxy` or empty.
    pub proxy_type: String,
    /// Patches, applied in order.
    pub patches: Vec<PropertyPatch>,
    /// Whether errors list all known fields instead of the first ten.
    pub debug: bool,
}

/// One patch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PropertyPatch {
    /// Resources that the patch applies to.
    pub resource_filter: ResourceFilter,
    /// `add` or `remove`.
    pub op: String,
    /// Path of the field: field names, each preceded by a slash.
    pub path: String,
    /// New value of the field; with `add` only.
    pub value: Value,
}

/// Selects the resources of a patch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ResourceFilter {
    /// Type of the resources.
    pub resource_type: PatchedResource,
    /// Whether inbound resources of the proxy itself or outbound ones of its upstreams are patched.
    pub traffic_direction: Direction,
    /// Upstreams whose resources are patched; empty means all.
    pub services: Vec<TargetService>,
}

/// A resource type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PatchedResource {
    /// Unset.
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
    /// The full name of the Envoy message.
    pub fn message(self) -> Option<&'static str> {
        match self {
            Self::Default => None,
            Self::Cluster => Some("envoy.config.cluster.v3.Cluster"),
            Self::ClusterLoadAssignment => Some("envoy.config.endpoint.v3.ClusterLoadAssignment"),
            Self::Listener => Some("envoy.config.listener.v3.Listener"),
            Self::Route => Some("envoy.config.route.v3.RouteConfiguration"),
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
