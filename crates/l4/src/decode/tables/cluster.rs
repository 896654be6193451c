//! Clusters and their endpoints.

use super::core::{ADDRESS, BOOL_VALUE, CONFIG_SOURCE, DURATION, U32_VALUE};
use super::tls::UPSTREAM_TLS;
use crate::decode::table::{Enum, Field, Kind, Message};

pub(in crate::decode) static CLUSTER: Message = Message {
    name: "envoy.config.cluster.v3.Cluster",
    fields: &[
        Field::served(1, "name", Kind::String),
        Field::served(28, "alt_stat_name", Kind::String),
        Field::served(2, "type", Kind::Enum(&DISCOVERY_TYPE)),
        Field::served(38, "cluster_type", Kind::Message(&CUSTOM_CLUSTER_TYPE)),
        Field::served(3, "eds_cluster_config", Kind::Message(&EDS_CLUSTER)),
        Field::served(4, "connect_timeout", Kind::Message(&DURATION)),
        Field::served(6, "lb_policy", Kind::Enum(&LB_POLICY)),
        Field::served(33, "load_assignment", Kind::Message(&LOAD_ASSIGNMENT)),
        Field::served(10, "circuit_breakers", Kind::Message(&CIRCUIT_BREAKERS)),
        Field::served(16, "dns_refresh_rate", Kind::Message(&DURATION)),
        Field::served(17, "dns_lookup_family", Kind::Enum(&DNS_LOOKUP_FAMILY)),
        Field::served(19, "outlier_detection", Kind::Message(&OUTLIER_DETECTION)),
        Field::served(37, "least_request_lb_config", Kind::Message(&LEAST_REQUEST)),
        Field::served(27, "common_lb_config", Kind::Message(&COMMON_LB)),
        Field::served(24, "transport_socket", Kind::Message(&UPSTREAM_SOCKET)),
        Field::served(
            30,
            "upstream_connection_options",
            Kind::Message(&CONNECTION_OPTIONS),
        ),
        // It is empty: what it may have is refused.
        Field::harmless(56, "round_robin_lb_config", Kind::Message(&ROUND_ROBIN)),
    ],
    refused: &[
        (5, "per_connection_buffer_limit_bytes"),
        (8, "health_checks"),
        (9, "max_requests_per_connection"),
        (13, "http_protocol_options"),
        (14, "http2_protocol_options"),
        (18, "dns_resolvers"),
        (20, "cleanup_interval"),
        (21, "upstream_bind_config"),
        (22, "lb_subset_config"),
        (23, "ring_hash_lb_config"),
        (25, "metadata"),
        (26, "protocol_selection"),
        (29, "common_http_protocol_options"),
        (31, "close_connections_on_host_health_failure"),
        (32, "ignore_health_on_host_removal"),
        (34, "original_dst_lb_config"),
        (36, "typed_extension_protocol_options"),
        (39, "respect_dns_ttl"),
        (40, "filters"),
        (41, "load_balancing_policy"),
        (42, "lrs_server"),
        (43, "transport_socket_matches"),
        (44, "dns_failure_refresh_rate"),
        (45, "use_tcp_for_dns_lookups"),
        (46, "upstream_http_protocol_options"),
        (47, "track_timeout_budgets"),
        (48, "upstream_config"),
        (49, "track_cluster_stats"),
        (50, "preconnect_policy"),
        (51, "connection_pool_per_downstream_connection"),
        (52, "maglev_lb_config"),
        (53, "dns_resolution_config"),
        (54, "wait_for_warm_on_init"),
        (55, "typed_dns_resolver_config"),
        (57, "lrs_report_endpoint_metrics"),
        (58, "dns_jitter"),
        (59, "transport_socket_matcher"),
        (60, "per_connection_buffer_high_watermark_timeout"),
        (61, "stats_matcher"),
        (62, "queuing_policies"),
    ],
    choices: &[&[2, 38], &[37, 56]],
};

