//! `/v1/snapshot`: saves and restores the whole store. The format is Legate's own; Consul's snapshots cannot be
//! restored.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use legate_runtime::{Clock, Pool, Share, Spawner};
use legate_store::{Saving, Snapshot, SnapshotError, Store, StoreConfig};
use tokio::sync::Mutex;

use super::call::{Call, Head, refuse_announced, within};
use crate::agent::Agent;
use crate::api_error::ApiError;
use crate::config::ServerConfig;
use crate::handles::Handles;
use crate::seed::seed;

/// The maximum size of a snapshot, in bytes.
const LIMIT: usize = 1024 * 1024 * 1024;

/// How much of a snapshot is received before it is written to the file, in bytes.
const BUFFER: usize = 1024 * 1024;

/// Timeout for receiving a snapshot.
const TIME: Duration = Duration::from_secs(10 * 60);

/// Saves and restores the store.
#[derive(Clone)]
pub(super) struct Snapshots {
    store: Store,
    config: Arc<ServerConfig>,
    clock: Clock,
    agent: Arc<Agent>,
    spawner: Spawner,
    /// Runs one step at a time, because a restore needs as much memory as the store. A step goes on if the
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
            agent: handles.agent.clone(),
            spawner: handles.spawner.clone(),
            pool: Pool::with(handles.spawner.clone(), NonZeroUsize::MIN),
            upload: Arc::default(),
        }
    }

    /// Where a snapshot is kept until it was checked: the data directory, which has room for it anyway, or the
    /// directory for temporary files.
    fn place(&self) -> PathBuf {
        match &self.config.store {
            StoreConfig::Disk { directory, .. } => directory.clone(),
            StoreConfig::Memory | StoreConfig::Etcd(_) => std::env::temp_dir(),
        }
    }

    /// The next part of a snapshot that is being saved.
    async fn part(&self, mut saving: Saving) -> io::Result<Option<(Vec<u8>, Saving)>> {
        let part = run(&self.pool, move || {
            let part = saving.next_part()?;
            Ok::<_, SnapshotError>(part.map(|part| (part, saving)))
        });
        let part = part
            .await
            .map_err(|stopping| io::Error::other(stopping.text().to_owned()))?;
        part.map_err(io::Error::other)
    }
}

async fn run<T: Send + 'static>(
    pool: &Pool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = pool.run("snapshot", &Share::default(), work).await;
    done.ok_or_else(|| ApiError::unavailable("the server is stopping"))
}

/// Writes a body to a file without a name, which is gone when it is closed.
async fn receive(pool: &Pool, place: PathBuf, body: Body, limit: usize) -> Result<File, ApiError> {
    let failed = |error: io::Error| {
        let place = place.display();
        ApiError::unavailable(format!(
            "the snapshot cannot be kept in {place} ({error}): make room there, and send it again"
        ))
    };
    let opened = {
        let place = place.clone();
        run(pool, move || tempfile::tempfile_in(place)).await?
    };
    let mut file = opened.map_err(failed)?;
    let mut body = body.into_data_stream();
    let (mut received, mut buffer) = (0, Vec::new());
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(|error| {
            ApiError::bad_request(format!("The request body could not be read: {error}"))
        })?;
        received += bytes.len();
        if received > limit {
            return Err(ApiError::too_large(limit));
        }
        buffer.extend_from_slice(&bytes);
        if buffer.len() >= BUFFER {
            let full = std::mem::take(&mut buffer);
            file = append(pool, file, full).await?.map_err(failed)?;
        }
    }
    append(pool, file, buffer).await?.map_err(failed)
}

async fn append(pool: &Pool, mut file: File, bytes: Vec<u8>) -> Result<io::Result<File>, ApiError> {
    run(pool, move || file.write_all(&bytes).map(|()| file)).await
}

/// `GET /v1/snapshot`. The parts are made as the client receives them.
pub(super) async fn save(
    State(snapshots): State<Snapshots>,
    call: Call,
) -> Result<Response, ApiError> {
    may_manage(&call)?;
    let saving = snapshots.store.snapshot()?;
    let index = saving.index();
    let parts = stream::try_unfold(saving, move |saving| {
        let snapshots = snapshots.clone();
        async move { snapshots.part(saving).await }
    });
    // The client notices that the snapshot is incomplete, so this is only logged.
    let parts = parts.inspect_err(|error| tracing::warn!(%error, "a snapshot was not completed"));
    let mut response = Response::new(Body::from_stream(parts));
    let binary = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, binary);
    call.mark(response, index, false)
}

/// `PUT /v1/snapshot`: replaces all data in one transaction, after the snapshot was received and checked.
pub(super) async fn restore(
    State(snapshots): State<Snapshots>,
    Head(call): Head,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    // Before the large body is read.
    may_manage(&call)?;
    refuse_announced(&headers, LIMIT)?;
    let _one_at_a_time = snapshots.upload.lock().await;
    let mut file = within(
        TIME,
        receive(&snapshots.pool, snapshots.place(), body, LIMIT),
    )
    .await??;
    let store = snapshots.store.clone();
    let read = move || {
        file.rewind()?;
        store.read_snapshot(file)
    };
    let snapshot: Snapshot = run(&snapshots.pool, read).await??;
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
    let missing = seeded.map_err(|error| ApiError::internal(error.to_string()))?;
    snapshots.agent.define_later(missing, &snapshots.spawner);
    Ok(call.empty())
}

/// A snapshot contains the data of all tenants, so ACL permissions in a single namespace are not sufficient.
fn may_manage(call: &Call) -> Result<(), ApiError> {
    ApiError::require(call.authorizer()?.acl_write_of_mesh(), "acl:write", "")
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Io(_) => Self::internal(error.to_string()),
            _ => Self::bad_request(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
