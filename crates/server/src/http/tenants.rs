//! `/v1/namespace` and `/v1/partition`, with the fields and status codes of Consul Enterprise.

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::acl::Policy;
use legate_model::{Namespace, NamespaceAcls, Partition, Tenancy, TenancyName};
use legate_runtime::Clock;
use legate_store::{Tenant, Writer};
use uuid::Uuid;

use super::call::{Call, visible};
use crate::api_error::ApiError;
use crate::tenants::AT_ONCE;

/// Parses a name in a path.
fn named(name: &str) -> Result<TenancyName, ApiError> {
    let read: Result<TenancyName, _> = name.parse();
    let name = read.map_err(|error| ApiError::bad_request(error.to_string()))?;
    match name.is_empty() || name.is_every() {
        true => Err(ApiError::bad_request("Must specify one name")),
        false => Ok(name),
    }
}

/// Sets the name of a body, which must not contradict the path.
fn settle_name(body: &mut TenancyName, path: &TenancyName) -> Result<(), ApiError> {
    if !body.is_empty() && body != path {
        return Err(ApiError::bad_request(format!(
            "Name {body:?} in the body contradicts {path:?} in the path: leave it out"
        )));
    }
    body.clone_from(path);
    Ok(())
}

/// `PUT /v1/namespace`
pub(super) async fn create_namespace(
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    let namespace = call.decode()?;
    put_namespace(&writer, call, namespace).await
}

/// `PUT /v1/namespace/:name`
pub(super) async fn update_namespace(
    Path(name): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    let mut namespace: Namespace = call.decode()?;
    settle_name(&mut namespace.name, &named(&name)?)?;
    put_namespace(&writer, call, namespace).await
}

async fn put_namespace(
    writer: &Writer,
    mut call: Call,
    namespace: Namespace,
) -> Result<Response, ApiError> {
    call.settle(&namespace.partition, &TenancyName::default())?;
    call.leave_namespace();
    let authorizer = call.authorizer()?;
    let name = namespace.name.as_str();
    ApiError::require(authorizer.namespace_write(name), "operator:write", name)?;
    namespace.validate()?;
    // The defaults of a namespace grant permissions to all its tokens, including the caller's own, and changing
    // them can remove denials. So both setting and replacing them requires `acl:write`.
    let may_give = authorizer.acl_write();
    ApiError::require(may_give || namespace.acls.is_none(), "acl:write", "")?;
    let id = Uuid::new_v4().to_string();
    let written = call
        .write(writer, move |txn| {
            let known = txn.read().namespace(&namespace.name);
            let is_new = known.is_none();
            let gave = known.is_some_and(|known| gives_anything(&known));
            ApiError::require(may_give || !gave, "acl:write", "")?;
            let written = txn.put_namespace(namespace.clone())?;
            if is_new {
                // For operators of the namespace. It can be changed and removed like any other policy.
                let within = txn.read().tenancy().in_namespace(&namespace.name);
                let policy = Policy::namespace_management(id.clone());
                txn.in_tenancy(&within, |txn| txn.put_policy(policy))?;
            }
            Ok(txn.read().named_defaults(&written))
        })
        .await?;
    call.json(&written)
}

/// Whether a namespace has ACL defaults.
fn gives_anything(namespace: &Namespace) -> bool {
    let acls = namespace.acls.as_deref();
    acls.is_some_and(|acls| *acls != NamespaceAcls::default())
}

/// `GET /v1/namespace/:name`
pub(super) async fn namespace(
    Path(name): Path<String>,
    mut call: Call,
) -> Result<Response, ApiError> {
    call.leave_namespace();
    let name = named(&name)?;
    let may = call.authorizer()?.namespace_read(name.as_str());
    ApiError::require(may, "operator:read", name.as_str())?;
    let answer = call
        .read(|state| Some(state.named_defaults(&*state.namespace(&name)?)))
        .await?;
    match answer.value {
        Some(found) => call.answer(answer.index, &found, false),
        None => call.absent(answer.index, ""),
    }
}

