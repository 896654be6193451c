//! `/v1/acl/auth-methods` and `/v1/acl/binding-rules`. Logins are in the parent module.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::acl::{AuthMethod, BindingRule};
use legate_store::{ReadTxn, WriteTxn, Writer};
use serde::ser::{Error as _, Serialize, Serializer};
use uuid::Uuid;

use super::super::call::Call;
use super::{decode_to_write, listed, name_in_body, one, require_read, require_write};
use crate::acl::Methods;
use crate::api_error::ApiError;

/// `GET /v1/acl/auth-methods`
pub(crate) async fn methods(call: Call) -> Result<Response, ApiError> {
    let rows = |txn: &ReadTxn<'_>| txn.auth_methods();
    listed(&call, rows, AuthMethod::tenancy, |_, method, _| {
        Some(ListedMethod(Arc::clone(method)))
    })
    .await
}

/// A method in a list, without its configuration, which may contain a token.
struct ListedMethod(Arc<AuthMethod>);

impl Serialize for ListedMethod {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut method = serde_json::to_value(&*self.0).map_err(S::Error::custom)?;
        if let Some(fields) = method.as_object_mut() {
            fields.remove("Config");
            fields.remove("NamespaceRules");
            if self.0.description.is_empty() {
                fields.remove("Description");
            }
        }
        method.serialize(serializer)
    }
}

/// `GET /v1/acl/auth-method/:name`
pub(crate) async fn method(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let missing = format!("Auth method {name:?} not found");
    one(&call, &missing, |state| state.auth_method(&name)).await
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
        stored.ok_or_else(|| no_method(&method.name))
    });
    call.json(&stored.await?)
}

fn no_method(name: &str) -> ApiError {
    ApiError::not_found(format!(
        "Auth method {name:?} not found: see GET /v1/acl/auth-methods"
    ))
}

/// `DELETE /v1/acl/auth-method/:name`
pub(crate) async fn delete_method(
    Path(name): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    call.write(&writer, move |txn| {
        if txn.read().auth_method(&name).is_none() {
            return Err(no_method(&name));
        }
        txn.remove_auth_method(&name);
        Ok(())
    })
    .await?;
    call.json(&true)
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

/// `GET /v1/acl/binding-rule/:id`
pub(crate) async fn rule(Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let missing = format!("Binding rule {id:?} not found");
    one(&call, &missing, |state| state.binding_rule(&id)).await
}

/// `PUT /v1/acl/binding-rule`
pub(crate) async fn create_rule(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let mut rule: BindingRule = decode_to_write(&mut call)?;
    if !rule.id.is_empty() {
        return Err(ApiError::bad_request(
            "Invalid request: ID: a new binding rule gets one; leave it out, or update the rule \
             with PUT /v1/acl/binding-rule/<id>",
        ));
    }
    rule.id = Uuid::new_v4().to_string();
    let stored = call.write(&writer, move |txn| put_rule(txn, &rule));
    call.json(&stored.await?)
}

/// `PUT /v1/acl/binding-rule/:id`
pub(crate) async fn update_rule(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let mut rule: BindingRule = decode_to_write(&mut call)?;
    name_in_body("ID", &mut rule.id, &id)?;
    let stored = call.write(&writer, move |txn| {
        let existing = txn.read().binding_rule(&id);
        let existing = existing.ok_or_else(|| no_rule(&id))?;
        if rule.auth_method.is_empty() {
            rule.auth_method.clone_from(&existing.auth_method);
        }
        if !rule.auth_method.eq_ignore_ascii_case(&existing.auth_method) {
            return Err(ApiError::bad_request(
                "Invalid request: AuthMethod: it cannot be changed; create another rule",
            ));
        }
        put_rule(txn, &rule)
    });
    call.json(&stored.await?)
}

/// Writes a binding rule and returns the stored row.
fn put_rule(txn: &mut WriteTxn, rule: &BindingRule) -> Result<Arc<BindingRule>, ApiError> {
    let method = txn.read().auth_method(&rule.auth_method).ok_or_else(|| {
        ApiError::bad_request(format!(
            "Invalid request: AuthMethod: {:?} does not exist; create it first",
            rule.auth_method
        ))
    })?;
    rule.validate(&method.settings()?.known_variables())?;
    txn.put_binding_rule(rule.clone())?;
    let stored = txn.read().binding_rule(&rule.id);
    stored.ok_or_else(|| no_rule(&rule.id))
}

fn no_rule(id: &str) -> ApiError {
    ApiError::not_found(format!(
        "Binding rule {id:?} not found: see GET /v1/acl/binding-rules"
    ))
}

/// `DELETE /v1/acl/binding-rule/:id`
pub(crate) async fn delete_rule(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    call.write(&writer, move |txn| {
        if txn.read().binding_rule(&id).is_none() {
            return Err(no_rule(&id));
        }
        txn.remove_binding_rule(&id);
        Ok(())
    })
    .await?;
    call.json(&true)
}
