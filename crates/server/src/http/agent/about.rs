//! The server as an agent: `/v1/agent/self`, `/members`, `/version` and `/metrics`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use legate_model::filters;
use legate_runtime::Clock;
use legate_runtime::metrics::{self, Registry};

use super::super::call::{Call, visible};
use super::super::error::ApiError;

/// Protocol numbers that Consul's own parts speak among each other and that clients look at. There
/// is no gossip and no Raft here; the numbers are those of Consul 1.21.
const PROTOCOLS: [(&str, u8); 6] = [
    ("ProtocolMin", 1),
    ("ProtocolMax", 5),
    ("ProtocolCur", 2),
    ("DelegateMin", 2),
    ("DelegateMax", 5),
    ("DelegateCur", 4),
];

/// `GET /v1/agent/self`
pub(in super::super) async fn own(call: Call) -> Result<Response, ApiError> {
    let config = &call.config;
    let authorizer = call.authorizer()?;
    if !authorizer.agent_read(&call.config.node_name) {
        return Err(ApiError::denied("agent:read", &config.node_name));
    }
    let state = call.reader.state();
    let node = state.read().node(&config.node_name);
    let id = node
        .as_ref()
        .map(|node| node.id.as_str())
        .unwrap_or_default();
    call.json(&serde_json::json!({
        "Config": {
            "Datacenter": config.datacenter,
            "PrimaryDatacenter": config.datacenter,
            "NodeName": config.node_name,
            "NodeID": id,
            "Server": true,
            "Version": VERSION,
            "Revision": "",
        },
        "DebugConfig": {
            "GRPCPort": port(config.grpc),
            "GRPCTLSPort": port(config.grpc_tls),
            "HTTPPort": port(config.http),
            "HTTPSPort": port(config.https),
            "DNSPort": port(config.dns),
        },
        "Member": member(&call, id, false),
        "Stats": {},
        "Meta": node.as_ref().map(|node| &node.meta),
        "xDS": {
            "SupportedProxies": { "envoy": [] },
            "Port": port(config.grpc),
            "Ports": { "Plaintext": port(config.grpc), "TLS": port(config.grpc_tls) },
        },
    }))
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The port of an API; -1 when it is off.
fn port(api: Option<SocketAddr>) -> i32 {
    api.map_or(-1, |api| i32::from(api.port()))
}

/// This server as a member of the cluster, which has no other one.
fn member(call: &Call, id: &str, wan: bool) -> serde_json::Value {
    let config = &call.config;
    let mut tags = BTreeMap::from([
        ("acls", u8::from(config.acl.enabled).to_string()),
        ("bootstrap", "1".to_owned()),
        ("build", VERSION.to_owned()),
        ("dc", config.datacenter.clone()),
        ("id", id.to_owned()),
        ("port", port(config.grpc.or(config.grpc_tls)).to_string()),
        ("role", "consul".to_owned()),
        ("segment", String::new()),
    ]);
    for (tag, api) in [
        ("grpc_port", config.grpc),
        ("grpc_tls_port", config.grpc_tls),
    ] {
        if api.is_some() {
            tags.insert(tag, port(api).to_string());
        }
    }
    let port = port(config.grpc.or(config.grpc_tls));
    let name = match wan {
        true => format!("{}.{}", config.node_name, config.datacenter),
        false => config.node_name.clone(),
    };
    let mut member = serde_json::json!({
        "Name": name, "Addr": config.advertise, "Port": port, "Tags": tags, "Status": 1,
    });
    for (field, number) in PROTOCOLS {
        member[field] = number.into();
    }
    member
}

/// `GET /v1/agent/members`
pub(in super::super) async fn members(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let wan = call.params.flag("wan")?;
    let name = &call.config.node_name;
    let state = call.reader.state();
    let node = state.read().node(name);
    let id = node
        .as_ref()
        .map(|node| node.id.as_str())
        .unwrap_or_default();
    let filter = call.filter(&filters::MEMBER)?;
    let own = vec![member(&call, id, wan)];
    let (mut members, filtered) = visible(own, |_| authorizer.node_read(name));
    members.retain(|member| filter.matches(member));
    call.list(&members, filtered)
}

/// `GET /v1/agent/version`
pub(in super::super) async fn version(call: Call) -> Result<Response, ApiError> {
    call.authorizer()?;
    call.json(&serde_json::json!({
        "SHA": "", "HumanVersion": VERSION, "FIPS": "",
    }))
}

/// `GET /v1/agent/metrics`
pub(in super::super) async fn metrics(
    State(registry): State<Registry>,
    State(clock): State<Clock>,
    call: Call,
) -> Result<Response, ApiError> {
    let config = &call.config;
    let authorizer = call.authorizer()?;
    if !authorizer.agent_read(&call.config.node_name) {
        return Err(ApiError::denied("agent:read", &config.node_name));
    }
    match call.params.get("format").unwrap_or_default() {
        "" => return call.json(&super::super::metrics::summary(&registry, clock.now())),
        "prometheus" => {}
        other => {
            return Err(ApiError::bad_request(format!(
                "Invalid ?format={other}: it must be prometheus, or left out for JSON"
            )));
        }
    }
    let mut response = Response::new(Body::from(metrics::encode(&registry)));
    let text = HeaderValue::from_static(metrics::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, text);
    Ok(response)
}
