//! gRPC through routers: calls to one upstream are routed to several services by method, and gRPC's
//! features work: trailers, streams and retry conditions.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use legate_api::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use legate_api::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_runtime::Scope;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::WEB;
use crate::chains::resolver;

const LIMIT: Duration = Duration::from_secs(10);
/// The response header with the instance's name.
const INSTANCE: &str = "x-instance";
/// A call that fails as unavailable this many times before it succeeds.
const BUSY: &str = "busy";
const TIMES_BUSY: usize = 2;
/// A stream that lasts eight seconds and ends without an error.
pub(crate) const SLOW: &str = "slow";
/// How many messages it has.
pub(crate) const SLOW_MESSAGES: usize = 160;

/// An application with two services: one with unary calls and server streams, and one with
/// bidirectional streams.
#[derive(Clone)]
pub(crate) struct Application {
    instance: &'static str,
    busy: Arc<AtomicUsize>,
}

impl Application {
    fn response<T>(&self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        let instance = self.instance.parse().expect("a header's value");
        response.metadata_mut().insert(INSTANCE, instance);
        response
    }

    pub(crate) async fn serve(instance: &'static str, address: SocketAddr, scope: &Scope) {
        let application = Self {
            instance,
            busy: Arc::default(),
        };
        let listener = TcpListener::bind(address).await.expect("a free address");
        let stop = scope.token().cancelled_owned();
        scope.spawn(format!("app {instance}"), async move {
            Server::builder()
                .add_service(HealthServer::new(application.clone()))
                .add_service(AggregatedDiscoveryServiceServer::new(application))
                .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop)
                .await
        });
    }
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Health for Application {
    type WatchStream = Responses<HealthCheckResponse>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.get_ref().service.as_str() {
            BUSY if self.busy.fetch_add(1, Ordering::SeqCst) < TIMES_BUSY => {
                Err(Status::unavailable("busy"))
            }
            "missing" => Err(Status::not_found(format!("not at {}", self.instance))),
            _ => Ok(self.response(HealthCheckResponse { status: 1 })),
        }
    }

    /// Three messages, and a status in trailers; or many messages, one after the other.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        if request.get_ref().service == SLOW {
            let slow = futures_util::stream::iter(0..SLOW_MESSAGES).then(|_| async {
                sleep(Duration::from_millis(50)).await;
                Ok(HealthCheckResponse { status: 1 })
            });
            return Ok(self.response(Box::pin(slow)));
        }
        let messages = (0..3).map(|status| Ok(HealthCheckResponse { status }));
        let end = Err(Status::aborted("the end"));
        let all: Vec<_> = messages.chain([end]).collect();
        Ok(self.response(Box::pin(futures_util::stream::iter(all))))
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Application {
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    /// Responds to each message on arrival.
    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let instance = self.instance;
        let answers = request.into_inner().map(move |message| {
            message.map(|message| DeltaDiscoveryResponse {
                nonce: format!("{instance}: {}", message.response_nonce),
                ..DeltaDiscoveryResponse::default()
            })
        });
        Ok(self.response(Box::pin(answers)))
    }
}

/// A separate connection for each caller.
pub(crate) fn channel(server: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).expect("an address");
    endpoint.timeout(LIMIT).connect_lazy()
}

/// The instance that answers a unary call, or the status code.
async fn check(server: SocketAddr, version: &str, service: &str) -> Result<String, Status> {
    let mut request = Request::new(HealthCheckRequest {
        service: service.to_owned(),
    });
    let version = version.parse().expect("a header's value");
    request.metadata_mut().insert("x-version", version);
    let response = HealthClient::new(channel(server)).check(request).await?;
    Ok(instance(&response))
}

