//! `/v1/acl`: login and logout. The submodules serve bootstrapping, tokens, policies, roles and auth methods.
//! Reads require `acl:read` and writes `acl:write`. If ACLs are disabled, all endpoints return an error.

pub(super) mod auth_methods;
pub(super) mod authorize;
pub(super) mod bootstrap;
pub(super) mod objects;
pub(super) mod policies;
pub(super) mod replication;
pub(super) mod roles;
pub(super) mod templates;
pub(super) mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use legate_model::acl::{Authorizer, Owned, PolicyLink, RoleLink};
use legate_model::{Secret, Tenancy, TenancyName};
use legate_store::ReadTxn;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::call::Call;
use crate::acl::Logins;
use crate::api_error::ApiError;

/// Decodes the row of a write, and checks that the caller has `acl:write` in its tenancy.
fn decode_to_write<T: DeserializeOwned + Owned>(call: &mut Call) -> Result<T, ApiError> {
    let decoded = call.decode::<T>().and_then(|row| {
        let (partition, namespace) = row.names();
        call.settle(partition, namespace)?;
        Ok(row)
    });
    // Callers without write permission see no validation errors.
    require_write(call)?;
    Ok(decoded?.within(&call.tenancy))
}

/// Checks that the caller has `acl:write` on linked policies and roles of another namespace. Otherwise an
/// operator of one namespace could grant the permissions of policies in namespace `default`. Existing links may
/// stay.
fn check_links(
    txn: &ReadTxn<'_>,
    caller: &Authorizer,
    (policies, roles): (&[PolicyLink], &[RoleLink]),
    before: &[&str],
) -> Result<(), ApiError> {
    let policies = policies.iter().filter_map(|link| {
        let policy = txn.linked_policy(&link.id, &link.name)?;
        Some((policy.tenancy(), policy.id.clone()))
    });
    let roles = roles.iter().filter_map(|link| {
        let role = txn.linked_role(&link.id, &link.name)?;
        Some((role.tenancy(), role.id.clone()))
    });
    for (tenancy, id) in policies.chain(roles) {
        let foreign = tenancy != *txn.tenancy() && !before.contains(&&*id);
        let may = !foreign || caller.within(&tenancy).acl_write();
        ApiError::require(may, "acl:write", &id)?;
    }
    Ok(())
}

/// Lists the rows of the namespaces in which the caller has `acl:read`.
async fn listed<T, S: Serialize + Send>(
    call: &Call,
    rows: impl Fn(&ReadTxn<'_>) -> Vec<Arc<T>> + Send + Sync,
    tenancy: impl Fn(&T) -> Tenancy + Send + Sync,
    shown: impl Fn(&ReadTxn<'_>, &Arc<T>, &Authorizer) -> Option<S> + Send + Sync,
) -> Result<Response, ApiError> {
    call.take_every();
    let caller = call.acl_authorizer()?;
    let every = call.refuse_every().is_err();
    ApiError::require(every || caller.acl_read(), "acl:read", "")?;
    let answer = call.read(|txn| {
        let rows = call.each(txn, &rows);
        let seen = rows.iter().filter_map(|row| {
            let within = caller.within(&tenancy(row));
            within.acl_read().then(|| shown(txn, row, &within))?
        });
        seen.collect::<Vec<_>>()
    });
    let answer = answer.await?;
    call.answer(answer.index, &answer.value, false)
}

fn require_read(call: &Call) -> Result<(), ApiError> {
    ApiError::require(call.acl_authorizer()?.acl_read(), "acl:read", "")
}

fn require_write(call: &Call) -> Result<(), ApiError> {
    ApiError::require(call.acl_authorizer()?.acl_write(), "acl:write", "")
}

/// Body of a login request.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct LoginBody {
    auth_method: String,
    bearer_token: Secret,
    meta: BTreeMap<String, String>,
    namespace: TenancyName,
    partition: TenancyName,
}

/// `POST /v1/acl/login`
pub(super) async fn login(
    State(logins): State<Logins>,
    mut call: Call,
) -> Result<Response, ApiError> {
    if !call.config.acl.enabled {
        return Err(ApiError::acl_disabled());
    }
    let body: LoginBody = call.decode()?;
    call.settle(&body.partition, &body.namespace)?;
    call.refuse_every()?;
    let login = crate::acl::Login {
        tenancy: call.tenancy.clone(),
        auth_method: body.auth_method,
        bearer: body.bearer_token,
        meta: body.meta,
    };
    call.json(&logins.login(&login).await?)
}

/// `POST /v1/acl/logout`
pub(super) async fn logout(State(logins): State<Logins>, call: Call) -> Result<Response, ApiError> {
    if !call.config.acl.enabled {
        return Err(ApiError::acl_disabled());
    }
    // A token that does not exist cannot log out.
    call.authorizer()?;
    if call.token.is_empty() {
        return Err(ApiError::new(
            StatusCode::UNAUTHORIZED,
            "Supplied token does not exist",
        ));
    }
    logins.logout(&call.token).await?;
    call.json(&true)
}

/// Returns one object, or 404 with an index, so that the client can wait for it.
async fn one<T: Send + serde::Serialize>(
    call: &Call,
    missing: &str,
    find: impl Fn(&ReadTxn<'_>) -> Option<T> + Send + Sync,
) -> Result<Response, ApiError> {
    let answer = call.read(find).await?;
    match answer.value {
        Some(found) => call.answer(answer.index, &found, false),
        None => call.absent(answer.index, missing),
    }
}

/// Consul's text for an object that does not exist.
fn not_found(kind: &str) -> String {
    format!("Requested {kind} does not exist: ACL not found")
}

/// The body may repeat the name in the path, but not contradict it.
fn name_in_body(field: &str, own: &mut String, path: &str) -> Result<(), ApiError> {
    if own.is_empty() {
        path.clone_into(own);
    }
    if own.eq_ignore_ascii_case(path) {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "Invalid request: {field}: {own:?} contradicts {path:?} in the path; leave it out of the \
         body"
    )))
}

/// Sets the id of the path. The body may repeat it, but not contradict it.
fn id_in_body(kind: &str, own: &mut String, path: &str) -> Result<(), ApiError> {
    if !own.is_empty() && own != path {
        return Err(ApiError::bad_request(format!(
            "{kind} ID in URL and payload do not match: leave it out of the body"
        )));
    }
    path.clone_into(own);
    Ok(())
}
