//! Formats Envoy's `/config_dump` as tables, with secrets removed. Pure.

use serde_json::Value;

use super::table::table;

/// The replacement for secrets.
const REDACTED: &str = "***";
/// Fields of Envoy's API with secret values. Envoy itself omits those that its API marks as
/// sensitive.
const SECRET_FIELDS: [&str; 15] = [
    "access_token",
    "auth_password",
    "client_secret",
    "downstream_auth_password",
    "downstream_auth_passwords",
    "generic_secret",
    "hmac_secret",
    "password",
    "pkcs12",
    "private_key",
    "private_key_provider",
    "secret_access_key",
    "session_ticket_keys",
    "session_token",
    "token_secret",
];
/// Lists of headers that Envoy sends to servers and whose values may be credentials.
const CREDENTIAL_LISTS: [&str; 2] = ["initial_metadata", "call_credentials"];
/// Parts of the names of headers with credentials, anywhere in the dump.
const SECRET_HEADERS: [&str; 6] = ["auth", "cookie", "key", "password", "secret", "token"];

/// The fields with a header's value.
const HEADER_VALUES: [&str; 2] = ["value", "raw_value"];
/// The fields with a header's match condition.
const HEADER_MATCHES: [&str; 6] = [
    "contains_match",
    "exact_match",
    "prefix_match",
    "safe_regex_match",
    "string_match",
    "suffix_match",
];

/// Replaces every secret in the document.
pub(super) fn redact(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(redact),
        Value::Object(fields) => {
            // A header to add has `key` and a value, a header to match has `name` and a condition.
            for (name, values) in [("key", &HEADER_VALUES[..]), ("name", &HEADER_MATCHES[..])] {
                let header = fields.get(name).and_then(Value::as_str);
                let header = header.map(str::to_ascii_lowercase).unwrap_or_default();
                if SECRET_HEADERS.iter().any(|part| header.contains(part)) {
                    let present = fields.iter_mut();
                    let values = present.filter(|(field, _)| values.contains(&field.as_str()));
                    values.for_each(|(_, value)| *value = Value::from(REDACTED));
                }
            }
            for (name, value) in fields {
                if SECRET_FIELDS.contains(&name.as_str()) {
                    *value = Value::from(REDACTED);
                } else if CREDENTIAL_LISTS.contains(&name.as_str()) {
                    values_of(value);
                } else {
                    redact(value);
                }
            }
        }
        _ => {}
    }
}

/// Replaces everything in a list of credentials except header names.
fn values_of(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(values_of),
        Value::Object(fields) => {
            for (name, value) in fields {
                if name != "key" {
                    *value = Value::from(REDACTED);
                }
            }
        }
        other => *other = Value::from(REDACTED),
    }
}

/// The kinds of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Clusters,
    Endpoints,
    Listeners,
    Routes,
    Secrets,
}

impl Kind {
    /// Resources come before those that refer to them.
    pub(super) const ALL: [Kind; 5] = [
        Kind::Clusters,
        Kind::Endpoints,
        Kind::Listeners,
        Kind::Routes,
        Kind::Secrets,
    ];

    /// The message name in the dump.
    fn message(self) -> &'static str {
        match self {
            Kind::Clusters => "ClustersConfigDump",
            Kind::Endpoints => "EndpointsConfigDump",
            Kind::Listeners => "ListenersConfigDump",
            Kind::Routes => "RoutesConfigDump",
            Kind::Secrets => "SecretsConfigDump",
        }
    }

    /// The kind's part of the dump, if present.
    pub(super) fn of(self, document: &Value) -> Option<&Value> {
        let message = self.message();
        let is_it = |part: &&Value| {
            let kind = part["@type"].as_str().unwrap_or_default();
            kind.rsplit('.').next() == Some(message)
        };
        document["configs"].as_array()?.iter().find(is_it)
    }

    /// The kind's part as a table.
    pub(super) fn text(self, document: &Value) -> String {
        let none = Value::Null;
        let part = self.of(document).unwrap_or(&none);
        match self {
            Kind::Clusters => {
                let all = lists(
                    part,
                    &["static_clusters", "dynamic_active_clusters"],
                    "cluster",
                );
                let warming = lists(part, &["dynamic_warming_clusters"], "cluster");
                let mut rows: Vec<_> = all.map(|it| cluster(it, "active")).collect();
                rows.extend(warming.map(|it| cluster(it, "warming")));
                table(&["CLUSTER", "TYPE", "STATE"], &rows)
            }
            Kind::Endpoints => {
                let names = ["static_endpoint_configs", "dynamic_endpoint_configs"];
                let all = lists(part, &names, "endpoint_config");
                let rows: Vec<_> = all.flat_map(endpoints).collect();
                table(
                    &["CLUSTER OF ENDPOINT", "ADDRESS", "HEALTH", "WEIGHT"],
                    &rows,
                )
            }
            Kind::Listeners => {
                let fixed = lists(part, &["static_listeners"], "listener").map(|it| ("active", it));
                let mut rows: Vec<_> = fixed.map(|(state, it)| listener(it, state)).collect();
                for changing in lists(part, &["dynamic_listeners"], "") {
                    for state in ["active", "warming", "draining"] {
                        let found = &changing[format!("{state}_state")]["listener"];
                        if !found.is_null() {
                            rows.push(listener(found, state));
                        }
                    }
                }
                table(&["LISTENER", "ADDRESS", "DIRECTION", "STATE"], &rows)
            }
            Kind::Routes => {
                let names = ["static_route_configs", "dynamic_route_configs"];
                let all = lists(part, &names, "route_config");
                let rows: Vec<_> = all.flat_map(routes).collect();
                table(&["ROUTES", "DOMAINS", "MATCH", "CLUSTER"], &rows)
            }
            Kind::Secrets => {
                let names = ["static_secrets", "dynamic_active_secrets"];
                let all = lists(part, &names, "").map(|it| secret(it, "active"));
                let mut rows: Vec<_> = all.collect();
                let warming = lists(part, &["dynamic_warming_secrets"], "");
                rows.extend(warming.map(|it| secret(it, "warming")));
                table(&["SECRET", "KIND", "STATE"], &rows)
            }
        }
    }
}

