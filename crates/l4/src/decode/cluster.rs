//! Makes clusters and endpoints of their trees.

use std::sync::Arc;
use std::time::Duration;

use super::parts;
use super::problem::Problem;
use super::tls;
use super::tree::Node;
use crate::model::{
    Address, Balancing, Cluster, DnsFamily, Endpoint, Endpoints, Hosts, Keepalive, Name,
    OutlierDetection, UpstreamTls,
};

/// Envoy's defaults.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const DNS_REFRESH: Duration = Duration::from_secs(5);
const MAX_CONNECTIONS: u32 = 1024;
const MAX_PENDING: u32 = 1024;
const PANIC_THRESHOLD: f64 = 50.0;
const CHOICES: u32 = 2;
const CONSECUTIVE: u32 = 5;
const ENFORCING: u32 = 100;
const INTERVAL: Duration = Duration::from_secs(10);
const BASE_EJECTION: Duration = Duration::from_secs(30);
const MAX_EJECTION: Duration = Duration::from_secs(300);
const MAX_EJECTION_PERCENT: u32 = 10;

/// In percent, how much more than its share of healthy hosts a priority takes. The only factor that the proxy has.
const OVERPROVISIONING: u32 = 140;

/// Values of `Cluster.DiscoveryType`.
const STATIC: i32 = 0;
const STRICT_DNS: i32 = 1;
const LOGICAL_DNS: i32 = 2;
const EDS: i32 = 3;

/// Values of `Cluster.LbPolicy`.
const ROUND_ROBIN: i32 = 0;
const LEAST_REQUEST: i32 = 1;
const RANDOM: i32 = 3;
const CLUSTER_PROVIDED: i32 = 6;

/// The highest priority number.
const PRIORITIES: u32 = 128;

/// Makes a cluster.
pub(super) fn cluster(node: &Node<'_>) -> Result<Cluster, Problem> {
    let name = parts::required(node, "name")?;
    let hosts = hosts(node, &name)?;
    let balancing = balancing(node, &hosts)?;
    let (max_connections, max_pending) = node
        .child("circuit_breakers", circuit_breakers)?
        .unwrap_or((MAX_CONNECTIONS, MAX_PENDING));
    let panic_threshold = node.child("common_lb_config", |config| {
        config.child("healthy_panic_threshold", percent)
    })?;
    let keepalive = node.child("upstream_connection_options", |options| {
        options.child("tcp_keepalive", keepalive)
    })?;
    Ok(Cluster {
        stat_name: node.text("alt_stat_name").to_owned(),
        hosts,
        connect_timeout: node.positive("connect_timeout")?.unwrap_or(CONNECT_TIMEOUT),
        balancing,
        max_connections,
        max_pending,
        outlier_detection: node.child("outlier_detection", outlier_detection)?,
        panic_threshold: panic_threshold.flatten().unwrap_or(PANIC_THRESHOLD),
        tls: node.child("transport_socket", transport_socket)?,
        keepalive: keepalive.flatten(),
        name,
    })
}

fn transport_socket(node: &Node<'_>) -> Result<Arc<UpstreamTls>, Problem> {
    let made = node.child("typed_config", tls::upstream)?;
    let made = made
        .ok_or_else(|| Problem::invalid("a configuration is necessary").within("typed_config"))?;
    Ok(Arc::new(made))
}

