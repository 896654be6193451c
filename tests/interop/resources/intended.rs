//! What Legate does otherwise than Consul, on purpose. Each is taken out of what is compared.

use serde_json::{Map, Value, json};

use super::Resources;

/// By which a proxy says that its application has not seen a request.
const NOT_SENT: &str = "x-legate-not-sent";

/// The routes of the listener for the mesh, which hold the intentions.
const PUBLIC_ROUTES: &str = "RouteConfiguration public_listener";

const HTTP_RBAC: &str = "envoy.filters.http.rbac";

pub(super) fn remove(ours: &mut Resources, theirs: &mut Resources) {
    inline_public_routes(ours);
    for value in ours.values_mut().chain(theirs.values_mut()) {
        common(value);
    }
}

/// The routes of the listener for the mesh are a resource of their own, with the intentions in them: a
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

fn items(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_array_mut().into_iter().flatten()
}

fn common(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            object(fields);
            fields.values_mut().for_each(common);
        }
        Value::Array(list) => list.iter_mut().for_each(common),
        _ => {}
    }
}

fn object(fields: &mut Map<String, Value>) {
    // The last entry of the header is the caller's, and the dots of a trust domain are only dots.
    if let Some(Value::String(regex)) = fields.get_mut("regex") {
        if regex.starts_with(".*URI=spiffe://") {
            "the caller".clone_into(regex);
        }
        if regex.starts_with("^spiffe://") {
            *regex = regex.replace("\\.", ".");
        }
    }
    // Certificates are resources of their own, so that a renewed one changes no listener or cluster.
    if let Some(Value::Object(context)) = fields.get_mut("commonTlsContext") {
        certificates(context);
    }
    // Of conditions that must all hold, the order is free.
    if let Some(Value::Object(conditions)) = fields.get_mut("andIds")
        && let Some(Value::Array(ids)) = conditions.get_mut("ids")
    {
        ids.sort_by_key(Value::to_string);
    }
    for source in ["edsConfig", "configSource"] {
        if fields.contains_key(source) {
            fields.insert(source.to_owned(), json!("ads"));
        }
    }
    // What no application has seen is sent again, to another instance.
    fields.remove("maxConnectAttempts");
    fields.remove("localReplyConfig");
    if fields
        .get("retryPolicy")
        .is_some_and(|policy| policy.to_string().contains(NOT_SENT))
    {
        fields.remove("retryPolicy");
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

/// Leaves who must be at the other end.
fn certificates(context: &mut Map<String, Value>) {
    context.remove("tlsCertificates");
    context.remove("tlsCertificateSdsSecretConfigs");
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
