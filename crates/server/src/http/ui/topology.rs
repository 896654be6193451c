//! `/v1/internal/ui/service-topology`: the upstreams and downstreams of a service, from proxies' registrations
//! and, for transparent proxies, from intentions. They may be in other namespaces and partitions.

use std::collections::BTreeMap;

use axum::extract::Path;
use axum::response::Response;
use legate_intentions::Action;
use legate_model::{CheckServiceNode, ConfigKind, ProxyMode, ServiceKind, ServiceName, WILDCARD};
use legate_proxycfg::protocol;
use legate_store::ReadTxn;
use serde::{Serialize, Serializer};

use super::may_see;
use super::summary::{EXTERNAL_SOURCE, Summary, summaries};
use crate::api_error::ApiError;
use crate::http::call::{Call, visible};
use crate::http::catalog::applications;

/// The response.
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

/// The intention that applies between two services.
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
    fn of(
        state: &ReadTxn<'_>,
        source: &ServiceName,
        destination: &ServiceName,
        default: Action,
    ) -> Self {
        let intentions = state.in_tenancy(&destination.tenancy, |state| {
            state.intentions_for(&destination.name)
        });
        let check = legate_intentions::check(&intentions, source, default);
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

/// Neighbours by name, with the source of the relation and the intention.
type Named = BTreeMap<ServiceName, (&'static str, Decision)>;

/// The neighbours on one side, with their instances.
struct Side {
    named: Named,
    instances: Vec<CheckServiceNode>,
}

impl Side {
    fn new(state: &ReadTxn<'_>, named: Named) -> Self {
        let of = |service: &ServiceName| {
            state.in_tenancy(&service.tenancy, |state| {
                let mut found = state.service(&service.name);
                let proxies = state.connect(&service.name).into_iter();
                // A mesh-native instance is its own proxy, and already included.
                found.extend(proxies.filter(|one| one.service.kind == ServiceKind::ConnectProxy));
                found
            })
        };
        let instances = named.keys().flat_map(of).collect();
        Self { named, instances }
    }
}

impl Serialize for Side {
    /// For change detection in blocking queries only.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = |service: &ServiceName| {
            let ServiceName { tenancy, name } = service;
            format!("{}/{}/{name}", tenancy.partition, tenancy.namespace)
        };
        let named = self
            .named
            .iter()
            .map(|(service, known)| (name(service), known));
        (named.collect::<Vec<_>>(), &self.instances).serialize(serializer)
    }
}

/// The data read from the state.
#[derive(Serialize)]
struct TopologyData {
    protocol: String,
    transparent: bool,
    upstreams: Side,
    downstreams: Side,
}

