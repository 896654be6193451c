//! Intended differences between Legate and Consul: normalizations applied to all resources, and [`FIELDS`],
//! which differ in a few cases.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Resources;

/// The header by which a proxy reports that its application has not received a request.
const NOT_SENT: &str = "x-legate-not-sent";

/// The route configuration of the public listener, which contains the intentions.
const PUBLIC_ROUTES: &str = "RouteConfiguration public_listener";

const HTTP_RBAC: &str = "envoy.filters.http.rbac";

/// The prefix of automatic virtual IPs.
const VIRTUAL: &str = "240.";

pub(super) fn remove_from_ours(resources: &mut Resources) {
    inline_public_routes(resources);
    intentions_of_gateways(resources);
    policies_of_routes(resources);
    own_of_destinations(resources);
    clusters_of_queries(resources);
    access_of_gateways(resources);
    remove_from_both(resources);
}

pub(super) fn remove_from_both(resources: &mut Resources) {
    for (name, value) in resources.iter_mut() {
        destinations(name, value);
        endpoints_of_queries(name, value);
        routes_of_gateways(name, value);
        server_names(name, value);
        unknown_names(name, value);
    }
    resources.values_mut().for_each(common);
}

/// Legate has the routes of the public listener as a separate resource with the intentions, so that a
/// changed intention drains no connection.
fn inline_public_routes(ours: &mut Resources) {
    let Some(mut routes) = ours.remove(PUBLIC_ROUTES) else {
        return;
    };
    let rules = routes["virtualHosts"][0]["typedPerFilterConfig"][HTTP_RBAC]["rbac"].take();
    if let Some(host) = routes["virtualHosts"][0].as_object_mut() {
        host.remove("typedPerFilterConfig");
    }
    let public = |name: &&String| name.starts_with("Listener public_listener:");
    let Some(name) = ours.keys().find(public).cloned() else {
        return;
    };
    let listener = ours.get_mut(&name).expect("it is there");
    for filter in items(&mut listener["filterChains"][0]["filters"]) {
        let manager = &mut filter["typedConfig"];
        if manager.get("rds").is_none() {
            continue;
        }
        let fields = manager.as_object_mut().expect("an object");
        fields.remove("rds");
        fields.insert("routeConfig".to_owned(), routes.clone());
        for filter in items(&mut manager["httpFilters"]) {
            if filter["name"] == HTTP_RBAC {
                filter["typedConfig"]["rules"] = rules["rules"].clone();
            }
        }
    }
}

/// Legate has the intentions of services behind a terminating gateway in their routes, so that a changed
/// intention drains no connection, and normalizes paths, so that no spelling of a path passes them.
fn intentions_of_gateways(ours: &mut Resources) {
    let mut routes: BTreeMap<String, Value> = BTreeMap::new();
    for (name, value) in ours.iter_mut() {
        let Some(name) = name.strip_prefix("RouteConfiguration ") else {
            continue;
        };
        for host in items(&mut value["virtualHosts"]) {
            let rules = host.pointer("/typedPerFilterConfig/envoy.filters.http.rbac/rbac/rules");
            if let Some(rules) = rules.cloned() {
                routes.insert(name.to_owned(), rules);
                let fields = host.as_object_mut().expect("an object");
                fields.remove("typedPerFilterConfig");
            }
        }
    }
    let listeners = ours
        .iter_mut()
        .filter(|(name, _)| name.starts_with("Listener "));
    let chains = listeners.flat_map(|(_, value)| items(&mut value["filterChains"]));
    for filter in chains.flat_map(|chain| items(&mut chain["filters"])) {
        let manager = &mut filter["typedConfig"];
        let route = manager.pointer("/rds/routeConfigName");
        let route = route.and_then(Value::as_str).unwrap_or_default();
        let Some(rules) = routes.get(route) else {
            continue;
        };
        for filter in items(&mut manager["httpFilters"]) {
            if filter["name"] == HTTP_RBAC {
                filter["typedConfig"]["rules"] = rules.clone();
            }
        }
        if let Some(fields) = manager.as_object_mut() {
            fields.remove("normalizePath");
        }
    }
}

