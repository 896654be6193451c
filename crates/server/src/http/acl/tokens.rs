//! `/v1/acl/token…`: ACL tokens.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use legate_model::acl::{
    ANONYMOUS_ACCESSOR, ANONYMOUS_SECRET, Policy, PolicyLink, Role, RoleLink, Token,
};
use legate_model::{Secret, Tenancy, TenancyName};
use legate_runtime::Clock;
use legate_store::{ReadTxn, TokenKey, WriteTxn, Writer};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::super::call::Call;
use super::{check_links, decode_to_write, listed, name_in_body, require_read, require_write};
use crate::acl::{self, AclError};
use crate::api_error::ApiError;

/// The shortest lifetime of a token. As in Consul there is no longest one.
const MIN_TOKEN_TTL: Duration = Duration::from_secs(60);

/// Prefix of the ids of built-in tokens, policies and roles.
const RESERVED: &str = "00000000-0000-0000-0000-0000000000";

/// Replaces secrets that the caller may not see. Consul's.
const HIDDEN: &str = "<hidden>";

/// Finds a token by its accessor id. The anonymous token exists even if it is not stored.
fn find(txn: &ReadTxn<'_>, accessor: &str) -> Option<Arc<Token>> {
    let stored = txn.token_by_accessor(accessor);
    let here = txn.tenancy().is_default() && accessor == ANONYMOUS_ACCESSOR;
    let anonymous = || here.then(|| Arc::new(Token::anonymous()));
    stored.or_else(anonymous)
}

/// A token as shown to a caller. Secrets require write permission.
fn shown(txn: &ReadTxn<'_>, token: &Token, secrets: bool) -> Token {
    let mut shown = txn.shown_token(token);
    if !secrets && !shown.is_anonymous() {
        shown.secret_id = Secret::new(HIDDEN);
    }
    shown
}

