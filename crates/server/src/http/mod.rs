//! The HTTP API: Consul's paths, parameters, headers and JSON. Endpoints validate and authorize requests and
//! translate them into reads and writes of the store. They hold no state of their own.

mod acl;
mod agent;
mod browser;
mod ca;
mod call;
mod catalog;
mod cluster_gateways;
mod compression;
mod config;
mod connect_authorize;
mod connections;
mod coordinates;
mod debug;
mod denial;
mod discovery_chain;
mod dry_run;
mod events;
mod exported;
mod federation;
mod for_servers;
mod forward;
mod gateway_services;
mod guard;
mod health;
mod intentions;
mod intentions_by_id;
mod kv;
mod metrics;
mod near;
mod operator;
mod params;
mod peering;
mod prepared_query;
mod primary;
mod proxies;
mod sessions;
mod snapshot;
mod state;
mod status;
mod tenants;
mod transactions;
mod ui;
mod unserved;
mod virtual_ips;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use futures_util::FutureExt;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use legate_model::acl::{AuthMethod, BindingRule, Policy, Role};
use legate_runtime::metrics::Error as MetricsError;
use legate_runtime::{BoxError, CancellationToken};

use self::acl::{
    auth_methods, authorize, bootstrap, objects, policies, replication, roles, templates, tokens,
};
pub(crate) use self::agent::about::member_tags;
use self::browser::Browsers;
pub(crate) use self::connections::Listeners;
use self::forward::Forward;
use self::guard::Guard;
use self::primary::Primary;
use self::state::ApiState;
use crate::api_error::ApiError;
use crate::handles::Handles;

/// The API of one server, for all its listeners.
pub(crate) struct Api(Arc<connections::Service>);

impl Api {
    /// Fails if the registry has its metrics already.
    pub(crate) fn new(handles: &Handles) -> Result<Self, MetricsError> {
        let guard = Guard {
            policy: Arc::new(handles.config.http_policy.clone()),
            browsers: Arc::new(Browsers::new(&handles.config)),
            rates: handles.rates.clone(),
            audit: handles.audit.clone(),
            traces: handles.traces.clone(),
            rights: handles.rights(),
            default_policy: match handles.config.acl.enabled {
                true => handles.config.acl.default_policy.as_str(),
                false => "allow",
            },
            translates: handles.config.translate_wan_addrs,
        };
        let reader = handles.store.reader();
        let forward = handles.wan.clone().map(|wan| Forward {
            wan,
            datacenter: handles.config.datacenter.clone(),
            primary: Primary::of(&handles.config, handles.store.reader()),
            rights: handles.rights(),
            translates: handles.config.translate_wan_addrs,
        });
        let router = router(ApiState::new(handles.clone()));
        let service = connections::Service::new(router, guard, forward, reader, &handles.registry)?;
        Ok(Self(Arc::new(service)))
    }

    /// What other servers are answered.
    pub(crate) fn for_servers(&self) -> legate_wan::Service {
        let service = Arc::clone(&self.0);
        Arc::new(move |request, caller| {
            let service = Arc::clone(&service);
            service.handle_server(request, caller).boxed()
        })
    }

    /// Serves the API until `stop` is cancelled. Then it closes the listeners and lets requests in flight finish.
    pub(crate) fn serve(
        &self,
        handles: &Handles,
        listeners: Listeners,
        stop: CancellationToken,
    ) -> impl Future<Output = Result<(), BoxError>> + Send + 'static {
        let spawner = handles.spawner.clone();
        let limit = handles.config.connections.http;
        connections::serve(Arc::clone(&self.0), listeners, limit, spawner, stop)
    }
}

fn router(state: ApiState) -> Router {
    Router::new()
        .merge(catalog_routes())
        .merge(list_routes())
        .merge(mesh_routes())
        .merge(acl_routes())
        .merge(kv_routes())
        .merge(tenant_routes())
        .merge(operator_routes())
        .merge(debug_routes())
        .fallback(unserved::path)
        .method_not_allowed_fallback(wrong_method)
        .layer(compression::layer())
        .with_state(state)
}

fn catalog_routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/catalog/register", put(catalog::register))
        .route("/v1/catalog/deregister", put(catalog::deregister))
        .route("/v1/catalog/datacenters", get(catalog::datacenters))
        .route("/v1/catalog/nodes", get(catalog::nodes))
        .route("/v1/catalog/node/{name}", get(catalog::node))
        .route("/v1/catalog/services", get(catalog::services))
        .route("/v1/catalog/service/{name}", get(catalog::service))
        .route("/v1/catalog/connect/{name}", get(catalog::connect))
        .route("/v1/health/node/{name}", get(health::node))
        .route("/v1/health/service/{name}", get(health::service))
        .route("/v1/health/connect/{name}", get(health::connect))
        .merge(agent_routes())
        .merge(query_routes())
        .route("/v1/snapshot", get(snapshot::save).put(snapshot::restore))
        .route("/v1/status/leader", get(status::leader))
        .route("/v1/status/peers", get(status::peers))
}

