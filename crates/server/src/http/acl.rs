//! `/v1/acl`: tokens, login and logout; `auth_methods` has who may log in. Only management tokens see
//! and change them; where ACLs are off, nothing here exists.

pub(super) mod auth_methods;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use legate_model::Secret;
use legate_model::acl::{PolicyLink, Token};
use legate_runtime::Clock;
use legate_store::{ReadTxn, TokenKey, WriteTxn, Writer};
use serde::Deserialize;
use uuid::Uuid;

use super::call::Call;
use super::error::ApiError;
use crate::acl::{self, Logins};

/// The shortest and longest lifetime that can be asked for. Consul's defaults.
const TOKEN_TTL: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(24 * 60 * 60);

fn require_read(call: &Call) -> Result<(), ApiError> {
    if call.acl_authorizer()?.acl_read() {
        Ok(())
    } else {
        Err(ApiError::denied("acl:read", ""))
    }
}

fn require_write(call: &Call) -> Result<(), ApiError> {
    if call.acl_authorizer()?.acl_write() {
        Ok(())
    } else {
        Err(ApiError::denied("acl:write", ""))
    }
}

/// Body of a bootstrap; it may be missing altogether.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct BootstrapBody {
    bootstrap_secret: Secret,
}

/// `PUT /v1/acl/bootstrap`: makes the first token that may do everything, and never a second one.
pub(super) async fn bootstrap(
    State(writer): State<Writer>,
    State(clock): State<Clock>,
    call: Call,
) -> Result<Response, ApiError> {
    if !call.config.acl.enabled {
        return Err(ApiError::acl_disabled());
    }
    let body = match call.has_body() {
        true => call.decode()?,
        false => BootstrapBody::default(),
    };
    let secret = match body.bootstrap_secret.is_empty() {
        true => Secret::new(Uuid::new_v4().to_string()),
        false => body.bootstrap_secret,
    };
    let token = Token {
        accessor_id: Uuid::new_v4().to_string(),
        secret_id: secret,
        description: "Bootstrap Token (Global Management)".to_owned(),
        policies: vec![PolicyLink::global_management()],
        create_time: Some(clock.now()),
        ..Token::default()
    };
    token.validate()?;
    let token = call.write(&writer, move |txn| {
        if let Some(index) = txn.read().managed_since() {
            return Err(bootstrapped(index));
        }
        put_token(txn, &token)
    });
    call.json(&token.await?)
}

fn bootstrapped(index: u64) -> ApiError {
    ApiError::new(
        StatusCode::FORBIDDEN,
        format!(
            "ACL bootstrap no longer allowed (reset index: {index}): there was a management token \
             already; use it to make others, or restart the server with another one in \
             LEGATE_INITIAL_MANAGEMENT_TOKEN when it is lost"
        ),
    )
}

/// Body of a login.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct LoginBody {
    auth_method: String,
    bearer_token: Secret,
    meta: BTreeMap<String, String>,
}

