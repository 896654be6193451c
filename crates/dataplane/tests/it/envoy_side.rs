//! A client in Envoy's place: a delta stream whose messages the test writes.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use legate_api::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use legate_api::rpc;
use legate_envoy::bootstrap::XdsAddress;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

/// Far longer than any step takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to the relay with Envoy's flow-control windows.
pub(crate) async fn connect(relay: &XdsAddress) -> Channel {
    let endpoint = match relay {
        XdsAddress::Tcp(address) => Endpoint::from_shared(format!("http://{address}")).unwrap(),
        XdsAddress::Unix(_) => Endpoint::from_static("http://relay"),
    };
    let endpoint = endpoint
        .initial_stream_window_size(16 * 1024 * 1024)
        .initial_connection_window_size(24 * 1024 * 1024);
    let XdsAddress::Unix(path) = relay else {
        return endpoint.connect().await.unwrap();
    };
    let path = path.clone();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move {
            let stream = UnixStream::connect(path).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    endpoint.connect_with_connector(connector).await.unwrap()
}

/// A stream to the relay.
pub(crate) struct EnvoyStream {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl EnvoyStream {
    pub(crate) async fn open(relay: SocketAddr) -> EnvoyStream {
        EnvoyStream::over(connect(&XdsAddress::Tcp(relay)).await).await
    }

    pub(crate) async fn over(channel: Channel) -> EnvoyStream {
        EnvoyStream::with(channel, MetadataMap::new()).await
    }

    /// A stream with metadata of its own.
    pub(crate) async fn with(channel: Channel, metadata: MetadataMap) -> EnvoyStream {
        EnvoyStream::try_with(channel, metadata).await.unwrap()
    }

    /// A stream, or the status of its refusal.
    pub(crate) async fn try_with(
        channel: Channel,
        metadata: MetadataMap,
    ) -> Result<EnvoyStream, Status> {
        let client = AggregatedDiscoveryServiceClient::new(channel);
        let mut client = client.max_decoding_message_size(usize::MAX);
        let (requests, receiver) = mpsc::channel(16);
        let mut request = Request::new(ReceiverStream::new(receiver));
        *request.metadata_mut() = metadata;
        let call = client.delta_aggregated_resources(request);
        let responses = timeout(PATIENCE, call).await.unwrap()?.into_inner();
        Ok(EnvoyStream {
            requests,
            responses,
        })
    }

    pub(crate) async fn send(&self, request: DeltaDiscoveryRequest) {
        self.requests.send(request).await.unwrap();
    }

    /// Subscribes to all resources of a type, as the first request of a stream.
    pub(crate) async fn subscribe(&self, type_url: &str) {
        self.send(DeltaDiscoveryRequest {
            node: Bytes::from_static(b"node"),
            type_url: type_url.to_owned(),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }

    pub(crate) async fn next(&mut self) -> DeltaDiscoveryResponse {
        let response = timeout(PATIENCE, self.responses.message()).await;
        response
            .expect("a response in time")
            .expect("an open stream")
            .expect("a response")
    }

    /// The status with which the relay closes the stream. Earlier responses are skipped.
    pub(crate) async fn refused(&mut self) -> Status {
        loop {
            let end = timeout(PATIENCE, self.responses.message()).await;
            match end.expect("an end in time") {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended well"),
                Err(status) => return status,
            }
        }
    }

    /// Whether the relay closes the stream.
    pub(crate) async fn ended(&mut self) -> bool {
        let end = timeout(PATIENCE, self.responses.message()).await;
        !matches!(end.expect("an end in time"), Ok(Some(_)))
    }

    pub(crate) async fn accept(&self, response: &DeltaDiscoveryResponse) {
        self.answer(response, None).await;
    }

    pub(crate) async fn reject(&self, response: &DeltaDiscoveryResponse, message: &str) {
        let error = rpc::Status {
            code: 13,
            message: message.to_owned(),
            details: Vec::new(),
        };
        self.answer(response, Some(error)).await;
    }

    async fn answer(&self, response: &DeltaDiscoveryResponse, error: Option<rpc::Status>) {
        self.send(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail: error,
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }
}

/// A resource with a body that the relay cannot decode.
pub(crate) fn resource(name: &str, version: &str) -> Resource {
    Resource {
        name: name.to_owned(),
        version: version.to_owned(),
        resource: Bytes::from(format!("body of {name} {version}")),
        aliases: Vec::new(),
    }
}

pub(crate) fn names(response: &DeltaDiscoveryResponse) -> Vec<&str> {
    response
        .resources
        .iter()
        .map(|resource| resource.name.as_str())
        .collect()
}
