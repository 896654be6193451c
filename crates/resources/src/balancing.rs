//! Load balancing: the policy of a cluster, and the hash policies of its routes.

use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    LbConfig, LbPolicy, LeastRequestLbConfig, RingHashLbConfig,
};
use envoy_types::pb::envoy::config::route::v3::route_action::{HashPolicy, hash_policy};
use envoy_types::pb::google::protobuf::{UInt32Value, UInt64Value};
use legate_model::{HashField, HashPolicy as Hashed, LoadBalancer, LoadBalancerPolicy};

use crate::duration::proto_duration;

/// The load balancing policy of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Balancing {
    /// Not configured: Envoy's default, round robin.
    #[default]
    Default,
    Random,
    RoundRobin,
    /// The number of instances to compare; 0 means Envoy's default.
    LeastRequest(u32),
    /// The minimum and maximum size of the ring; 0 means Envoy's default.
    RingHash(u64, u64),
    Maglev,
}

impl Balancing {
    pub(crate) fn of(balancer: Option<&LoadBalancer>) -> Self {
        let Some(balancer) = balancer else {
            return Self::Default;
        };
        match balancer.policy {
            LoadBalancerPolicy::Default => Self::Default,
            LoadBalancerPolicy::Random => Self::Random,
            LoadBalancerPolicy::RoundRobin => Self::RoundRobin,
            LoadBalancerPolicy::LeastRequest => {
                let config = balancer.least_request_config.as_ref();
                Self::LeastRequest(config.map_or(0, |config| config.choice_count))
            }
            LoadBalancerPolicy::RingHash => {
                let config = balancer.ring_hash_config.clone().unwrap_or_default();
                Self::RingHash(config.minimum_ring_size, config.maximum_ring_size)
            }
            LoadBalancerPolicy::Maglev => Self::Maglev,
        }
    }

    pub(crate) fn apply(self, cluster: &mut Cluster) {
        let number = |value: u64| (value > 0).then_some(UInt64Value { value });
        let policy = match self {
            Self::Default => return,
            Self::Random => LbPolicy::Random,
            Self::RoundRobin => LbPolicy::RoundRobin,
            Self::LeastRequest(choice_count) => {
                cluster.lb_config = (choice_count > 0).then(|| {
                    LbConfig::LeastRequestLbConfig(LeastRequestLbConfig {
                        choice_count: Some(UInt32Value {
                            value: choice_count,
                        }),
                        ..LeastRequestLbConfig::default()
                    })
                });
                LbPolicy::LeastRequest
            }
            Self::RingHash(minimum, maximum) => {
                let ring = RingHashLbConfig {
                    minimum_ring_size: number(minimum),
                    maximum_ring_size: number(maximum),
                    ..RingHashLbConfig::default()
                };
                let said = ring != RingHashLbConfig::default();
                cluster.lb_config = said.then_some(LbConfig::RingHashLbConfig(ring));
                LbPolicy::RingHash
            }
            Self::Maglev => LbPolicy::Maglev,
        };
        cluster.lb_policy = policy.into();
    }
}

/// Whether connections are hashed by their source address.
pub(crate) fn hashes_source_ip(balancer: &LoadBalancer) -> bool {
    balancer.is_hash_based() && balancer.hash_policies.iter().any(|one| one.source_ip)
}

/// Whether properties of requests are hashed, which only HTTP has.
pub(crate) fn hashes_requests(balancer: &LoadBalancer) -> bool {
    balancer.is_hash_based() && balancer.hash_policies.iter().any(|one| !one.source_ip)
}

/// The hash policies of requests, empty for a balancer that does not hash.
pub(crate) fn hash_policies(balancer: Option<&LoadBalancer>) -> Vec<HashPolicy> {
    let hashing = balancer.filter(|balancer| balancer.is_hash_based());
    let policies = hashing.into_iter().flat_map(|one| &one.hash_policies);
    policies.filter_map(policy).collect()
}

/// `None` for a policy without a field; such entries are refused when they are written.
fn policy(hashed: &Hashed) -> Option<HashPolicy> {
    use hash_policy::{ConnectionProperties, Cookie, Header, PolicySpecifier, QueryParameter};
    let name = hashed.field_value.clone();
    let specifier = match hashed.field {
        _ if hashed.source_ip => {
            PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip: true })
        }
        HashField::None => return None,
        HashField::Header => PolicySpecifier::Header(Header {
            header_name: name,
            ..Header::default()
        }),
        HashField::QueryParameter => PolicySpecifier::QueryParameter(QueryParameter { name }),
        HashField::Cookie => {
            let config = hashed.cookie_config.clone().unwrap_or_default();
            // A TTL of zero makes a session cookie; without a TTL Envoy sets no cookie.
            let lifetime = match (config.session, config.ttl) {
                (true, _) => Some(Duration::ZERO),
                (false, Duration::ZERO) => None,
                (false, ttl) => Some(ttl),
            };
            PolicySpecifier::Cookie(Cookie {
                name,
                ttl: lifetime.map(proto_duration),
                path: config.path,
                ..Cookie::default()
            })
        }
    };
    Some(HashPolicy {
        terminal: hashed.terminal,
        policy_specifier: Some(specifier),
    })
}