/// `POST /v1/acl/login`
pub(super) async fn login(State(logins): State<Logins>, call: Call) -> Result<Response, ApiError> {
    if !call.config.acl.enabled {
        return Err(ApiError::acl_disabled());
    }
    let body: LoginBody = call.decode()?;
    let login = acl::Login {
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
    // A token that does not exist cannot log out, whatever the reason.
    call.authorizer()?;
    logins.logout(&call.token).await?;
    call.json(&true)
}

/// `GET /v1/acl/tokens`
pub(super) async fn tokens(call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let method = call
        .params
        .get("authmethod")
        .filter(|name| !name.is_empty());
    let service = call
        .params
        .get("servicename")
        .filter(|name| !name.is_empty());
    let answer = call
        .read(|state| {
            let mut tokens = state.tokens();
            tokens.retain(|token| {
                let identities = &token.service_identities;
                method.is_none_or(|name| token.auth_method.eq_ignore_ascii_case(name))
                    && service.is_none_or(|name| identities.iter().any(|i| i.service_name == name))
            });
            tokens
        })
        .await?;
    call.answer(answer.index, &answer.value, false)
}

/// `PUT /v1/acl/token`
pub(super) async fn create_token(
    State(writer): State<Writer>,
    State(clock): State<Clock>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    let mut token: Token = call.decode()?;
    token.validate()?;
    refuse_unknown_policies(&token)?;
    let now = clock.now();
    if token.accessor_id.is_empty() {
        token.accessor_id = Uuid::new_v4().to_string();
    }
    if token.secret_id.is_empty() {
        token.secret_id = Secret::new(Uuid::new_v4().to_string());
    }
    if !token.expiration_ttl.is_zero() {
        if !TOKEN_TTL.contains(&token.expiration_ttl) {
            return Err(ApiError::bad_request(
                "Invalid request: ExpirationTTL: it must be from 1m to 24h, or left out",
            ));
        }
        token.expiration_time = Some(now + std::mem::take(&mut token.expiration_ttl));
    } else if let Some(end) = token.expiration_time
        && !end
            .duration_since(now)
            .is_ok_and(|left| TOKEN_TTL.contains(&left))
    {
        return Err(ApiError::bad_request(
            "Invalid request: ExpirationTime: it must be from 1m to 24h from now, or left out",
        ));
    }
    if !token.auth_method.is_empty() {
        return Err(ApiError::bad_request(
            "Invalid request: AuthMethod: only a login sets it; leave it out",
        ));
    }
    token.create_time = Some(now);

    let token = call.write(&writer, move |txn| {
        let accessor = &token.accessor_id;
        if txn.read().token_by_accessor(accessor).is_some() {
            return Err(ApiError::bad_request(format!(
                "Invalid request: AccessorID: token {accessor} exists already; update it with PUT \
                 /v1/acl/token/{accessor}, or leave AccessorID out"
            )));
        }
        put_token(txn, &token)
    });
    call.json(&token.await?)
}

/// `PUT /v1/acl/token/:accessor`: what a token may do can change; what it is cannot.
pub(super) async fn update_token(
    Path(accessor): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    let mut token: Token = call.decode()?;
    name_in_body("AccessorID", &mut token.accessor_id, &accessor)?;
    let token = call.write(&writer, move |txn| {
        let existing = txn.read().token_by_accessor(&accessor);
        let existing = existing.ok_or_else(|| no_token(&accessor))?;
        put_token(txn, &updated(token.clone(), &existing)?)
    });
    call.json(&token.await?)
}

/// A token with what cannot change taken from the one that there is.
fn updated(mut token: Token, existing: &Token) -> Result<Token, ApiError> {
    let end = token.expiration_time;
    for (field, changed) in [
        (
            "SecretID",
            !token.secret_id.is_empty() && token.secret_id != existing.secret_id,
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
    token.expiration_time = existing.expiration_time;
    token.create_time = existing.create_time;
    token.validate()?;
    refuse_unknown_policies(&token)?;
    Ok(token)
}

/// Writes a token, and gives it back as it is stored.
fn put_token(txn: &mut WriteTxn, token: &Token) -> Result<Arc<Token>, ApiError> {
    txn.put_token(token.clone())?;
    let stored = txn.read().token_by_accessor(&token.accessor_id);
    stored.ok_or_else(|| no_token(&token.accessor_id))
}

fn refuse_unknown_policies(token: &Token) -> Result<(), ApiError> {
    match token
        .policies
        .iter()
        .find(|link| !link.is_global_management())
    {
        None => Ok(()),
        Some(unknown) => Err(ApiError::bad_request(format!(
            "Invalid request: Policies: policy {:?} does not exist; there is global-management \
             only, use ServiceIdentities and NodeIdentities for the rest",
            if unknown.name.is_empty() {
                &unknown.id
            } else {
                &unknown.name
            }
        ))),
    }
}

fn no_token(accessor: &str) -> ApiError {
    ApiError::not_found(format!(
        "Token {accessor:?} not found: see GET /v1/acl/tokens"
    ))
}

/// `GET /v1/acl/token/self`: whoever holds a token may see it.
pub(super) async fn own_token(call: Call) -> Result<Response, ApiError> {
    call.acl_authorizer()?;
    let secret = if acl::is_anonymous(&call.token) {
        legate_model::acl::ANONYMOUS_SECRET
    } else {
        &call.token
    };
    let answer = call.read(|state| state.token_by_secret(secret)).await?;
    match answer.value {
        Some(token) => call.answer(answer.index, &token, false),
        None if acl::is_anonymous(&call.token) => {
            call.answer(answer.index, &Token::anonymous(), false)
        }
        None => Err(acl::AclError::NotFound.into()),
    }
}

/// `GET /v1/acl/token/:accessor`
pub(super) async fn token(Path(accessor): Path<String>, call: Call) -> Result<Response, ApiError> {
    require_read(&call)?;
    let missing = format!("Token {accessor:?} not found");
    one(&call, &missing, |state| state.token_by_accessor(&accessor)).await
}

/// `DELETE /v1/acl/token/:accessor`
pub(super) async fn delete_token(
    Path(accessor): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_write(&call)?;
    if accessor == legate_model::acl::ANONYMOUS_ACCESSOR {
        return Err(ApiError::bad_request(
            "The anonymous token cannot be deleted: requests without a token have it",
        ));
    }
    let key = TokenKey::Accessor(accessor);
    call.write(&writer, move |txn| {
        txn.remove_token(&key);
        Ok(())
    })
    .await?;
    call.json(&true)
}

/// Answers with one object, or waits for it to appear.
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

/// A body may repeat the name in the path, but not contradict it.
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