/// The entries of all lists, or the entries' field `name` if given.
fn lists<'a>(
    part: &'a Value,
    names: &[&str],
    field: &'a str,
) -> impl Iterator<Item = &'a Value> + use<'a> {
    let lists: Vec<&Value> = names.iter().map(|name| &part[*name]).collect();
    let entries = lists.into_iter().filter_map(Value::as_array).flatten();
    entries.map(move |entry| match field {
        "" => entry,
        field => &entry[field],
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn or_none(text: String) -> String {
    if text.is_empty() {
        return "-".to_owned();
    }
    text
}

/// Formats an address: `10.0.0.1:8080`, or the path of a Unix socket.
pub(super) fn address(value: &Value) -> String {
    let socket = &value["socket_address"];
    if let (Some(host), Some(port)) = (socket["address"].as_str(), socket["port_value"].as_u64()) {
        return match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
    }
    let path = value["pipe"]["path"].as_str();
    path.unwrap_or("unknown").to_owned()
}

fn cluster(cluster: &Value, state: &str) -> Vec<String> {
    let kind = cluster["type"].as_str();
    let kind = kind.or(cluster["cluster_type"]["name"].as_str());
    // Envoy omits the default.
    let kind = kind.unwrap_or("STATIC").to_owned();
    vec![text(&cluster["name"]), kind, state.to_owned()]
}

fn endpoints(assignment: &Value) -> Vec<Vec<String>> {
    let cluster = text(&assignment["cluster_name"]);
    let localities = lists(assignment, &["endpoints"], "");
    let endpoints = localities.flat_map(|locality| lists(locality, &["lb_endpoints"], ""));
    let row = |endpoint: &Value| {
        let health = endpoint["health_status"].as_str().unwrap_or("UNKNOWN");
        let weight = endpoint["load_balancing_weight"].as_u64().unwrap_or(1);
        vec![
            cluster.clone(),
            address(&endpoint["endpoint"]["address"]),
            health.to_owned(),
            weight.to_string(),
        ]
    };
    endpoints.map(row).collect()
}

fn listener(listener: &Value, state: &str) -> Vec<String> {
    vec![
        text(&listener["name"]),
        address(&listener["address"]),
        or_none(text(&listener["traffic_direction"])),
        state.to_owned(),
    ]
}

fn routes(routes: &Value) -> Vec<Vec<String>> {
    let name = text(&routes["name"]);
    let hosts = lists(routes, &["virtual_hosts"], "");
    let rows = hosts.flat_map(|host| {
        let domains = lists(host, &["domains"], "").map(text);
        let domains = domains.collect::<Vec<_>>().join(",");
        let name = name.clone();
        lists(host, &["routes"], "").map(move |route| {
            vec![
                name.clone(),
                domains.clone(),
                route_match(&route["match"]),
                target(route),
            ]
        })
    });
    rows.collect()
}

fn route_match(what: &Value) -> String {
    let path = [
        ("path", ""),
        ("prefix", "*"),
        ("path_separated_prefix", "/*"),
    ];
    let path = path.iter().find_map(|(field, suffix)| {
        let path = what[*field].as_str()?;
        Some(format!("{path}{suffix}"))
    });
    let regex = what["safe_regex"]["regex"].as_str();
    let path = path.or(regex.map(|regex| format!("~{regex}")));
    let mut text = path.unwrap_or_else(|| "-".to_owned());
    let others = ["headers", "query_parameters"];
    let count: usize = others
        .map(|list| lists(what, &[list], "").count())
        .iter()
        .sum();
    if count > 0 {
        text += &format!(" and {count} more");
    }
    text
}

fn target(route: &Value) -> String {
    let to = &route["route"];
    if let Some(cluster) = to["cluster"].as_str() {
        return cluster.to_owned();
    }
    let weighted = lists(&to["weighted_clusters"], &["clusters"], "");
    let weighted = weighted.map(|cluster| {
        let weight = cluster["weight"].as_u64().unwrap_or(0);
        format!("{} ({weight})", text(&cluster["name"]))
    });
    let weighted = weighted.collect::<Vec<_>>().join(",");
    if !weighted.is_empty() {
        return weighted;
    }
    for other in [
        "redirect",
        "direct_response",
        "filter_action",
        "non_forwarding_action",
    ] {
        if !route[other].is_null() {
            return format!("({})", other.replace('_', " "));
        }
    }
    "-".to_owned()
}

fn secret(entry: &Value, state: &str) -> Vec<String> {
    let secret = &entry["secret"];
    let kinds = [
        ("tls_certificate", "certificate"),
        ("validation_context", "authorities"),
        ("session_ticket_keys", "session ticket keys"),
        ("generic_secret", "other"),
    ];
    let kind = kinds.iter().find(|(field, _)| !secret[*field].is_null());
    vec![
        text(&entry["name"]),
        kind.map_or("-", |(_, kind)| *kind).to_owned(),
        state.to_owned(),
    ]
}

#[cfg(test)]
mod tests;
