//! `/v1/connect/ca` and its twin under `/v1/agent`: what peers verify certificates against.

use axum::body::Body;
use axum::response::Response;
use http::HeaderName;
use http::header::{AGE, CONTENT_TYPE, HeaderValue};

use super::call::Call;
use super::error::ApiError;

/// `GET /v1/connect/ca/roots`
pub(super) async fn roots(call: Call) -> Result<Response, ApiError> {
    if !call.config.connect {
        return Err(ApiError::internal(
            "Connect must be enabled in order to use this endpoint",
        ));
    }
    let pem = call.params.flag("pem")?;
    let answer = call.read(|state| state.ca_roots()).await?;
    let Some(roots) = answer.value else {
        return Err(ApiError::unavailable(
            "The mesh CA has no root certificate yet: ask again in a moment",
        ));
    };
    if !pem {
        return call.answer(answer.index, &*roots, false);
    }
    let mut response = Response::new(Body::from(roots.chain_pem()));
    let chain = HeaderValue::from_static("application/pem-certificate-chain");
    response.headers_mut().insert(CONTENT_TYPE, chain);
    call.mark(response, answer.index, false)
}

/// `GET /v1/agent/connect/ca/roots`: the same, with the headers of a cache that is always empty,
/// because there is nothing between the agent API and the store.
pub(super) async fn agent_roots(call: Call) -> Result<Response, ApiError> {
    let mut response = roots(call).await?;
    let headers = response.headers_mut();
    headers.insert(
        HeaderName::from_static("x-cache"),
        HeaderValue::from_static("MISS"),
    );
    headers.insert(AGE, HeaderValue::from_static("0"));
    Ok(response)
}
