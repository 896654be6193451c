//! One stream with a real manager and generator, with a paused clock and without a network.

mod authorizer;
mod large;

use std::num::NonZeroUsize;
use std::pin::Pin;

use legate_api::node::Node;
use legate_api::rpc;
use legate_api::type_url::{CLUSTER, LISTENER};
use legate_ca::{Ca, CaConfig};
use legate_intentions::Action;
use legate_model::{
    ConfigEntry, ConnectProxy, Mesh, MeshTls, MeshTlsDirection, ServiceInstance, ServiceKind,
    Upstream,
};
use legate_proxycfg::ManagerConfig;
use legate_runtime::metrics::encode;
use legate_runtime::{Clock, Pool, Scope};
use legate_store::{Command, Registration, Store};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use self::authorizer::{Reply, ScriptedAuthorizer};
use super::*;

const AUTH_CHECK: Duration = Duration::from_secs(300);

struct World {
    service: XdsService,
    authorizer: Arc<ScriptedAuthorizer>,
    stop: CancellationToken,
    store: Store,
    manager: Manager,
    registry: Registry,
    pool: Pool,
    _scope: Scope,
}

type Responses = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;
type Requests = mpsc::Sender<Result<DeltaDiscoveryRequest, Status>>;

impl World {
    /// With one thread for large configurations.
    fn new() -> Self {
        Self::with_threads(NonZeroUsize::MIN)
    }

    fn with_threads(threads: NonZeroUsize) -> Self {
        let scope = Scope::new("test");
        let store = Store::new();
        let ca = Ca::initialise(&store, "dc1", Clock::system(), CaConfig::default());
        // A store in memory never blocks.
        let ca = ca.now_or_never().unwrap().unwrap();
        let manager = Manager::new(
            store.reader(),
            ca.leaves(&scope.spawner()),
            scope.spawner(),
            ManagerConfig::new("dc1", Action::Allow),
        );
        let (authorizer, registry) = (Arc::new(ScriptedAuthorizer::default()), Registry::new());
        let stop = scope.token();
        let config = XdsConfig {
            auth_check: AUTH_CHECK,
            node_name: "server".into(),
            stop: stop.clone(),
            proxies: Proxies::new(Clock::system()),
        };
        let (generator, pool) = (Arc::default(), Pool::with(scope.spawner(), threads));
        let service = XdsService::new(
            manager.clone(),
            generator,
            pool.clone(),
            authorizer.clone(),
            config,
            &registry,
        );
        let world = Self {
            service: service.unwrap(),
            authorizer,
            stop,
            store,
            manager,
            registry,
            pool,
            _scope: scope,
        };
        world.register(8_080);
        world
    }

    /// Registers the sidecar of `web` on the server's own node.
    fn register(&self, port: u16) {
        self.register_with(port, |_| {});
    }

    fn register_with(&self, port: u16, edit: impl FnOnce(&mut ConnectProxy)) {
        let mut service = ServiceInstance {
            kind: ServiceKind::ConnectProxy,
            id: "web-sidecar-proxy".to_owned(),
            service: "web-sidecar-proxy".to_owned(),
            port: 20_000,
            ..ServiceInstance::default()
        };
        service.proxy.destination_service_name = "web".to_owned();
        service.proxy.local_service_port = port;
        edit(&mut service.proxy);
        self.put(service);
    }

    fn put(&self, service: ServiceInstance) {
        let registration = Registration {
            node: legate_model::Node {
                node: "server".to_owned(),
                address: "127.0.0.1".to_owned(),
                datacenter: "dc1".to_owned(),
                ..legate_model::Node::default()
            },
            service: Some(service),
            checks: Vec::new(),
            skip_node_update: false,
        };
        let command = Command::Register(Box::new(registration));
        self.store.apply(command).now_or_never().unwrap().unwrap();
    }

    /// Sets ciphers: invalid ones, with which no listener for the mesh can be generated, or valid
    /// ones.
    fn set_ciphers(&self, ciphers: &[&str]) {
        let mesh = Mesh {
            tls: Some(MeshTls {
                incoming: Some(MeshTlsDirection {
                    cipher_suites: ciphers.iter().map(ToString::to_string).collect(),
                    ..MeshTlsDirection::default()
                }),
                ..MeshTls::default()
            }),
            ..Mesh::default()
        };
        let command = Command::UpsertConfigEntry {
            entry: Box::new(ConfigEntry::Mesh(mesh)),
            cas: None,
        };
        self.store.apply(command).now_or_never().unwrap().unwrap();
    }

    fn open(&self) -> (Requests, Responses) {
        let (requests, inbound) = mpsc::channel(8);
        let inbound = ReceiverStream::new(inbound);
        let responses = self.service.serve("secret".to_owned(), inbound);
        (requests, Box::pin(responses.unwrap()))
    }

    fn metric(&self, line: &str) -> bool {
        encode(&self.registry).lines().any(|one| one == line)
    }

    fn streams(&self, count: u8) -> bool {
        self.metric(&format!(
            "consul_xds_server_streams{{version=\"v3\"}} {count}"
        ))
    }
}

