//! `/v1/acl/policy…`: ACL policies.

use std::sync::Arc;

use axum::extract::Path;
use axum::response::Response;
use legate_model::acl::{Authorizer, InvalidRules, Policy};
use legate_store::{ReadTxn, WriteTxn};
use serde_json::Value;

use super::super::call::Call;
use super::objects::{Listed, Object, WithId};
use super::{listed, not_found, one, require_read};
use crate::api_error::ApiError;

/// `GET /v1/acl/policies`
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let rows = |txn: &ReadTxn<'_>| txn.policies();
    listed(&call, rows, Policy::tenancy, |_, policy, _| {
        Some(Listed(Arc::new(policy.shown()), |fields| {
            fields.remove("Rules");
            fields.entry("Datacenters").or_insert(Value::Null);
        }))
    })
    .await
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

impl Object for Policy {
    type Shown = Policy;

    fn find(txn: &ReadTxn<'_>, id: &str) -> Option<Policy> {
        Some(txn.policy(id)?.shown())
    }

    fn missing(_id: &str) -> String {
        not_found("policy")
    }

    fn unknown(id: &str) -> ApiError {
        ApiError::not_found(format!("cannot find policy {id}: see GET /v1/acl/policies"))
    }

    fn undeletable(_id: &str) -> ApiError {
        ApiError::not_found("Cannot find policy to delete")
    }

    fn check_removal(id: &str, is_default: bool) -> Result<(), ApiError> {
        match Policy::builtin_by_id(id).filter(|_| is_default) {
            None => Ok(()),
            Some(builtin) => Err(ApiError::bad_request(format!(
                "Delete operation not permitted on the builtin {} policy",
                builtin.name
            ))),
        }
    }

    fn remove(txn: &mut WriteTxn, id: &str) {
        txn.remove_policy(id);
    }
}

impl WithId for Policy {
    const HAS_ID: &str = "Cannot specify the ID when creating a new policy: leave it out, or update the \
                          policy with PUT /v1/acl/policy/<id>";

    fn id(&mut self) -> &mut String {
        &mut self.id
    }

    fn set_id(&mut self, path: &str) -> Result<(), ApiError> {
        super::id_in_body("Policy", &mut self.id, path)
    }

    fn check(&self, is_default: bool) -> Result<(), ApiError> {
        self.validate()?;
        self.parsed()?;
        let Some(builtin) = Policy::builtin_by_id(&self.id).filter(|_| is_default) else {
            return Ok(());
        };
        let field = match (self.rules == builtin.rules, self.datacenters.is_empty()) {
            (true, true) => return Ok(()),
            (false, _) => "Rules",
            (true, false) => "Datacenters",
        };
        Err(ApiError::bad_request(format!(
            "Changing the {field} for the builtin {} policy is not permitted",
            builtin.name
        )))
    }

    fn put(&self, txn: &mut WriteTxn, _caller: &Authorizer) -> Result<Policy, ApiError> {
        txn.put_policy(self.clone())?;
        Self::find(&txn.read(), &self.id).ok_or_else(|| Self::unknown(&self.id))
    }
}

impl From<InvalidRules> for ApiError {
    fn from(error: InvalidRules) -> Self {
        Self::bad_request(error.to_string())
    }
}