/// Legate moves a retry policy common to many routes to their virtual host.
fn policies_of_routes(ours: &mut Resources) {
    let configurations = ours
        .iter_mut()
        .filter(|(name, _)| name.starts_with("RouteConfiguration "));
    for host in configurations.flat_map(|(_, value)| items(&mut value["virtualHosts"])) {
        let policy = host
            .as_object_mut()
            .and_then(|host| host.remove("retryPolicy"));
        let Some(policy) = policy else {
            continue;
        };
        for route in items(&mut host["routes"]) {
            let fields = route["route"].as_object_mut();
            let fields = fields.expect("the route leads to a cluster");
            fields
                .entry("retryPolicy")
                .or_insert_with(|| policy.clone());
        }
    }
}

/// If many of a query's instances are unhealthy, Consul's proxies also send to unhealthy ones.
fn clusters_of_queries(ours: &mut Resources) {
    let clusters = ours
        .iter_mut()
        .filter(|(name, _)| name.starts_with("Cluster ") && name.contains(".query."));
    for cluster in clusters.filter_map(|(_, value)| value.as_object_mut()) {
        cluster.remove("commonLbConfig");
        // It equals the cluster's name.
        cluster.remove("altStatName");
    }
}

/// Legate's proxies reach services in the mesh on the ports of destinations as well, which Envoy matches
/// first, and accept hosts with a port. If a server name is required, server-first connections proceed after
/// a second; Consul's proxies close them after 15.
fn own_of_destinations(ours: &mut Resources) {
    for (name, value) in ours {
        if name.starts_with("Listener outbound_listener:")
            && let Some(listener) = value.as_object_mut()
        {
            listener.remove("continueOnListenerFiltersTimeout");
            listener.remove("listenerFiltersTimeout");
        }
        if name.starts_with("Listener outbound_listener:")
            && let Some(Value::Array(chains)) = value.get_mut("filterChains")
        {
            chains.retain(|chain| {
                let matched = &chain["filterChainMatch"];
                let address = matched["prefixRanges"][0]["addressPrefix"].as_str();
                let is_virtual = address.is_some_and(|address| address.starts_with(VIRTUAL));
                !(is_virtual && matched.get("destinationPort").is_some())
            });
        }
        if name.starts_with("RouteConfiguration destination.") {
            for host in items(&mut value["virtualHosts"]) {
                if let Some(Value::Array(domains)) = host.get_mut("domains") {
                    domains
                        .retain(|domain| !domain.as_str().is_some_and(|text| text.contains(':')));
                }
            }
        }
    }
}

/// Meaningless orders, and listener filters that inspect the first bytes: TLS only on ports with server
/// names, HTTP nowhere, because nothing depends on it.
fn destinations(name: &str, value: &mut Value) {
    if name.starts_with("Listener outbound_listener:") {
        if let Some(Value::Array(chains)) = value.get_mut("filterChains") {
            // The order in which released addresses are reused is not specified.
            for range in chains
                .iter_mut()
                .flat_map(|chain| items(&mut chain["filterChainMatch"]["prefixRanges"]))
            {
                let address = &mut range["addressPrefix"];
                if address
                    .as_str()
                    .is_some_and(|address| address.starts_with(VIRTUAL))
                {
                    *address = json!(VIRTUAL);
                }
            }
            chains.sort_by_key(Value::to_string);
        }
        if let Some(Value::Array(filters)) = value.get_mut("listenerFilters") {
            filters.retain(|filter| filter["name"] != "envoy.filters.listener.http_inspector");
            for filter in filters.iter_mut().filter_map(Value::as_object_mut) {
                filter.remove("filterDisabled");
            }
        }
    }
    if name.starts_with("RouteConfiguration destination.")
        && let Some(Value::Array(hosts)) = value.get_mut("virtualHosts")
    {
        hosts.sort_by_key(|host| host["name"].to_string());
    }
}

