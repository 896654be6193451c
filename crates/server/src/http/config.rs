//! `/v1/config`: config entries.

use axum::extract::Path;
use axum::response::Response;
use legate_model::acl::Authorizer;
use legate_model::json::UnknownFields;
use legate_model::{ConfigEntry, ConfigKind};
use legate_store::{Command, Rejected, Topic};

use super::call::{Call, visible};
use super::error::ApiError;
use super::protocol;

/// `PUT /v1/config`
pub(super) async fn put(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let cas = call.params.cas()?;
    let mut entry: ConfigEntry = call.decode(UnknownFields::Refuse)?;
    entry.validate()?;
    entry.normalise();
    may_write(&authorizer, entry.kind(), entry.name())?;
    let _exclusive = call.exclusive();
    protocol::refuse_mismatch(&call.ctx.store.state(), &entry)?;
    let entry = Box::new(entry);
    write(&call, Command::UpsertConfigEntry { entry, cas })
}

/// A compare-and-set that comes too late is an answer, not an error.
fn write(call: &Call, command: Command) -> Result<Response, ApiError> {
    match call.ctx.store.apply(command) {
        Ok(_) => call.json(&true),
        Err(Rejected::CasMismatch { .. }) => call.json(&false),
        Err(rejected) => Err(rejected.into()),
    }
}

/// `GET /v1/config/:kind`
pub(super) async fn list(Path(kind): Path<String>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let kind = parse_kind(&kind)?;
    let answer = call
        .read(vec![Topic::ConfigEntries(kind)], |state| {
            state.config_entries(kind)
        })
        .await?;
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
    let topic = Topic::ConfigEntry {
        kind,
        name: name.as_str().into(),
    };
    let answer = call
        .read(vec![topic], |state| state.config_entry(kind, &name))
        .await?;
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
    let _exclusive = call.exclusive();
    protocol::refuse_removal(&call.ctx.store.state(), kind, &name)?;
    let command = Command::DeleteConfigEntry { kind, name, cas };
    if cas.is_some() {
        return write(&call, command);
    }
    call.ctx.store.apply(command)?;
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
