//! The cluster of a program on the proxy's machine that an extension calls.

use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::{Cluster, cluster};
use envoy_types::pb::envoy::config::core::v3::{
    Address as ProtoAddress, SocketAddress, address, socket_address,
};
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
};
use legate_model::extension::{Address, Extension, Target};

use crate::cluster::{http2_only, set_http_options};
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};

const EXT_AUTHZ: &str = "local_ext_authz";
const ACCESS_LOG: &str = "local_access_log";

/// A cluster with one address.
#[derive(Clone, Debug, Hash)]
pub(super) struct LocalCluster {
    pub(super) name: String,
    to: To,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct To {
    address: Address,
    connect_timeout: Option<Duration>,
    grpc: bool,
}

impl LocalCluster {
    /// The cluster of an extension, `None` if it does not call a local program.
    pub(super) fn of(extension: &Extension) -> Option<Self> {
        match extension {
            Extension::ExtAuthz(authz) => {
                let grpc = authz.config.grpc_service.is_some();
                Self::to(EXT_AUTHZ, authz.config.target()?, grpc)
            }
            Extension::OtelAccessLogging(log) => {
                Self::to(ACCESS_LOG, &log.config.grpc_service.as_ref()?.target, true)
            }
            Extension::Lua(_) | Extension::Wasm(_) | Extension::PropertyOverride(_) => None,
        }
    }

    fn to(name: &str, target: &Target, grpc: bool) -> Option<Self> {
        let to = To {
            address: target.address()?,
            connect_timeout: target.timeout(),
            grpc,
        };
        let name = name.to_owned();
        Some(Self { name, to })
    }

    pub(super) fn resource(&self) -> EncodedResource {
        let To { address, grpc, .. } = &self.to;
        let kind = match address.host.as_str() {
            "localhost" => cluster::DiscoveryType::StrictDns,
            _ => cluster::DiscoveryType::Static,
        };
        let mut cluster = Cluster {
            name: self.name.clone(),
            cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(kind.into())),
            connect_timeout: self.to.connect_timeout.map(proto_duration),
            load_assignment: Some(self.assignment()),
            ..Cluster::default()
        };
        if *grpc {
            set_http_options(&mut cluster, http2_only());
        }
        encode::resource(&self.name, &cluster, &[])
    }

    fn assignment(&self) -> ClusterLoadAssignment {
        let Address { host, port } = &self.to.address;
        let socket = address::Address::SocketAddress(SocketAddress {
            address: host.clone(),
            port_specifier: Some(socket_address::PortSpecifier::PortValue((*port).into())),
            ..SocketAddress::default()
        });
        let endpoint = lb_endpoint::HostIdentifier::Endpoint(Endpoint {
            address: Some(ProtoAddress {
                address: Some(socket),
            }),
            ..Endpoint::default()
        });
        let endpoint = LbEndpoint {
            host_identifier: Some(endpoint),
            ..LbEndpoint::default()
        };
        ClusterLoadAssignment {
            cluster_name: self.name.clone(),
            endpoints: vec![LocalityLbEndpoints {
                lb_endpoints: vec![endpoint],
                ..LocalityLbEndpoints::default()
            }],
            ..ClusterLoadAssignment::default()
        }
    }
}

/// Gives each cluster a unique name, numbered from the second one on. Extensions that call the same
/// address in the same way share a cluster.
pub(super) fn name<'a>(clusters: impl Iterator<Item = &'a mut LocalCluster>) {
    let mut taken: Vec<(String, String, To)> = Vec::new();
    for cluster in clusters {
        let usual = cluster.name.clone();
        let known = taken
            .iter()
            .find(|(kind, _, to)| *kind == usual && *to == cluster.to);
        if let Some((_, name, _)) = known {
            cluster.name.clone_from(name);
            continue;
        }
        let before = taken.iter().filter(|(kind, ..)| *kind == usual).count();
        if before > 0 {
            cluster.name = format!("{usual}_{}", before + 1);
        }
        taken.push((usual, cluster.name.clone(), cluster.to.clone()));
    }
}