/// The endpoints of a query are shuffled.
fn endpoints_of_queries(name: &str, value: &mut Value) {
    if name.starts_with("ClusterLoadAssignment ")
        && name.contains(".query.")
        && let Some(Value::Array(all)) = value.pointer_mut("/endpoints/0/lbEndpoints")
    {
        all.sort_by_key(|one| one["endpoint"].to_string());
    }
}

/// The listeners of API gateways have a filter for the tokens that routes require, and normalize paths, so that
/// no spelling of a path passes a requirement. They accept HTTP/2, which services behind them may need.
fn access_of_gateways(ours: &mut Resources) {
    let listeners = ours
        .iter_mut()
        .filter(|(name, _)| name.starts_with("Listener http:"));
    for chain in listeners.flat_map(|(_, value)| items(&mut value["filterChains"])) {
        let alpn = chain.pointer_mut("/transportSocket/typedConfig/commonTlsContext/alpnProtocols");
        if let Some(alpn) = alpn
            && *alpn == json!(["h2", "http/1.1"])
        {
            *alpn = json!(["http/1.1"]);
        }
        for filter in items(&mut chain["filters"]) {
            let Some(manager) = filter["typedConfig"].as_object_mut() else {
                continue;
            };
            manager.remove("normalizePath");
            if let Some(Value::Array(filters)) = manager.get_mut("httpFilters") {
                filters.retain(|one| {
                    one["name"] != HTTP_RBAC || one["typedConfig"].get("rules").is_some()
                });
            }
        }
    }
}

/// The hosts of an API gateway have no order, and in Consul names with a hash. Weights are relative.
fn routes_of_gateways(name: &str, value: &mut Value) {
    let port = name.strip_prefix("RouteConfiguration ");
    if port.is_none_or(|port| port.parse::<u16>().is_err()) {
        return;
    }
    let Some(Value::Array(hosts)) = value.get_mut("virtualHosts") else {
        return;
    };
    for host in hosts.iter_mut() {
        let domain = host["domains"][0].take();
        if host["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("edge-"))
        {
            host["name"] = domain.clone();
        }
        host["domains"][0] = domain;
        for route in items(&mut host["routes"]) {
            if let Some(weighted) = route.pointer_mut("/route/weightedClusters") {
                shares(weighted);
            }
        }
    }
    hosts.sort_by_key(|host| host["name"].to_string());
}

/// Replaces weights by hundredths of a percent.
fn shares(weighted: &mut Value) {
    if let Some(fields) = weighted.as_object_mut() {
        fields.remove("totalWeight");
    }
    let weight = |cluster: &Value| cluster["weight"].as_u64().unwrap_or_default();
    let sum: u64 = weighted["clusters"]
        .as_array()
        .into_iter()
        .flatten()
        .map(weight)
        .sum();
    for cluster in items(&mut weighted["clusters"]) {
        cluster["weight"] = json!(weight(cluster) * 10_000 / sum.max(1));
    }
}

/// Consul inspects server names in every listener with TLS; Legate where they are matched.
fn server_names(name: &str, value: &mut Value) {
    let matched = |chain: &Value| chain["filterChainMatch"].get("serverNames").is_some();
    let chains = value["filterChains"].as_array();
    if !name.starts_with("Listener ") || chains.is_none_or(|chains| chains.iter().any(matched)) {
        return;
    }
    if let Some(Value::Array(filters)) = value.get_mut("listenerFilters") {
        filters.retain(|filter| filter["name"] != "envoy.filters.listener.tls_inspector");
        if filters.is_empty()
            && let Some(fields) = value.as_object_mut()
        {
            fields.remove("listenerFilters");
        }
    }
}

/// For a server name without a chain, a terminating gateway of Consul looks for a cluster of that name.
/// Nothing may be behind it: both close the connection.
fn unknown_names(name: &str, value: &mut Value) {
    if !name.starts_with("Listener ") {
        return;
    }
    for chain in items(&mut value["filterChains"]) {
        if let Some(Value::Array(filters)) = chain.get_mut("filters")
            && let [_, last] = filters.as_slice()
            && last["typedConfig"]["cluster"] == ""
        {
            filters.retain(|filter| filter["name"] != "envoy.filters.network.sni_cluster");
        }
    }
}

fn items(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_array_mut().into_iter().flatten()
}

fn common(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            object(fields);
            fields.values_mut().for_each(common);
            flatten(value, "andIds", "ids");
            flatten(value, "andRules", "rules");
        }
        Value::Array(list) => list.iter_mut().for_each(common),
        _ => {}
    }
}

