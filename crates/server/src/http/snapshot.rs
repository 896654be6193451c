//! `/v1/snapshot`: saves and restores the whole store. The format is Legate's own; Consul's snapshots cannot be
//! restored.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Buf;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use legate_runtime::{Clock, Pool, Share};
use legate_store::{Snapshot, SnapshotError, Store};
use tokio::sync::Mutex;

use super::call::{Call, Head, read_body};
use crate::api_error::ApiError;
use crate::config::ServerConfig;
use crate::handles::Handles;
use crate::seed::seed;

/// The maximum size of a snapshot, in bytes. It is held in memory before it is restored.
const LIMIT: usize = 1024 * 1024 * 1024;

/// Timeout for receiving a snapshot.
const TIME: Duration = Duration::from_secs(10 * 60);

/// Saves and restores the store.
#[derive(Clone)]
pub(super) struct Snapshots {
    store: Store,
    config: Arc<ServerConfig>,
    clock: Clock,
    /// Runs one save or restore at a time, because each needs as much memory as the store. Work goes on if the
    /// client disconnects.
    pool: Pool,
    /// Held while a client uploads a snapshot.
    upload: Arc<Mutex<()>>,
}

impl Snapshots {
    pub(super) fn new(handles: &Handles) -> Self {
        Self {
            store: handles.store.clone(),
            config: Arc::clone(&handles.config),
            clock: handles.clock.clone(),
            pool: Pool::with(handles.spawner.clone(), NonZeroUsize::MIN),
            upload: Arc::default(),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (store, share) = (self.store.clone(), Share::default());
        let done = self.pool.run("snapshot", &share, move || work(&store));
        let done = done.await;
        done.ok_or_else(|| ApiError::unavailable("the server is stopping"))
    }
}

/// `GET /v1/snapshot`
pub(super) async fn save(
    State(snapshots): State<Snapshots>,
    call: Call,
) -> Result<Response, ApiError> {
    may_manage(&call)?;
    let save = |store: &Store| {
        let mut file = Vec::new();
        store.save(&mut file).map(|index| (index, file))
    };
    let (index, file) = snapshots.run(save).await??;
    let mut response = Response::new(Body::from(file));
    let binary = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, binary);
    call.mark(response, index, false)
}

/// `PUT /v1/snapshot`: replaces all data in one transaction.
pub(super) async fn restore(
    State(snapshots): State<Snapshots>,
    Head(call): Head,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    // Before the large body is read.
    may_manage(&call)?;
    let _one_at_a_time = snapshots.upload.lock().await;
    let file = read_body(&headers, body, LIMIT, TIME).await?;
    let read = move |store: &Store| store.read_snapshot(file.reader());
    let snapshot: Snapshot = snapshots.run(read).await??;
    let (saved_at, rows) = (snapshot.index(), snapshot.rows());
    let applied = snapshots.store.restore(snapshot).await?;
    tracing::warn!(
        saved_at,
        rows,
        index = applied.index,
        "a snapshot was restored"
    );
    // The server's own node and initial management token may differ from those in the snapshot.
    let seeded = seed(&snapshots.config, &snapshots.store, &snapshots.clock).await;
    seeded.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(call.empty())
}

/// A snapshot contains the data of all tenants, so ACL permissions in a single namespace are not sufficient.
fn may_manage(call: &Call) -> Result<(), ApiError> {
    if call.authorizer()?.acl_write_of_mesh() {
        Ok(())
    } else {
        Err(ApiError::denied("acl:write", ""))
    }
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Io(_) => Self::internal(error.to_string()),
            _ => Self::bad_request(error.to_string()),
        }
    }
}
