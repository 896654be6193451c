//! `/v1/acl/auth-methods` and `/v1/acl/binding-rules`. Logins are in the parent module.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::acl::{AuthMethod, Authorizer, BindingRule};
use legate_store::{ReadTxn, WriteTxn, Writer};

use super::super::call::Call;
use super::objects::{Listed, Object, WithId};
use super::{decode_to_write, listed, name_in_body};
use crate::acl::Methods;
use crate::api_error::ApiError;

/// `GET /v1/acl/auth-methods`
pub(crate) async fn methods(call: Call) -> Result<Response, ApiError> {
    let rows = |txn: &ReadTxn<'_>| txn.auth_methods();
    listed(&call, rows, AuthMethod::tenancy, |_, method, _| {
        // The configuration may contain a token.
        Some(Listed(Arc::clone(method), |fields| {
            fields.remove("Config");
            fields.remove("NamespaceRules");
            fields.retain(|field, value| field != "Description" || value != "");
        }))
    })
    .await
}

/// `PUT /v1/acl/auth-method`
pub(crate) async fn create_method(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let method: AuthMethod = decode_to_write(&mut call)?;
    store_method(&call, &writer, method).await
}

/// `PUT /v1/acl/auth-method/:name`
pub(crate) async fn update_method(
    Path(name): Path<String>,
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let mut method: AuthMethod = decode_to_write(&mut call)?;
    name_in_body("Name", &mut method.name, &name)?;
    store_method(&call, &writer, method).await
}

async fn store_method(
    call: &Call,
    writer: &Writer,
    mut method: AuthMethod,
) -> Result<Response, ApiError> {
    // An update may omit the type, but not change it.
    if method.r#type.is_empty()
        && let Some(known) = call.txn(&call.reader.state()).auth_method(&method.name)
    {
        method.r#type.clone_from(&known.r#type);
    }
    method.validate()?;
    Methods::check(method.clone())
        .await
        .map_err(|reason| ApiError::bad_request(format!("Invalid request: Config: {reason}")))?;
    let stored = call.write(writer, move |txn| {
        let existing = txn.read().auth_method(&method.name);
        if existing.is_some_and(|existing| existing.r#type != method.r#type) {
            return Err(ApiError::bad_request(
                "Invalid request: Type: it cannot be changed; delete the auth method first, or \
                 create another one",
            ));
        }
        txn.put_auth_method(method.clone())?;
        let stored = txn.read().auth_method(&method.name);
        stored.ok_or_else(|| AuthMethod::unknown(&method.name))
    });
    call.json(&stored.await?)
}

impl Object for AuthMethod {
    type Shown = Arc<AuthMethod>;

    fn find(txn: &ReadTxn<'_>, name: &str) -> Option<Arc<AuthMethod>> {
        txn.auth_method(name)
    }

    fn missing(name: &str) -> String {
        format!("Auth method {name:?} not found")
    }

    fn unknown(name: &str) -> ApiError {
        let missing = Self::missing(name);
        ApiError::not_found(format!("{missing}: see GET /v1/acl/auth-methods"))
    }

    fn remove(txn: &mut WriteTxn, name: &str) {
        txn.remove_auth_method(name);
    }
}

/// `GET /v1/acl/binding-rules`
pub(crate) async fn rules(call: Call) -> Result<Response, ApiError> {
    let method = call
        .params
        .get("authmethod")
        .filter(|name| !name.is_empty());
    let rows = |txn: &ReadTxn<'_>| match method {
        Some(name) => txn.binding_rules(name),
        None => txn.all_binding_rules(),
    };
    listed(&call, rows, BindingRule::tenancy, |_, rule, _| {
        Some(Arc::clone(rule))
    })
    .await
}

impl Object for BindingRule {
    type Shown = Arc<BindingRule>;

    fn find(txn: &ReadTxn<'_>, id: &str) -> Option<Arc<BindingRule>> {
        txn.binding_rule(id)
    }

    fn missing(id: &str) -> String {
        format!("Binding rule {id:?} not found")
    }

    fn unknown(id: &str) -> ApiError {
        let missing = Self::missing(id);
        ApiError::not_found(format!("{missing}: see GET /v1/acl/binding-rules"))
    }

    fn remove(txn: &mut WriteTxn, id: &str) {
        txn.remove_binding_rule(id);
    }
}

impl WithId for BindingRule {
    const HAS_ID: &str = "Invalid request: ID: a new binding rule gets one; leave it out, or update the \
                          rule with PUT /v1/acl/binding-rule/<id>";

    fn id(&mut self) -> &mut String {
        &mut self.id
    }

    fn set_id(&mut self, path: &str) -> Result<(), ApiError> {
        name_in_body("ID", &mut self.id, path)?;
        path.clone_into(&mut self.id);
        Ok(())
    }

    fn put(&self, txn: &mut WriteTxn, _caller: &Authorizer) -> Result<Self::Shown, ApiError> {
        let mut rule = self.clone();
        if let Some(existing) = txn.read().binding_rule(&rule.id) {
            if rule.auth_method.is_empty() {
                rule.auth_method.clone_from(&existing.auth_method);
            }
            if !rule.auth_method.eq_ignore_ascii_case(&existing.auth_method) {
                return Err(ApiError::bad_request(
                    "Invalid request: AuthMethod: it cannot be changed; create another rule",
                ));
            }
        }
        let method = txn.read().auth_method(&rule.auth_method).ok_or_else(|| {
            ApiError::bad_request(format!(
                "Invalid request: AuthMethod: {:?} does not exist; create it first",
                rule.auth_method
            ))
        })?;
        rule.validate(&method.settings()?.known_variables())?;
        txn.put_binding_rule(rule)?;
        Self::find(&txn.read(), &self.id).ok_or_else(|| Self::unknown(&self.id))
    }
}