fn object(fields: &mut Map<String, Value>) {
    access(fields);
    repeats(fields);
    orders(fields);
    // The last entry of the header is the caller's, and the dots of a trust domain are literal.
    if let Some(Value::String(regex)) = fields.get_mut("regex") {
        if regex.starts_with(".*URI=spiffe://") {
            "the caller".clone_into(regex);
        }
        if regex.starts_with("^spiffe://") {
            *regex = regex.replace("\\.", ".");
        }
    }
    // Certificates are separate resources, so that a renewal changes no listener or cluster.
    if let Some(Value::Object(context)) = fields.get_mut("commonTlsContext") {
        certificates(context);
    }
    for source in ["edsConfig", "configSource"] {
        if fields.contains_key(source) {
            fields.insert(source.to_owned(), json!("ads"));
        }
    }
    // A service's virtual IP depends on previous assignments.
    if let Some(Value::String(address)) = fields.get_mut("addressPrefix")
        && address.starts_with("240.")
    {
        "assigned".clone_into(address);
    }
}

/// Access rules of requests.
fn access(fields: &mut Map<String, Value>) {
    // Consul accepts both and passes them to no Envoy.
    fields.remove("clockSkewSeconds");
    fields.remove("jwtCacheConfig");
    // A claim with several values may contain the required one.
    if let Some(mut either) = fields.remove("orMatch")
        && let Value::Object(text) = either["valueMatchers"][0].take()
    {
        fields.extend(text);
    }
    // One matching rule of a policy is enough. Consul adds to each the negation of the previous ones.
    if let Some(Value::Array(permissions)) = fields.get_mut("permissions") {
        let mut before: Vec<Value> = Vec::new();
        for permission in permissions {
            let mut shape = permission.clone();
            if let Some(Value::Array(rules)) = permission.pointer_mut("/andRules/rules") {
                rules.retain(|rule| !before.iter().any(|one| rule["notRule"] == *one));
                if rules.len() == 1 || rules.iter().any(|rule| rule.get("notRule").is_some()) {
                    shape = rules[0].clone();
                }
            }
            before.push(shape);
        }
    }
}

/// Requests that no application has received are retried on another instance.
fn repeats(fields: &mut Map<String, Value>) {
    fields.remove("maxConnectAttempts");
    // Non-HTTP connections are hashed by source if a resolver sets it.
    if *fields.get("hashPolicy").unwrap_or(&Value::Null) == json!([{"sourceIp": {}}]) {
        fields.remove("hashPolicy");
    }
    fields.remove("localReplyConfig");
    if let Some(policy) = fields.get("retryPolicy")
        // A number alone sets how often such requests are retried; in Consul it has no effect.
        && (policy.to_string().contains(NOT_SENT) || policy.get("retryOn").is_none())
    {
        fields.remove("retryPolicy");
    }
    if let Some(Value::Object(policy)) = fields.get_mut("retryPolicy") {
        // All retries try another instance.
        policy.remove("retryHostPredicate");
        policy.remove("hostSelectionRetryMaxAttempts");
    }
    // An ejected instance gets no retry.
    if let Some(Value::Object(balancing)) = fields.get_mut("commonLbConfig") {
        balancing.remove("updateMergeWindow");
    }
    if let Some(Value::Array(names)) = fields.get_mut("responseHeadersToRemove") {
        names.retain(|name| name != NOT_SENT);
        if names.is_empty() {
            fields.remove("responseHeadersToRemove");
        }
    }
    if let Some(Value::Object(breakers)) = fields.get_mut("circuitBreakers") {
        for threshold in breakers.get_mut("thresholds").into_iter().flat_map(items) {
            if let Some(threshold) = threshold.as_object_mut() {
                threshold.remove("maxRetries");
            }
        }
        if breakers.values().all(|list| *list == json!([{}])) {
            fields.remove("circuitBreakers");
        }
    }
}