/// Lists of registrations that `catalog_routes` does not have, coordinates, events, intentions by id, and the
/// endpoints of the web UI.
fn list_routes() -> Router<ApiState> {
    use intentions_by_id::{create, delete, get as one, update};
    let gateway = get(gateway_services::list);
    let node_services = get(catalog::node_services);
    Router::new()
        .route("/v1/catalog/node-services/{name}", node_services)
        .route("/v1/catalog/gateway-services/{name}", gateway)
        .route("/v1/health/checks/{name}", get(health::service_checks))
        .route("/v1/health/state/{state}", get(health::state))
        .route("/v1/health/ingress/{name}", get(health::ingress))
        .route("/v1/coordinate/datacenters", get(coordinates::datacenters))
        .route("/v1/coordinate/nodes", get(coordinates::nodes))
        .route("/v1/coordinate/node/{name}", get(coordinates::node))
        .route("/v1/coordinate/update", put(coordinates::update))
        .route("/v1/event/fire/{*name}", put(events::fire))
        .route("/v1/event/list", get(events::list))
        .route("/v1/connect/intentions", post(create))
        .route(
            "/v1/connect/intentions/{id}",
            get(one).put(update).delete(delete),
        )
        .route("/v1/internal/ui/nodes", get(ui::nodes))
        .route("/v1/internal/ui/node/{name}", get(ui::node))
        .route("/v1/internal/ui/services", get(ui::services))
        .route("/v1/internal/ui/catalog-overview", get(ui::overview))
        .route(
            "/v1/internal/ui/service-topology/{name}",
            get(ui::topology::topology),
        )
        .route(
            "/v1/internal/ui/gateway-services-nodes/{name}",
            get(ui::gateways::services),
        )
        .route(
            "/v1/internal/ui/gateway-intentions/{name}",
            get(ui::gateways::intentions),
        )
}

fn query_routes() -> Router<ApiState> {
    use prepared_query::{create, delete, list, specific, update};
    // Names of queries may contain slashes, and the sub-resource follows the name, so the path is split in the
    // handler.
    let one = get(specific).put(update).delete(delete);
    Router::new()
        .route("/v1/query", get(list).post(create))
        .route("/v1/query/{*rest}", one)
}

fn kv_routes() -> Router<ApiState> {
    let all = get(kv::get).put(kv::put).delete(kv::delete);
    Router::new()
        .route("/v1/kv/", all.clone())
        .route("/v1/kv/{*key}", all)
        .route("/v1/session/create", put(sessions::create))
        .route("/v1/session/destroy/{id}", put(sessions::destroy))
        .route("/v1/session/renew/{id}", put(sessions::renew))
        .route("/v1/session/info/{id}", get(sessions::info))
        .route("/v1/session/node/{node}", get(sessions::of_node))
        .route("/v1/session/list", get(sessions::list))
        .route("/v1/session/destroy/", put(sessions::without_id))
        .route("/v1/session/renew/", put(sessions::without_id))
        .route("/v1/session/info/", get(sessions::without_id))
        .route("/v1/session/node/", get(sessions::without_node))
        .route("/v1/txn", put(transactions::apply))
}

fn tenant_routes() -> Router<ApiState> {
    let namespace = get(tenants::namespace)
        .put(tenants::update_namespace)
        .delete(tenants::delete_namespace);
    let partition = get(tenants::partition)
        .put(tenants::update_partition)
        .delete(tenants::delete_partition);
    Router::new()
        .route("/v1/namespaces", get(tenants::namespaces))
        .route("/v1/namespace", put(tenants::create_namespace))
        .route("/v1/namespace/{name}", namespace)
        .route("/v1/partitions", get(tenants::partitions))
        .route("/v1/partition", put(tenants::create_partition))
        .route("/v1/partition/{name}", partition)
}