/// `GET /v1/namespaces`: the namespaces that the token may read.
pub(super) async fn namespaces(mut call: Call) -> Result<Response, ApiError> {
    call.leave_namespace();
    let authorizer = call.authorizer()?;
    let answer = call
        .read(|state| {
            let all = state.namespaces();
            let shown = all.iter().map(|one| state.named_defaults(one));
            shown.collect::<Vec<_>>()
        })
        .await?;
    let (found, filtered) = visible(answer.value, |one| {
        authorizer.namespace_read(one.name.as_str())
    });
    call.answer(answer.index, &found, filtered)
}

/// `DELETE /v1/namespace/:name`: also deletes its contents.
pub(super) async fn delete_namespace(
    Path(name): Path<String>,
    handles: (State<Writer>, State<Clock>),
    mut call: Call,
) -> Result<Response, ApiError> {
    call.leave_namespace();
    let name = named(&name)?;
    let may = call.authorizer()?.namespace_write(name.as_str());
    ApiError::require(may, "operator:write", name.as_str())?;
    let tenancy = call.tenancy.in_namespace(&name);
    delete(handles, &call, Tenant::Namespace(tenancy)).await
}

async fn delete(
    (State(writer), State(clock)): (State<Writer>, State<Clock>),
    call: &Call,
    tenant: Tenant,
) -> Result<Response, ApiError> {
    let now = clock.now();
    call.write(&writer, move |txn| {
        txn.mark_deleted(&tenant, now)?;
        txn.remove_tenant(&tenant, AT_ONCE);
        Ok(())
    })
    .await?;
    Ok(call.empty())
}

/// `PUT /v1/partition`
pub(super) async fn create_partition(
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    let partition = call.decode()?;
    put_partition(&writer, call, partition).await
}

/// `PUT /v1/partition/:name`
pub(super) async fn update_partition(
    Path(name): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    let mut partition: Partition = call.decode()?;
    settle_name(&mut partition.name, &named(&name)?)?;
    put_partition(&writer, call, partition).await
}

async fn put_partition(
    writer: &Writer,
    mut call: Call,
    partition: Partition,
) -> Result<Response, ApiError> {
    call.tenancy = Tenancy::default();
    call.leave_namespace();
    let name = partition.name.as_str();
    let may = call.authorizer()?.partition_write(name);
    ApiError::require(may, "operator:write", name)?;
    partition.validate()?;
    let written = call
        .write(writer, move |txn| Ok(txn.put_partition(partition.clone())?))
        .await?;
    call.json(&written)
}

/// `GET /v1/partition/:name`
pub(super) async fn partition(
    Path(name): Path<String>,
    mut call: Call,
) -> Result<Response, ApiError> {
    call.tenancy = Tenancy::default();
    call.leave_namespace();
    let name = named(&name)?;
    let may = call.authorizer()?.partition_read(name.as_str());
    ApiError::require(may, "operator:read", name.as_str())?;
    let answer = call.read(|state| state.partition(&name)).await?;
    match answer.value {
        Some(found) => call.answer(answer.index, &found, false),
        None => call.absent(answer.index, ""),
    }
}

/// `GET /v1/partitions`
pub(super) async fn partitions(mut call: Call) -> Result<Response, ApiError> {
    call.tenancy = Tenancy::default();
    call.leave_namespace();
    let authorizer = call.authorizer()?;
    let answer = call.read(|state| state.partitions()).await?;
    let (found, filtered) = visible(answer.value, |one| {
        authorizer.partition_read(one.name.as_str())
    });
    call.answer(answer.index, &found, filtered)
}

/// `DELETE /v1/partition/:name`: also deletes its contents.
pub(super) async fn delete_partition(
    Path(name): Path<String>,
    handles: (State<Writer>, State<Clock>),
    mut call: Call,
) -> Result<Response, ApiError> {
    call.tenancy = Tenancy::default();
    call.leave_namespace();
    let name = named(&name)?;
    let may = call.authorizer()?.partition_write(name.as_str());
    ApiError::require(may, "operator:write", name.as_str())?;
    delete(handles, &call, Tenant::Partition(name)).await
}
