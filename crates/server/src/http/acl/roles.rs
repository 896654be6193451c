//! `/v1/acl/role…`: ACL roles.

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::acl::Role;
use legate_store::{ReadTxn, WriteTxn, Writer};
use uuid::Uuid;

use super::super::call::Call;
use super::{check_links, decode_to_write, listed, not_found, one, require_read, require_write};
use crate::api_error::ApiError;

/// `GET /v1/acl/roles`
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let policy = call.params.get("policy").filter(|id| !id.is_empty());
    let wanted =
        |role: &Role| policy.is_none_or(|id| role.policies.iter().any(|link| link.id == id));
    listed(
        &call,
        |txn: &ReadTxn<'_>| txn.roles(),
        Role::tenancy,
        |txn, role, _| wanted(role).then(|| txn.shown_role(role)),
    )
    .await
}

/// `GET /v1/acl/role/:id`
pub(crate) async fn get(Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    one(&call, &not_found("role"), |state| {
        Some(state.shown_role(&*state.role(&id)?))
    })
    .await
}

/// `GET /v1/acl/role/name/:name`
pub(crate) async fn get_by_name(
    Path(name): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    require_read(&call)?;
    one(&call, &not_found("role"), |state| {
        Some(state.shown_role(&*state.role_by_name(&name)?))
    })
    .await
}

/// `PUT /v1/acl/role`
pub(crate) async fn create(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let mut role: Role = decode_to_write(&mut call)?;
    if !role.id.is_empty() {
        return Err(ApiError::bad_request(
            "Cannot specify the ID when creating a new role: leave it out, or update the role with \
             PUT /v1/acl/role/<id>",
        ));
    }
    role.id = Uuid::new_v4().to_string();
    role.validate()?;
    let caller = call.acl_authorizer()?;
    let stored = call.write(&writer, move |txn| {
        check_links(&txn.read(), &caller, (&role.policies, &[]), &[])?;
        put(txn, &role)
    });
    call.json(&stored.await?)
}

/// `PUT /v1/acl/role/:id`
pub(crate) async fn update(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let mut role: Role = decode_to_write(&mut call)?;
    if !role.id.is_empty() && role.id != id {
        return Err(ApiError::bad_request(
            "Role ID in URL and payload do not match: leave it out of the body",
        ));
    }
    role.id = id;
    role.validate()?;
    let caller = call.acl_authorizer()?;
    let stored = call.write(&writer, move |txn| {
        let existing = txn.read().role(&role.id);
        let existing = existing.ok_or_else(|| no_role(&role.id))?;
        let before: Vec<&str> = existing.policies.iter().map(|link| &*link.id).collect();
        check_links(&txn.read(), &caller, (&role.policies, &[]), &before)?;
        put(txn, &role)
    });
    call.json(&stored.await?)
}

/// Writes a role and returns it as shown to clients.
fn put(txn: &mut WriteTxn, role: &Role) -> Result<Role, ApiError> {
    txn.put_role(role.clone())?;
    let read = txn.read();
    let stored = read.role(&role.id).ok_or_else(|| no_role(&role.id))?;
    Ok(read.shown_role(&stored))
}

fn no_role(id: &str) -> ApiError {
    ApiError::not_found(format!("cannot find role {id}: see GET /v1/acl/roles"))
}

/// `DELETE /v1/acl/role/:id`: also revokes its permissions.
pub(crate) async fn delete(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    call.write(&writer, move |txn| {
        if txn.read().role(&id).is_none() {
            return Err(ApiError::not_found("Cannot find role to delete"));
        }
        txn.remove_role(&id);
        Ok(())
    })
    .await?;
    call.json(&true)
}