/// `GET /v1/internal/ui/service-topology/:service`
pub(crate) async fn topology(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
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
    ApiError::require(authorizer.service_read(&name), "service:read", &name)?;
    let default = call.config.intention_default();
    let service = ServiceName::new(&call.tenancy, &name);
    let answer = call.read(|state| find(state, &service, default)).await?;
    let TopologyData {
        protocol,
        transparent,
        upstreams,
        downstreams,
    } = answer.value;
    let state = call.reader.state();
    let mut filtered = false;
    let mut side = |mut side: Side| {
        let (instances, hidden) = visible(side.instances, |one| {
            may_see(&authorizer.within(&one.service.tenancy()), one)
        });
        filtered |= hidden;
        let may_read = |service: &ServiceName| {
            let authorizer = authorizer.within(&service.tenancy);
            authorizer.service_read(&service.name)
        };
        side.named.retain(|service, _| may_read(service));
        neighbours(
            &call.txn(&state),
            side.named,
            &instances,
            &call.config.datacenter,
        )
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

fn find(state: &ReadTxn<'_>, service: &ServiceName, default: Action) -> TopologyData {
    let proxies = state.connect(&service.name);
    let is_transparent = |one: &CheckServiceNode| one.service.proxy.mode == ProxyMode::Transparent;
    let finds_alone = |one: &CheckServiceNode| is_transparent(one) || one.service.connect.native;
    let others = others(state, service);

    let mut upstreams = Named::new();
    for proxy in &proxies {
        for upstream in &proxy.service.proxy.upstreams {
            if upstream.destination_type.is_service() && upstream.destination_peer.is_empty() {
                let tenancy = upstream.tenancy(&service.tenancy);
                let other = ServiceName::new(&tenancy, &upstream.destination_name);
                let decision = Decision::of(state, service, &other, default);
                upstreams.insert(other, (REGISTRATION, decision));
            }
        }
    }
    if proxies.iter().any(finds_alone) {
        let to = &service.tenancy.partition;
        for other in others.iter().filter(|other| state.is_exported(other, to)) {
            let decision = Decision::of(state, service, other, default);
            add(&mut upstreams, other, decision);
        }
    }

    let mut downstreams = Named::new();
    for caller in callers(state, service) {
        let decision = Decision::of(state, &caller, service, default);
        downstreams.insert(caller, (REGISTRATION, decision));
    }
    for other in &others {
        let proxies = state.in_tenancy(&other.tenancy, |state| state.connect(&other.name));
        let is_shown = || state.is_exported(service, &other.tenancy.partition);
        if proxies.iter().any(finds_alone) && is_shown() {
            let decision = Decision::of(state, other, service, default);
            add(&mut downstreams, other, decision);
        }
    }
    TopologyData {
        protocol: protocol::of(state, &service.name).to_string(),
        transparent: !proxies.is_empty() && proxies.iter().all(is_transparent),
        upstreams: Side::new(state, upstreams),
        downstreams: Side::new(state, downstreams),
    }
}

/// The applications of all tenants, without `but`.
fn others(state: &ReadTxn<'_>, but: &ServiceName) -> Vec<ServiceName> {
    let mut all = Vec::new();
    for tenancy in state.tenancies() {
        let names = state.in_tenancy(&tenancy, applications);
        all.extend(names.iter().map(|name| ServiceName::new(&tenancy, name)));
    }
    all.retain(|one| one != but);
    all
}

/// Adds a neighbour by intention, unless a registration has added it.
fn add(named: &mut Named, other: &ServiceName, decision: Decision) {
    if decision.allowed || decision.has_permissions {
        let source = decision.source();
        named.entry(other.clone()).or_insert((source, decision));
    }
}

/// The services of all tenants whose proxies have a service among their upstreams.
fn callers(state: &ReadTxn<'_>, service: &ServiceName) -> Vec<ServiceName> {
    let mut found = Vec::new();
    for tenancy in state.tenancies() {
        let calls = |one: &CheckServiceNode| {
            let mut upstreams = one.service.proxy.upstreams.iter();
            upstreams.any(|upstream| {
                upstream.destination_type.is_service()
                    && upstream.destination_peer.is_empty()
                    && upstream.tenancy(&tenancy) == service.tenancy
                    && upstream
                        .destination_name
                        .eq_ignore_ascii_case(&service.name)
            })
        };
        let mut proxies = state.in_tenancy(&tenancy, ReadTxn::instances);
        proxies.retain(|one| one.service.kind == ServiceKind::ConnectProxy && calls(one));
        let caller = |one: &CheckServiceNode| {
            ServiceName::new(&tenancy, &one.service.proxy.destination_service_name)
        };
        found.extend(proxies.iter().map(caller));
    }
    found
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
            summary: found.finish(&name),
            source,
            intention,
        });
    }
    // Names without instances are shown if config entries route them.
    for (name, (_, intention)) in named {
        let kinds = [
            ConfigKind::ServiceRouter,
            ConfigKind::ServiceSplitter,
            ConfigKind::ServiceResolver,
        ];
        let is_routed = |state: &ReadTxn<'_>| {
            let mut kinds = kinds.into_iter();
            kinds.any(|kind| state.config_entry(kind, &name.name).is_some())
        };
        if state.in_tenancy(&name.tenancy, is_routed) {
            all.push(Neighbour {
                summary: Summary::empty(&name, datacenter),
                source: ROUTING,
                intention,
            });
        }
    }
    all
}
