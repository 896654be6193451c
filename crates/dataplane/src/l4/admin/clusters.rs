//! The clusters and their hosts: `/clusters`.

use std::fmt::Write as _;

use legate_l4::balance::HostStatus;
use legate_l4::model::{Address, Hosts};
use serde_json::{Map, Value, json};

use super::listeners::address;
use super::query::{Format, Query};
use super::{Admin, Page};
use crate::l4::serving::{ServedCluster, stat_name};

impl Admin {
    pub(super) fn clusters(&self, query: &Query) -> Result<Page, Page> {
        let formats = [("text", Format::Text), ("json", Format::Json)];
        let format = query.format("/clusters", &formats)?;
        let filter = query.regex("filter")?;
        let serving = self.built_in.shared.serving();
        let all = serving.clusters.iter();
        let mut all: Vec<_> = all
            .filter(|(name, _)| filter.as_ref().is_none_or(|filter| filter.is_match(name)))
            .collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        let all = all.into_iter().map(|(_, cluster)| &**cluster);
        if format == Format::Json {
            let all: Vec<Value> = all.map(status).collect();
            return Ok(Page::json(&json!({ "cluster_statuses": all })));
        }
        let mut page = String::new();
        all.for_each(|cluster| text(cluster, &mut page));
        Ok(Page::ok(page))
    }
}

/// The name by which its endpoints are discovered.
fn discovered_by(cluster: &ServedCluster) -> Option<&str> {
    match &cluster.spec.hosts {
        Hosts::Discovered(name) => Some(name),
        _ => None,
    }
}

/// The DNS name of its only host, if that is resolved.
fn host_name(cluster: &ServedCluster) -> &str {
    let Hosts::LogicalDns { endpoints, .. } = &cluster.spec.hosts else {
        return "";
    };
    let endpoint = endpoints.priorities.iter().flatten().next();
    match endpoint.map(|endpoint| &endpoint.address) {
        Some(Address::Dns(name, _)) => name,
        _ => "",
    }
}

/// The success rates of outlier detection, which this proxy does not compute. Envoy shows -1 as well while it has none.
const RATES: [&str; 4] = [
    "success_rate_average",
    "success_rate_ejection_threshold",
    "local_origin_success_rate_average",
    "local_origin_success_rate_ejection_threshold",
];

fn text(cluster: &ServedCluster, page: &mut String) {
    let spec = &cluster.spec;
    let mut line = |text: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{}::{text}", spec.name);
    };
    line(format_args!("observability_name::{}", stat_name(spec)));
    if let Some(name) = discovered_by(cluster) {
        line(format_args!("eds_service_name::{name}"));
    }
    if spec.outlier_detection.is_some() {
        for rate in RATES {
            line(format_args!("outlier::{rate}::-1"));
        }
    }
    let (connections, pending) = (spec.max_connections, spec.max_pending);
    line(format_args!(
        "default_priority::max_connections::{connections}"
    ));
    line(format_args!(
        "default_priority::max_pending_requests::{pending}"
    ));
    line(format_args!("added_via_api::true"));
    let name = host_name(cluster);
    for host in cluster.balancer().hosts() {
        let at = host.address;
        line(format_args!("{at}::cx_active::{}", host.active));
        line(format_args!("{at}::hostname::{name}"));
        line(format_args!("{at}::health_flags::{}", flags(&host)));
        line(format_args!("{at}::weight::{}", host.weight));
        line(format_args!("{at}::priority::{}", host.priority));
    }
}

fn flags(host: &HostStatus<'_>) -> &'static str {
    match (host.ejected, host.healthy) {
        (false, true) => "healthy",
        (false, false) => "/failed_eds_health",
        (true, true) => "/failed_outlier_check",
        (true, false) => "/failed_outlier_check/failed_eds_health",
    }
}

fn status(cluster: &ServedCluster) -> Value {
    let spec = &cluster.spec;
    let hosts: Vec<Value> = {
        let balancer = cluster.balancer();
        let name = host_name(cluster);
        balancer
            .hosts()
            .map(|host| host_status(&host, name))
            .collect()
    };
    let mut status = json!({
        "name": &*spec.name,
        "added_via_api": true,
        "host_statuses": hosts,
        "circuit_breakers": { "thresholds": [{
            "max_connections": spec.max_connections,
            "max_pending_requests": spec.max_pending,
        }] },
        "observability_name": stat_name(spec),
    });
    if let Some(name) = discovered_by(cluster) {
        status["eds_service_name"] = name.into();
    }
    status
}

/// As in Envoy's JSON, values that are zero are left out.
fn host_status(host: &HostStatus<'_>, name: &str) -> Value {
    let mut active = json!({ "type": "GAUGE", "name": "cx_active" });
    if host.active > 0 {
        active["value"] = host.active.to_string().into();
    }
    let mut health = Map::new();
    if host.ejected {
        health.insert("failed_outlier_check".to_owned(), true.into());
    }
    let state = if host.healthy { "HEALTHY" } else { "UNHEALTHY" };
    health.insert("eds_health_status".to_owned(), state.into());
    let mut status = json!({
        "address": address(host.address),
        "stats": [active],
        "health_status": health,
        "weight": host.weight,
        "locality": {},
    });
    if !name.is_empty() {
        status["hostname"] = name.into();
    }
    if host.priority > 0 {
        status["priority"] = host.priority.into();
    }
    status
}
