//! Listeners, their filters and where they lead.

use super::access_log::ACCESS_LOG;
use super::core::{ADDRESS, CIDR_RANGE, DURATION, U32_VALUE, U64_VALUE};
use super::rbac::RBAC_FILTER;
use super::tls::DOWNSTREAM_TLS;
use crate::decode::table::{Enum, Field, Kind, Message};

pub(in crate::decode) static LISTENER: Message = Message {
    name: "envoy.config.listener.v3.Listener",
    fields: &[
        Field::served(1, "name", Kind::String),
        Field::served(2, "address", Kind::Message(&ADDRESS)),
        Field::served(28, "stat_prefix", Kind::String),
        Field::served(3, "filter_chains", Kind::Message(&FILTER_CHAIN)).many(),
        Field::served(25, "default_filter_chain", Kind::Message(&FILTER_CHAIN)),
        Field::served(9, "listener_filters", Kind::Message(&LISTENER_FILTER)).many(),
        Field::served(15, "listener_filters_timeout", Kind::Message(&DURATION)),
        Field::served(17, "continue_on_listener_filters_timeout", Kind::Bool),
        Field::served(16, "traffic_direction", Kind::Enum(&TRAFFIC_DIRECTION)),
        Field::served(22, "access_log", Kind::Message(&ACCESS_LOG)).many(),
        // The kernel spreads the connections; only how evenly differs.
        Field::harmless(20, "connection_balance_config", Kind::Message(&BALANCE)),
    ],
    refused: &[
        (4, "use_original_dst"),
        (5, "per_connection_buffer_limit_bytes"),
        (6, "metadata"),
        (7, "deprecated_v1"),
        (8, "drain_type"),
        (10, "transparent"),
        (11, "freebind"),
        (12, "tcp_fast_open_queue_length"),
        (13, "socket_options"),
        (18, "udp_listener_config"),
        (19, "api_listener"),
        (21, "reuse_port"),
        (24, "tcp_backlog_size"),
        (26, "bind_to_port"),
        (27, "internal_listener"),
        (29, "enable_reuse_port"),
        (30, "enable_mptcp"),
        (31, "ignore_global_conn_limit"),
        (32, "filter_chain_matcher"),
        (33, "additional_addresses"),
        (34, "max_connections_to_accept_per_socket_event"),
        (35, "bypass_overload_manager"),
        (36, "fcds_config"),
        (37, "tcp_keepalive"),
        (38, "per_connection_buffer_high_watermark_timeout"),
        (39, "stats_matcher"),
    ],
    choices: &[],
};

pub(in crate::decode) static BALANCE: Message = Message {
    name: "envoy.config.listener.v3.Listener.ConnectionBalanceConfig",
    fields: &[
        // See the field of the listener.
        Field::harmless(1, "exact_balance", Kind::Message(&EXACT_BALANCE)),
    ],
    refused: &[(2, "extend_balance"), (3, "cpu_locality_balance")],
    choices: &[],
};

