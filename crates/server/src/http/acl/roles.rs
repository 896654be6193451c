//! `/v1/acl/role…`: ACL roles.

use axum::extract::Path;
use axum::response::Response;
use legate_model::acl::{Authorizer, Role};
use legate_store::{ReadTxn, WriteTxn};

use super::super::call::Call;
use super::objects::{Object, WithId};
use super::{check_links, listed, not_found, one, require_read};
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

/// `GET /v1/acl/role/name/:name`
pub(crate) async fn get_by_name(
    Path(name): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    require_read(&call)?;
    let find = |txn: &ReadTxn<'_>| Some(txn.shown_role(&*txn.role_by_name(&name)?));
    one(&call, &not_found("role"), find).await
}

impl Object for Role {
    type Shown = Role;

    fn find(txn: &ReadTxn<'_>, id: &str) -> Option<Role> {
        Some(txn.shown_role(&*txn.role(id)?))
    }

    fn missing(_id: &str) -> String {
        not_found("role")
    }

    fn unknown(id: &str) -> ApiError {
        ApiError::not_found(format!("cannot find role {id}: see GET /v1/acl/roles"))
    }

    fn undeletable(_id: &str) -> ApiError {
        ApiError::not_found("Cannot find role to delete")
    }

    fn remove(txn: &mut WriteTxn, id: &str) {
        txn.remove_role(id);
    }
}

impl WithId for Role {
    const HAS_ID: &str = "Cannot specify the ID when creating a new role: leave it out, or update the role \
                          with PUT /v1/acl/role/<id>";

    fn id(&mut self) -> &mut String {
        &mut self.id
    }

    fn set_id(&mut self, path: &str) -> Result<(), ApiError> {
        super::id_in_body("Role", &mut self.id, path)
    }

    fn check(&self, _is_default: bool) -> Result<(), ApiError> {
        Ok(self.validate()?)
    }

    fn put(&self, txn: &mut WriteTxn, caller: &Authorizer) -> Result<Role, ApiError> {
        let existing = txn.read().role(&self.id);
        let links = existing.iter().flat_map(|existing| &existing.policies);
        let before: Vec<&str> = links.map(|link| &*link.id).collect();
        check_links(&txn.read(), caller, (&self.policies, &[]), &before)?;
        txn.put_role(self.clone())?;
        Self::find(&txn.read(), &self.id).ok_or_else(|| Self::unknown(&self.id))
    }
}
