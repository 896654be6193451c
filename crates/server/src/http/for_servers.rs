//! What only servers of other datacenters may ask.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use legate_ca::{CaError, CaManager};
use legate_model::name::validate_datacenter;
use legate_model::{CaRoots, CheckServiceNode, ServiceKind, Tenancy};
use legate_proxycfg::gateways::connect_to;
use legate_proxycfg::prepared_query;
use legate_runtime::Clock;
use legate_store::{Since, Writer};
use legate_wan::Caller as ServerCaller;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep, timeout_at};

use super::call::Call;
use crate::api_error::ApiError;
use crate::config::ServerConfig;
use crate::dns::{Client, Responder, Transport};
use crate::federation::OwnGateways;
use crate::mirror::RemoteRange;
use crate::prepared::{self, Caller, Sought};
use crate::primary_ca::RootsForServers;
use crate::replication::{PACE, Question, WAIT};
use crate::wan::RemoteQuery;

/// The time in which an answer with what third datacenters have must be known. Less than the caller waits for one that does
/// not wait for a change.
const KNOWN_WITHIN: Duration = Duration::from_secs(3);

/// `POST /v1/internal/legate/servers/dns`: answers the DNS question of a client in another datacenter.
pub(super) async fn dns(
    State(responder): State<Responder>,
    call: Call,
) -> Result<Response, ApiError> {
    let client = Client {
        token: call.token.clone(),
        tenancy: call.tenancy.clone(),
        // Networks differ, so the address says nothing here.
        source: None,
        transport: match call.params.get("transport") {
            Some("tcp") => Transport::Tcp,
            _ => Transport::Udp,
        },
        translate_for: call.params.get("translate-for").map(str::to_owned),
    };
    let answer = responder.query(client, call.body()).await;
    let answer = answer.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let answer = answer.ok_or_else(|| ApiError::bad_request("It is not a question"))?;
    let mut response = Response::new(Body::from(answer));
    let kind = HeaderValue::from_static("application/dns-message");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

/// `POST /v1/internal/legate/servers/replication`: what a secondary datacenter does not have yet of this one. Waits for
/// changes.
pub(super) async fn replication(call: Call) -> Result<Response, ApiError> {
    let Question {
        since,
        all,
        wait,
        acls,
    } = call.decode()?;
    require_primary(&call)?;
    if acls && !call.config.acl.enabled {
        return Err(ApiError::bad_request(
            "The primary datacenter has no ACLs: enable them there first (acl.enabled), or not in the secondaries",
        ));
    }
    let authorizer = call.authorizer()?.within(&Tenancy::default());
    // With the secrets of tokens.
    ApiError::require(!acls || authorizer.acl_write(), "acl:write", "")?;
    ApiError::require(authorizer.operator_read(), "operator:read", "")?;
    let unreadable = |error: serde_json::Error| ApiError::internal(error.to_string());
    let deadline = Instant::now() + wait.min(WAIT);
    loop {
        let (answer, mut watch) = {
            let state = call.reader.state();
            let txn = state.read();
            // A server that is cut off from the others would make the secondary forget what they have.
            let wanted = match all {
                true => Since::default(),
                false => since.clone(),
            };
            let answer = txn.replication(&wanted, acls).map_err(unreadable)?;
            if answer.mesh.is_empty() {
                let text = "The primary datacenter has no certificate authority yet";
                return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text));
            }
            if answer.mesh == since.mesh && answer.index < since.index {
                let text = format!("This server is behind: it has index {}", answer.index);
                return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, text));
            }
            (answer, call.reader.watch(&txn.into_reads()))
        };
        let is_first = all || answer.mesh != since.mesh || since.index == 0;
        if is_first || !answer.is_empty() {
            return call.json(&answer);
        }
        let changed = timeout_at(deadline, call.unless_stopped(watch.changed())).await;
        let Ok(going_on) = changed else {
            return call.json(&answer);
        };
        going_on?;
        // Many changes of rows that are not replicated are looked at together.
        sleep(PACE).await;
    }
}

fn require_primary(call: &Call) -> Result<(), ApiError> {
    let Some(primary) = call.config.primary() else {
        return Ok(());
    };
    let here = &call.config.datacenter;
    Err(ApiError::bad_request(format!(
        "{here:?} is not the primary datacenter: it follows {primary:?}; correct primary_datacenter"
    )))
}

/// `POST /v1/internal/legate/servers/gateways`: a secondary datacenter says what its mesh gateways are.
pub(super) async fn gateways(
    State(writer): State<Writer>,
    State(clock): State<Clock>,
    Extension(caller): Extension<ServerCaller>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    ApiError::require(authorizer.operator_write(), "operator:write", "")?;
    let OwnGateways {
        datacenter,
        gateways,
    } = call.decode()?;
    validate_datacenter(&datacenter).map_err(|error| ApiError::bad_request(error.to_string()))?;
    require_primary(&call)?;
    let datacenter = datacenter.to_ascii_lowercase();
    let is_own = datacenter.eq_ignore_ascii_case(&call.config.datacenter);
    if is_own || !caller.datacenters.contains(&datacenter) {
        return Err(ApiError::bad_request(format!(
            "A server with a certificate of {:?} cannot say what the mesh gateways of {datacenter:?} are",
            caller.datacenters
        )));
    }
    let now = clock.now();
    call.write(&writer, move |txn| {
        txn.put_mesh_gateways(&datacenter, &gateways, now);
        Ok(())
    })
    .await?;
    call.json(&true)
}