fn hosts(node: &Node<'_>, name: &Name) -> Result<Hosts, Problem> {
    let aggregate = node.child("cluster_type", |custom| {
        let clusters = custom.child("typed_config", |aggregate| {
            let clusters: Vec<Name> = aggregate.texts("clusters").map(Name::from).collect();
            if clusters.is_empty() {
                let text = "value must contain at least 1 item(s)";
                return Err(Problem::invalid(text).within("clusters"));
            }
            Ok(clusters)
        })?;
        clusters.ok_or_else(|| Problem::needs_envoy("").within("typed_config"))
    })?;
    let kind = node.choice("type");
    let discovered = aggregate.is_none() && kind == EDS;
    if !discovered && node.has("eds_cluster_config") {
        return Err(Problem::invalid(
            "eds_cluster_config set in a non-EDS cluster",
        ));
    }
    if let Some(clusters) = aggregate {
        return Ok(Hosts::Aggregate(clusters));
    }
    match kind {
        EDS => {
            let service = node.child("eds_cluster_config", eds)?.unwrap_or_default();
            let own = if service.is_empty() {
                name.clone()
            } else {
                service.into()
            };
            Ok(Hosts::Discovered(own))
        }
        STATIC => {
            let endpoints = node.child("load_assignment", |node| {
                load_assignment(node, parts::address_without_names)
            })?;
            Ok(Hosts::Static(Arc::new(endpoints.unwrap_or_default())))
        }
        STRICT_DNS => strict_dns(node),
        LOGICAL_DNS => logical_dns(node),
        _ => Ok(Hosts::OriginalDestination),
    }
}

fn eds(node: &Node<'_>) -> Result<String, Problem> {
    let source = node.child("eds_config", parts::same_stream)?;
    source.ok_or_else(|| Problem::invalid("an eds_config is necessary"))?;
    Ok(node.text("service_name").to_owned())
}

/// A cluster that resolves all of its names; here only with one IP address, of which there is nothing to resolve.
fn strict_dns(node: &Node<'_>) -> Result<Hosts, Problem> {
    let endpoints = node.child("load_assignment", |node| {
        load_assignment(node, parts::address)
    })?;
    let endpoints = endpoints.unwrap_or_default();
    resolution(node)?;
    let mut all = endpoints.priorities.iter().flatten();
    match (all.next(), all.next()) {
        (
            Some(Endpoint {
                address: Address::Socket(_),
                ..
            }),
            None,
        ) => {}
        _ => return Err(Problem::needs_envoy("STRICT_DNS with names").within("type")),
    }
    Ok(Hosts::Static(Arc::new(endpoints)))
}

fn logical_dns(node: &Node<'_>) -> Result<Hosts, Problem> {
    let single =
        "LOGICAL_DNS clusters must have a single locality_lb_endpoint and a single lb_endpoint";
    let endpoints = node.child("load_assignment", |node| {
        load_assignment(node, parts::address)
    })?;
    let endpoints = endpoints.unwrap_or_default();
    if endpoints.priorities.iter().map(Vec::len).sum::<usize>() != 1 {
        return Err(Problem::invalid(single));
    }
    let (refresh, family) = resolution(node)?;
    Ok(Hosts::LogicalDns {
        endpoints: Arc::new(endpoints),
        refresh,
        family,
    })
}

fn resolution(node: &Node<'_>) -> Result<(Duration, DnsFamily), Problem> {
    let refresh = node.duration("dns_refresh_rate")?;
    if refresh.is_some_and(|refresh| refresh <= Duration::from_millis(1)) {
        let text = "value must be greater than 1ms";
        return Err(Problem::invalid(text).within("dns_refresh_rate"));
    }
    let family = match node.choice("dns_lookup_family") {
        1 => DnsFamily::V4,
        2 => DnsFamily::V6,
        3 => DnsFamily::V4Preferred,
        4 => DnsFamily::All,
        _ => DnsFamily::Auto,
    };
    Ok((refresh.unwrap_or(DNS_REFRESH), family))
}

