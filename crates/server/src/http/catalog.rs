//! `/v1/catalog`: registration, and nodes and instances as registered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_filter::Filter;
use legate_model::acl::Authorizer;
use legate_model::{
    CheckServiceNode, DeregisterRequest, Node, RegisterRequest, ServiceInstance, ServiceKind,
    ServiceNode, Tenancy, filters,
};
use legate_proxycfg::gateways::connect_to;
use legate_store::{Deregistration, ReadTxn, Registration, Writer};
use legate_wan::Wan;
use serde_json::{Value, json};

use super::call::{Call, visible};
use super::{forward, near};
use crate::api_error::ApiError;
use crate::own_node::OWN_SERVICE;
use crate::registration::rights::{may_deregister, may_register};

/// `PUT /v1/catalog/register`
pub(super) async fn register(
    State(writer): State<Writer>,
    State(wan): State<Option<Wan>>,
    mut call: Call,
) -> Result<Response, ApiError> {
    call.authorizer()?;
    let request: RegisterRequest = call.decode()?;
    request.validate()?;
    if is_elsewhere(&call, &request.datacenter) {
        return forward::write(&call, wan, &request.datacenter, "/v1/catalog/register").await;
    }
    let (partition, namespace) = request.tenancy()?;
    call.settle(&partition, &namespace)?;
    let authorizer = call.authorizer()?;
    let registration = registration(&call, request);
    call.write(&writer, move |txn| {
        may_register(&authorizer, &txn.read(), &registration)?;
        Ok(txn.register(registration.clone())?)
    })
    .await?;
    call.json(&true)
}

fn registration(call: &Call, request: RegisterRequest) -> Registration {
    let parts = request.into_parts(&call.config.datacenter);
    Registration {
        node: parts.node,
        service: parts.service,
        checks: parts.checks,
        skip_node_update: parts.skip_node_update,
    }
}

/// Whether a body names another datacenter.
fn is_elsewhere(call: &Call, datacenter: &str) -> bool {
    !datacenter.is_empty() && !datacenter.eq_ignore_ascii_case(&call.config.datacenter)
}

pub(super) fn refuse_datacenter(call: &Call, datacenter: &str) -> Result<(), ApiError> {
    match is_elsewhere(call, datacenter) {
        true => Err(forward::no_path(&call.config.datacenter, datacenter)),
        false => Ok(()),
    }
}

/// `PUT /v1/catalog/deregister`
pub(super) async fn deregister(
    State(writer): State<Writer>,
    State(wan): State<Option<Wan>>,
    mut call: Call,
) -> Result<Response, ApiError> {
    call.authorizer()?;
    let request: DeregisterRequest = call.decode()?;
    request.validate()?;
    if is_elsewhere(&call, &request.datacenter) {
        return forward::write(&call, wan, &request.datacenter, "/v1/catalog/deregister").await;
    }
    call.settle(&request.partition, &request.namespace)?;
    let authorizer = call.authorizer()?;
    let some = |id: String| Some(id).filter(|id| !id.is_empty());
    let what = Deregistration {
        node: request.node,
        service_id: some(request.service_id),
        check_id: some(request.check_id),
    };
    call.write(&writer, move |txn| {
        may_deregister(&authorizer, &txn.read(), &what)?;
        txn.deregister(&what);
        Ok(())
    })
    .await?;
    call.json(&true)
}

/// `GET /v1/catalog/datacenters`
pub(super) async fn datacenters(
    State(wan): State<Option<Wan>>,
    call: Call,
) -> Result<Response, ApiError> {
    let own = || vec![call.config.datacenter.clone()];
    let all = wan.map_or_else(own, |wan| wan.datacenters());
    let mut response = call.json(&all)?;
    call.add_cache(response.headers_mut());
    Ok(response)
}

