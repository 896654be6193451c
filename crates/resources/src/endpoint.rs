//! Endpoints: the addresses of an upstream's instances, with weights and health.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::HealthStatus;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, cluster_load_assignment,
    lb_endpoint,
};
use envoy_types::pb::google::protobuf::UInt32Value;
use legate_model::{
    CheckServiceNode, CheckStatus, Distance, Locality, LocalityMode, ServiceInstance,
};
use legate_proxycfg::Instances;

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::listener::Bind;
use crate::memo::Memo;

/// Envoy's load balancers are slow with larger weights.
const MAX_WEIGHT: u32 = 128;

/// In percent. Effectively disables partial failover between groups, as in Consul.
const OVERPROVISIONING: u32 = 100_000;

#[derive(Hash)]
struct Input<'a> {
    cluster: &'a str,
    /// The groups in order of priority.
    groups: Vec<Vec<Target>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Target {
    address: IpAddr,
    port: u16,
    health: Health,
}

/// Whether an instance gets traffic, and its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Health {
    pub(crate) is_healthy: bool,
    pub(crate) weight: u32,
}

impl Health {
    pub(crate) fn status(self) -> HealthStatus {
        match self.is_healthy {
            true => HealthStatus::Healthy,
            false => HealthStatus::Unhealthy,
        }
    }
}

/// The endpoints of a cluster. Without instances the assignment is empty, so that Envoy does not
/// wait for it.
pub(crate) fn assignment(
    memo: &Memo,
    cluster: &str,
    instances: &Arc<Instances>,
    near: Option<&Locality>,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.assignment(instances, (cluster, near), warnings, |warnings| {
        of_list(memo, cluster, instances, near, warnings)
    })
}

/// The locality that a caller prefers among the instances of a target, if the target prioritizes by
/// locality.
pub(crate) fn near<'a>(
    caller: &'a ServiceInstance,
    target: &legate_discovery_chain::Target,
) -> Option<&'a Locality> {
    let wanted = target.prioritize_by_locality.as_ref();
    let prefers = wanted.is_some_and(|wanted| wanted.mode == LocalityMode::Failover);
    caller.locality.as_deref().filter(|_| prefers)
}

fn of_list(
    memo: &Memo,
    cluster: &str,
    instances: &Instances,
    near: Option<&Locality>,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let mut groups: BTreeMap<Option<Distance>, Vec<Target>> = BTreeMap::new();
    for instance in instances.iter() {
        let target = target(instance, instances.only_passing);
        if target.is_none() {
            let (address, port) = instance.address();
            warnings.push(format!(
                "instance {} on node {} gets no traffic: {address:?} port {port} is not an IP address with a port",
                instance.service.id, instance.node.node
            ));
        }
        let distance = near.map(|near| near.distance(instance.locality()));
        let group = target.map(|target| (groups.entry(distance).or_default(), target));
        if let Some((group, target)) = group {
            group.push(target);
        }
    }
    let input = Input {
        cluster,
        groups: groups.into_values().collect(),
    };
    memo.get(&input, |input| {
        Ok(encode::resource(input.cluster, &build(input), &[]))
    })
}

fn target(instance: &CheckServiceNode, only_passing: bool) -> Option<Target> {
    let (address, port) = instance.address();
    let address = address.parse().ok().filter(|_| port != 0)?;
    Some(Target {
        address,
        port,
        health: health(instance, only_passing),
    })
}

/// The health of an instance by its checks.
pub(crate) fn health(instance: &CheckServiceNode, only_passing: bool) -> Health {
    let weights = instance.service.weights;
    let has = |status| instance.checks.iter().any(|check| check.status == status);
    let warns = has(CheckStatus::Warning);
    let weight = match warns {
        true => weights.warning,
        false => weights.passing,
    };
    Health {
        // Envoy has no weight of zero, so that such an instance counts as unhealthy.
        is_healthy: weight > 0 && !has(CheckStatus::Critical) && !(warns && only_passing),
        weight: weight.clamp(1, MAX_WEIGHT),
    }
}

fn build(input: &Input<'_>) -> ClusterLoadAssignment {
    let mut groups: Vec<_> = input.groups.iter().map(|group| endpoints(group)).collect();
    // Without an empty group Envoy would wait.
    if groups.is_empty() {
        groups.push(Vec::new());
    }
    assigned(input.cluster, groups)
}

fn endpoints(targets: &[Target]) -> Vec<LbEndpoint> {
    let endpoints = targets.iter().map(|target| {
        let bind = Bind::Socket {
            address: target.address,
            port: target.port,
        };
        LbEndpoint {
            health_status: target.health.status().into(),
            load_balancing_weight: Some(UInt32Value {
                value: target.health.weight,
            }),
            host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(at(&bind))),
            ..LbEndpoint::default()
        }
    });
    endpoints.collect()
}

/// An assignment with a single endpoint of unknown health.
pub(crate) fn single(cluster: &str, bind: &Bind) -> ClusterLoadAssignment {
    let endpoint = LbEndpoint {
        host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(at(bind))),
        ..LbEndpoint::default()
    };
    assigned(cluster, vec![vec![endpoint]])
}

/// Groups in order of priority. A group receives traffic only if all groups before it are
/// unavailable; by default Envoy would shift part of the traffic as soon as some instances are
/// unhealthy.
fn assigned(cluster: &str, groups: Vec<Vec<LbEndpoint>>) -> ClusterLoadAssignment {
    let policy = (groups.len() > 1).then(|| cluster_load_assignment::Policy {
        overprovisioning_factor: Some(UInt32Value {
            value: OVERPROVISIONING,
        }),
        ..cluster_load_assignment::Policy::default()
    });
    let groups = (0..).zip(groups);
    let group = |(priority, lb_endpoints)| LocalityLbEndpoints {
        lb_endpoints,
        priority,
        ..LocalityLbEndpoints::default()
    };
    ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: groups.map(group).collect(),
        policy,
        ..ClusterLoadAssignment::default()
    }
}

fn at(bind: &Bind) -> Endpoint {
    Endpoint {
        address: Some(bind.address()),
        ..Endpoint::default()
    }
}
