//! `/v1/config`: config entries.

use axum::extract::Path;
use axum::response::Response;
use legate_model::acl::Authorizer;
use legate_model::{ConfigEntry, ConfigKind};
use legate_store::{Rejected, WriteTxn};

use super::call::{Call, visible};
use super::error::ApiError;
use super::protocol;

/// `PUT /v1/config`
pub(super) async fn put(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let cas = call.params.cas()?;
    let mut entry: ConfigEntry = call.decode()?;
    entry.validate()?;
    entry.normalise();
    may_write(&authorizer, entry.kind(), entry.name())?;
    write(&call, move |txn| {
        protocol::refuse_mismatch(&txn.read(), &entry)?;
        Ok(txn.put_config_entry(entry.clone(), cas))
    })
    .await
}

/// A compare-and-set that comes too late is an answer, not an error.
async fn write(
    call: &Call,
    mut transaction: impl FnMut(&mut WriteTxn) -> Result<Result<(), Rejected>, ApiError>
    + Send
    + 'static,
) -> Result<Response, ApiError> {
    let written = call.write(move |txn| match transaction(txn)? {
        Ok(()) => Ok(true),
        Err(Rejected::CasMismatch { .. }) => Ok(false),
        Err(rejected) => Err(rejected.into()),
    });
    call.json(&written.await?)
}

/// `GET /v1/config/:kind`
pub(super) async fn list(Path(kind): Path<String>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let kind = parse_kind(&kind)?;
    let answer = call.read(|state| state.config_entries(kind)).await?;
    let (entries, filtered) = visible(answer.value, |entry| {
        may_read(&authorizer, kind, entry.name()).is_ok()
    });
    call.answer(answer.index, &entries, filtered)
}

/// `GET /v1/config/:kind/:name`
pub(super) async fn get(
    Path((kind, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let kind = parse_kind(&kind)?;
    may_read(&authorizer, kind, &name)?;
    let answer = call.read(|state| state.config_entry(kind, &name)).await?;
    match answer.value {
        Some(entry) => call.answer(answer.index, &entry, false),
        None => {
            let text = format!("Config entry not found for {:?} / {name:?}", kind.as_str());
            call.absent(answer.index, &text)
        }
    }
}

/// `DELETE /v1/config/:kind/:name`
pub(super) async fn delete(
    Path((kind, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let cas = call.params.cas()?;
    let kind = parse_kind(&kind)?;
    may_write(&authorizer, kind, &name)?;
    let answer = write(&call, move |txn| {
        protocol::refuse_removal(&txn.read(), kind, &name)?;
        Ok(txn.remove_config_entry(kind, &name, cas))
    })
    .await?;
    if cas.is_some() {
        return Ok(answer);
    }
    call.json(&serde_json::Map::new())
}

fn parse_kind(kind: &str) -> Result<ConfigKind, ApiError> {
    kind.parse()
        .map_err(|error: legate_model::UnknownKind| ApiError::internal(error.to_string()))
}

fn may_read(authorizer: &Authorizer, kind: ConfigKind, name: &str) -> Result<(), ApiError> {
    let (allowed, permission) = match kind {
        ConfigKind::ProxyDefaults | ConfigKind::Mesh => return Ok(()),
        ConfigKind::ServiceDefaults => (authorizer.service_read(name), "service:read"),
        ConfigKind::ServiceIntentions => (authorizer.intention_read(name), "intention:read"),
    };
    if allowed {
        Ok(())
    } else {
        Err(ApiError::denied(permission, name))
    }
}

fn may_write(authorizer: &Authorizer, kind: ConfigKind, name: &str) -> Result<(), ApiError> {
    let (allowed, permission, name) = match kind {
        ConfigKind::ProxyDefaults | ConfigKind::Mesh => (authorizer.mesh_write(), "mesh:write", ""),
        ConfigKind::ServiceDefaults => (authorizer.service_write(name), "service:write", name),
        ConfigKind::ServiceIntentions => {
            (authorizer.intention_write(name), "intention:write", name)
        }
    };
    if allowed {
        Ok(())
    } else {
        Err(ApiError::denied(permission, name))
    }
}
