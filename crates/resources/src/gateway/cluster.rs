//! Clusters of services behind gateways. Without TLS of their own: a mesh gateway passes on that of
//! the caller.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::cluster;
use envoy_types::pb::envoy::config::cluster::v3::{
    CircuitBreakers, Cluster, OutlierDetection, circuit_breakers,
};
use envoy_types::pb::google::protobuf::UInt32Value;
use legate_model::LoadBalancer;

use crate::balancing::Balancing;
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::memo::Memo;
use crate::settings::Limits;
use crate::tls;

/// A service behind a gateway, or a subset of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServiceCluster<'a> {
    /// The name of the cluster, and of its endpoints.
    pub(crate) name: &'a str,
    pub(crate) connect_timeout: Duration,
    /// Envoy's initial fetch timeout for the endpoints.
    pub(crate) fetch_timeout: Option<Duration>,
    pub(crate) balancer: Option<&'a LoadBalancer>,
    /// The circuit breakers, `None` for Envoy's defaults.
    pub(crate) limits: Option<&'a Limits>,
}

#[derive(Hash)]
struct Input<'a> {
    name: &'a str,
    connect_timeout: Duration,
    fetch_timeout: Option<Duration>,
    balancing: Balancing,
    limits: Option<&'a Limits>,
}

/// The cluster. Its endpoints are a separate resource with the same name.
pub(crate) fn of_service(
    memo: &Memo,
    cluster: &ServiceCluster<'_>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = Input {
        name: cluster.name,
        connect_timeout: cluster.connect_timeout,
        fetch_timeout: cluster.fetch_timeout,
        balancing: Balancing::of(cluster.balancer),
        limits: cluster.limits,
    };
    memo.get(&input, |input| {
        Ok(encode::resource(input.name, &build(input), &[input.name]))
    })
}

fn build(input: &Input<'_>) -> Cluster {
    let eds = cluster::EdsClusterConfig {
        eds_config: Some(tls::ads(input.fetch_timeout.map(proto_duration))),
        ..cluster::EdsClusterConfig::default()
    };
    let mut cluster = Cluster {
        name: input.name.to_owned(),
        cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(
            cluster::DiscoveryType::Eds.into(),
        )),
        eds_cluster_config: Some(eds),
        connect_timeout: Some(proto_duration(input.connect_timeout)),
        circuit_breakers: input.limits.map(breakers),
        outlier_detection: Some(OutlierDetection::default()),
        ..Cluster::default()
    };
    input.balancing.apply(&mut cluster);
    cluster
}

fn breakers(limits: &Limits) -> CircuitBreakers {
    let number = |value: Option<u32>| value.map(|value| UInt32Value { value });
    let thresholds = circuit_breakers::Thresholds {
        max_connections: number(limits.max_connections),
        max_pending_requests: number(limits.max_pending_requests),
        max_requests: number(limits.max_concurrent_requests),
        ..circuit_breakers::Thresholds::default()
    };
    CircuitBreakers {
        thresholds: vec![thresholds],
        ..CircuitBreakers::default()
    }
}
