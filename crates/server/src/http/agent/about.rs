//! The server's agent API: `/v1/agent/self`, `/members`, `/version`, `/host` and `/metrics`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use legate_model::filters;
use legate_runtime::Clock;
use legate_runtime::metrics::{self, Registry};
use legate_store::{ReadTxn, Source};
use legate_wan::Wan;
use tokio::task::spawn_blocking;

use super::super::call::{Call, visible};
use crate::api_error::ApiError;
use crate::config::ServerConfig;
use crate::own_node::{CONSUL_VERSION, OWN_PORT, REVISION};
use crate::wan;

/// Versions of Consul's internal protocols, which clients read. There is no gossip and no Raft here; the
/// numbers are Consul 1.21's.
const PROTOCOLS: [(&str, u8); 6] = [
    ("ProtocolMin", 1),
    ("ProtocolMax", 5),
    ("ProtocolCur", 2),
    ("DelegateMin", 2),
    ("DelegateMax", 5),
    ("DelegateCur", 4),
];

/// `GET /v1/agent/self`
pub(crate) async fn own(call: Call) -> Result<Response, ApiError> {
    super::may_read(&call)?;
    let config = &call.config;
    let state = call.reader.state();
    let node = state.read().node(&config.node_name);
    let id = node
        .as_ref()
        .map(|node| node.id.as_str())
        .unwrap_or_default();
    let checks = &config.agent.check_settings;
    let scripts = checks.scripts;
    call.json(&serde_json::json!({
        "Config": {
            "Datacenter": config.datacenter,
            "PrimaryDatacenter": config.primary().unwrap_or(&config.datacenter),
            "NodeName": config.node_name,
            "NodeID": id,
            "Server": true,
            "Version": CONSUL_VERSION,
            "Revision": REVISION,
            "BuildDate": BUILD_DATE,
        },
        "DebugConfig": {
            "Datacenter": config.datacenter,
            "PrimaryDatacenter": config.primary().unwrap_or(&config.datacenter),
            "NodeName": config.node_name,
            "NodeID": id,
            "NodeMeta": node.as_ref().map(|node| &node.meta),
            "ServerMode": true,
            "Version": CONSUL_VERSION,
            "Revision": REVISION,
            "ConnectEnabled": config.connect,
            "ACLsEnabled": config.acl.enabled,
            "EnableDebug": config.debug,
            "ACLDefaultPolicy": config.acl.default_policy,
            "AdvertiseAddrLAN": config.advertise,
            "AdvertiseAddrWAN": config.advertise,
            "EnableLocalScriptChecks": scripts.permit(Source::Files),
            "EnableRemoteScriptChecks": scripts.permit(Source::Api),
            "CheckOutputMaxSize": checks.output_max_size,
            // Nothing listens on these; clients use them as the address to join, and this server is its own
            // only member.
            "SerfAdvertiseAddrLAN": serf_address(config, SERF_LAN),
            "SerfAdvertiseAddrWAN": serf_address(config, SERF_WAN),
            "GRPCPort": port(config.grpc),
            "GRPCTLSPort": port(config.grpc_tls),
            "HTTPPort": port(config.http),
            "HTTPSPort": port(config.https),
            "DNSPort": port(config.dns),
            "DNSAddrs": dns_addresses(config),
        },
        "Member": member(config, id),
        "Stats": stats(config, &state.read()),
        "Meta": node.as_ref().map(|node| &node.meta),
        "xDS": {
            "SupportedProxies": { "envoy": ENVOY_VERSIONS },
            "Port": port(config.grpc_tls.or(config.grpc)),
            "Ports": { "Plaintext": port(config.grpc), "TLS": port(config.grpc_tls) },
        },
    }))
}

/// The versions of Envoy with which Legate is tested, latest first. Nomad runs the first one that its settings
/// permit.
const ENVOY_VERSIONS: [&str; 5] = ["1.40.0", "1.39.3", "1.38.2", "1.37.0", "1.36.4"];
/// Constant, because builds are reproducible; Consul's clients require a time.
const BUILD_DATE: &str = "1970-01-01T00:00:00Z";

/// Consul's gossip ports.
const SERF_LAN: u16 = 8301;
const SERF_WAN: u16 = 8302;

/// The addresses of DNS in Consul's form. Nomad uses them as resolvers of its tasks.
fn dns_addresses(config: &ServerConfig) -> Vec<String> {
    let all = config.dns.iter().chain(&config.more_listeners.dns);
    all.flat_map(|address| ["tcp", "udp"].map(|network| format!("{network}://{address}")))
        .collect()
}

fn serf_address(config: &ServerConfig, port: u16) -> String {
    format!("tcp://{}", SocketAddr::new(config.advertise, port))
}