pub(in crate::decode) static EXACT_BALANCE: Message = Message {
    name: "envoy.config.listener.v3.Listener.ConnectionBalanceConfig.ExactBalance",
    fields: &[],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static FILTER_CHAIN: Message = Message {
    name: "envoy.config.listener.v3.FilterChain",
    fields: &[
        Field::served(1, "filter_chain_match", Kind::Message(&FILTER_CHAIN_MATCH)),
        Field::served(3, "filters", Kind::Message(&FILTER)).many(),
        Field::served(6, "transport_socket", Kind::Message(&DOWNSTREAM_SOCKET)),
        Field::served(
            9,
            "transport_socket_connect_timeout",
            Kind::Message(&DURATION),
        ),
        Field::served(7, "name", Kind::String),
    ],
    refused: &[(4, "use_proxy_proto"), (5, "metadata")],
    choices: &[],
};

pub(in crate::decode) static FILTER_CHAIN_MATCH: Message = Message {
    name: "envoy.config.listener.v3.FilterChainMatch",
    fields: &[
        Field::served(8, "destination_port", Kind::Message(&U32_VALUE)),
        Field::served(3, "prefix_ranges", Kind::Message(&CIDR_RANGE)).many(),
        Field::served(11, "server_names", Kind::String).many(),
        Field::served(9, "transport_protocol", Kind::String),
        Field::served(10, "application_protocols", Kind::String).many(),
    ],
    refused: &[
        (4, "address_suffix"),
        (5, "suffix_len"),
        (6, "source_prefix_ranges"),
        (7, "source_ports"),
        (12, "source_type"),
        (13, "direct_source_prefix_ranges"),
    ],
    choices: &[],
};

pub(in crate::decode) static FILTER: Message = Message {
    name: "envoy.config.listener.v3.Filter",
    fields: &[
        Field::served(4, "typed_config", Kind::Any(&NETWORK_FILTERS)),
        // Only the type of the configuration decides, as in Envoy.
        Field::harmless(1, "name", Kind::String),
    ],
    refused: &[(5, "config_discovery")],
    choices: &[],
};

pub(in crate::decode) static LISTENER_FILTER: Message = Message {
    name: "envoy.config.listener.v3.ListenerFilter",
    fields: &[
        Field::served(3, "typed_config", Kind::Any(&LISTENER_FILTERS)),
        Field::served(4, "filter_disabled", Kind::Message(&PREDICATE)),
        // Only the type of the configuration decides, as in Envoy.
        Field::harmless(1, "name", Kind::String),
    ],
    refused: &[(5, "config_discovery")],
    choices: &[],
};

pub(in crate::decode) static PREDICATE: Message = Message {
    name: "envoy.config.listener.v3.ListenerFilterChainMatchPredicate",
    fields: &[
        Field::served(1, "or_match", Kind::Message(&PREDICATE_SET)),
        Field::served(3, "not_match", Kind::Message(&PREDICATE)),
        Field::served(4, "any_match", Kind::Bool),
        Field::served(5, "destination_port_range", Kind::Message(&PORT_RANGE)),
    ],
    refused: &[(2, "and_match")],
    choices: &[&[1, 3, 4, 5]],
};

pub(in crate::decode) static PREDICATE_SET: Message = Message {
    name: "envoy.config.listener.v3.ListenerFilterChainMatchPredicate.MatchSet",
    fields: &[Field::served(1, "rules", Kind::Message(&PREDICATE)).many()],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static PORT_RANGE: Message = Message {
    name: "envoy.type.v3.Int32Range",
    fields: &[
        Field::served(1, "start", Kind::I32),
        Field::served(2, "end", Kind::I32),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static ORIGINAL_DST: Message = Message {
    name: "envoy.extensions.filters.listener.original_dst.v3.OriginalDst",
    fields: &[],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static TLS_INSPECTOR: Message = Message {
    name: "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
    fields: &[],
    refused: &[
        (1, "enable_ja3_fingerprinting"),
        (2, "initial_read_buffer_size"),
        (3, "enable_ja4_fingerprinting"),
        (4, "close_connection_on_client_hello_parsing_errors"),
        (5, "max_client_hello_size"),
    ],
    choices: &[],
};

pub(in crate::decode) static SNI_CLUSTER: Message = Message {
    name: "envoy.extensions.filters.network.sni_cluster.v3.SniCluster",
    fields: &[],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static CONNECTION_LIMIT: Message = Message {
    name: "envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit",
    fields: &[
        Field::served(1, "stat_prefix", Kind::String),
        Field::served(2, "max_connections", Kind::Message(&U64_VALUE)),
        Field::served(3, "delay", Kind::Message(&DURATION)),
    ],
    refused: &[(4, "runtime_enabled")],
    choices: &[],
};

pub(in crate::decode) static TCP_PROXY: Message = Message {
    name: "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
    fields: &[
        Field::served(1, "stat_prefix", Kind::String),
        Field::served(2, "cluster", Kind::String),
        Field::served(10, "weighted_clusters", Kind::Message(&WEIGHTED_CLUSTERS)),
        Field::served(8, "idle_timeout", Kind::Message(&DURATION)),
        Field::served(5, "access_log", Kind::Message(&ACCESS_LOG)).many(),
        Field::served(7, "max_connect_attempts", Kind::Message(&U32_VALUE)),
        Field::served(
            13,
            "max_downstream_connection_duration",
            Kind::Message(&DURATION),
        ),
    ],
    refused: &[
        (3, "downstream_idle_timeout"),
        (4, "upstream_idle_timeout"),
        (9, "metadata_match"),
        (11, "hash_policy"),
        (12, "tunneling_config"),
        (14, "on_demand"),
        (15, "access_log_flush_interval"),
        (16, "flush_access_log_on_connected"),
        (17, "access_log_options"),
        (18, "backoff_options"),
        (19, "proxy_protocol_tlvs"),
        (20, "max_downstream_connection_duration_jitter_percentage"),
        (21, "upstream_connect_mode"),
        (22, "max_early_data_bytes"),
        (23, "proxy_protocol_tlv_merge_policy"),
        (24, "check_drain_close"),
    ],
    choices: &[&[2, 10]],
};

pub(in crate::decode) static WEIGHTED_CLUSTERS: Message = Message {
    name: "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster",
    fields: &[Field::served(1, "clusters", Kind::Message(&CLUSTER_WEIGHT)).many()],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static CLUSTER_WEIGHT: Message = Message {
    name: "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight",
    fields: &[
        Field::served(1, "name", Kind::String),
        Field::served(2, "weight", Kind::U32),
    ],
    refused: &[(3, "metadata_match")],
    choices: &[],
};

pub(in crate::decode) static TRAFFIC_DIRECTION: Enum = Enum {
    name: "envoy.config.core.v3.TrafficDirection",
    values: &[(0, "UNSPECIFIED"), (1, "INBOUND"), (2, "OUTBOUND")],
};

static NETWORK_FILTERS: [&Message; 4] = [&RBAC_FILTER, &CONNECTION_LIMIT, &SNI_CLUSTER, &TCP_PROXY];

static LISTENER_FILTERS: [&Message; 2] = [&ORIGINAL_DST, &TLS_INSPECTOR];

pub(in crate::decode) static DOWNSTREAM_SOCKET: Message = Message {
    name: "envoy.config.core.v3.TransportSocket",
    fields: &[
        // Only the type of the configuration decides, as in Envoy.
        Field::harmless(1, "name", Kind::String),
        Field::served(3, "typed_config", Kind::Any(&[&DOWNSTREAM_TLS])),
    ],
    refused: &[],
    choices: &[],
};