fn first() -> DeltaDiscoveryRequest {
    first_of("web-sidecar-proxy")
}

fn first_of(proxy: &str) -> DeltaDiscoveryRequest {
    let node = Node {
        id: proxy.to_owned(),
        ..Node::default()
    };
    DeltaDiscoveryRequest {
        node: node.encode_to_vec().into(),
        type_url: CLUSTER.to_owned(),
        ..Default::default()
    }
}

fn ack(response: &DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        ..Default::default()
    }
}

async fn next(responses: &mut Responses) -> DeltaDiscoveryResponse {
    responses.next().await.unwrap().unwrap()
}

/// A stream with its first response.
async fn running(world: &World) -> (Requests, Responses, DeltaDiscoveryResponse) {
    let (requests, mut responses) = world.open();
    requests.send(Ok(first())).await.unwrap();
    let response = next(&mut responses).await;
    (requests, responses, response)
}

async fn end(responses: &mut Responses) -> Code {
    let status = responses.next().await.unwrap().unwrap_err();
    assert!(responses.next().await.is_none(), "nothing after the end");
    status.code()
}

#[tokio::test(start_paused = true)]
async fn a_stream_lives_as_long_as_its_client() {
    let world = World::new();
    let (requests, mut responses, clusters) = running(&world).await;
    assert_eq!(clusters.type_url, CLUSTER);
    assert_eq!(world.manager.proxies().len(), 1);
    assert!(world.streams(1));
    drop(requests);
    assert!(responses.next().await.is_none());
    drop(responses);
    assert!(world.streams(0));
    // The watch has ended with the stream; its source ends afterwards.
    while !world.manager.proxies().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_ends_without_an_error() {
    let world = World::new();
    let (requests, mut responses) = world.open();
    drop(requests);
    assert!(responses.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_token_that_does_not_exist_opens_nothing() {
    let world = World::new();
    world.authorizer.set(Reply::RefuseToken);
    let refused = world
        .service
        .serve("secret".to_owned(), tokio_stream::pending());
    assert_eq!(refused.err().unwrap().code(), Code::Unauthenticated);
}

#[tokio::test(start_paused = true)]
async fn the_token_is_checked_again_when_nothing_happens() {
    let world = World::new();
    let (_requests, mut responses, _) = running(&world).await;
    world.authorizer.set(Reply::RefuseProxy);
    let before = Instant::now();
    assert_eq!(end(&mut responses).await, Code::PermissionDenied);
    let waited = before.elapsed();
    assert!(waited <= AUTH_CHECK + Duration::from_secs(1), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_proxy_without_permission_gets_nothing() {
    let world = World::new();
    world.authorizer.set(Reply::RefuseProxy);
    let (requests, mut responses) = world.open();
    requests.send(Ok(first())).await.unwrap();
    assert_eq!(end(&mut responses).await, Code::PermissionDenied);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_computed_for_a_proxy_without_permission() {
    let world = World::new();
    world.authorizer.set(Reply::RefuseRegistered);
    let before = world.store.state().index();
    let (requests, mut responses) = world.open();
    requests.send(Ok(first())).await.unwrap();
    assert_eq!(end(&mut responses).await, Code::PermissionDenied);
    assert_eq!(world.store.state().index(), before, "a signature takes one");
}

#[tokio::test(start_paused = true)]
async fn a_client_without_requests_times_out() {
    let world = World::new();
    let (requests, mut silent) = world.open();
    let (_requests, mut busy, _) = running(&world).await;
    let before = Instant::now();
    let ended = tokio::time::timeout(FIRST_REQUEST * 2, end(&mut silent));
    assert_eq!(ended.await, Ok(Code::DeadlineExceeded));
    assert!(before.elapsed() <= FIRST_REQUEST + Duration::from_millis(1));
    drop((requests, silent));
    let more = tokio::time::timeout(FIRST_REQUEST * 4, busy.next());
    assert!(
        more.await.is_err(),
        "a client may be silent after its first request"
    );
}

#[tokio::test(start_paused = true)]
async fn endless_names_end_the_stream() {
    let world = World::new();
    let (requests, mut responses, _) = running(&world).await;
    let names = (0..=MAX_NAMES).map(|number| number.to_string());
    let endless = DeltaDiscoveryRequest {
        type_url: LISTENER.to_owned(),
        resource_names_subscribe: names.collect(),
        ..Default::default()
    };
    requests.send(Ok(endless)).await.unwrap();
    let status = responses.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("100000 names"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn requests_and_snapshots_are_authorised_too() {
    let world = World::new();
    let (requests, mut responses, _) = running(&world).await;
    world.authorizer.set(Reply::RefuseToken);
    let before = Instant::now();
    let listeners = DeltaDiscoveryRequest {
        type_url: LISTENER.to_owned(),
        ..Default::default()
    };
    requests.send(Ok(listeners)).await.unwrap();
    assert_eq!(end(&mut responses).await, Code::Unauthenticated);

    let world = World::new();
    let (_requests, mut responses, _) = running(&world).await;
    world.authorizer.set(Reply::RefuseToken);
    world.register(8_081);
    assert_eq!(end(&mut responses).await, Code::Unauthenticated);
    assert!(before.elapsed() < AUTH_CHECK);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_streams_in_every_phase() {
    let world = World::new();
    let (_requests, mut silent) = world.open();
    let (_requests, mut busy, _) = running(&world).await;
    world.stop.cancel();
    assert_eq!(end(&mut silent).await, Code::Unavailable);
    assert_eq!(end(&mut busy).await, Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_its_own_stream_only() {
    let world = World::new();
    let (requests, mut responses, _) = running(&world).await;
    let (other_requests, mut other, clusters) = running(&world).await;
    world.authorizer.set(Reply::Panic);
    requests.send(Ok(first())).await.unwrap();
    assert_eq!(end(&mut responses).await, Code::Internal);
    drop(responses);
    assert!(world.streams(1));
    world.authorizer.set(Reply::RefuseProxy);
    let ack = DeltaDiscoveryRequest {
        type_url: CLUSTER.to_owned(),
        response_nonce: clusters.nonce,
        ..Default::default()
    };
    other_requests.send(Ok(ack)).await.unwrap();
    assert_eq!(end(&mut other).await, Code::PermissionDenied);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_counted() {
    let world = World::new();
    let (requests, mut responses, clusters) = running(&world).await;
    let nack = DeltaDiscoveryRequest {
        type_url: CLUSTER.to_owned(),
        response_nonce: clusters.nonce,
        error_detail: Some(rpc::Status {
            code: 13,
            message: "no".to_owned(),
            details: Vec::new(),
        }),
        ..Default::default()
    };
    requests.send(Ok(nack)).await.unwrap();
    world.register(8_081);
    let changed = next(&mut responses).await;
    assert_eq!(changed.type_url, CLUSTER);
    assert!(world.metric("legate_xds_nacks_total{type=\"cluster\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn one_bad_value_keeps_one_resource_back() {
    let world = World::new();
    let (requests, mut responses, clusters) = running(&world).await;
    let errors = |count| {
        world.metric(&format!(
            "legate_xds_resource_errors{{type=\"listener\"}} {count}"
        ))
    };
    world.set_ciphers(&["ROT13"]);
    world.register(8_081);
    requests.send(Ok(ack(&clusters))).await.unwrap();
    let changed = next(&mut responses).await;
    assert_eq!(changed.resources[0].name, "local_app");
    assert!(errors(1));
    requests.send(Ok(ack(&changed))).await.unwrap();
    let listeners = DeltaDiscoveryRequest {
        type_url: LISTENER.to_owned(),
        ..Default::default()
    };
    requests.send(Ok(listeners)).await.unwrap();
    let kept = next(&mut responses).await;
    assert_eq!(kept.resources[0].name, "public_listener:0.0.0.0:20000");
    world.set_ciphers(&[]);
    world.register(8_082);
    next(&mut responses).await;
    assert!(errors(0));
}

#[tokio::test(start_paused = true)]
async fn a_proxy_without_a_possible_configuration_is_not_sent_to_another_server() {
    let world = World::new();
    world.set_ciphers(&["ROT13"]);
    let (requests, mut responses) = world.open();
    requests.send(Ok(first())).await.unwrap();
    let status = responses.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    for part in ["web-sidecar-proxy", "TLS.Incoming.CipherSuites", "ROT13"] {
        assert!(status.message().contains(part), "{status}");
    }
    assert!(responses.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_keeps_resources_of_an_earlier_stream_that_cannot_be_made_now() {
    let world = World::new();
    world.set_ciphers(&["ROT13"]);
    world.register_with(8_080, |proxy| {
        let upstream = Upstream {
            destination_name: "api".to_owned(),
            local_bind_port: 9_191,
            ..Upstream::default()
        };
        proxy.upstreams.push(upstream.into());
    });
    let (requests, mut responses) = world.open();
    let held = ["public_listener:0.0.0.0:20000", "gone:127.0.0.1:9192"];
    let versions = held.map(|name| (name.to_owned(), "before".to_owned()));
    let listeners = DeltaDiscoveryRequest {
        type_url: LISTENER.to_owned(),
        initial_resource_versions: versions.into_iter().collect(),
        ..first()
    };
    requests.send(Ok(listeners)).await.unwrap();
    let response = next(&mut responses).await;
    assert_eq!(response.removed_resources, [held[1]]);
    assert_eq!(response.resources[0].name, "api:127.0.0.1:9191");
}

#[tokio::test(start_paused = true)]
async fn a_transport_error_is_passed_on() {
    let world = World::new();
    let (requests, mut responses, _) = running(&world).await;
    requests.send(Err(Status::cancelled("gone"))).await.unwrap();
    assert_eq!(end(&mut responses).await, Code::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn metrics_of_one_name_are_registered_once() {
    let world = World::new();
    assert!(Metrics::register(&world.registry).is_err());
}