fn agent_routes() -> Router<ApiState> {
    use agent::{about, checks, control, maintenance, monitor, services};
    let by_id = get(services::health_by_id);
    let by_name = get(services::health_by_name);
    Router::new()
        .route("/v1/agent/service/register", put(agent::register))
        .route("/v1/agent/service/deregister/{id}", put(agent::deregister))
        .route("/v1/agent/service/{id}", get(services::service))
        .route("/v1/agent/services", get(services::services))
        .route("/v1/agent/checks", get(services::checks))
        .route("/v1/agent/health/service/id/{id}", by_id)
        .route("/v1/agent/health/service/name/{name}", by_name)
        .route("/v1/agent/check/register", put(checks::register))
        .route("/v1/agent/check/deregister/{id}", put(checks::deregister))
        .route("/v1/agent/check/pass/{id}", put(checks::pass))
        .route("/v1/agent/check/warn/{id}", put(checks::warn))
        .route("/v1/agent/check/fail/{id}", put(checks::fail))
        .route("/v1/agent/check/update/{id}", put(checks::update))
        .route("/v1/agent/self", get(about::own))
        .route("/v1/agent/members", get(about::members))
        .route("/v1/agent/version", get(about::version))
        .route("/v1/agent/metrics", get(about::metrics))
        .route("/v1/agent/metrics/stream", get(monitor::metrics))
        .route("/v1/agent/monitor", get(monitor::monitor))
        .route("/v1/agent/host", get(about::host))
        .route("/v1/agent/maintenance", put(maintenance::node))
        .route(
            "/v1/agent/service/maintenance/{id}",
            put(maintenance::service),
        )
        .route("/v1/agent/reload", put(control::reload))
        .route("/v1/agent/leave", put(control::leave))
        .route("/v1/agent/join/{address}", put(control::join))
        .route("/v1/agent/force-leave/{node}", put(control::force_leave))
        .route("/v1/agent/token/{kind}", put(control::token))
}

fn debug_routes() -> Router<ApiState> {
    Router::new()
        .route("/debug/pprof/", get(debug::index))
        .route("/debug/pprof/{name}", get(debug::profile))
}

fn mesh_routes() -> Router<ApiState> {
    let exact = get(intentions::get)
        .put(intentions::put)
        .delete(intentions::delete);
    let authorize = post(connect_authorize::authorize);
    let chain = get(discovery_chain::get).post(discovery_chain::get_with);
    Router::new()
        .route("/v1/discovery-chain/{service}", chain)
        .route("/v1/connect/intentions", get(intentions::list))
        .route("/v1/connect/intentions/exact", exact)
        .route("/v1/connect/intentions/check", get(intentions::check))
        .route("/v1/connect/intentions/match", get(intentions::matching))
        .merge(ca_routes())
        .route("/v1/agent/connect/authorize", authorize)
        .route("/v1/internal/service-virtual-ip", put(virtual_ips::assign))
        .route("/v1/internal/legate/servers/dns", post(for_servers::dns))
        .route(
            "/v1/internal/legate/servers/query",
            post(for_servers::query),
        )
        .route(
            "/v1/internal/legate/servers/replication",
            post(for_servers::replication),
        )
        .route(
            "/v1/internal/legate/servers/range",
            post(for_servers::range),
        )
        .merge(federation_routes())
        .route("/v1/internal/legate/status", get(status::own))
        .route("/v1/internal/legate/proxies", get(proxies::list))
        .route("/v1/internal/legate/proxy/{node}/{id}", get(proxies::get))
        .merge(cluster_gateway_routes())
        .route("/v1/config", put(config::put))
        .route("/v1/config/", get(config::list_all))
        .route("/v1/config/{kind}", get(config::list))
        .route(
            "/v1/config/{kind}/{name}",
            get(config::get).delete(config::delete),
        )
}

fn federation_routes() -> Router<ApiState> {
    let one = get(federation::one);
    Router::new()
        .route("/v1/internal/federation-states", get(federation::list))
        .route(
            "/v1/internal/federation-states/mesh-gateways",
            get(federation::mesh_gateways),
        )
        .route("/v1/internal/federation-state/{datacenter}", one)
        .route(
            "/v1/internal/legate/servers/gateways",
            post(for_servers::gateways),
        )
}

fn cluster_gateway_routes() -> Router<ApiState> {
    let gateway = get(cluster_gateways::get)
        .put(cluster_gateways::put)
        .delete(cluster_gateways::delete);
    Router::new()
        .route("/v1/internal/legate/gateways", get(cluster_gateways::list))
        .route(
            "/v1/internal/legate/gateways/status",
            get(cluster_gateways::statuses),
        )
        .route("/v1/internal/legate/gateway/{name}", gateway)
        .route(
            "/v1/internal/legate/gateway/{name}/status",
            get(cluster_gateways::status),
        )
        .route(
            "/v1/internal/legate/gateway/{name}/endpoints",
            put(cluster_gateways::put_endpoints),
        )
        .route(
            "/v1/internal/legate/gateway/{name}/secrets",
            put(cluster_gateways::put_secrets),
        )
}

