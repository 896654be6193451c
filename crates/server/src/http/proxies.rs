//! `/v1/internal/legate/proxies`: the proxies connected to this server, and the status of each. Not part of
//! Consul's API. A proxy is connected to one server only, so each server reports its own.

use std::time::SystemTime;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::{UpstreamType, timestamp};
use legate_proxycfg::gateways::api::GatewayCertificate;
use legate_proxycfg::{ApiGateway, Sidecar, Snapshot, UpstreamSnapshot};
use legate_store::ReadTxn;
use legate_xds::{Proxies, ProxyStatus, Refusal, ResourceType, TypeStatus};
use serde_json::{Map, Value, json};

use super::call::{Call, visible};
use super::prepared_query;
use crate::api_error::ApiError;

/// `GET /v1/internal/legate/proxies`
pub(super) async fn list(State(proxies): State<Proxies>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let (seen, filtered) = visible(proxies.all(), |status| {
        may_read(&authorizer, status).is_ok()
    });
    let all: Vec<Value> = seen
        .iter()
        .map(|status| Value::Object(summary(status)))
        .collect();
    call.list(&all, filtered)
}

/// `GET /v1/internal/legate/proxy/:node/:id`
pub(super) async fn get(
    Path((node, id)): Path<(String, String)>,
    State(proxies): State<Proxies>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    if !authorizer.node_read(&node) {
        return Err(ApiError::denied("node:read", &node));
    }
    ApiError::unless_some(&authorizer, Resource::Service, Access::Read, &id)?;
    let Some(status) = proxies.get(&call.tenancy, &node, &id) else {
        return Err(ApiError::not_found(format!(
            "no proxy {id:?} on node {node:?} is connected to this server; \
             /v1/internal/legate/proxies lists those that are"
        )));
    };
    may_read(&authorizer, &status)?;
    let state = call.reader.state();
    let txn = state.read().within(status.proxy.tenancy.clone());
    call.json(&whole(&authorizer, &txn, &status))
}

/// Requires read permission on the proxy's service and node.
fn may_read(authorizer: &Authorizer, status: &ProxyStatus) -> Result<(), ApiError> {
    let authorizer = authorizer.within(&status.proxy.tenancy);
    let node = &status.proxy.node;
    ApiError::require(authorizer.node_read(node), "node:read", node)?;
    let service = service(status).unwrap_or(&status.proxy.service_id);
    ApiError::require(authorizer.service_read(service), "service:read", service)
}

/// The proxy's service; `None` until its configuration has been built.
fn service(status: &ProxyStatus) -> Option<&str> {
    let (snapshot, _) = status.configuration.as_ref()?;
    Some(snapshot.proxy.instance.identity())
}

fn summary(status: &ProxyStatus) -> Map<String, Value> {
    let resources = status.configuration.as_ref().map(|(_, set)| set);
    let refusals = status.types.iter().zip(ResourceType::ALL);
    let refusals = refusals.filter_map(|(one, kind)| Some((kind, one.refusal.as_ref()?)));
    let last = refusals.max_by_key(|(_, refusal)| refusal.at);
    let fields = json!({
        "Node": *status.proxy.node,
        "ID": *status.proxy.service_id,
        "Service": service(status),
        "ConnectedAt": time(status.connected),
        "InSync": status.in_sync(),
        "Since": time(status.since()),
        "NotServed": resources.map_or(0, |set| set.failures().len()),
        "Warnings": resources.map_or(0, |set| set.warnings().len()),
        "LastRefusal": last.map(|(kind, last)| {
            let mut fields = refusal(last);
            fields["Type"] = json!(kind.to_string());
            fields
        }),
    });
    let Value::Object(mut fields) = fields else {
        return Map::new();
    };
    let tenancy = &status.proxy.tenancy;
    for (field, name) in [
        ("Namespace", tenancy.shown_namespace()),
        ("Partition", tenancy.shown_partition()),
    ] {
        if !name.is_empty() {
            fields.insert(field.to_owned(), json!(name));
        }
    }
    fields
}