/// `GET /v1/catalog/nodes`
pub(super) async fn nodes(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let wanted = call.params.node_meta();
    let filter = call.filter(&filters::NODE)?;
    call.take_every();
    let answer = call
        .read(|state| {
            let mut nodes = state.nodes();
            nodes.retain(|node| has_meta(node, &wanted));
            nodes
        })
        .await?;
    let (mut nodes, filtered) = visible(answer.value, |node| authorizer.node_read(&node.node));
    nodes.retain(|node| filter.matches(node));
    near::sort(&call, &mut nodes, |node| &node.node);
    if call.translates_own() {
        nodes
            .iter_mut()
            .for_each(|node| *node = node.for_elsewhere());
    }
    call.answer(answer.index, &nodes, filtered)
}

/// `GET /v1/catalog/node/:node`
pub(super) async fn node(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    let found = on_node(&call, &name, false).await?;
    let Some((node, services)) = &found.value else {
        return call.answer(found.index, &Value::Null, found.filtered);
    };
    let by_id: BTreeMap<_, _> = services.iter().map(|s| (&s.id, s)).collect();
    let body = json!({ "Node": node, "Services": by_id });
    call.answer(found.index, &body, found.filtered)
}

/// `GET /v1/catalog/node-services/:node`
pub(super) async fn node_services(
    Path(name): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let merge = call.params.flag("merge-central-config")?;
    let found = on_node(&call, &name, merge).await?;
    let (node, services) = found.value.unzip();
    // A missing list is `null`, as in Go.
    let body = json!({ "Node": node, "Services": services });
    call.answer(found.index, &body, found.filtered)
}

/// A node and its services, as far as the caller may see them and the filter matches.
struct OnNode {
    index: u64,
    value: Option<(Arc<Node>, Vec<Arc<ServiceInstance>>)>,
    filtered: bool,
}

async fn on_node(call: &Call, name: &str, merge: bool) -> Result<OnNode, ApiError> {
    let authorizer = call.authorizer()?;
    let filter = call.filter(&filters::SERVICE)?;
    call.take_every();
    let answer = call
        .read(|state| {
            let node = state.node(name)?;
            let services = call.each(state, |state| {
                let mut services = state.instances_on(name);
                if merge {
                    for service in &mut services {
                        *service = Arc::new(legate_proxycfg::merge_central_config(service, state));
                    }
                }
                services
            });
            Some((node, services))
        })
        .await?;
    let exists = answer.value.is_some();
    let seen = answer
        .value
        .filter(|(node, _)| authorizer.node_read(&node.node));
    let mut filtered = exists && seen.is_none();
    let value = seen.map(|(node, services)| {
        let (mut services, hidden) = visible(services, |s| {
            let authorizer = call.at(&authorizer, &s.namespace);
            authorizer.service_read(&s.service)
        });
        services.retain(|service| filter.matches(service));
        filtered |= hidden;
        if call.translates_own() {
            let services = services.iter().map(ServiceInstance::for_elsewhere);
            return (node.for_elsewhere(), services.collect());
        }
        (node, services)
    });
    Ok(OnNode {
        index: answer.index,
        value,
        filtered,
    })
}

/// `GET /v1/catalog/services`
pub(super) async fn services(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let wanted = call.params.node_meta();
    let filter = call.filter(&filters::SERVICE_NODE)?;
    let all_nodes = wanted.is_empty() && filter.is_empty() && authorizer.node_read_all();
    let answer = call
        .read(|state| {
            if all_nodes {
                return (state.services(), false);
            }
            let mut nodes = state.nodes();
            nodes.retain(|node| has_meta(node, &wanted));
            let (nodes, filtered) = visible(nodes, |node| authorizer.node_read(&node.node));
            (services_on(state, &nodes, &filter), filtered)
        })
        .await?;
    let (services, nodes_filtered) = answer.value;
    let (services, filtered) = visible(services.into_iter().collect(), |(name, _)| {
        authorizer.service_read(name)
    });
    let services: BTreeMap<String, Vec<String>> = services.into_iter().collect();
    call.answer(answer.index, &services, filtered || nodes_filtered)
}

