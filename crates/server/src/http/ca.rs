//! `/v1/connect/ca`, and the CA endpoints under `/v1/agent`: the roots, the CA configuration, and leaves for
//! services that terminate mTLS themselves.

use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use http::header::{AGE, CONTENT_TYPE, HeaderValue};
use http::{HeaderName, StatusCode};
use legate_ca::{CaError, CaManager, Leaf, ServiceLeaves};
use legate_model::{CaConfiguration, Secret, ServiceName, TenancyName, timestamp};
use serde::Serialize;
use tokio::time::Instant;

use super::call::Call;
use crate::api_error::ApiError;

/// `GET /v1/connect/ca/roots`
pub(super) async fn roots(call: Call) -> Result<Response, ApiError> {
    enabled(&call)?;
    let pem = call.params.flag("pem")?;
    let answer = call.read(|state| state.ca_roots()).await?;
    let Some(roots) = answer.value else {
        return Err(ApiError::unavailable(
            "The mesh CA has no root certificate yet: retry in a moment",
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

/// `GET /v1/agent/connect/ca/roots`: [`roots`] with the headers of a cache miss, because there is no cache
/// between the agent API and the store.
pub(super) async fn agent_roots(call: Call) -> Result<Response, ApiError> {
    roots(call).await.map(uncached)
}

/// Adds the headers of a cache miss.
fn uncached(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(
        HeaderName::from_static("x-cache"),
        HeaderValue::from_static("MISS"),
    );
    headers.insert(AGE, HeaderValue::from_static("0"));
    response
}

fn enabled(call: &Call) -> Result<(), ApiError> {
    match call.config.connect {
        true => Ok(()),
        false => Err(ApiError::internal(
            "Connect must be enabled in order to use this endpoint",
        )),
    }
}

pub(super) fn operates(call: &Call) -> Result<(), ApiError> {
    enabled(call)?;
    let permitted = call.authorizer()?.permits("operator", "write", "");
    ApiError::require(permitted.unwrap_or(false), "operator:write", "")
}

/// `GET /v1/connect/ca/configuration`, without secrets. As in Consul, requires `operator:write`.
pub(super) async fn configuration(
    State(manager): State<CaManager>,
    call: Call,
) -> Result<Response, ApiError> {
    operates(&call)?;
    call.refuse_filter()?;
    call.json(&manager.configuration()?)
}

/// `PUT /v1/connect/ca/configuration`. Rotates the root if the new configuration requires it.
pub(super) async fn configure(
    State(manager): State<CaManager>,
    call: Call,
) -> Result<Response, ApiError> {
    operates(&call)?;
    let asked: CaConfiguration = call.decode()?;
    manager.reconfigure(asked).await?;
    Ok(call.empty())
}

/// `GET /v1/agent/connect/ca/leaf/{service}`: the certificate and key of a service, the same as its proxies
/// have. With `?index=`, waits for the next one.
pub(super) async fn leaf(
    State(leaves): State<ServiceLeaves>,
    Path(service): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    enabled(&call)?;
    may_request_leaf(&call, &service)?;
    call.refuse_filter()?;
    legate_model::name::validate_service_name(&service)
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let query = call
        .params
        .blocking(call.config.query_times, rand::random())?;
    let deadline = Instant::now() + query.wait;
    call.refuse_every()?;
    let name = ServiceName::new(&call.tenancy, &service);
    let leaf = leaves.leaf(&name, query.min_index, deadline);
    let leaf = call.unless_stopped(leaf).await??;
    // The token may have changed during the wait.
    may_request_leaf(&call, &service)?;
    call.answer(leaf.index, &IssuedCert::of(&leaf, &name), false)
        .map(uncached)
}

fn may_request_leaf(call: &Call, service: &str) -> Result<(), ApiError> {
    ApiError::require(
        call.authorizer()?.service_write(service),
        "service:write",
        service,
    )
}

/// A leaf in the API's format.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct IssuedCert<'a> {
    serial_number: &'a str,
    #[serde(rename = "CertPEM")]
    cert_pem: &'a str,
    #[serde(rename = "PrivateKeyPEM")]
    private_key_pem: &'a Secret,
    service: &'a str,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    namespace: TenancyName,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    partition: TenancyName,
    #[serde(rename = "ServiceURI")]
    service_uri: &'a str,
    #[serde(with = "timestamp")]
    valid_after: SystemTime,
    #[serde(with = "timestamp")]
    valid_before: SystemTime,
    create_index: u64,
    modify_index: u64,
}

impl<'a> IssuedCert<'a> {
    fn of(leaf: &'a Leaf, service: &'a ServiceName) -> Self {
        Self {
            serial_number: &leaf.serial,
            cert_pem: &leaf.cert_pem,
            private_key_pem: &leaf.key_pem,
            service: &service.name,
            namespace: service.tenancy.shown_namespace(),
            partition: service.tenancy.shown_partition(),
            service_uri: &leaf.uri,
            valid_after: leaf.valid_after,
            valid_before: leaf.valid_before,
            create_index: leaf.index,
            modify_index: leaf.index,
        }
    }
}

impl From<CaError> for ApiError {
    /// Consul's status codes: errors of the provider are internal errors.
    fn from(error: CaError) -> Self {
        let status = match &error {
            CaError::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            CaError::StateReadOnly => StatusCode::BAD_REQUEST,
            CaError::Stopping | CaError::Missing | CaError::Store(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}