/// Meaningless orders: of conditions that must all hold, of changes to different headers, and of filter
/// chains, which Envoy selects by match. Consul's order is often that of a Go map.
fn orders(fields: &mut Map<String, Value>) {
    for list in [
        "requirements",
        "requestHeadersToAdd",
        "responseHeadersToAdd",
    ] {
        if let Some(Value::Array(list)) = fields.get_mut(list) {
            list.sort_by_key(Value::to_string);
        }
    }
    if let Some(Value::Array(chains)) = fields.get_mut("filterChains") {
        chains.sort_by_key(|chain| chain["filters"].to_string());
    }
}

/// Flattens nested conjunctions into one sorted list, without conditions that always hold.
fn flatten(value: &mut Value, kind: &str, list: &str) {
    let Some(conditions) = value.get_mut(kind) else {
        return;
    };
    let mut all = Vec::new();
    for mut condition in items(&mut conditions[list]).map(Value::take) {
        if let Some(nested) = condition.get_mut(kind) {
            all.extend(items(&mut nested[list]).map(Value::take));
        } else if condition != json!({"any": true}) {
            all.push(condition);
        }
    }
    all.sort_by_key(Value::to_string);
    *value = match all.len() {
        1 => all.remove(0),
        _ => json!({kind: {list: all}}),
    };
}

/// A field with an intended difference, in the cases that demonstrate it.
pub(super) struct Field {
    /// A part of the path of the difference.
    pub(super) at: &'static str,
    pub(super) cases: &'static [&'static str],
    /// The reason.
    pub(super) reason: &'static str,
}

