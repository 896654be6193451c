//! Paths of Consul's API that this server does not serve. They are answered with 501: a client that
//! reads 404 takes it for an object that does not exist, and goes on as if there were none.
//!
//! Knows names only; whatever is served has a route and never gets here.

use axum::extract::Request;
use http::StatusCode;

use super::error::ApiError;

/// What paths of Consul 1.21 without a route here start with.
const PREFIXES: &[&str] = &[
    "/v1/acl/oidc/",
    "/v1/agent/health/",
    "/v1/internal/",
    "/v1/operator/",
];

/// Answers a request without a route.
pub(super) async fn path(request: Request) -> ApiError {
    let path = request.uri().path();
    let below = |prefix: &&str| {
        path.strip_prefix(*prefix)
            .is_some_and(|rest| !rest.is_empty())
    };
    if PREFIXES.iter().any(below) {
        return not_implemented(format!(
            "{path} is not served: this server does not implement this part of Consul's API"
        ));
    }
    ApiError::not_found(format!(
        "Unknown path {path}: this server does not serve it"
    ))
}

fn not_implemented(text: String) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, text)
}