/// The filter of a token list.
enum Filter<'c> {
    None,
    Policy(&'c str),
    Role(&'c str),
    /// The method's name, and its namespace if given separately.
    AuthMethod(&'c str, Option<Tenancy>),
    Service(&'c str),
}

impl<'c> Filter<'c> {
    fn of(call: &'c Call) -> Result<Self, ApiError> {
        let get = |name| call.params.get(name).filter(|value| !value.is_empty());
        let asked = (
            get("policy"),
            get("role"),
            get("authmethod"),
            get("servicename"),
        );
        match asked {
            (None, None, None, None) => Ok(Filter::None),
            (Some(id), None, None, None) => Ok(Filter::Policy(id)),
            (None, Some(id), None, None) => Ok(Filter::Role(id)),
            (None, None, Some(name), None) => {
                let namespace = call.params.tenancy_name("authmethod-ns")?;
                let apart = !namespace.is_empty();
                let tenancy = call.tenancy.resolve(&TenancyName::default(), &namespace);
                Ok(Filter::AuthMethod(name, apart.then_some(tenancy)))
            }
            (None, None, None, Some(name)) => Ok(Filter::Service(name)),
            _ => Err(ApiError::bad_request(
                "can only filter by one of policy, role, serviceName, or methodName at a time",
            )),
        }
    }

    fn keeps(&self, token: &Token) -> bool {
        let same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
        match self {
            Filter::None => true,
            Filter::Policy(id) => token.policies.iter().any(|link| same(&link.id, id)),
            Filter::Role(id) => token.roles.iter().any(|link| same(&link.id, id)),
            Filter::AuthMethod(name, tenancy) => {
                let of = token.method_tenancy();
                let here = tenancy.as_ref().unwrap_or(&of) == &of;
                here && same(&token.auth_method, name)
            }
            Filter::Service(name) => {
                let mut identities = token.service_identities.iter();
                identities.any(|identity| identity.service_name == *name)
            }
        }
    }
}

/// `GET /v1/acl/tokens`
pub(crate) async fn list(State(clock): State<Clock>, call: Call) -> Result<Response, ApiError> {
    call.acl_authorizer()?;
    let filter = Filter::of(&call)?;
    let rows = |txn: &ReadTxn<'_>| {
        let mut tokens = txn.tokens();
        let here = txn.tenancy().is_default();
        if here && txn.token_by_accessor(ANONYMOUS_ACCESSOR).is_none() {
            tokens.push(Arc::new(Token::anonymous()));
            tokens.sort_by(|one, other| one.accessor_id.cmp(&other.accessor_id));
        }
        tokens
    };
    listed(&call, rows, Token::tenancy, |txn, token, caller| {
        let wanted = !token.is_expired(clock.now()) && filter.keeps(token);
        wanted.then(|| shown(txn, token, caller.acl_write()))
    })
    .await
}

/// `PUT /v1/acl/token`
pub(crate) async fn create(
    State(writer): State<Writer>,
    State(clock): State<Clock>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let token: Token = decode_to_write(&mut call)?;
    let token = new_token(token, clock.now())?;
    let caller = call.acl_authorizer()?;
    let token = call.write(&writer, move |txn| {
        check_links(&txn.read(), &caller, links(&token), &[])?;
        add(txn, &token)
    });
    call.json(&token.await?)
}

/// Validates a new token and fills in ids and times.
fn new_token(mut token: Token, now: SystemTime) -> Result<Token, ApiError> {
    token.validate()?;
    for (field, id) in [
        ("AccessorID", token.accessor_id.as_str()),
        ("SecretID", token.secret_id.expose()),
    ] {
        if id.starts_with(RESERVED) || id == ANONYMOUS_SECRET {
            return Err(ApiError::bad_request(format!(
                "Invalid Token: {field} - UUIDs with the prefix {RESERVED:?} are reserved"
            )));
        }
    }
    if token.accessor_id.is_empty() {
        token.accessor_id = Uuid::new_v4().to_string();
    }
    if token.secret_id.is_empty() {
        token.secret_id = Secret::new(Uuid::new_v4().to_string());
    }
    if !token.expiration_ttl.is_zero() {
        if token.expiration_time.is_some() {
            return Err(ApiError::bad_request(
                "Invalid request: ExpirationTTL: Token Expiration TTL and Expiration Time cannot both \
                 be set",
            ));
        }
        if token.expiration_ttl < MIN_TOKEN_TTL {
            return Err(ApiError::bad_request(
                "Invalid request: ExpirationTTL: it must be at least 1m, or left out",
            ));
        }
        token.expiration_time = Some(now + std::mem::take(&mut token.expiration_ttl));
    } else if let Some(end) = token.expiration_time
        && !end
            .duration_since(now)
            .is_ok_and(|left| left >= MIN_TOKEN_TTL)
    {
        return Err(ApiError::bad_request(
            "Invalid request: ExpirationTime: it must be at least 1m from now, or left out",
        ));
    }
    if !token.auth_method.is_empty() {
        return Err(ApiError::bad_request(
            "Invalid request: AuthMethod: only a login sets it; leave it out",
        ));
    }
    token.create_time = Some(now);
    Ok(token)
}

fn links(token: &Token) -> (&[PolicyLink], &[RoleLink]) {
    (&token.policies, &token.roles)
}

/// Adds a token. An existing accessor id is an error.
fn add(txn: &mut WriteTxn, token: &Token) -> Result<Token, ApiError> {
    let accessor = &token.accessor_id;
    if txn.read().token_by_accessor(accessor).is_some() {
        return Err(ApiError::bad_request(format!(
            "Invalid request: AccessorID: token {accessor} exists already; update it with PUT \
             /v1/acl/token/{accessor}, or leave AccessorID out"
        )));
    }
    put(txn, token)
}

/// `PUT /v1/acl/token/:accessor`: changes a token's description, links and identities. Its secret, expiration,
/// locality and auth method are immutable.
pub(crate) async fn update(
    Path(accessor): Path<String>,
    State(writer): State<Writer>,
    State(clock): State<Clock>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let mut token: Token = decode_to_write(&mut call)?;
    name_in_body("AccessorID", &mut token.accessor_id, &accessor)?;
    let caller = call.acl_authorizer()?;
    let token = call.write(&writer, move |txn| {
        let existing = find(&txn.read(), &accessor);
        let existing = existing.filter(|token| !token.is_expired(clock.now()));
        let existing = existing.ok_or_else(|| no_token(&accessor))?;
        let policies = existing.policies.iter().map(|link| &*link.id);
        let roles = existing.roles.iter().map(|link| &*link.id);
        let before: Vec<&str> = policies.chain(roles).collect();
        check_links(&txn.read(), &caller, links(&token), &before)?;
        put(txn, &updated(token.clone(), &existing)?)
    });
    call.json(&token.await?)
}

/// Merges an update with the immutable fields of the existing token.
fn updated(mut token: Token, existing: &Token) -> Result<Token, ApiError> {
    let end = token.expiration_time;
    // Callers without write permission send back the placeholder of the secret.
    let hidden = token.secret_id.expose() == HIDDEN;
    for (field, changed) in [
        (
            "SecretID",
            !token.secret_id.is_empty() && !hidden && token.secret_id != existing.secret_id,
        ),
        ("Local", token.local != existing.local),
        (
            "AuthMethod",
            !token.auth_method.is_empty() && token.auth_method != existing.auth_method,
        ),
        (
            "ExpirationTime",
            end.is_some() && end != existing.expiration_time,
        ),
        ("ExpirationTTL", !token.expiration_ttl.is_zero()),
    ] {
        if changed {
            return Err(ApiError::bad_request(format!(
                "Invalid request: {field}: it cannot be changed; create another token"
            )));
        }
    }
    token.secret_id = existing.secret_id.clone();
    token.auth_method.clone_from(&existing.auth_method);
    let of_method = &existing.auth_method_namespace;
    token.auth_method_namespace.clone_from(of_method);
    token.expiration_time = existing.expiration_time;
    token.create_time = existing.create_time;
    token.validate()?;
    Ok(token)
}

/// Writes a token and returns it as shown to clients.
pub(super) fn put(txn: &mut WriteTxn, token: &Token) -> Result<Token, ApiError> {
    txn.put_token(token.clone())?;
    let read = txn.read();
    let stored = read.token_by_accessor(&token.accessor_id);
    let stored = stored.ok_or_else(|| no_token(&token.accessor_id))?;
    Ok(read.shown_token(&stored))
}

fn no_token(accessor: &str) -> ApiError {
    ApiError::not_found(format!(
        "Cannot find token {accessor:?}: see GET /v1/acl/tokens"
    ))
}

/// Body of a clone request; optional.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct CloneBody {
    description: String,
    namespace: TenancyName,
    partition: TenancyName,
}

/// `PUT /v1/acl/token/:accessor/clone`: creates a token with new ids and the same permissions.
pub(crate) async fn clone(
    Path(accessor): Path<String>,
    State(writer): State<Writer>,
    State(clock): State<Clock>,
    mut call: Call,
) -> Result<Response, ApiError> {
    let body: Result<CloneBody, ApiError> = match call.has_body() {
        true => call.decode(),
        false => Ok(CloneBody::default()),
    };
    let body = body.and_then(|body| {
        call.settle(&body.partition, &body.namespace)?;
        Ok(body)
    });
    require_write(&call)?;
    let (body, caller) = (body?, call.acl_authorizer()?);
    let now = clock.now();
    let made = call.write(&writer, move |txn| {
        let existing = find(&txn.read(), &accessor);
        let existing = existing.filter(|token| !token.is_expired(now));
        let existing = existing.ok_or_else(does_not_exist)?;
        if !existing.auth_method.is_empty() {
            return Err(ApiError::bad_request(
                "Cannot clone a token created from an auth method",
            ));
        }
        let mut clone = Token {
            accessor_id: Uuid::new_v4().to_string(),
            secret_id: Secret::new(Uuid::new_v4().to_string()),
            create_time: Some(now),
            ..txn.read().shown_token(&existing)
        };
        if !body.description.is_empty() {
            clone.description.clone_from(&body.description);
        }
        check_links(&txn.read(), &caller, links(&clone), &[])?;
        add(txn, &clone)
    });
    call.json(&made.await?)
}

/// `GET /v1/acl/token/self`: requires no permission. As in Consul, a request without a token is an error here,
/// not the anonymous token.
pub(crate) async fn own(call: Call) -> Result<Response, ApiError> {
    call.acl_authorizer()?;
    if call.token.is_empty() {
        let text = format!("token does not exist: {}", AclError::NotFound);
        return Err(ApiError::new(StatusCode::FORBIDDEN, text));
    }
    let anonymous = acl::is_anonymous(&call.token);
    let secret = match anonymous {
        true => ANONYMOUS_SECRET,
        false => &call.token,
    };
    let answer = call
        .read(|state| {
            let token = state.token_by_secret(secret)?;
            Some(shown(state, &token, true))
        })
        .await?;
    match answer.value {
        Some(token) => call.answer(answer.index, &token, false),
        None if anonymous => call.answer(answer.index, &Token::anonymous().hashed(), false),
        None => Err(AclError::NotFound.into()),
    }
}

/// A token with `?expanded`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Expanded {
    #[serde(flatten)]
    token: Token,
    expanded_policies: Vec<Policy>,
    expanded_roles: Vec<Role>,
    #[serde(rename = "NamespaceDefaultPolicyIDs")]
    namespace_default_policy_ids: Option<Vec<String>>,
    #[serde(rename = "NamespaceDefaultRoleIDs")]
    namespace_default_role_ids: Option<Vec<String>>,
    #[serde(rename = "AgentACLDefaultPolicy")]
    default_policy: &'static str,
    /// Consul's policy for agents that reach no server. Has no effect here, so this is Consul's default.
    #[serde(rename = "AgentACLDownPolicy")]
    down_policy: &'static str,
    resolved_by_agent: String,
}