pub(super) const FIELDS: &[Field] = &[
    Field {
        at: ".route.timeout",
        cases: &["router_with_resolver_timeouts"],
        reason: "the RequestTimeout of a resolver holds behind routers and splitters, too",
    },
    Field {
        at: ".typedConfig.cluster",
        cases: &[
            "overrides_cluster_json",
            "query_cluster_json",
            "upstream_cluster_json",
        ],
        reason: "an upstream leads to the cluster that a user wrote, whatever its name is",
    },
    Field {
        at: "outbound_listener:127.0.0.1:15001.filterChains",
        cases: &["transparent_explicit"],
        reason: "an upstream that has a port is reached by its virtual IP, too",
    },
    Field {
        at: ".lbEndpoints",
        cases: &["instances_hostname", "instances_only_hostnames"],
        reason: "an instance without an IP address is left out: Envoy refuses all instances with it",
    },
    Field {
        at: "exposed_",
        cases: &["expose_checks"],
        reason: "checks of the catalog are exposed; in Consul those of a local agent alone",
    },
    Field {
        at: "exposed_",
        cases: &["expose_path_http2"],
        reason: "HTTP/2 is not sent to the application's cluster where the application speaks TCP",
    },
    Field {
        at: ".trafficDirection",
        cases: &[
            "public_listener_json",
            "public_listener_json_http",
            "public_listener_json_normalization",
        ],
        reason: "extensions find the listener that a user wrote by its direction",
    },
    Field {
        at: ".httpFilters[0].name",
        cases: &[
            "public_listener_json_http",
            "public_listener_json_normalization",
        ],
        reason: "no route of a user can replace a filter of intentions, which goes by the filter's name",
    },
    Field {
        at: ".normalizePath",
        cases: &[
            "public_listener_json_http",
            "public_listener_json_normalization",
        ],
        reason: "no spelling of a path passes intentions, in listeners that users wrote, too",
    },
    Field {
        at: ".mergeSlashes",
        cases: &["public_listener_json_normalization"],
        reason: "no spelling of a path passes intentions, in listeners that users wrote, too",
    },
    Field {
        at: ".pathWithEscapedSlashesAction",
        cases: &["public_listener_json_normalization"],
        reason: "no spelling of a path passes intentions, in listeners that users wrote, too",
    },
    Field {
        at: ".commonHttpProtocolOptions",
        cases: &["public_listener_json_normalization"],
        reason: "what mesh says about names of headers holds in listeners that users wrote, too",
    },
    Field {
        at: "ClusterLoadAssignment ignoring.",
        cases: &["query_health"],
        reason: "checks that do not count for a query do not count for those who call what it finds",
    },
    Field {
        at: ".normalizePath",
        cases: &["mesh_normalization_disabled"],
        reason: "what is off is said to be off; Consul says nothing, which is off",
    },
    Field {
        at: ".serverUri.timeout",
        cases: &["ext_authz_http_local"],
        reason: "Envoy refuses a server without a timeout",
    },
    Field {
        at: "Cluster jwks_cluster_okta",
        cases: &["jwt_remote"],
        reason: "a name of a server is looked up; Envoy refuses it in a static cluster",
    },
    Field {
        at: ".remoteJwks.httpUri.timeout",
        cases: &["jwt_remote"],
        reason: "without RequestTimeoutMs keys have 5 s to arrive; in Consul none",
    },
    Field {
        at: ".typedExtensionProtocolOptions",
        cases: &["destination_grpc"],
        reason: "gRPC goes to gateways in HTTP/2",
    },
    Field {
        at: ".serverNames[0]",
        cases: &["destination_host"],
        reason: "Envoy compares server names in lower case: others fit no connection",
    },
    Field {
        at: ".virtualHosts[3].domains",
        cases: &["destination_http"],
        reason: "an IPv6 address is in brackets where it is a host",
    },
    Field {
        at: ".circuitBreakers",
        cases: &["mesh_gateway_empty_limits"],
        reason: "limits that are not set are those of Envoy; in Consul they are 0, which allows nothing",
    },
    Field {
        at: ".outlierDetection",
        cases: &["ingress_failover"],
        reason: "a cluster that fails over has no instances to eject; its members have",
    },
    Field {
        at: ".routes",
        cases: &["api_gateway_route_out_of_order"],
        reason: "requests for a route that cannot be served reach no other route",
    },
    Field {
        at: ".maximumRingSize",
        cases: &["api_gateway_balancing"],
        reason: "sizes of a ring that are not set are those of Envoy; Envoy refuses Consul's 0",
    },
    Field {
        at: ".maxEjectionPercent",
        cases: &["ingress_passive_health"],
        reason: "limits that are not set are those of Envoy; in Consul 0, which ejects nothing",
    },
    Field {
        at: "Listener consul-virtual:",
        cases: &["terminating_binds"],
        reason: "virtual IPs are addresses in sidecars, not of the gateway's machine",
    },
    Field {
        at: ".filterChains",
        cases: &["destination_shared_address"],
        reason: "Envoy refuses a listener in which two filter chains have one address",
    },
];

/// Keeps only the peer's required identity, and the names of certificates on other SDS servers.
fn certificates(context: &mut Map<String, Value>) {
    context.remove("tlsCertificates");
    if let Some(Value::Array(secrets)) = context.get_mut("tlsCertificateSdsSecretConfigs") {
        secrets.retain(|secret| secret["sdsConfig"].get("apiConfigSource").is_some());
        if secrets.is_empty() {
            context.remove("tlsCertificateSdsSecretConfigs");
        }
    }
    let validation = context.remove("validationContext");
    let combined = context.remove("combinedValidationContext");
    context.remove("validationContextSdsSecretConfig");
    let mut names = Vec::new();
    for mut part in validation.into_iter().chain(combined) {
        let default = part["defaultValidationContext"].take();
        for mut part in [part, default] {
            names.extend(items(&mut part["matchTypedSubjectAltNames"]).map(|name| name.take()));
        }
    }
    context.insert("names".to_owned(), Value::Array(names));
}
