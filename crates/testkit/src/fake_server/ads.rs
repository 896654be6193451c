//! The server's end of a delta ADS stream, controlled by the test.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use prost::Message;
use prost_types::Any;
use tokio::sync::{Mutex, mpsc};
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::record::{Body, Call, Caller};
use super::script::{Script, WAIT};

/// The maximum number of streams not yet accepted by [`accept_ads`](super::FakeServer::accept_ads);
/// more are refused.
pub(super) const UNACCEPTED: usize = 64;

/// The maximum number of queued responses.
pub(super) const RESPONSES: usize = 64;

/// The streams that were opened and not yet accepted. Clones share them.
#[derive(Debug, Clone)]
pub struct AdsStreams(Arc<Mutex<mpsc::Receiver<AdsStream>>>);

impl AdsStreams {
    pub(super) fn new(streams: mpsc::Receiver<AdsStream>) -> Self {
        Self(Arc::new(Mutex::new(streams)))
    }

    /// The next stream, however long that takes; `None` once the server was dropped.
    pub async fn next(&self) -> Option<AdsStream> {
        self.0.lock().await.recv().await
    }
}

/// A resource of a response.
#[must_use]
pub fn resource(name: &str, version: &str, body: &Any) -> Resource {
    Resource {
        name: name.to_owned(),
        version: version.to_owned(),
        resource: Bytes::from(body.encode_to_vec()),
        aliases: Vec::new(),
    }
}

/// An open stream. Dropping it ends the stream with OK.
pub struct AdsStream {
    pub(super) caller: Caller,
    pub(super) script: Script,
    pub(super) requests: Streaming<DeltaDiscoveryRequest>,
    pub(super) responses: mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>,
}

impl AdsStream {
    /// The metadata of the stream's call.
    #[must_use]
    pub fn metadata(&self) -> &MetadataMap {
        &self.caller.metadata
    }

    /// The ACL token of the stream's call.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.caller.token.as_deref()
    }

    /// The next request, which is also recorded in the script; `None` if the client has ended or
    /// lost the stream.
    ///
    /// # Panics
    ///
    /// If none arrives within [`WAIT`].
    pub async fn next(&mut self) -> Option<DeltaDiscoveryRequest> {
        let request = tokio::time::timeout(WAIT, self.wait())
            .await
            .expect("the client sends an ADS request in time")?;
        self.script.record(
            Call::Discovery,
            &self.caller,
            Body::Discovery(request.clone()),
        );
        Some(request)
    }

    /// The next request, however long that takes, which is not recorded; `None` if the client has ended
    /// or lost the stream. Cancel safe.
    pub async fn wait(&mut self) -> Option<DeltaDiscoveryRequest> {
        self.requests.message().await.ok()?
    }

    /// The next request of this type; others are skipped.
    ///
    /// # Panics
    ///
    /// If none arrives within [`WAIT`], or the client ends the stream.
    pub async fn next_of(&mut self, type_url: &str) -> DeltaDiscoveryRequest {
        loop {
            match self.next().await {
                Some(request) if request.type_url == type_url => return request,
                Some(_) => {}
                None => panic!("the client ended the stream without a request for {type_url}"),
            }
        }
    }

    /// Sends a response. Returns whether the stream is still open.
    pub async fn send(&self, response: DeltaDiscoveryResponse) -> bool {
        self.responses.send(Ok(response)).await.is_ok()
    }

    /// Sends resources of one type. Returns whether the stream is still open.
    pub async fn send_resources(
        &self,
        type_url: &str,
        nonce: &str,
        resources: Vec<Resource>,
    ) -> bool {
        self.send(DeltaDiscoveryResponse {
            type_url: type_url.to_owned(),
            nonce: nonce.to_owned(),
            resources,
            ..DeltaDiscoveryResponse::default()
        })
        .await
    }

    /// Ends the stream with this status.
    pub async fn end(self, status: Status) {
        // The client may have disconnected.
        let _ = self.responses.send(Err(status)).await;
    }
}

impl fmt::Debug for AdsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdsStream")
            .field("caller", &self.caller)
            .finish_non_exhaustive()
    }
}
