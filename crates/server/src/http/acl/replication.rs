//! `/v1/acl/replication`: how the ACL tables of the primary datacenter are followed.

use std::time::SystemTime;

use axum::extract::State;
use axum::response::Response;
use legate_model::timestamp;
use serde_json::json;

use super::super::call::Call;
use crate::api_error::ApiError;
use crate::replication::{Progress, Status};

/// `GET /v1/acl/replication`. Requires no permission, as in Consul, because health checks use it. Only the leader
/// replicates, and knows how it goes.
pub(crate) async fn status(
    State(replication): State<Option<Status>>,
    call: Call,
) -> Result<Response, ApiError> {
    if !call.config.acl.enabled {
        return Err(ApiError::acl_disabled());
    }
    let enabled = replication.is_some();
    let progress = match replication {
        Some(replication) => replication.progress(),
        None => Progress::default(),
    };
    // Policies, roles and tokens are one answer here, with one index.
    let index = progress.index;
    call.json(&json!({
        "Enabled": enabled,
        "Running": progress.running,
        "SourceDatacenter": progress.source,
        "ReplicationType": if enabled { "tokens" } else { "" },
        "ReplicatedIndex": index,
        "ReplicatedRoleIndex": index,
        "ReplicatedTokenIndex": index,
        "LastSuccess": shown(progress.last_success),
        "LastError": shown(progress.last_error),
        "LastErrorMessage": progress.last_error_message,
    }))
}

/// Go's zero time stands for never.
fn shown(time: Option<SystemTime>) -> String {
    let time = time.and_then(|time| timestamp::format(time).ok());
    time.unwrap_or_else(|| "0001-01-01T00:00:00Z".to_owned())
}
