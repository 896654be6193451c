//! Where the instances of an upstream are, and which of them may get traffic.

use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::HealthStatus;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
};
use envoy_types::pb::google::protobuf::UInt32Value;
use legate_model::{CheckServiceNode, CheckStatus};
use legate_proxycfg::Instances;

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::listener::Bind;
use crate::memo::Memo;

/// Envoy's load balancers get slow with larger weights.
const MAX_WEIGHT: u32 = 128;

#[derive(Hash)]
struct Input<'a> {
    cluster: &'a str,
    endpoints: Vec<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Target {
    address: IpAddr,
    port: u16,
    healthy: bool,
    weight: u32,
}

/// The assignment of a cluster. Without instances it is empty, which tells Envoy not to wait.
pub(crate) fn assignment(
    memo: &Memo,
    cluster: &str,
    instances: &Arc<Instances>,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.assignment(instances, cluster, warnings, |warnings| {
        of_list(memo, cluster, instances, warnings)
    })
}

fn of_list(
    memo: &Memo,
    cluster: &str,
    instances: &Instances,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let endpoints = instances.iter().filter_map(|instance| {
        let target = target(instance, instances.only_passing);
        if target.is_none() {
            let (address, port) = instance.address();
            warnings.push(format!(
                "instance {} on node {} gets no traffic: {address:?} port {port} is not an IP address with a port",
                instance.service.id, instance.node.node
            ));
        }
        target
    });
    let input = Input {
        cluster,
        endpoints: endpoints.collect(),
    };
    memo.get(&input, |input| {
        Ok(encode::resource(input.cluster, &build(input), &[]))
    })
}

fn target(instance: &CheckServiceNode, only_passing: bool) -> Option<Target> {
    let (address, port) = instance.address();
    let address = address.parse().ok().filter(|_| port != 0)?;
    let weights = instance.service.weights;
    let has = |status| instance.checks.iter().any(|check| check.status == status);
    let warns = has(CheckStatus::Warning);
    let weight = match warns {
        true => weights.warning,
        false => weights.passing,
    };
    Some(Target {
        address,
        port,
        // No share of the traffic is the same as being down; Envoy has no weight for it.
        healthy: weight > 0 && !has(CheckStatus::Critical) && !(warns && only_passing),
        weight: weight.clamp(1, MAX_WEIGHT),
    })
}

fn build(input: &Input<'_>) -> ClusterLoadAssignment {
    let endpoints = input.endpoints.iter().map(|target| {
        let health = if target.healthy {
            HealthStatus::Healthy
        } else {
            HealthStatus::Unhealthy
        };
        let bind = Bind::Socket {
            address: target.address,
            port: target.port,
        };
        LbEndpoint {
            health_status: health.into(),
            load_balancing_weight: Some(UInt32Value {
                value: target.weight,
            }),
            host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(at(&bind))),
            ..LbEndpoint::default()
        }
    });
    group(input.cluster, endpoints.collect())
}

/// An assignment with a single endpoint, whose health is not known.
pub(crate) fn single(cluster: &str, bind: &Bind) -> ClusterLoadAssignment {
    let endpoint = LbEndpoint {
        host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(at(bind))),
        ..LbEndpoint::default()
    };
    group(cluster, vec![endpoint])
}

fn group(cluster: &str, lb_endpoints: Vec<LbEndpoint>) -> ClusterLoadAssignment {
    let locality = LocalityLbEndpoints {
        lb_endpoints,
        ..LocalityLbEndpoints::default()
    };
    ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![locality],
        ..ClusterLoadAssignment::default()
    }
}

fn at(bind: &Bind) -> Endpoint {
    Endpoint {
        address: Some(bind.address()),
        ..Endpoint::default()
    }
}