/// `POST /v1/internal/legate/servers/ca/roots`: the roots as a blocking query, with the index that the state had when they
/// were asked for.
pub(super) async fn roots(call: Call) -> Result<Response, ApiError> {
    let state = call.reader.state().index();
    let answer = call.read(|txn| txn.ca_roots()).await?;
    let roots = answer.value.ok_or(CaError::Missing)?;
    let (roots, index) = (CaRoots::clone(&roots), answer.index);
    call.json(&RootsForServers {
        roots,
        index,
        state,
    })
}

/// A request for the intermediate by which a secondary datacenter signs leaves.
#[derive(Deserialize)]
pub(super) struct IntermediateRequest {
    csr: String,
    /// Seconds that it is to be valid.
    ttl: u64,
}

/// `POST /v1/internal/legate/servers/ca/intermediate`: signs the intermediate of a secondary datacenter. As in Consul,
/// requires `operator:write`.
pub(super) async fn intermediate(
    State(manager): State<CaManager>,
    call: Call,
) -> Result<Response, ApiError> {
    super::ca::operates(&call)?;
    let IntermediateRequest { csr, ttl } = call.decode()?;
    let ttl = Duration::from_secs(ttl);
    let certificate = manager.sign_intermediate(&csr, ttl).await?;
    call.json(&json!({ "certificate": certificate }))
}

/// `POST /v1/internal/legate/servers/query`: the instances that a prepared query of another datacenter selects in this
/// one.
pub(super) async fn query(
    State(config): State<Arc<ServerConfig>>,
    call: Call,
) -> Result<Response, ApiError> {
    let RemoteQuery {
        service,
        connect,
        near,
    } = call.decode()?;
    let caller = Caller {
        authorizer: &call.authorizer()?,
        node: &config.node_name,
        source: None,
    };
    let sought = Sought {
        wanted: &service,
        connect,
        near: &near,
    };
    let selected = prepared::select(&call.reader.state().read(), &caller, sought);
    call.json(&json!({ "nodes": selected.nodes, "filtered": selected.filtered }))
}

/// `POST /v1/internal/legate/servers/range`: what proxies of another datacenter need of this one, as a blocking query.
/// The caller's certificate is its right: it is a server of the mesh, and its proxies reach what it learns in any case.
pub(super) async fn range(call: Call) -> Result<Response, ApiError> {
    let RemoteRange { service, query } = call.decode()?;
    if let Some(query) = query {
        return found_by(&call, &query).await;
    }
    let answer = call.read(|txn| match &service {
        Some(service) => connect_to(txn, service),
        None => txn.gateways_of_kind(ServiceKind::MeshGateway),
    });
    let answer = answer.await?;
    call.answer(answer.index, &answer.value, false)
}

/// Answers what a prepared query finds here for callers of the partition. What it finds in a third datacenter has no index,
/// so the index of the answer stands for all of it: who sends it gets an answer when it is another one.
async fn found_by(call: &Call, query: &str) -> Result<Response, ApiError> {
    let waits = call
        .params
        .blocking(call.config.query_times, rand::random())?;
    let start = Instant::now();
    let (deadline, known_by) = (start + waits.wait, start + KNOWN_WITHIN);
    loop {
        let (found, is_pending, mut watch) = {
            let state = call.reader.state();
            let txn = state.read();
            let found = txn.in_tenancy(&call.tenancy, |txn| prepared_query::found(txn, query));
            let is_pending = txn.is_pending();
            (found, is_pending, call.reader.watch(&txn.into_reads()))
        };
        // Peers are those of one datacenter: others do not know how their services are reached.
        let instances: &[CheckServiceNode] = match found.peer.as_str() {
            "" => &found.instances,
            _ => &[],
        };
        let index = digest(instances)?;
        let now = Instant::now();
        let is_other = index != waits.min_index;
        let is_news = is_other && (!is_pending || now >= known_by);
        if is_news || now >= deadline {
            return call.answer(index, &instances, false);
        }
        let until = match is_other {
            true => deadline.min(known_by),
            false => deadline,
        };
        let changed = timeout_at(until, call.unless_stopped(watch.changed())).await;
        changed.unwrap_or(Ok(()))?;
    }
}

/// A number that stands for a list of instances. Never 0, which stands for none.
fn digest(instances: &[CheckServiceNode]) -> Result<u64, ApiError> {
    let text =
        serde_json::to_vec(instances).map_err(|error| ApiError::internal(error.to_string()))?;
    let digest = Sha256::digest(text);
    let mut number = [0; 8];
    number
        .iter_mut()
        .zip(digest)
        .for_each(|(to, from)| *to = from);
    Ok(u64::from_be_bytes(number).max(1))
}
