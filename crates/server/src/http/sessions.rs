//! `/v1/session`: sessions, which hold locks. Status codes and texts are Consul's.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::{HealthCheck, InvalidSession, Session, SessionRequest, Tenancy};
use legate_store::{ReadTxn, SessionConflict, SessionKey, Writer};
use serde_json::json;
use uuid::Uuid;

use super::call::{Call, visible};
use crate::api_error::ApiError;
use crate::own_node::SERF_HEALTH;

/// `PUT /v1/session/create`
pub(super) async fn create(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    call.authorizer()?;
    let request: SessionRequest = match call.has_body() {
        true => call.decode()?,
        false => SessionRequest::default(),
    };
    call.settle(&request.partition, &request.namespace)?;
    let authorizer = call.authorizer()?;
    let (node, least) = (&call.config.node_name, call.config.session_ttl_min);
    let named = request.node.as_ref().unwrap_or(node);
    if !named.is_empty() {
        may_write(&authorizer, named)?;
    }
    let mut new = request.into_session(node, SERF_HEALTH, least)?;
    let id = Uuid::new_v4().to_string();
    new.session.id.clone_from(&id);
    call.write(&writer, move |txn| {
        may_depend(&authorizer, &txn.read(), &new.session)?;
        Ok(txn.create_session(new.clone())?)
    })
    .await?;
    call.json(&json!({ "ID": id }))
}

/// A session reveals the status of its checks. Checks of services in other namespaces are treated as missing
/// unless the caller may read the service.
fn may_depend(
    authorizer: &Authorizer,
    state: &ReadTxn<'_>,
    session: &Session,
) -> Result<(), ApiError> {
    let own = state.tenancy();
    for check in session.service_checks.iter().flatten() {
        let tenancy = own.in_namespace(&check.namespace);
        if tenancy == *own {
            continue;
        }
        let find = |state: &ReadTxn<'_>| state.check(&session.node, &check.id);
        let found = state.in_tenancy(&tenancy, find);
        let may_see = |found: &HealthCheck| {
            let there = authorizer.within(&tenancy);
            found.service_id.is_empty() || there.service_read(&found.service_name)
        };
        if !found.is_some_and(|found| may_see(&found)) {
            return Err(SessionConflict::MissingCheck(check.id.clone()).into());
        }
    }
    Ok(())
}

/// `PUT /v1/session/destroy/:id`
pub(super) async fn destroy(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    call.write(&writer, move |txn| {
        may_end(&authorizer, &txn.read(), &id)?;
        txn.end_session(&id);
        Ok(())
    })
    .await?;
    call.json(&true)
}

/// Checks the permission to end a session. Ending one that does not exist requires none.
pub(super) fn may_end(
    authorizer: &Authorizer,
    state: &ReadTxn<'_>,
    id: &str,
) -> Result<(), ApiError> {
    ApiError::unless_some(authorizer, Resource::Session, Access::Write, id)?;
    match state.session(id) {
        Some(session) => may_write(authorizer, &session.node),
        None => Ok(()),
    }
}

/// `PUT /v1/session/renew/:id`
pub(super) async fn renew(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    ApiError::unless_some(&authorizer, Resource::Session, Access::Write, &id)?;
    let missing = || ApiError::not_found(format!("Session id '{id}' not found"));
    let known = call.txn(&call.reader.state()).session(&id);
    let session = match known {
        Some(session) => session,
        // Another server may have just stored it. A transaction sees everything that is stored.
        None => {
            let id = id.clone();
            let found = call.write(&writer, move |txn| Ok(txn.read().session(&id)));
            found.await?.ok_or_else(missing)?
        }
    };
    may_write(&authorizer, &session.node)?;
    let key = SessionKey {
        tenancy: Tenancy::new(&session.partition, &session.namespace),
        id: session.id.clone(),
    };
    if !writer.renew(key).await? {
        return Err(missing());
    }
    call.json(&[session])
}

/// `GET /v1/session/info/:id`
pub(super) async fn info(Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    read(&call, |state| state.session(&id).into_iter().collect()).await
}

/// `GET /v1/session/node/:node`
pub(super) async fn of_node(Path(node): Path<String>, call: Call) -> Result<Response, ApiError> {
    call.take_every();
    read(&call, |state| {
        call.each(state, |state| state.sessions_on(&node))
    })
    .await
}

/// `GET /v1/session/list`
pub(super) async fn list(call: Call) -> Result<Response, ApiError> {
    call.take_every();
    read(&call, |state| call.each(state, |state| state.sessions())).await
}

/// A path without the session's id.
pub(super) async fn without_id() -> ApiError {
    ApiError::bad_request("Missing session")
}

/// A path without the node's name.
pub(super) async fn without_node() -> ApiError {
    ApiError::bad_request("Missing node name")
}

async fn read(
    call: &Call,
    find: impl Fn(&ReadTxn<'_>) -> Vec<Arc<Session>> + Send,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let answer = call.read(find).await?;
    let may_see = |session: &Arc<Session>| {
        let authorizer = call.at(&authorizer, &session.namespace);
        authorizer.session_read(&session.node)
    };
    let (sessions, filtered) = visible(answer.value, may_see);
    call.answer(answer.index, &sessions, filtered)
}

fn may_write(authorizer: &Authorizer, node: &str) -> Result<(), ApiError> {
    ApiError::require(authorizer.session_write(node), "session:write", node)
}

impl From<InvalidSession> for ApiError {
    fn from(error: InvalidSession) -> Self {
        // Consul's status code.
        Self::internal(error.to_string())
    }
}

impl From<SessionConflict> for ApiError {
    fn from(error: SessionConflict) -> Self {
        // Consul's status code.
        Self::internal(error.to_string())
    }
}
