//! `/v1/connect/intentions` by id, Consul's legacy API. These intentions are stored in the `service-intentions`
//! entries of their destinations too, as sources with an id.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::{ConfigKind, Intention, ServiceName, Tenancy};
use legate_runtime::Clock;
use legate_store::{ReadTxn, WriteTxn, Writer};
use serde_json::json;
use uuid::Uuid;

use super::call::Call;
use super::config;
use super::intentions::{may_read, refuse_peer};
use crate::api_error::ApiError;
use crate::entries::{jwt_providers, protocol};

/// `POST /v1/connect/intentions`
pub(super) async fn create(
    State(writer): State<Writer>,
    State(clock): State<Clock>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    call.refuse_every()?;
    let intention: Intention = call.decode()?;
    if !intention.id.is_empty() {
        return Err(ApiError::internal(
            "ID must be empty when creating a new intention",
        ));
    }
    let mut intention = checked(intention, &call.tenancy)?;
    require_write(&authorizer, &intention.destination())?;
    intention.id = Uuid::new_v4().to_string();
    intention.created_at = Some(clock.now());
    intention.updated_at = intention.created_at;
    let made = json!({ "ID": intention.id });
    let ServiceName { tenancy, name } = intention.destination();
    config::enter(&mut call, &tenancy);
    let write = move |txn: &mut WriteTxn| {
        let source = intention.source();
        if txn.read().intention(&source, &name).is_some() {
            return Err(ApiError::internal(format!(
                "duplicate intention found: {source} to {name}: change that one"
            )));
        }
        require_all_by_id(&txn.read(), &name)?;
        txn.put_intention(intention.clone())?;
        check_entry(txn, &name)
    };
    call.write(&writer, move |txn| txn.in_tenancy(&tenancy, &write))
        .await?;
    call.json(&made)
}

/// `GET /v1/connect/intentions/:id`
pub(super) async fn get(Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    ApiError::unless_some(&authorizer, Resource::Intention, Access::Read, &id)?;
    require_uuid(&id)?;
    let answer = call.read(|state| state.intention_by_id(&id)).await?;
    match answer.value {
        None => call.absent(answer.index, "Intention not found"),
        Some(intention) if may_read(&authorizer, &intention) => {
            call.answer(answer.index, &intention, false)
        }
        Some(intention) => Err(ApiError::denied(
            "intention:read",
            &intention.destination_name,
        )),
    }
}

/// `PUT /v1/connect/intentions/:id`
pub(super) async fn update(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    State(clock): State<Clock>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    // The id in the path takes precedence.
    let mut intention: Intention = call.decode()?;
    intention.id.clear();
    let mut intention = checked(intention, &call.tenancy)?;
    intention.updated_at = Some(clock.now());
    let made = json!({ "ID": id });
    call.write(&writer, move |txn| {
        let old = stored(&txn.read(), &authorizer, &id, "modify")?;
        let destination = old.destination();
        if destination != intention.destination() {
            return Err(ApiError::internal(
                "Cannot modify Destination partition/namespace/name for an intention once it \
                 exists: create another intention",
            ));
        }
        intention.id.clone_from(&old.id);
        intention.created_at = old.created_at;
        txn.in_tenancy(&destination.tenancy, |txn| {
            require_all_by_id(&txn.read(), &old.destination_name)?;
            txn.replace_intention(intention.clone())?;
            check_entry(txn, &intention.destination_name)
        })
    })
    .await?;
    call.json(&made)
}

/// `DELETE /v1/connect/intentions/:id`
pub(super) async fn delete(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    call.write(&writer, move |txn| {
        let old = stored(&txn.read(), &authorizer, &id, "delete")?;
        let ServiceName { tenancy, name } = old.destination();
        let source = old.source();
        let remove = |txn: &mut WriteTxn| txn.remove_intention(&source, &name);
        Ok(txn.in_tenancy(&tenancy, remove)?)
    })
    .await?;
    call.json(&true)
}

/// Validates and normalises an intention.
fn checked(mut intention: Intention, own: &Tenancy) -> Result<Intention, ApiError> {
    refuse_peer(&intention)?;
    if intention.jwt.is_some() {
        return Err(ApiError::bad_request(
            "Invalid request: JWT: it belongs to the destination's service-intentions config \
             entry; leave it out here and write the entry with PUT /v1/config",
        ));
    }
    intention.validate()?;
    intention.normalise(own);
    Ok(intention)
}

fn stored(
    state: &ReadTxn<'_>,
    authorizer: &Authorizer,
    id: &str,
    verb: &str,
) -> Result<Arc<Intention>, ApiError> {
    ApiError::unless_some(authorizer, Resource::Intention, Access::Write, id)?;
    require_uuid(id)?;
    let Some(old) = state.intention_by_id(id) else {
        return Err(ApiError::internal(format!(
            "Cannot {verb} non-existent intention: '{id}'"
        )));
    };
    require_write(authorizer, &old.destination())?;
    Ok(old)
}

fn require_write(authorizer: &Authorizer, destination: &ServiceName) -> Result<(), ApiError> {
    let ServiceName { tenancy, name } = destination;
    ApiError::require(
        authorizer.within(tenancy).intention_write(name),
        "intention:write",
        name,
    )
}

/// Intentions written as a config entry have no ids, and cannot be edited by id.
fn require_all_by_id(state: &ReadTxn<'_>, destination: &str) -> Result<(), ApiError> {
    if !state.has_intentions_without_id(destination) {
        return Ok(());
    }
    Err(ApiError::internal(format!(
        "cannot use legacy intention API to edit intentions with a destination of {destination:?} \
         after editing them via a service-intentions config entry"
    )))
}

fn check_entry(txn: &WriteTxn, destination: &str) -> Result<(), ApiError> {
    let entry = txn
        .read()
        .config_entry(ConfigKind::ServiceIntentions, destination);
    if let Some(entry) = entry {
        protocol::refuse_mismatch(&txn.read(), &entry)?;
        jwt_providers::refuse_unknown(&txn.read(), &entry)?;
    }
    Ok(())
}

fn require_uuid(id: &str) -> Result<(), ApiError> {
    match id.len() == 36 && Uuid::try_parse(id).is_ok() {
        true => Ok(()),
        false => Err(ApiError::bad_request(
            "failed intention lookup: index error: UUID must be 36 characters",
        )),
    }
}
