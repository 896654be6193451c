//! `/v1/agent`: what an agent on the server's own node would answer. Checks are stored as they are
//! reported; this server runs none.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use legate_model::acl::Authorizer;
use legate_model::{HealthCheck, ServiceDefinition, ServiceInstance, ServiceKind};
use legate_runtime::Clock;
use legate_runtime::metrics::{self, Registry};
use legate_store::{Deregistration, ReadTxn, Registration, WriteTxn, Writer};

use super::call::Call;
use super::catalog::{may_take_checks, may_write_service};
use super::error::ApiError;

/// `PUT /v1/agent/service/register`
pub(super) async fn register(
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let replace_checks = call.params.flag("replace-existing-checks")?;
    let definition: ServiceDefinition = call.decode()?;
    definition.validate()?;
    refuse_any_address(&definition)?;
    let local = &call.config.datacenter;
    definition.proxy.refuse_other_datacenters(local)?;
    if let Some(sidecar) = &definition.connect.sidecar_service {
        let refused = sidecar.proxy.refuse_other_datacenters(local);
        refused.map_err(|invalid| invalid.within("Connect.SidecarService"))?;
    }

    let node = call.config.node_name.clone();
    call.write(&writer, move |txn| {
        let mut definition = definition.clone();
        keep_sidecar_port(&mut definition, &txn.read(), &node);
        let instances = txn.read().instances_on(&node);
        let taken: BTreeSet<u16> = instances.iter().map(|i| i.port).collect();
        let parts = definition.into_parts(&node, &taken)?;
        for (instance, checks) in [Some(parts.service), parts.sidecar].into_iter().flatten() {
            may_register(&authorizer, &txn.read(), &node, &instance)?;
            may_take_checks(&authorizer, &txn.read(), &node, &checks)?;
            if replace_checks {
                remove_stale_checks(txn, &node, &instance.id, &checks);
            }
            let registration = registration(&txn.read(), &node, instance, checks)?;
            txn.register(registration)?;
        }
        Ok(())
    })
    .await?;
    Ok(call.empty())
}

fn refuse_any_address(definition: &ServiceDefinition) -> Result<(), ApiError> {
    let sidecar = definition.connect.sidecar_service.as_deref();
    for part in std::iter::once(definition).chain(sidecar) {
        let any = part.address.parse::<std::net::IpAddr>();
        if any.is_ok_and(|address| address.is_unspecified()) {
            return Err(ApiError::bad_request(format!(
                "Invalid service address {:?}: it stands for every address; send the one that \
                 others reach the service at, or none for the node's",
                part.address
            )));
        }
    }
    Ok(())
}

/// A sidecar that is registered again without a port keeps the one it got.
fn keep_sidecar_port(definition: &mut ServiceDefinition, state: &ReadTxn<'_>, node: &str) {
    let id = sidecar_id(definition.service_id());
    let Some(sidecar) = definition.connect.sidecar_service.as_deref_mut() else {
        return;
    };
    if sidecar.port == 0
        && sidecar.socket_path.is_empty()
        && let Some(existing) = state.instance(node, &id)
    {
        sidecar.port = existing.service.port;
    }
}

fn sidecar_id(service_id: &str) -> String {
    format!("{service_id}-sidecar-proxy")
}

fn may_register(
    authorizer: &Authorizer,
    state: &ReadTxn<'_>,
    node: &str,
    instance: &ServiceInstance,
) -> Result<(), ApiError> {
    may_write_service(authorizer, &instance.service)?;
    if instance.kind == ServiceKind::ConnectProxy {
        may_write_service(authorizer, &instance.proxy.destination_service_name)?;
    }
    match state.instance(node, &instance.id) {
        Some(existing) => may_write_service(authorizer, &existing.service.service),
        None => Ok(()),
    }
}

