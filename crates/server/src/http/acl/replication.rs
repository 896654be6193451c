//! `/v1/acl/replication`: always disabled, because there is only one datacenter.

use axum::response::Response;
use serde_json::json;

use super::super::call::Call;
use crate::api_error::ApiError;

/// Go's zero time.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// `GET /v1/acl/replication`. Requires no permission, as in Consul, because health checks use it.
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