fn services_on(
    state: &ReadTxn<'_>,
    nodes: &[Arc<Node>],
    filter: &Filter,
) -> BTreeMap<String, Vec<String>> {
    let fits = |node: &Arc<Node>, service: &Arc<ServiceInstance>| {
        filter.is_empty()
            || filter.matches(&ServiceNode::from(&CheckServiceNode {
                node: node.clone(),
                service: service.clone(),
                checks: Vec::new(),
            }))
    };
    let mut services = BTreeMap::<String, BTreeSet<String>>::new();
    for node in nodes {
        let instances = state.instances_on(&node.node);
        for instance in instances.iter().filter(|instance| fits(node, instance)) {
            services
                .entry(instance.service.clone())
                .or_default()
                .extend(instance.tags.iter().cloned());
        }
    }
    let listed = |(name, tags): (String, BTreeSet<String>)| (name, tags.into_iter().collect());
    services.into_iter().map(listed).collect()
}

/// `GET /v1/catalog/service/:name`
pub(super) async fn service(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    list(&call, |state| state.service(&name)).await
}

/// `GET /v1/catalog/connect/:name`
pub(super) async fn connect(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    list(&call, |state| seen_proxies(state, &authorizer, &name)).await
}

/// The proxies and gateways of a service. Requires `service:read` on the service, whatever the proxies' own
/// names are. The caller must still authorize each instance.
fn seen_proxies(state: &ReadTxn<'_>, authorizer: &Authorizer, name: &str) -> Vec<CheckServiceNode> {
    match authorizer.service_read(name) {
        true => connect_to(state, name),
        false => Vec::new(),
    }
}

async fn list(
    call: &Call,
    find: impl Fn(&ReadTxn<'_>) -> Vec<CheckServiceNode> + Send + Sync,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let selection = Selection::of(call)?;
    let filter = call.filter(&filters::SERVICE_NODE)?;
    let answer = call
        .read(|state| {
            let found = selection.apply(find(state), state);
            found.iter().map(ServiceNode::from).collect::<Vec<_>>()
        })
        .await?;
    let (mut rows, filtered) = visible(answer.value, |row| {
        let authorizer = authorizer.within(&Tenancy::new(&row.partition, &row.namespace));
        authorizer.node_read(&row.node) && authorizer.service_read(&row.service_name)
    });
    rows.retain(|row| filter.matches(row));
    near::sort(call, &mut rows, |row| &row.node);
    if call.translates_own() {
        rows.iter_mut().for_each(ServiceNode::set_for_elsewhere);
    }
    call.answer(answer.index, &rows, filtered)
}

/// The instances that the client selects, and whether central configuration is merged into them.
pub(super) struct Selection<'a> {
    tags: Vec<&'a str>,
    node_meta: Vec<(&'a str, &'a str)>,
    passing: bool,
    merge: bool,
}

impl<'a> Selection<'a> {
    pub(super) fn of(call: &'a Call) -> Result<Self, ApiError> {
        let tags = call.params.all("tag");
        Ok(Self {
            tags: tags.filter(|tag| !tag.is_empty()).collect(),
            node_meta: call.params.node_meta(),
            passing: call.params.flag("passing")?,
            merge: call.params.flag("merge-central-config")?,
        })
    }

    pub(super) fn apply(
        &self,
        mut instances: Vec<CheckServiceNode>,
        state: &ReadTxn<'_>,
    ) -> Vec<CheckServiceNode> {
        instances.retain(|instance| {
            let has = |tag: &&str| {
                let tags = &instance.service.tags;
                tags.iter().any(|own| own.eq_ignore_ascii_case(tag))
            };
            self.tags.iter().all(has)
                && has_meta(&instance.node, &self.node_meta)
                && (!self.passing || instance.health() == legate_model::CheckStatus::Passing)
        });
        if self.merge {
            for instance in &mut instances {
                let merged = legate_proxycfg::merge_central_config(&instance.service, state);
                instance.service = Arc::new(merged);
            }
        }
        instances
    }
}

pub(super) fn has_meta(node: &Node, wanted: &[(&str, &str)]) -> bool {
    wanted
        .iter()
        .all(|(key, value)| node.meta.get(*key).is_some_and(|own| own == value))
}

/// The names of all services but proxies, gateways and the servers' own service.
pub(super) fn applications(state: &ReadTxn<'_>) -> BTreeSet<String> {
    let mut names = state.services_of_kind(ServiceKind::Typical);
    names.remove(OWN_SERVICE);
    names
}
