//! Paths of Consul's API that this server does not implement. The response is 501, because clients would take
//! 404 for a missing object and continue.
//!
//! Paths that end before a required name get Consul's response. Served paths have a route and never get here.

use axum::extract::Request;
use http::StatusCode;

use crate::api_error::ApiError;

/// Prefixes of Consul 1.21's paths that may have no route here.
const PREFIXES: &[&str] = &[
    "/v1/acl/oidc/",
    "/v1/agent/health/",
    "/v1/internal/",
    "/v1/operator/",
];

/// Paths that end before a required name, with Consul's status code and text.
const NAMELESS: &[(&str, u16, &str)] = &[
    ("/v1/acl/policy/", 400, "Missing policy ID"),
    ("/v1/acl/role/", 400, "Missing role ID"),
    ("/v1/acl/token/", 400, "Missing token AccessorID"),
    ("/v1/acl/auth-method/", 400, "Missing auth method name"),
    ("/v1/acl/binding-rule/", 400, "Missing binding rule ID"),
    ("/v1/agent/check/deregister/", 404, NO_CHECK),
    ("/v1/agent/check/fail/", 404, NO_CHECK),
    ("/v1/agent/check/pass/", 404, NO_CHECK),
    ("/v1/agent/check/update/", 404, NO_CHECK),
    ("/v1/agent/check/warn/", 404, NO_CHECK),
    ("/v1/agent/service/", 404, "unknown service ID:"),
    ("/v1/agent/service/deregister/", 404, NO_SERVICE),
    ("/v1/agent/service/maintenance/", 400, "Missing service ID"),
    ("/v1/agent/health/service/id/", 400, "Missing serviceID"),
    (
        "/v1/agent/health/service/name/",
        400,
        "Missing service Name",
    ),
    ("/v1/catalog/connect/", 400, "Missing service name"),
    ("/v1/catalog/gateway-services/", 400, "Missing gateway name"),
    ("/v1/catalog/node-services/", 400, "Missing node name"),
    ("/v1/catalog/node/", 400, "Missing node name"),
    ("/v1/catalog/service/", 400, "Missing service name"),
    ("/v1/discovery-chain/", 400, "Missing chain name"),
    ("/v1/event/fire/", 400, "Missing name"),
    ("/v1/health/checks/", 400, "Missing service name"),
    ("/v1/health/connect/", 400, "Missing service name"),
    ("/v1/health/ingress/", 400, "Missing service name"),
    ("/v1/health/node/", 400, "Missing node name"),
    ("/v1/health/service/", 400, "Missing service name"),
    ("/v1/health/state/", 400, "Missing check state"),
    (
        "/v1/internal/federation-state/",
        400,
        "Missing datacenter name",
    ),
    ("/v1/internal/ui/node/", 400, "Missing node name"),
    (
        "/v1/internal/ui/gateway-services-nodes/",
        400,
        "Missing gateway name",
    ),
    (
        "/v1/internal/ui/gateway-intentions/",
        400,
        "Missing gateway name",
    ),
    (
        "/v1/internal/ui/service-topology/",
        400,
        "Missing service name",
    ),
];
const NO_CHECK: &str =
    "Unknown check ID \"\". Ensure that the check ID is passed, not the check name.";
const NO_SERVICE: &str =
    "Unknown service ID \"\". Ensure that the service ID is passed, not the service name.";

/// Responds to a request without a route.
pub(super) async fn path(request: Request) -> ApiError {
    let path = request.uri().path();
    if let Some((_, status, text)) = NAMELESS.iter().find(|(nameless, ..)| *nameless == path) {
        let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::BAD_REQUEST);
        return ApiError::new(status, *text);
    }
    let below = |prefix: &&str| {
        path.strip_prefix(*prefix)
            .is_some_and(|rest| !rest.is_empty())
    };
    if PREFIXES.iter().any(below) {
        return not_implemented(format!(
            "{path} is not served: this server does not implement this part of Consul's API"
        ));
    }
    if !path.starts_with("/v1/") {
        return ApiError::not_found(
            "Invalid URL path: if attempting to use the HTTP API, ensure the path starts with '/v1/'",
        );
    }
    ApiError::not_found("Invalid URL path: not a recognized HTTP API endpoint")
}

fn not_implemented(text: String) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, text)
}