fn whole(authorizer: &Authorizer, txn: &ReadTxn<'_>, status: &ProxyStatus) -> Map<String, Value> {
    let mut fields = summary(status);
    let types = status.types.iter().zip(ResourceType::ALL);
    let types: Map<_, _> = types
        .map(|(one, kind)| (kind.to_string(), of_type(status, kind, one)))
        .collect();
    fields.insert("Types".to_owned(), Value::Object(types));
    let Some((snapshot, resources)) = &status.configuration else {
        return fields;
    };
    let failures = resources.failures().iter().map(|failure| {
        let kind = ResourceType::from_url(failure.type_url());
        json!({
            "Type": kind.map(|kind| kind.to_string()),
            "Resource": failure.resource,
            "Reason": failure.reason.to_string(),
            "Kept": failure.kept,
        })
    });
    fields.insert("NotServed".to_owned(), failures.collect());
    fields.insert("Warnings".to_owned(), json!(resources.warnings()));
    if let Some(gateway) = ApiGateway::of(snapshot) {
        fields.insert("Certificates".to_owned(), certificates(gateway));
    }
    fields.insert("Upstreams".to_owned(), upstreams(authorizer, txn, snapshot));
    fields
}

/// The certificates that a gateway presents. `Expires` of one in files is not known here.
fn certificates(gateway: &ApiGateway) -> Value {
    let known = gateway.served.certificates.iter();
    let known = known.filter_map(|one| (**one).as_ref());
    let one = |one: &GatewayCertificate| json!({"Name": one.secret, "Expires": one.expires.and_then(time)});
    known.map(one).collect()
}

fn of_type(status: &ProxyStatus, kind: ResourceType, one: &TypeStatus) -> Value {
    let progress = &one.progress;
    let resources = status.configuration.as_ref().map(|(_, set)| set);
    json!({
        "Subscribed": progress.subscribed,
        "InSync": progress.in_sync(),
        "Since": time(one.since),
        "Resources": resources.map_or(0, |set| set.get(kind.url()).len()),
        "Unanswered": progress.unanswered,
        "Sent": nonce(progress.sent),
        "SentAt": one.sent.and_then(time),
        "Accepted": nonce(progress.accepted),
        "AcceptedAt": one.accepted.and_then(time),
        "Refused": progress.refused,
        "RefusedResources": one.refused.iter().map(|name| &**name).collect::<Vec<_>>(),
        "LastRefusal": one.refusal.as_deref().map(refusal),
    })
}

fn refusal(refusal: &Refusal) -> Value {
    json!({
        "At": time(refusal.at),
        "Code": refusal.code,
        "Reason": refusal.reason,
        "Count": refusal.count,
        "Resources": refusal.resources.iter().map(|name| &**name).collect::<Vec<_>>(),
    })
}

/// The proxy's upstreams, with their discovery chains as configured for it. Chains require read permission on
/// the service or prepared query.
fn upstreams(authorizer: &Authorizer, txn: &ReadTxn<'_>, snapshot: &Snapshot) -> Value {
    let sidecar = Sidecar::of(snapshot);
    let implicit = sidecar.and_then(|own| own.implicit.as_ref());
    let implicit = implicit.into_iter().flat_map(|all| &all.0);
    let implicit = implicit.map(|one| (&one.upstream, true));
    let explicit = sidecar.into_iter().flat_map(|own| &own.upstreams);
    let all = explicit.map(|one| (one, false));
    let one = |(upstream, implicit): (&UpstreamSnapshot, bool)| {
        let name = &upstream.upstream.destination_name;
        let may_read = match upstream.upstream.destination_type {
            UpstreamType::Unset | UpstreamType::Service => {
                let tenancy = upstream.upstream.tenancy(txn.tenancy());
                let tenancy = tenancy.of_peer(&upstream.upstream.destination_peer);
                authorizer.within(&tenancy).service_read(name)
            }
            UpstreamType::PreparedQuery => may_read_query(authorizer, txn, name),
        };
        let chain = may_read.then_some(&upstream.resolved.chain);
        let (chain, error) = match chain {
            Some(Ok(chain)) => (Some(json!(**chain)), None),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, None),
        };
        json!({"Name": name, "Implicit": implicit, "Chain": chain, "ChainError": error})
    };
    all.chain(implicit).map(one).collect()
}

/// For a template, the permission applies to the template's name, as in `/v1/query/…/explain`; for a query that
/// does not exist, to the name in the upstream.
fn may_read_query(authorizer: &Authorizer, txn: &ReadTxn<'_>, name: &str) -> bool {
    match txn.find_prepared_query(name) {
        Ok(Some(query)) => prepared_query::may_read(authorizer, &query),
        Ok(None) | Err(_) => authorizer.query_read(name),
    }
}

fn nonce(number: u32) -> Option<String> {
    (number > 0).then(|| format!("{number:08x}"))
}

fn time(time: SystemTime) -> Option<String> {
    timestamp::format(time).ok()
}