pub(in crate::decode) static CUSTOM_CLUSTER_TYPE: Message = Message {
    name: "envoy.config.cluster.v3.Cluster.CustomClusterType",
    fields: &[
        Field::served(2, "typed_config", Kind::Any(&[&AGGREGATE])),
        // Only the type of the configuration decides.
        Field::harmless(1, "name", Kind::String),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static AGGREGATE: Message = Message {
    name: "envoy.extensions.clusters.aggregate.v3.ClusterConfig",
    fields: &[Field::served(1, "clusters", Kind::String).many()],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static EDS_CLUSTER: Message = Message {
    name: "envoy.config.cluster.v3.Cluster.EdsClusterConfig",
    fields: &[
        Field::served(1, "eds_config", Kind::Message(&CONFIG_SOURCE)),
        Field::served(2, "service_name", Kind::String),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static LEAST_REQUEST: Message = Message {
    name: "envoy.config.cluster.v3.Cluster.LeastRequestLbConfig",
    fields: &[Field::served(1, "choice_count", Kind::Message(&U32_VALUE))],
    refused: &[(2, "active_request_bias"), (3, "slow_start_config")],
    choices: &[],
};

pub(in crate::decode) static ROUND_ROBIN: Message = Message {
    name: "envoy.config.cluster.v3.Cluster.RoundRobinLbConfig",
    fields: &[],
    refused: &[(1, "slow_start_config")],
    choices: &[],
};

pub(in crate::decode) static COMMON_LB: Message = Message {
    name: "envoy.config.cluster.v3.Cluster.CommonLbConfig",
    fields: &[
        Field::served(1, "healthy_panic_threshold", Kind::Message(&PERCENT)),
        // Updates of hosts are applied as they come; a delay only saves work.
        Field::harmless(4, "update_merge_window", Kind::Message(&DURATION)),
    ],
    refused: &[
        (2, "zone_aware_lb_config"),
        (3, "locality_weighted_lb_config"),
        (5, "ignore_new_hosts_until_first_hc"),
        (6, "close_connections_on_host_set_change"),
        (7, "consistent_hashing_lb_config"),
        (8, "override_host_status"),
    ],
    choices: &[],
};

pub(in crate::decode) static PERCENT: Message = Message {
    name: "envoy.type.v3.Percent",
    fields: &[Field::served(1, "value", Kind::Double)],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static CIRCUIT_BREAKERS: Message = Message {
    name: "envoy.config.cluster.v3.CircuitBreakers",
    fields: &[Field::served(1, "thresholds", Kind::Message(&THRESHOLDS)).many()],
    refused: &[(2, "per_host_thresholds")],
    choices: &[],
};

pub(in crate::decode) static THRESHOLDS: Message = Message {
    name: "envoy.config.cluster.v3.CircuitBreakers.Thresholds",
    fields: &[
        Field::served(1, "priority", Kind::Enum(&ROUTING_PRIORITY)),
        Field::served(2, "max_connections", Kind::Message(&U32_VALUE)),
        Field::served(3, "max_pending_requests", Kind::Message(&U32_VALUE)),
        // A TCP connection is no request.
        Field::harmless(4, "max_requests", Kind::Message(&U32_VALUE)),
        // Attempts to connect do not count as retries.
        Field::harmless(5, "max_retries", Kind::Message(&U32_VALUE)),
    ],
    refused: &[
        (6, "track_remaining"),
        (7, "max_connection_pools"),
        (8, "retry_budget"),
    ],
    choices: &[],
};

pub(in crate::decode) static OUTLIER_DETECTION: Message = Message {
    name: "envoy.config.cluster.v3.OutlierDetection",
    fields: &[
        Field::served(1, "consecutive_5xx", Kind::Message(&U32_VALUE)),
        Field::served(2, "interval", Kind::Message(&DURATION)),
        Field::served(3, "base_ejection_time", Kind::Message(&DURATION)),
        Field::served(4, "max_ejection_percent", Kind::Message(&U32_VALUE)),
        Field::served(5, "enforcing_consecutive_5xx", Kind::Message(&U32_VALUE)),
        Field::served(6, "enforcing_success_rate", Kind::Message(&U32_VALUE)),
        Field::served(
            11,
            "enforcing_consecutive_gateway_failure",
            Kind::Message(&U32_VALUE),
        ),
        Field::served(12, "split_external_local_origin_errors", Kind::Bool),
        Field::served(
            13,
            "consecutive_local_origin_failure",
            Kind::Message(&U32_VALUE),
        ),
        Field::served(
            14,
            "enforcing_consecutive_local_origin_failure",
            Kind::Message(&U32_VALUE),
        ),
        Field::served(
            15,
            "enforcing_local_origin_success_rate",
            Kind::Message(&U32_VALUE),
        ),
        Field::served(
            17,
            "enforcing_failure_percentage",
            Kind::Message(&U32_VALUE),
        ),
        Field::served(
            18,
            "enforcing_failure_percentage_local_origin",
            Kind::Message(&U32_VALUE),
        ),
        Field::served(21, "max_ejection_time", Kind::Message(&DURATION)),
        Field::served(25, "always_eject_one_host", Kind::Message(&BOOL_VALUE)),
        // It ejects nothing, because `enforcing_consecutive_gateway_failure` has to be 0.
        Field::harmless(10, "consecutive_gateway_failure", Kind::Message(&U32_VALUE)),
    ],
    refused: &[
        (7, "success_rate_minimum_hosts"),
        (8, "success_rate_request_volume"),
        (9, "success_rate_stdev_factor"),
        (16, "failure_percentage_threshold"),
        (19, "failure_percentage_minimum_hosts"),
        (20, "failure_percentage_request_volume"),
        (22, "max_ejection_time_jitter"),
        (23, "successful_active_health_check_uneject_host"),
        (24, "monitors"),
        (26, "detect_degraded_hosts"),
    ],
    choices: &[],
};

pub(in crate::decode) static CONNECTION_OPTIONS: Message = Message {
    name: "envoy.config.cluster.v3.UpstreamConnectionOptions",
    fields: &[Field::served(1, "tcp_keepalive", Kind::Message(&KEEPALIVE))],
    refused: &[
        (2, "set_local_interface_name_on_upstream_connections"),
        (3, "happy_eyeballs_config"),
    ],
    choices: &[],
};

pub(in crate::decode) static KEEPALIVE: Message = Message {
    name: "envoy.config.core.v3.TcpKeepalive",
    fields: &[
        Field::served(1, "keepalive_probes", Kind::Message(&U32_VALUE)),
        Field::served(2, "keepalive_time", Kind::Message(&U32_VALUE)),
        Field::served(3, "keepalive_interval", Kind::Message(&U32_VALUE)),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static LOAD_ASSIGNMENT: Message = Message {
    name: "envoy.config.endpoint.v3.ClusterLoadAssignment",
    fields: &[
        Field::served(1, "cluster_name", Kind::String),
        Field::served(2, "endpoints", Kind::Message(&LOCALITY_ENDPOINTS)).many(),
        Field::served(4, "policy", Kind::Message(&LOAD_POLICY)),
    ],
    refused: &[(5, "named_endpoints")],
    choices: &[],
};

pub(in crate::decode) static LOAD_POLICY: Message = Message {
    name: "envoy.config.endpoint.v3.ClusterLoadAssignment.Policy",
    fields: &[Field::served(
        3,
        "overprovisioning_factor",
        Kind::Message(&U32_VALUE),
    )],
    refused: &[
        (2, "drop_overloads"),
        (4, "endpoint_stale_after"),
        (6, "weighted_priority_health"),
    ],
    choices: &[],
};

pub(in crate::decode) static LOCALITY_ENDPOINTS: Message = Message {
    name: "envoy.config.endpoint.v3.LocalityLbEndpoints",
    fields: &[
        Field::served(2, "lb_endpoints", Kind::Message(&LB_ENDPOINT)).many(),
        Field::served(5, "priority", Kind::U32),
        // Without zone settings, which are refused, Envoy does not look at it.
        Field::harmless(1, "locality", Kind::Message(&LOCALITY)),
        // Only weighted localities use it, which are refused.
        Field::harmless(3, "load_balancing_weight", Kind::Message(&U32_VALUE)),
    ],
    refused: &[
        (6, "proximity"),
        (7, "load_balancer_endpoints"),
        (8, "leds_cluster_locality_config"),
        (9, "metadata"),
    ],
    choices: &[],
};

pub(in crate::decode) static LOCALITY: Message = Message {
    name: "envoy.config.core.v3.Locality",
    fields: &[
        // See the field with the locality.
        Field::harmless(1, "region", Kind::String),
        // As `region`.
        Field::harmless(2, "zone", Kind::String),
        // As `region`.
        Field::harmless(3, "sub_zone", Kind::String),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static LB_ENDPOINT: Message = Message {
    name: "envoy.config.endpoint.v3.LbEndpoint",
    fields: &[
        Field::served(1, "endpoint", Kind::Message(&ENDPOINT)),
        Field::served(2, "health_status", Kind::Enum(&HEALTH_STATUS)),
        Field::served(4, "load_balancing_weight", Kind::Message(&U32_VALUE)),
    ],
    refused: &[(3, "metadata"), (5, "endpoint_name")],
    choices: &[],
};

pub(in crate::decode) static ENDPOINT: Message = Message {
    name: "envoy.config.endpoint.v3.Endpoint",
    fields: &[Field::served(1, "address", Kind::Message(&ADDRESS))],
    refused: &[
        (2, "health_check_config"),
        (3, "hostname"),
        (4, "additional_addresses"),
        (5, "observability_name"),
    ],
    choices: &[],
};

pub(in crate::decode) static DISCOVERY_TYPE: Enum = Enum {
    name: "envoy.config.cluster.v3.Cluster.DiscoveryType",
    values: &[
        (0, "STATIC"),
        (1, "STRICT_DNS"),
        (2, "LOGICAL_DNS"),
        (3, "EDS"),
        (4, "ORIGINAL_DST"),
    ],
};

pub(in crate::decode) static LB_POLICY: Enum = Enum {
    name: "envoy.config.cluster.v3.Cluster.LbPolicy",
    values: &[
        (0, "ROUND_ROBIN"),
        (1, "LEAST_REQUEST"),
        (2, "RING_HASH"),
        (3, "RANDOM"),
        (5, "MAGLEV"),
        (6, "CLUSTER_PROVIDED"),
        (7, "LOAD_BALANCING_POLICY_CONFIG"),
    ],
};

pub(in crate::decode) static DNS_LOOKUP_FAMILY: Enum = Enum {
    name: "envoy.config.cluster.v3.Cluster.DnsLookupFamily",
    values: &[
        (0, "AUTO"),
        (1, "V4_ONLY"),
        (2, "V6_ONLY"),
        (3, "V4_PREFERRED"),
        (4, "ALL"),
    ],
};

pub(in crate::decode) static ROUTING_PRIORITY: Enum = Enum {
    name: "envoy.config.core.v3.RoutingPriority",
    values: &[(0, "DEFAULT"), (1, "HIGH")],
};

pub(in crate::decode) static HEALTH_STATUS: Enum = Enum {
    name: "envoy.config.core.v3.HealthStatus",
    values: &[
        (0, "UNKNOWN"),
        (1, "HEALTHY"),
        (2, "UNHEALTHY"),
        (3, "DRAINING"),
        (4, "TIMEOUT"),
        (5, "DEGRADED"),
    ],
};

pub(in crate::decode) static UPSTREAM_SOCKET: Message = Message {
    name: "envoy.config.core.v3.TransportSocket",
    fields: &[
        // Only the type of the configuration decides, as in Envoy.
        Field::harmless(1, "name", Kind::String),
        Field::served(3, "typed_config", Kind::Any(&[&UPSTREAM_TLS])),
    ],
    refused: &[],
    choices: &[],
};
