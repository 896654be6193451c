//! `/v1/internal/ui/service-topology`: whom a service calls and who calls it, by the upstreams of
//! proxies and, where those find their destinations by themselves, by intentions.

use std::collections::BTreeMap;

use axum::extract::Path;
use axum::response::Response;
use legate_intentions::Action;
use legate_model::{CheckServiceNode, ConfigKind, ProxyMode, ServiceKind, ServiceName, WILDCARD};
use legate_store::ReadTxn;
use serde::Serialize;

use super::summary::{EXTERNAL_SOURCE, Summary, summaries};
use super::{Call, may_see};
use crate::http::OWN_SERVICE;
use crate::http::call::visible;
use crate::http::error::ApiError;
use crate::http::protocol::protocol_of;

/// What the user interface shows of a service's neighbours.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Topology {
    protocol: String,
    transparent_proxy: bool,
    upstreams: Vec<Neighbour>,
    downstreams: Vec<Neighbour>,
    #[serde(rename = "FilteredByACLs")]
    filtered: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Neighbour {
    #[serde(flatten)]
    summary: Summary,
    source: &'static str,
    intention: Decision,
}

/// Whether the intention between two services lets connections through.
#[derive(Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Decision {
    allowed: bool,
    has_permissions: bool,
    external_source: String,
    has_exact: bool,
    default_allow: bool,
}

impl Decision {
    fn of(state: &ReadTxn<'_>, source: &str, destination: &str, default: Action) -> Self {
        let intentions = state.intentions_for(destination);
        let check = legate_intentions::check(
            &intentions,
            &ServiceName::new(state.tenancy(), source),
            default,
        );
        let allowed = check.action == Action::Allow;
        let default_allow = default == Action::Allow;
        let Some(matched) = check.matched else {
            return Decision {
                allowed,
                default_allow,
                ..Decision::default()
            };
        };
        let external = matched.meta.get(EXTERNAL_SOURCE).cloned();
        Decision {
            allowed,
            has_permissions: !matched.permissions.is_empty(),
            external_source: external.unwrap_or_default(),
            has_exact: matched.source_name != WILDCARD && matched.destination_name != WILDCARD,
            default_allow,
        }
    }

    fn source(&self) -> &'static str {
        match (self.has_exact, self.default_allow) {
            (true, _) => "specific-intention",
            (false, true) => "default-allow",
            (false, false) => "wildcard-intention",
        }
    }
}

const REGISTRATION: &str = "proxy-registration";
const ROUTING: &str = "routing-config";

