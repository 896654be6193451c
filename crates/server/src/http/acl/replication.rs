//! `/v1/acl/replication`: tokens of another datacenter. There is one datacenter, so that none are
//! copied.

use axum::response::Response;
use serde_json::json;

use super::super::call::Call;
use crate::api_error::ApiError;

/// Go's time without a value.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// `GET /v1/acl/replication`: needs no right, as in Consul; health checks ask for it.
pub(crate) async fn status(call: Call) -> Result<Response, ApiError> {
    if !call.config.acl.enabled {
        return Err(ApiError::acl_disabled());
    }
    call.json(&json!({
        "Enabled": false,
        "Running": false,
        "SourceDatacenter": "",
        "ReplicationType": "",
        "ReplicatedIndex": 0,
        "ReplicatedRoleIndex": 0,
        "ReplicatedTokenIndex": 0,
        "LastSuccess": NEVER,
        "LastError": NEVER,
        "LastErrorMessage": "",
    }))
}