/// Removes the checks of an instance that its new definition does not have.
fn remove_stale_checks(txn: &mut WriteTxn, node: &str, id: &str, kept: &[HealthCheck]) {
    let existing = txn.read().instance(node, id).map(|i| i.checks);
    let of_instance = existing.into_iter().flatten();
    let stale = of_instance.filter(|old| {
        !old.service_id.is_empty() && !kept.iter().any(|new| new.check_id == old.check_id)
    });
    for check in stale {
        txn.deregister(&Deregistration {
            node: node.to_owned(),
            service_id: None,
            check_id: Some(check.check_id.clone()),
        });
    }
}

fn registration(
    state: &ReadTxn<'_>,
    node: &str,
    service: ServiceInstance,
    mut checks: Vec<HealthCheck>,
) -> Result<Registration, ApiError> {
    let own = state.node(node).ok_or_else(|| {
        ApiError::internal(format!(
            "The server's own node {node:?} was deregistered: restart the server, or register the \
             node with PUT /v1/catalog/register"
        ))
    })?;
    for check in &mut checks {
        keep_status(state, node, check);
    }
    Ok(Registration {
        node: (*own).clone(),
        service: Some(service),
        checks,
        skip_node_update: true,
    })
}

/// A check that goes on keeps what it has found.
fn keep_status(state: &ReadTxn<'_>, node: &str, check: &mut HealthCheck) {
    if let Some(known) = state.check(node, &check.check_id)
        && known.r#type == check.r#type
        && known.service_id == check.service_id
    {
        check.status = known.status;
        check.output.clone_from(&known.output);
    }
}

/// `PUT /v1/agent/service/deregister/:id`
pub(super) async fn deregister(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let node = call.config.node_name.clone();
    call.write(&writer, move |txn| {
        deregister_own(txn, &authorizer, &node, &id)
    })
    .await?;
    Ok(call.empty())
}

/// Removes an instance and the sidecar that was registered with it.
fn deregister_own(
    txn: &mut WriteTxn,
    authorizer: &Authorizer,
    node: &str,
    id: &str,
) -> Result<(), ApiError> {
    let Some(instance) = txn.read().instance(node, id) else {
        return Err(ApiError::not_found(format!(
            "Unknown service ID {id:?}: pass the service's ID, not its name; it must be registered \
             on node {node:?}"
        )));
    };
    may_write_service(authorizer, &instance.service.service)?;
    let instance = |id: &str| Deregistration {
        node: node.to_owned(),
        service_id: Some(id.to_owned()),
        check_id: None,
    };
    txn.deregister(&instance(id));
    let sidecar = sidecar_id(id);
    let found = txn.read().instance(node, &sidecar);
    if found.is_some_and(|proxy| proxy.service.proxy.destination_service_id == id) {
        txn.deregister(&instance(&sidecar));
    }
    Ok(())
}

/// `GET /v1/agent/self`
pub(super) async fn own(call: Call) -> Result<Response, ApiError> {
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
    let port = |api: Option<std::net::SocketAddr>| api.map_or(-1, |api| i32::from(api.port()));
    let version = env!("CARGO_PKG_VERSION");
    call.json(&serde_json::json!({
        "Config": {
            "Datacenter": config.datacenter,
            "PrimaryDatacenter": config.datacenter,
            "NodeName": config.node_name,
            "NodeID": id,
            "Server": true,
            "Version": version,
            "Revision": "",
        },
        "DebugConfig": {
            "GRPCPort": port(config.grpc),
            "GRPCTLSPort": port(config.grpc_tls),
            "HTTPPort": port(config.http),
            "HTTPSPort": port(config.https),
            "DNSPort": port(config.dns),
        },
        "Member": {
            "Name": config.node_name,
            "Addr": config.advertise,
            "Status": 1,
            "Tags": { "dc": config.datacenter, "role": "consul", "build": version },
        },
        "Stats": {},
        "Meta": node.as_ref().map(|node| &node.meta),
        "xDS": {
            "SupportedProxies": { "envoy": [] },
            "Port": port(config.grpc),
            "Ports": { "Plaintext": port(config.grpc), "TLS": port(config.grpc_tls) },
        },
    }))
}

/// `GET /v1/agent/metrics`
pub(super) async fn metrics(
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
        "" => return call.json(&super::metrics::summary(&registry, clock.now())),
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