/// Statistics by component, as strings, for `consul info`.
fn stats(config: &ServerConfig, state: &ReadTxn<'_>) -> serde_json::Value {
    let node = &config.node_name;
    let namespaces = state.tenancies_here();
    let each =
        |tenancy| state.in_tenancy(tenancy, |txn| (txn.instances_on(node), txn.checks_on(node)));
    let (services, checks): (Vec<_>, Vec<_>) = namespaces.iter().map(each).unzip();
    let services: usize = services.iter().map(Vec::len).sum();
    let mut checks: Vec<_> = checks.into_iter().flatten().collect();
    // Node checks appear in every namespace; count each once.
    checks.sort_by_key(Arc::as_ptr);
    checks.dedup_by_key(|check| Arc::as_ptr(check));
    let ttls = checks.iter().filter(|check| check.r#type == "ttl").count();
    let monitors = checks.iter().filter(|check| check.r#type == "script");
    let acl = if config.acl.enabled {
        "enabled"
    } else {
        "disabled"
    };
    serde_json::json!({
        "agent": {
            "check_monitors": monitors.count().to_string(),
            "check_ttls": ttls.to_string(),
            "checks": checks.len().to_string(),
            "services": services.to_string(),
        },
        "build": {
            "prerelease": "", "revision": REVISION, "version": CONSUL_VERSION, "version_metadata": "",
        },
        "consul": {
            "acl": acl, "bootstrap": "true", "known_datacenters": "1", "leader": "true",
            "leader_addr": SocketAddr::new(config.advertise, OWN_PORT).to_string(),
            "server": "true",
        },
        "runtime": {
            "arch": std::env::consts::ARCH, "os": std::env::consts::OS, "version": "rust",
        },
    })
}

/// The port of an API; -1 if it is disabled.
fn port(api: Option<SocketAddr>) -> i32 {
    api.map_or(-1, |api| i32::from(api.port()))
}

/// The tags of this server as a member.
pub(crate) fn member_tags(config: &ServerConfig, id: &str) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::from([
        ("acls", u8::from(config.acl.enabled).to_string()),
        ("bootstrap", "1".to_owned()),
        ("build", format!("{CONSUL_VERSION}:{REVISION}")),
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
    let tags = tags.into_iter();
    tags.map(|(tag, value)| (tag.to_owned(), value)).collect()
}

/// This server as the only member of its cluster.
fn member(config: &ServerConfig, id: &str) -> serde_json::Value {
    let tags = member_tags(config, id);
    let port = port(config.grpc.or(config.grpc_tls));
    described(&config.node_name, config.advertise, port, &tags, 1)
}

/// The servers of all datacenters, this one included, with the names of their nodes.
fn wan_members(
    config: &ServerConfig,
    id: &str,
    wan: Option<&Wan>,
) -> Vec<(String, serde_json::Value)> {
    let Some(wan) = wan else {
        let mut own = member(config, id);
        own["Name"] = format!("{}.{}", config.node_name, config.datacenter).into();
        return vec![(config.node_name.clone(), own)];
    };
    let members = std::iter::once(wan.own()).chain(wan.members());
    let shown = members.map(|member| {
        let (address, name) = (member.address, member.name.to_string());
        let (port, status) = (address.port().into(), wan::number(member.status));
        let mut shown = described(&name, address.ip(), port, &member.tags, status);
        // Not part of Consul's API: how this server reaches it.
        if let Some(time) = member.round_trip {
            shown["RoundTrip"] = time.as_secs_f64().into();
        }
        if let Some(gateway) = member.gateway {
            shown["Gateway"] = gateway.into();
        }
        if let Some(error) = member.error {
            shown["Error"] = error.into();
        }
        (member.name.node, shown)
    });
    shown.collect()
}

fn described(
    name: &str,
    address: IpAddr,
    port: i32,
    tags: &BTreeMap<String, String>,
    status: u8,
) -> serde_json::Value {
    let mut member = serde_json::json!({
        "Name": name, "Addr": address, "Port": port, "Tags": tags, "Status": status,
    });
    for (field, number) in PROTOCOLS {
        member[field] = number.into();
    }
    member
}

/// `GET /v1/agent/members`
pub(crate) async fn members(
    State(wan): State<Option<Wan>>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let in_wan = call.params.flag("wan")?;
    match call.params.get("segment").unwrap_or_default() {
        "" | "_all" => {}
        _ if in_wan => {
            let text = "Cannot provide a segment with wan=true";
            return Err(ApiError::bad_request(text));
        }
        other => {
            return Err(ApiError::bad_request(format!(
                "Invalid ?segment={other}: there are no network segments, because there is no \
                 gossip; leave it out"
            )));
        }
    }
    let name = &call.config.node_name;
    let state = call.reader.state();
    let node = state.read().node(name);
    let id = node
        .as_ref()
        .map(|node| node.id.as_str())
        .unwrap_or_default();
    let filter = call.filter(&filters::MEMBER)?;
    let members = match in_wan {
        true => wan_members(&call.config, id, wan.as_ref()),
        false => vec![(name.clone(), member(&call.config, id))],
    };
    let (members, filtered) = visible(members, |(node, _)| authorizer.node_read(node));
    let mut members: Vec<_> = members.into_iter().map(|(_, shown)| shown).collect();
    members.retain(|member| filter.matches(member));
    call.list(&members, filtered)
}

/// `GET /v1/agent/version`
pub(crate) async fn version(call: Call) -> Result<Response, ApiError> {
    call.authorizer()?;
    call.json(&serde_json::json!({
        "SHA": REVISION, "HumanVersion": CONSUL_VERSION, "FIPS": "",
    }))
}

/// `GET /v1/agent/host`
pub(crate) async fn host(State(clock): State<Clock>, call: Call) -> Result<Response, ApiError> {
    let may = call.authorizer()?.permits("operator", "read", "");
    ApiError::require(may == Ok(true), "operator:read", "")?;
    let now = clock.now();
    let info = spawn_blocking(move || super::host::info(now)).await;
    call.json(&info.map_err(|error| ApiError::internal(error.to_string()))?)
}

/// `GET /v1/agent/metrics`
pub(crate) async fn metrics(
    State(registry): State<Registry>,
    State(clock): State<Clock>,
    call: Call,
) -> Result<Response, ApiError> {
    super::may_read(&call)?;
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