fn balancing(node: &Node<'_>, hosts: &Hosts) -> Result<Balancing, Problem> {
    // Envoy ignores it under another policy.
    let choices = node.child("least_request_lb_config", |config| {
        match config.wrapped_number("choice_count") {
            Some(..2) => {
                let text = "value must be greater than or equal to 2";
                Err(Problem::invalid(text).within("choice_count"))
            }
            choices => Ok(choices),
        }
    })?;
    let own = matches!(hosts, Hosts::Aggregate(_) | Hosts::OriginalDestination);
    match (node.choice("lb_policy"), own) {
        (CLUSTER_PROVIDED, true) | (ROUND_ROBIN, false) => Ok(Balancing::RoundRobin),
        (LEAST_REQUEST, false) => Ok(Balancing::LeastRequest {
            choices: choices.flatten().unwrap_or(CHOICES),
        }),
        (RANDOM, false) => Ok(Balancing::Random),
        (ROUND_ROBIN | LEAST_REQUEST | RANDOM, true) => Err(Problem::invalid(
            "cluster: LB policy is not valid for this type of cluster. Only 'CLUSTER_PROVIDED' is allowed",
        )),
        (CLUSTER_PROVIDED, false) => Err(Problem::invalid(
            "cluster: LB policy CLUSTER_PROVIDED is not valid for a cluster that provides none",
        )),
        (policy, _) => {
            let policies = super::tables::cluster::LB_POLICY.values;
            let name = policies.iter().find(|(number, _)| *number == policy);
            let name = name.map_or("another policy", |(_, name)| name);
            Err(Problem::needs_envoy(name).within("lb_policy"))
        }
    }
}

/// The largest numbers of connections and of those that are being dialled.
fn circuit_breakers(node: &Node<'_>) -> Result<(u32, u32), Problem> {
    let thresholds = node.each("thresholds", |node| {
        let connections = node
            .wrapped_number("max_connections")
            .unwrap_or(MAX_CONNECTIONS);
        let pending = node
            .wrapped_number("max_pending_requests")
            .unwrap_or(MAX_PENDING);
        Ok((node.choice("priority"), connections, pending))
    })?;
    // TCP connections have the default priority.
    let own = thresholds.iter().find(|(priority, ..)| *priority == 0);
    Ok(own.map_or(
        (MAX_CONNECTIONS, MAX_PENDING),
        |(_, connections, pending)| (*connections, *pending),
    ))
}

fn percent(node: &Node<'_>) -> Result<f64, Problem> {
    let value = node.double("value");
    if !(0.0..=100.0).contains(&value) {
        return Err(Problem::invalid("value must be inside range [0, 100]"));
    }
    Ok(value)
}

fn keepalive(node: &Node<'_>) -> Result<Keepalive, Problem> {
    let seconds = |name| {
        let seconds = node.wrapped_number(name);
        seconds.map(|seconds| Duration::from_secs(seconds.into()))
    };
    Ok(Keepalive {
        probes: node.wrapped_number("keepalive_probes"),
        time: seconds("keepalive_time"),
        interval: seconds("keepalive_interval"),
    })
}

fn outlier_detection(node: &Node<'_>) -> Result<OutlierDetection, Problem> {
    let percent = |name| match node.wrapped_number(name) {
        Some(101..) => {
            Err(Problem::invalid("value must be less than or equal to 100").within(name))
        }
        percent => Ok(percent),
    };
    // The default of these is 0.
    for name in [
        "enforcing_consecutive_gateway_failure",
        "enforcing_failure_percentage",
        "enforcing_failure_percentage_local_origin",
    ] {
        if percent(name)?.is_some_and(|percent| percent > 0) {
            return Err(Problem::needs_envoy("").within(name));
        }
    }
    // Without the separation, a failed attempt to connect counts as a response with the status 503.
    let (failures, enforcing, rate, other_rate) =
        match node.flag("split_external_local_origin_errors") {
            true => (
                "consecutive_local_origin_failure",
                "enforcing_consecutive_local_origin_failure",
                "enforcing_local_origin_success_rate",
                "enforcing_success_rate",
            ),
            false => (
                "consecutive_5xx",
                "enforcing_consecutive_5xx",
                "enforcing_success_rate",
                "enforcing_local_origin_success_rate",
            ),
        };
    // Nothing of the other origin is counted.
    percent(other_rate)?;
    let success_rate = match percent(rate)? {
        None | Some(100) => true,
        Some(0) => false,
        Some(_) => return Err(Problem::needs_envoy("").within(rate)),
    };
    let base_ejection = node
        .positive("base_ejection_time")?
        .unwrap_or(BASE_EJECTION);
    let max_ejection = node.positive("max_ejection_time")?.unwrap_or(MAX_EJECTION);
    Ok(OutlierDetection {
        consecutive_failures: node.wrapped_number(failures).unwrap_or(CONSECUTIVE),
        enforcing: percent(enforcing)?.unwrap_or(ENFORCING),
        interval: node.positive("interval")?.unwrap_or(INTERVAL),
        base_ejection,
        max_ejection: max_ejection.max(base_ejection),
        max_ejection_percent: percent("max_ejection_percent")?.unwrap_or(MAX_EJECTION_PERCENT),
        always_eject_one: node
            .wrapped_flag("always_eject_one_host")
            .unwrap_or_default(),
        success_rate,
    })
}

