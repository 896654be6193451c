//! Passes requests on to the admin interface of the Envoy that serves in the place of the built-in proxy.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use legate_runtime::http_client::{Body, HttpError, send};
use tokio::time::Instant;

/// Time limit of a call.
const TIME: Duration = Duration::from_secs(30);

/// Largest page of Envoy in bytes: suffices for a configuration dump of a large mesh.
const LARGEST: usize = 256 * 1024 * 1024;

/// Largest body of a request: Envoy's pages need none.
const BODY: usize = 64 * 1024;

/// The answer of the admin interface at `envoy`.
pub(super) async fn call(envoy: SocketAddr, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large\n").into_response();
    };
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let request = http::Request::builder().method(head.method).uri(path);
    let answer = async {
        let deadline = Instant::now() + TIME;
        let reply = send(envoy, request.body(Body::new(body))?, deadline).await?;
        let content_type = reply.headers.get(header::CONTENT_TYPE).cloned();
        let status = reply.status;
        let page = reply.body(LARGEST, deadline).await?;
        let mut response = (status, page).into_response();
        if let Some(content_type) = content_type {
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, content_type);
        }
        Ok::<_, HttpError>(response)
    };
    answer.await.unwrap_or_else(|error| {
        let text = format!("Envoy does not answer: {error}\n");
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    })
}
