//! `/v1/snapshot`: all that the store keeps, to be put away and brought back. Snapshots are our own
//! format; Consul's are not read.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Buf;
use http::header::{CONTENT_TYPE, HeaderValue};
use legate_store::{Snapshot, SnapshotError};
use tokio::task::spawn_blocking;

use super::call::{Call, read_body};
use super::error::ApiError;
use crate::context::Context;
use crate::server::seed;

/// The largest snapshot that is taken, in bytes: it is read wholly before anything changes.
const LIMIT: usize = 1024 * 1024 * 1024;

/// How long a client may take to send one.
const TIME: Duration = Duration::from_secs(10 * 60);

/// `GET /v1/snapshot`
pub(super) async fn save(call: Call) -> Result<Response, ApiError> {
    may_manage(&call)?;
    let _one_at_a_time = call.ctx.snapshots.lock().await;
    let store = call.ctx.store.clone();
    let saved = spawn_blocking(move || {
        let mut file = Vec::new();
        store.save(&mut file).map(|index| (index, file))
    });
    let (index, file) = joined(saved.await)??;
    let mut response = Response::new(Body::from(file));
    let binary = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, binary);
    call.mark(response, index, false)
}

/// `PUT /v1/snapshot`: replaces everything, as one change.
pub(super) async fn restore(
    State(ctx): State<Arc<Context>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let call = Call::of_head(&head, &ctx)?;
    // Before a body of this size is read.
    may_manage(&call)?;
    let _one_at_a_time = ctx.snapshots.lock().await;
    let file = read_body(&head.headers, body, LIMIT, TIME).await?;
    let store = ctx.store.clone();
    let read = spawn_blocking(move || store.read_snapshot(file.reader()));
    let snapshot: Snapshot = joined(read.await)??;
    let (saved_at, rows) = (snapshot.index(), snapshot.rows());
    let applied = ctx.store.restore(snapshot).await?;
    tracing::warn!(
        saved_at,
        rows,
        index = applied.index,
        "a snapshot was restored"
    );
    // This server's own node and first token may be others than those of the snapshot.
    let seeded = seed(&ctx.config, &ctx.store, &ctx.clock).await;
    seeded.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(call.empty())
}

fn may_manage(call: &Call) -> Result<(), ApiError> {
    if call.authorizer()?.acl_write() {
        Ok(())
    } else {
        Err(ApiError::denied("acl:write", ""))
    }
}

fn joined<T>(joined: Result<T, tokio::task::JoinError>) -> Result<T, ApiError> {
    joined.map_err(|error| ApiError::internal(format!("The snapshot broke down: {error}")))
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Io(_) => Self::internal(error.to_string()),
            _ => Self::bad_request(error.to_string()),
        }
    }
}
