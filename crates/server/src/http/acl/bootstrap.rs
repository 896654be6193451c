//! `/v1/acl/bootstrap`: creates the first management token. Repeating it requires a file in the server's data
//! directory, so only the server's operator can.

use std::io::Read;
use std::path::{Path as FilePath, PathBuf};

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use legate_model::acl::{PolicyLink, Token};
use legate_model::{Secret, Tenancy};
use legate_runtime::Clock;
use legate_store::{StoreConfig, Writer};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::super::call::Call;
use super::tokens;
use crate::api_error::ApiError;

/// Body of a bootstrap request; optional.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct BootstrapBody {
    bootstrap_secret: Secret,
}

/// Response to a bootstrap request.
#[derive(Serialize)]
struct Bootstrapped {
    /// The secret, under its legacy name.
    #[serde(rename = "ID")]
    id: Secret,
    #[serde(flatten)]
    token: Token,
}

/// The file in the data directory that permits another bootstrap. Consul's name.
const RESET_FILE: &str = "acl-bootstrap-reset";

/// `PUT /v1/acl/bootstrap`: creates the first management token. To repeat it, the operator writes the reset
/// index to a file in the data directory.
pub(crate) async fn bootstrap(
    State(writer): State<Writer>,
    State(clock): State<Clock>,
    mut call: Call,
) -> Result<Response, ApiError> {
    if !call.config.acl.enabled {
        return Err(ApiError::acl_disabled());
    }
    // Management tokens are in the default tenancy.
    call.set_tenancy(Tenancy::default());
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
        secret_id: secret.clone(),
        description: "Bootstrap Token (Global Management)".to_owned(),
        policies: vec![PolicyLink::global_management()],
        create_time: Some(clock.now()),
        ..Token::default()
    };
    token.validate()?;
    let file = reset_file(&call);
    let reset = match call.reader.state().read().managed_since() {
        None => None,
        Some(index) => Some(reset_index(file.as_deref(), index)?),
    };
    if let (Some(_), Some(file)) = (reset, &file) {
        // Before the write: a file left behind would permit another bootstrap after a restore.
        std::fs::remove_file(file).map_err(|error| unremovable(file, &error))?;
    }
    let made = call.write(&writer, move |txn| {
        if let Some(index) = txn.read().managed_since()
            && reset != Some(index)
        {
            return Err(bootstrapped(index, file.as_deref()));
        }
        if reset.is_some() {
            txn.reset_management();
        }
        tokens::put(txn, &token)
    });
    let token = made.await?;
    call.json(&Bootstrapped { id: secret, token })
}

/// Path of the reset file; `None` if the store has no directory.
fn reset_file(call: &Call) -> Option<PathBuf> {
    match &call.config.store {
        StoreConfig::Disk { directory, .. } => Some(directory.join(RESET_FILE)),
        _ => None,
    }
}

/// Reads the reset index from the file and compares it with the required one.
fn reset_index(file: Option<&FilePath>, needed: u64) -> Result<u64, ApiError> {
    let mut text = String::new();
    let opened = file.and_then(|file| std::fs::File::open(file).ok());
    let Some(opened) = opened else {
        return Err(bootstrapped(needed, file));
    };
    // Longer than any valid number.
    let read = opened.take(64).read_to_string(&mut text);
    match read.ok().and_then(|_| text.trim().parse::<u64>().ok()) {
        Some(index) if index == needed => Ok(index),
        Some(index) => Err(ApiError::internal(format!(
            "Invalid bootstrap reset index (specified {index}, reset index: {needed})"
        ))),
        None => Err(bootstrapped(needed, file)),
    }
}

fn unremovable(file: &FilePath, error: &std::io::Error) -> ApiError {
    ApiError::internal(format!(
        "ACL bootstrap failed: {} cannot be removed, and would permit another one later: {error}",
        file.display()
    ))
}

fn bootstrapped(index: u64, file: Option<&FilePath>) -> ApiError {
    let how = match file {
        // The directory's path is not revealed to the caller.
        Some(_) => {
            format!("write {index} to {RESET_FILE} in the data directory and repeat this")
        }
        None => "restart the server with another one in LEGATE_INITIAL_MANAGEMENT_TOKEN".to_owned(),
    };
    ApiError::new(
        StatusCode::FORBIDDEN,
        format!(
            "Permission denied: ACL bootstrap no longer allowed (reset index: {index}): a \
             management token exists already; use it to create others or, if it is lost, {how}"
        ),
    )
}