fn ca_routes() -> Router<ApiState> {
    let configuration = get(ca::configuration).put(ca::configure);
    Router::new()
        .route("/v1/connect/ca/roots", get(ca::roots))
        .route("/v1/connect/ca/configuration", configuration)
        .route(
            "/v1/internal/legate/servers/ca/intermediate",
            post(for_servers::intermediate),
        )
        .route(
            "/v1/internal/legate/servers/ca/roots",
            post(for_servers::roots),
        )
        .route("/v1/agent/connect/ca/roots", get(ca::agent_roots))
        .route("/v1/agent/connect/ca/leaf/{service}", get(ca::leaf))
}

fn acl_routes() -> Router<ApiState> {
    let token = get(tokens::get).put(tokens::update).delete(tokens::delete);
    let method = get(objects::read::<AuthMethod>)
        .put(auth_methods::update_method)
        .delete(objects::delete::<AuthMethod>);
    Router::new()
        .route("/v1/acl/bootstrap", put(bootstrap::bootstrap))
        .route("/v1/acl/login", post(acl::login))
        .route("/v1/acl/logout", post(acl::logout))
        .route("/v1/acl/tokens", get(tokens::list))
        .route("/v1/acl/token", put(tokens::create))
        .route("/v1/acl/token/self", get(tokens::own))
        .route("/v1/acl/token/{accessor}", token)
        .route("/v1/acl/token/{accessor}/clone", put(tokens::clone))
        .route("/v1/acl/policies", get(policies::list))
        .route("/v1/acl/policy", put(objects::create::<Policy>))
        .route("/v1/acl/policy/{id}", objects::by_id::<Policy>())
        .route("/v1/acl/policy/name/{*name}", get(policies::get_by_name))
        .route("/v1/acl/roles", get(roles::list))
        .route("/v1/acl/role", put(objects::create::<Role>))
        .route("/v1/acl/role/{id}", objects::by_id::<Role>())
        .route("/v1/acl/role/name/{name}", get(roles::get_by_name))
        .route("/v1/acl/templated-policies", get(templates::list))
        .route("/v1/acl/templated-policy/name/{*name}", get(templates::get))
        .route(
            "/v1/acl/templated-policy/preview/{*name}",
            post(templates::preview),
        )
        .route("/v1/internal/acl/authorize", post(authorize::authorize))
        .route("/v1/acl/auth-methods", get(auth_methods::methods))
        .route("/v1/acl/auth-method", put(auth_methods::create_method))
        .route("/v1/acl/auth-method/{name}", method)
        .route("/v1/acl/binding-rules", get(auth_methods::rules))
        .route("/v1/acl/binding-rule", put(objects::create::<BindingRule>))
        .route("/v1/acl/binding-rule/{id}", objects::by_id::<BindingRule>())
}

fn operator_routes() -> Router<ApiState> {
    let autopilot = get(operator::autopilot).put(operator::set_autopilot);
    let keyring = get(operator::keyring)
        .post(operator::change_keyring)
        .put(operator::change_keyring)
        .delete(operator::change_keyring);
    let peering = get(peering::get).delete(peering::delete);
    Router::new()
        .route("/v1/acl/replication", get(replication::status))
        .route("/v1/exported-services", get(exported::list))
        .route("/v1/operator/raft/configuration", get(operator::raft))
        .route(
            "/v1/operator/raft/transfer-leader",
            post(operator::transfer_leader),
        )
        .route("/v1/operator/raft/peer", delete(operator::remove_peer))
        .route("/v1/operator/autopilot/configuration", autopilot)
        .route("/v1/operator/autopilot/health", get(operator::health))
        .route(
            "/v1/operator/autopilot/state",
            get(operator::autopilot_state),
        )
        .route("/v1/operator/usage", get(operator::usage))
        .route("/v1/operator/keyring", keyring)
        .route("/v1/operator/segment", any(operator::paid))
        .route("/v1/operator/area", any(operator::paid))
        .route("/v1/operator/area/{*rest}", any(operator::paid))
        .route("/v1/peerings", get(peering::list))
        .route("/v1/peering/token", post(peering::token))
        .route("/v1/peering/establish", post(peering::establish))
        .route("/v1/peering/", any(peering::nameless))
        .route("/v1/peering/{name}", peering)
}

/// Fallback for known paths with another method. The router adds the `Allow` header; the guard formats it like
/// Consul.
async fn wrong_method(request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        let json = [(CONTENT_TYPE, "application/json")];
        return (json, StatusCode::OK).into_response();
    }
    let text = format!("method {} not allowed", request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, text).into_response()
}