fn instance<T>(response: &Response<T>) -> String {
    let value = response.metadata().get(INSTANCE);
    let value = value.and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

pub(crate) async fn answers(server: SocketAddr, version: &str, instance: &str) {
    let what = format!("{instance} answers version {version}");
    let asked = || async {
        let answer = check(server, version, "").await;
        answer.map_err(|status| status.to_string())
    };
    eventually(&what, asked, |answer| answer.as_deref() == Ok(instance))
        .await
        .expect("accepted");
}

pub(crate) const fn spec(
    service: &'static str,
    instance: &'static str,
    protocol: &'static str,
) -> ServiceSpec {
    ServiceSpec {
        service,
        instance,
        protocol,
        upstreams: &[],
    }
}

async fn scenario(protocol: &'static str) {
    let scope = Scope::new("applications");
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let mut sidecars: Vec<Sidecar> = Vec::new();
    let instances = [
        (spec("api", "api", protocol), "1"),
        (spec("api", "api-2", protocol), "2"),
        (spec("other", "other", protocol), "1"),
    ];
    for (spec, version) in instances {
        let address = mesh.application(spec.instance);
        Application::serve(spec.instance, address, &scope).await;
        mesh.register_dead(&spec).await;
        mesh.describe(&spec, json!({"version": version})).await;
        mesh.intend("web", spec.service, "allow").await;
        sidecars.push(mesh.join(&spec).await);
    }
    mesh.entry(resolver(
        "api",
        json!({"DefaultSubset": "v1", "Subsets": {
            "v1": {"Filter": "Service.Meta.version == 1"},
            "v2": {"Filter": "Service.Meta.version == 2"},
        }}),
    ))
    .await;
    sidecars.push(mesh.add(&WEB).await);
    let upstream = mesh.upstream("web", 0);
    answers(upstream, "2", "api").await;
    // Without a router, calls that reached an application are not retried.
    let busy = check(upstream, "1", BUSY).await.expect_err("it is busy");
    assert_eq!(busy.code(), Code::Unavailable);

    let health = "/grpc.health.v1.Health/";
    let discovery = "/envoy.service.discovery.v3.AggregatedDiscoveryService/";
    mesh.entry(json!({"Kind": "service-router", "Name": "api", "Routes": [
        {
            "Match": {"HTTP": {"PathPrefix": discovery}},
            "Destination": {"Service": "other"},
        },
        {
            "Match": {"HTTP": {"PathPrefix": health, "Header": [{"Name": "x-version", "Exact": "2"}]}},
            "Destination": {
                "ServiceSubset": "v2", "RetryOn": ["unavailable"], "NumRetries": TIMES_BUSY,
            },
        },
    ]}))
    .await;
    answers(upstream, "2", "api-2").await;
    answers(upstream, "1", "api").await;
    // The application is called until it no longer refuses.
    let busy = check(upstream, "2", BUSY).await;
    assert_eq!(busy.expect("it is repeated"), "api-2");
    let missing = check(upstream, "2", "missing").await.expect_err("missing");
    assert_eq!(
        (missing.code(), missing.message()),
        (Code::NotFound, "not at api-2")
    );
    streams(upstream).await;

    for sidecar in &mut sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    scope.stop(LIMIT).await.expect("the applications stop");
    mesh.stop().await;
}

async fn streams(upstream: SocketAddr) {
    let watch = HealthClient::new(channel(upstream))
        .watch(HealthCheckRequest::default())
        .await
        .expect("a stream");
    assert_eq!(instance(&watch), "api");
    let messages: Vec<_> = watch.into_inner().collect().await;
    let statuses = messages.iter().filter_map(|message| message.as_ref().ok());
    let statuses: Vec<i32> = statuses.map(|message| message.status).collect();
    assert_eq!(statuses, [0, 1, 2]);
    let end = messages.last().and_then(|last| last.as_ref().err());
    let end = end.expect("the trailers end it");
    assert_eq!((end.code(), end.message()), (Code::Aborted, "the end"));

    // Each message is sent after the response to the previous one.
    let (sender, requests) = mpsc::channel(1);
    let mut client = AggregatedDiscoveryServiceClient::new(channel(upstream));
    let stream = client
        .delta_aggregated_resources(ReceiverStream::new(requests))
        .await
        .expect("a stream");
    let mut stream = stream.into_inner();
    for n in 0..5 {
        let message = DeltaDiscoveryRequest {
            response_nonce: n.to_string(),
            ..DeltaDiscoveryRequest::default()
        };
        sender.send(message).await.expect("the stream is open");
        let answer = timeout(LIMIT, stream.message()).await.expect("in time");
        let answer = answer.expect("no error").expect("an answer");
        assert_eq!(answer.nonce, format!("other: {n}"));
    }
    drop(sender);
    let end = timeout(LIMIT, stream.message()).await.expect("in time");
    assert!(
        end.expect("no error").is_none(),
        "it ends with its requests"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_routed_by_the_router() {
    scenario("grpc").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_routed_like_http2_requests() {
    scenario("http2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_enter_the_mesh_through_a_gateway() {
    let scope = Scope::new("applications");
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let api = spec("api", "api", "grpc");
    Application::serve(api.instance, mesh.application(api.instance), &scope).await;
    mesh.register_dead(&api).await;
    mesh.intend("edge", "api", "allow").await;
    let mut sidecar = mesh.join(&api).await;
    mesh.entry(
        json!({"Kind": "ingress-gateway", "Name": "edge", "Listeners": [
            {"Port": 8000, "Protocol": "grpc", "Services": [{"Name": "api", "Hosts": ["*"]}]},
        ]}),
    )
    .await;
    let mut gateway = mesh.add_gateway("ingress-gateway", "edge", json!({})).await;
    let entrance = SocketAddr::from((gateway.address, 8000));
    answers(entrance, "1", "api").await;
    let watch = HealthClient::new(channel(entrance))
        .watch(HealthCheckRequest::default())
        .await
        .expect("a stream");
    let messages: Vec<_> = watch.into_inner().collect().await;
    let end = messages.last().and_then(|last| last.as_ref().err());
    let end = end.expect("the trailers end it");
    assert_eq!((end.code(), messages.len()), (Code::Aborted, 4));

    assert!(gateway.stop().await.success(), "{}", gateway.log());
    assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    scope.stop(LIMIT).await.expect("the applications stop");
    mesh.stop().await;
}
