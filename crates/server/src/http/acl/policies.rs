//! `/v1/acl/policy…`: ACL policies.

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::TenancyName;
use legate_model::acl::{ContentHash, InvalidRules, Policy};
use legate_store::{ReadTxn, WriteTxn, Writer};
use serde::Serialize;
use uuid::Uuid;

use super::super::call::Call;
use super::{decode_to_write, listed, not_found, one, require_read, require_write};
use crate::api_error::ApiError;

/// A policy in a list, without its rules.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ListedPolicy {
    #[serde(rename = "ID")]
    id: String,
    name: String,
    description: String,
    datacenters: Option<Vec<String>>,
    hash: ContentHash,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    namespace: TenancyName,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    partition: TenancyName,
    create_index: u64,
    modify_index: u64,
}

/// `GET /v1/acl/policies`
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let shown = |policy: &Policy| ListedPolicy {
        id: policy.id.clone(),
        name: policy.name.clone(),
        description: policy.description.clone(),
        datacenters: Some(policy.datacenters.clone()).filter(|list| !list.is_empty()),
        hash: policy.shown().hash,
        namespace: policy.namespace.clone(),
        partition: policy.partition.clone(),
        create_index: policy.create_index,
        modify_index: policy.modify_index,
    };
    listed(
        &call,
        |txn: &ReadTxn<'_>| txn.policies(),
        Policy::tenancy,
        |_, policy, _| Some(shown(policy)),
    )
    .await
}

/// `GET /v1/acl/policy/:id`
pub(crate) async fn get(Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let find = |state: &ReadTxn<'_>| Some(state.policy(&id)?.shown());
    one(&call, &not_found("policy"), find).await
}

/// `GET /v1/acl/policy/name/:name`. Names may contain a slash, which Consul's Go client encodes twice.
pub(crate) async fn get_by_name(
    Path(name): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    require_read(&call)?;
    let name = name.replace("%2F", "/").replace("%2f", "/");
    let find = |state: &ReadTxn<'_>| Some(state.policy_by_name(&name)?.shown());
    one(&call, &not_found("policy"), find).await
}

/// `PUT /v1/acl/policy`
pub(crate) async fn create(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let mut policy: Policy = decode_to_write(&mut call)?;
    if !policy.id.is_empty() {
        return Err(ApiError::bad_request(
            "Cannot specify the ID when creating a new policy: leave it out, or update the policy \
             with PUT /v1/acl/policy/<id>",
        ));
    }
    policy.id = Uuid::new_v4().to_string();
    validate(&policy)?;
    let stored = call.write(&writer, move |txn| put(txn, &policy));
    call.json(&stored.await?)
}

/// `PUT /v1/acl/policy/:id`
pub(crate) async fn update(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let mut policy: Policy = decode_to_write(&mut call)?;
    if !policy.id.is_empty() && policy.id != id {
        return Err(ApiError::bad_request(
            "Policy ID in URL and payload do not match: leave it out of the body",
        ));
    }
    policy.id = id;
    validate(&policy)?;
    let main = call.tenancy.is_default();
    if let Some(builtin) = Policy::builtin_by_id(&policy.id).filter(|_| main) {
        let name = builtin.name;
        let changed = match (policy.rules == builtin.rules, policy.datacenters.is_empty()) {
            (true, true) => None,
            (false, _) => Some("Rules"),
            (true, false) => Some("Datacenters"),
        };
        if let Some(field) = changed {
            return Err(ApiError::bad_request(format!(
                "Changing the {field} for the builtin {name} policy is not permitted"
            )));
        }
    }
    let stored = call.write(&writer, move |txn| {
        if txn.read().policy(&policy.id).is_none() {
            return Err(no_policy(&policy.id));
        }
        put(txn, &policy)
    });
    call.json(&stored.await?)
}

fn validate(policy: &Policy) -> Result<(), ApiError> {
    policy.validate()?;
    policy.parsed()?;
    Ok(())
}

/// Writes a policy and returns the stored row.
fn put(txn: &mut WriteTxn, policy: &Policy) -> Result<Policy, ApiError> {
    txn.put_policy(policy.clone())?;
    let stored = txn.read().policy(&policy.id);
    let stored = stored.ok_or_else(|| no_policy(&policy.id))?;
    Ok(stored.shown())
}

fn no_policy(id: &str) -> ApiError {
    ApiError::not_found(format!("cannot find policy {id}: see GET /v1/acl/policies"))
}

/// `DELETE /v1/acl/policy/:id`: also revokes its permissions.
pub(crate) async fn delete(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    let main = call.tenancy.is_default();
    if let Some(builtin) = Policy::builtin_by_id(&id).filter(|_| main) {
        return Err(ApiError::bad_request(format!(
            "Delete operation not permitted on the builtin {} policy",
            builtin.name
        )));
    }
    call.write(&writer, move |txn| {
        if txn.read().policy(&id).is_none() {
            return Err(ApiError::not_found("Cannot find policy to delete"));
        }
        txn.remove_policy(&id);
        Ok(())
    })
    .await?;
    call.json(&true)
}

impl From<InvalidRules> for ApiError {
    fn from(error: InvalidRules) -> Self {
        Self::bad_request(error.to_string())
    }
}