/// Makes the endpoints of a cluster, with the name by which it refers to them.
pub(super) fn endpoints(node: &Node<'_>) -> Result<(Name, Endpoints), Problem> {
    let name = parts::required(node, "cluster_name")?;
    Ok((name, load_assignment(node, parts::address_without_names)?))
}

fn load_assignment(
    node: &Node<'_>,
    address: fn(&Node<'_>) -> Result<Address, Problem>,
) -> Result<Endpoints, Problem> {
    // In a cluster it has no meaning.
    let _ = node.text("cluster_name");
    let mut endpoints = Endpoints::default();
    node.child("policy", |policy| {
        match policy.wrapped_number("overprovisioning_factor") {
            None | Some(OVERPROVISIONING) => Ok(()),
            Some(_) => {
                let what = "another factor than the default";
                Err(Problem::needs_envoy(what).within("overprovisioning_factor"))
            }
        }
    })?;
    node.each("endpoints", |locality| {
        let priority = locality.number("priority");
        if priority > PRIORITIES {
            let text = format!("value must be less than or equal to {PRIORITIES}");
            return Err(Problem::invalid(text).within("priority"));
        }
        let priority = priority as usize;
        if endpoints.priorities.len() <= priority {
            endpoints.priorities.resize(priority + 1, Vec::new());
        }
        let made = locality.each("lb_endpoints", |node| endpoint(node, address))?;
        endpoints.priorities[priority].extend(made);
        Ok(())
    })?;
    for endpoints in &endpoints.priorities {
        let weights = endpoints.iter().map(|endpoint| u64::from(endpoint.weight));
        if weights.sum::<u64>() > u64::from(u32::MAX) {
            return Err(Problem::invalid(format!(
                "The sum of weights of all upstream endpoints in a locality exceeds {}",
                u32::MAX
            )));
        }
    }
    Ok(endpoints)
}

fn endpoint(
    node: &Node<'_>,
    address: fn(&Node<'_>) -> Result<Address, Problem>,
) -> Result<Endpoint, Problem> {
    let healthy = match node.choice("health_status") {
        0 | 1 => true,
        // A degraded one is used only if the healthy ones are too few.
        5 => return Err(Problem::needs_envoy("DEGRADED").within("health_status")),
        _ => false,
    };
    let weight = node.wrapped_number("load_balancing_weight").unwrap_or(1);
    if weight == 0 {
        let text = "value must be greater than or equal to 1";
        return Err(Problem::invalid(text).within("load_balancing_weight"));
    }
    let address = node.child("endpoint", |endpoint| endpoint.child("address", address))?;
    let address = address.flatten();
    Ok(Endpoint {
        address: address.ok_or_else(|| Problem::invalid("an endpoint needs an address"))?,
        healthy,
        weight,
    })
}