/// The response for a token.
#[derive(Serialize)]
#[serde(untagged)]
enum View {
    Token(Box<Token>),
    Expanded(Box<Expanded>),
}

/// `GET /v1/acl/token/:accessor`
pub(crate) async fn get(
    Path(accessor): Path<String>,
    State(clock): State<Clock>,
    call: Call,
) -> Result<Response, ApiError> {
    require_read(&call)?;
    let secrets = call.acl_authorizer()?.acl_write();
    let whole = call.params.flag("expanded")?;
    let answer = call
        .read(|state| {
            let token = find(state, &accessor).filter(|token| !token.is_expired(clock.now()))?;
            let shown = shown(state, &token, secrets);
            Some(match whole {
                true => View::Expanded(Box::new(expanded(state, shown, &call))),
                false => View::Token(Box::new(shown)),
            })
        })
        .await?;
    match answer.value {
        Some(view) => call.answer(answer.index, &view, false),
        None => {
            let response = call.absent(answer.index, "token does not exist: ACL not found");
            // Consul's status. Clients match on it and the text.
            response.map(|mut response| {
                *response.status_mut() = StatusCode::FORBIDDEN;
                response
            })
        }
    }
}

/// A token with its policies and roles, including the defaults of its namespace.
fn expanded(state: &ReadTxn<'_>, token: Token, call: &Call) -> Expanded {
    let (default_policies, default_roles) = acl::namespace_defaults(state);
    let mut policies: Vec<Policy> = Vec::new();
    let mut add = |policy: &Policy| {
        if !policies.iter().any(|known| known.id == policy.id) {
            policies.push(policy.shown());
        }
    };
    let linked = token.roles.iter().chain(&default_roles);
    let roles: Vec<Role> = linked
        .filter_map(|link| Some(state.shown_role(&*state.linked_role(&link.id, "")?)))
        .collect();
    let of_roles = roles.iter().flat_map(|role| &role.policies);
    let linked = token.policies.iter().chain(of_roles);
    for link in linked.chain(&default_policies) {
        if let Some(policy) = state.linked_policy(&link.id, "") {
            add(&policy);
        }
    }
    token.own_policies().iter().for_each(&mut add);
    for role in &roles {
        role.own_policies().iter().for_each(&mut add);
    }
    Expanded {
        expanded_policies: policies,
        expanded_roles: roles,
        namespace_default_policy_ids: some(default_policies.into_iter().map(|link| link.id)),
        namespace_default_role_ids: some(default_roles.into_iter().map(|link| link.id)),
        default_policy: call.config.acl.default_policy.as_str(),
        down_policy: "extend-cache",
        resolved_by_agent: call.config.node_name.clone(),
        token,
    }
}

/// A list; `null` if it is empty.
fn some(ids: impl Iterator<Item = String>) -> Option<Vec<String>> {
    let ids: Vec<String> = ids.collect();
    (!ids.is_empty()).then_some(ids)
}

fn does_not_exist() -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "token does not exist: ACL not found")
}

/// `DELETE /v1/acl/token/:accessor`
pub(crate) async fn delete(
    Path(accessor): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    if accessor == ANONYMOUS_ACCESSOR {
        return Err(ApiError::bad_request(
            "Delete operation not permitted on the anonymous token: requests without a token have it",
        ));
    }
    let own = Secret::new(call.token.clone());
    call.write(&writer, move |txn| {
        let token = txn.read().token_by_accessor(&accessor);
        let token = token.ok_or_else(|| ApiError::not_found("Cannot find token to delete"))?;
        if token.secret_id == own {
            return Err(ApiError::bad_request(
                "Deletion of the request's authorization token is not permitted",
            ));
        }
        txn.remove_token(&TokenKey::Accessor(accessor.clone()));
        Ok(())
    })
    .await?;
    call.json(&true)
}