/// Neighbours by name, with how they are known and what is decided.
type Named = BTreeMap<String, (&'static str, Decision)>;

/// What is read of the state.
#[derive(Serialize)]
struct Found {
    protocol: String,
    transparent: bool,
    upstreams: (Named, Vec<CheckServiceNode>),
    downstreams: (Named, Vec<CheckServiceNode>),
}

/// `GET /v1/internal/ui/service-topology/:service`
pub(in crate::http) async fn topology(
    Path(name): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    match call.params.get("kind") {
        None => return Err(ApiError::bad_request("Missing service kind")),
        Some("" | "ingress-gateway" | "api-gateway") => {}
        Some(kind) => {
            return Err(ApiError::bad_request(format!(
                "Unsupported service kind {kind:?}"
            )));
        }
    }
    let authorizer = call.authorizer()?;
    if !authorizer.service_read(&name) {
        return Err(ApiError::denied("service:read", &name));
    }
    let default = call.config.intention_default();
    let answer = call.read(|state| find(state, &name, default)).await?;
    let Found {
        protocol,
        transparent,
        upstreams,
        downstreams,
    } = answer.value;
    let state = call.reader.state();
    let mut filtered = false;
    let mut side = |(named, instances): (Named, Vec<CheckServiceNode>)| {
        let (instances, hidden) = visible(instances, |one| may_see(&authorizer, one));
        filtered |= hidden;
        neighbours(
            &call.txn(&state),
            named,
            &instances,
            &call.config.datacenter,
        )
        .into_iter()
        .filter(|one| authorizer.service_read(&one.summary.name))
        .collect()
    };
    let topology = Topology {
        protocol,
        transparent_proxy: transparent,
        upstreams: side(upstreams),
        downstreams: side(downstreams),
        filtered,
    };
    call.answer(answer.index, &topology, filtered)
}

fn find(state: &ReadTxn<'_>, name: &str, default: Action) -> Found {
    let proxies = state.connect(name);
    let is_transparent = |one: &CheckServiceNode| one.service.proxy.mode == ProxyMode::Transparent;
    let finds_alone = |one: &CheckServiceNode| is_transparent(one) || one.service.connect.native;
    let typical = typical(state);

    let mut upstreams = Named::new();
    for proxy in &proxies {
        for upstream in &proxy.service.proxy.upstreams {
            if upstream.destination_type.is_service() {
                let decision = Decision::of(state, name, &upstream.destination_name, default);
                let known = (REGISTRATION, decision);
                upstreams.insert(upstream.destination_name.clone(), known);
            }
        }
    }
    if proxies.iter().any(finds_alone) {
        for other in typical.iter().filter(|other| *other != name) {
            add(
                &mut upstreams,
                other,
                Decision::of(state, name, other, default),
            );
        }
    }

    let mut downstreams = Named::new();
    for caller in callers(state, name) {
        let decision = Decision::of(state, &caller, name, default);
        downstreams.insert(caller, (REGISTRATION, decision));
    }
    for other in typical.iter().filter(|other| *other != name) {
        if state.connect(other).iter().any(finds_alone) {
            add(
                &mut downstreams,
                other,
                Decision::of(state, other, name, default),
            );
        }
    }
    let instances = |named: &Named| {
        let all = named.keys().flat_map(|name| {
            let proxies = state.connect(name).into_iter();
            // A native instance is its own proxy.
            let proxies = proxies.filter(|one| one.service.kind == ServiceKind::ConnectProxy);
            state.service(name).into_iter().chain(proxies)
        });
        all.collect::<Vec<_>>()
    };
    Found {
        protocol: protocol_of(state, name).to_string(),
        transparent: !proxies.is_empty() && proxies.iter().all(is_transparent),
        upstreams: (upstreams.clone(), instances(&upstreams)),
        downstreams: (downstreams.clone(), instances(&downstreams)),
    }
}

/// Adds what intentions allow, unless it is known by a registration.
fn add(named: &mut Named, other: &str, decision: Decision) {
    if decision.allowed || decision.has_permissions {
        let source = decision.source();
        named.entry(other.to_owned()).or_insert((source, decision));
    }
}

/// The services that are no proxies, without the servers themselves.
fn typical(state: &ReadTxn<'_>) -> Vec<String> {
    let mut names: Vec<String> = state
        .instances()
        .into_iter()
        .filter(|one| one.service.kind == ServiceKind::Typical)
        .map(|one| one.service.service.clone())
        .filter(|name| name != OWN_SERVICE)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The services whose proxies have a service among their upstreams.
fn callers(state: &ReadTxn<'_>, name: &str) -> Vec<String> {
    let calls = |one: &CheckServiceNode| {
        let mut upstreams = one.service.proxy.upstreams.iter();
        upstreams.any(|upstream| {
            upstream.destination_type.is_service()
                && upstream.destination_name.eq_ignore_ascii_case(name)
        })
    };
    let all = state.instances().into_iter();
    let proxies = all.filter(|one| one.service.kind == ServiceKind::ConnectProxy && calls(one));
    proxies
        .map(|one| one.service.proxy.destination_service_name.clone())
        .collect()
}

fn neighbours(
    state: &ReadTxn<'_>,
    mut named: Named,
    instances: &[CheckServiceNode],
    datacenter: &str,
) -> Vec<Neighbour> {
    let mut all = Vec::new();
    for (name, found) in summaries(instances) {
        if !found.is_shown_in_topologies() || found.has_no_instance() {
            continue;
        }
        let Some((source, intention)) = named.remove(&name) else {
            continue;
        };
        all.push(Neighbour {
            summary: found.finish(),
            source,
            intention,
        });
    }
    // Names without an instance lead somewhere all the same when entries say where.
    for (name, (_, intention)) in named {
        let kinds = [
            ConfigKind::ServiceRouter,
            ConfigKind::ServiceSplitter,
            ConfigKind::ServiceResolver,
        ];
        let is_routed = |kind| state.config_entry(kind, &name).is_some();
        if kinds.into_iter().any(is_routed) {
            all.push(Neighbour {
                summary: Summary::empty(&name, datacenter),
                source: ROUTING,
                intention,
            });
        }
    }
    all
}
