//! The relay between a real client and real servers on loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use legate_api::discovery::DeltaDiscoveryRequest;
use legate_api::type_url::{CLUSTER, LISTENER};
use legate_client::{ClientConfig, Credentials, Session};
use legate_dataplane::relay::{Listener, Relay, RelayMetrics};
use legate_dataplane::settings::XdsAddress;
use legate_runtime::metrics::{Registry, encode};
use legate_runtime::{Clock, Readiness, ReadyState, Scope};
use legate_testkit::fake_server::{Call, FakeServer, FakeServerOptions, server_entry};
use tokio::time::timeout;
use tonic::Status;

use crate::envoy_side::{EnvoyStream, PATIENCE, connect, names, resource};

pub(crate) struct Setup {
    pub(crate) address: XdsAddress,
    pub(crate) relay: Relay,
    readiness: Readiness,
    pub(crate) registry: Registry,
    pub(crate) scope: Scope,
    pub(crate) session: Session,
    _session_scope: Scope,
}

pub(crate) async fn start(server: SocketAddr, watch: bool) -> Setup {
    start_as(server, watch, &loopback(), Credentials::None).await
}

/// A free loopback port.
pub(crate) fn loopback() -> XdsAddress {
    XdsAddress::Tcp((Ipv4Addr::LOCALHOST, 0).into())
}

pub(crate) async fn start_as(
    server: SocketAddr,
    watch: bool,
    bind: &XdsAddress,
    credentials: Credentials,
) -> Setup {
    let config = ClientConfig {
        server_watch_disabled: !watch,
        credentials,
        ..ClientConfig::new(server.ip().to_string().parse().unwrap(), server.port())
    };
    let (session_scope, scope) = (Scope::new("session"), Scope::new("relay"));
    let registry = Registry::new();
    let session = legate_client::connect(config, &session_scope.spawner(), &registry).unwrap();
    let readiness = Readiness::new();
    let listener = Listener::bind(bind).await.unwrap();
    let address = listener.address().clone();
    let relay = Relay::start(
        listener,
        session.clone(),
        readiness.register("configuration"),
        RelayMetrics::register(&registry, Clock::system()).unwrap(),
        &scope.spawner(),
    );
    Setup {
        address,
        relay,
        readiness,
        registry,
        scope,
        session,
        _session_scope: session_scope,
    }
}

impl Setup {
    pub(crate) async fn envoy(&self) -> EnvoyStream {
        EnvoyStream::over(connect(&self.address).await).await
    }

    /// Waits until the reason of the only component contains `words`.
    pub(crate) async fn says(&self, words: &[&str]) {
        let mut readiness = self.readiness.clone();
        let found = async {
            loop {
                let text = match &readiness.report()[0].state {
                    ReadyState::Pending(why) | ReadyState::Failed(why) => why.clone(),
                    ReadyState::Ready => "ready".to_owned(),
                };
                if words.iter().all(|word| text.contains(word)) {
                    return;
                }
                readiness.changed().await;
            }
        };
        if timeout(PATIENCE, found).await.is_err() {
            panic!("{words:?} are not in {:?}", self.readiness.report());
        }
    }
}

#[tokio::test]
async fn envoy_keeps_its_stream_over_a_restart_of_the_server() {
    let mut server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut ads = server.accept_ads().await;
    let first = ads.next_of(CLUSTER).await;
    assert_eq!(&first.node[..], b"node");
    assert!(first.initial_resource_versions.is_empty());
    ads.send_resources(
        CLUSTER,
        "n1",
        vec![resource("c1", "v1"), resource("c2", "v1")],
    )
    .await;
    let response = envoy.next().await;
    assert_eq!(names(&response), ["c1", "c2"]);
    assert_eq!(&response.resources[0].resource[..], b"body of c1 v1");
    envoy.accept(&response).await;
    assert_eq!(ads.next_of(CLUSTER).await.response_nonce, "n1");

    server.restart().await;
    let mut ads = server.accept_ads().await;
    let resumed = ads.next_of(CLUSTER).await;
    assert_eq!(&resumed.node[..], b"node");
    assert_eq!(resumed.response_nonce, "");
    assert_eq!(resumed.initial_resource_versions.len(), 2);
    assert_eq!(resumed.initial_resource_versions["c1"], "v1");
    ads.send_resources(CLUSTER, "n1", vec![resource("c2", "v2")])
        .await;
    // The same stream, and only new resources.
    assert_eq!(names(&envoy.next().await), ["c2"]);
    let text = encode(&setup.registry);
    assert!(
        text.contains("consul_dataplane_envoy_connected 1"),
        "{text}"
    );
    assert!(
        text.contains("consul_dataplane_xds_upstream_streams_total 2"),
        "{text}"
    );
    setup.scope.stop(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_rejection_reaches_the_server_and_the_next_envoy_gets_the_last_good_version() {
    let mut server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    ads.send_resources(CLUSTER, "n1", vec![resource("c1", "good")])
        .await;
    let response = envoy.next().await;
    envoy.accept(&response).await;
    ads.next_of(CLUSTER).await;
    setup.says(&["ready"]).await;

    ads.send_resources(CLUSTER, "n2", vec![resource("c1", "bad")])
        .await;
    let response = envoy.next().await;
    envoy.reject(&response, "unknown field in c1").await;
    let rejection = ads.next_of(CLUSTER).await;
    assert_eq!(rejection.response_nonce, "n2");
    assert_eq!(
        rejection.error_detail.expect("a reason").message,
        "unknown field in c1"
    );
    let status = setup.relay.status().await.expect("a running relay");
    let types = &status.types[0];
    assert_eq!((types.accepted, types.rejected, types.resources), (1, 1, 1));
    let rejection = types.last_rejection.as_ref().expect("the rejection");
    assert_eq!(
        (rejection.message.as_str(), &rejection.names[..]),
        ("unknown field in c1", &["c1".to_owned()][..])
    );

    server.stop().await;
    let mut second = setup.envoy().await;
    second.subscribe(CLUSTER).await;
    let response = second.next().await;
    assert_eq!(response.resources[0].version, "good");
    second.accept(&response).await;
    setup.says(&["ready"]).await;
    setup.scope.stop(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn readiness_shows_what_is_missing() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    setup.says(&["Envoy has not asked"]).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(LISTENER).await;
    setup.says(&["no server has sent Envoy's listeners"]).await;
    let mut ads = server.accept_ads().await;
    ads.next_of(LISTENER).await;
    // An empty response is an answer, too.
    ads.send_resources(LISTENER, "n1", Vec::new()).await;
    let response = envoy.next().await;
    setup
        .says(&["Envoy has not acknowledged its listeners"])
        .await;
    envoy.accept(&response).await;
    setup.says(&["ready"]).await;
}

#[tokio::test]
async fn a_refused_proxy_ends_with_one_error_and_few_attempts() {
    let server = FakeServer::plaintext().await;
    server.script().fail_always(
        Call::Discovery,
        Status::permission_denied("service:write missing"),
    );
    let setup = start(server.address(), false).await;
    let envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let error = timeout(PATIENCE, setup.scope.failed())
        .await
        .expect("it gives up")
        .to_string();
    for word in [
        "PermissionDenied",
        "service:write missing",
        "-static-token",
        "-proxy-id",
    ] {
        assert!(error.contains(word), "{error}");
    }
    let text = encode(&setup.registry);
    assert!(
        text.contains("consul_dataplane_xds_upstream_streams_total 3"),
        "{text}"
    );
}

#[tokio::test]
async fn a_service_that_is_not_a_proxy_is_refused_at_once() {
    let server = FakeServer::plaintext().await;
    // Message and code of Consul.
    let refusal = "failed to watch proxy: service must be a sidecar proxy or gateway";
    let script = server.script();
    script.fail_always(Call::Discovery, Status::internal(refusal));
    let setup = start(server.address(), false).await;
    let envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let error = timeout(PATIENCE, setup.scope.failed())
        .await
        .expect("it gives up")
        .to_string();
    assert!(
        error.contains(refusal) && error.contains("-proxy-id names a service that is not a proxy"),
        "{error}"
    );
    let text = encode(&setup.registry);
    assert!(
        text.contains("consul_dataplane_xds_upstream_streams_total 1"),
        "{text}"
    );
}

#[tokio::test]
async fn an_envoy_that_came_with_a_configuration_outlives_a_refusal() {
    let server = FakeServer::plaintext().await;
    let script = server.script();
    let refusal = Status::permission_denied("service:write missing");
    script.fail_always(Call::Discovery, refusal);
    let setup = start(server.address(), false).await;
    // As after an adoption: it lists resources from another dataplane.
    let mut envoy = setup.envoy().await;
    envoy
        .send(DeltaDiscoveryRequest {
            node: (&b"node"[..]).into(),
            type_url: CLUSTER.to_owned(),
            initial_resource_versions: [("c1".to_owned(), "v1".to_owned())].into(),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    setup
        .says(&["service:write missing", "-static-token"])
        .await;
    // More failures than an Envoy without a configuration survives.
    let streams = || encode(&setup.registry);
    let more = async {
        while !streams().contains("consul_dataplane_xds_upstream_streams_total 4") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        error = setup.scope.failed() => panic!("{error}"),
        more = timeout(PATIENCE, more) => more.expect("it continues"),
    }
    script.heal(Call::Discovery);
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    ads.send_resources(CLUSTER, "n1", vec![resource("c1", "v2")])
        .await;
    assert_eq!(envoy.next().await.resources[0].version, "v2");
}

/// An operator has to fix a setting: the dataplane names it, and retries with a long backoff.
#[tokio::test]
async fn a_proxy_without_a_possible_configuration_is_retried_with_long_delays() {
    let server = FakeServer::plaintext().await;
    let reason = "no configuration can be made for the proxy web-proxy: remove ROT13";
    let script = server.script();
    script.fail_always(Call::Discovery, Status::failed_precondition(reason));
    let setup = start(server.address(), false).await;
    let envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    setup.says(&["FailedPrecondition", reason]).await;
    let third = async {
        let streams = "consul_dataplane_xds_upstream_streams_total 3";
        while !encode(&setup.registry).contains(streams) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, third).await.expect("it tries again");
    script.heal(Call::Discovery);
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    // The third stream is counted when it is opened, but it may be the first without a refusal.
    let text = encode(&setup.registry);
    let is = |count| {
        text.contains(&format!(
            "consul_dataplane_xds_upstream_streams_total {count}"
        ))
    };
    assert!(is(3) || is(4), "{text}");
}

#[tokio::test]
async fn a_later_refusal_keeps_envoy_and_is_reported() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    ads.send_resources(CLUSTER, "n1", vec![resource("c1", "v1")])
        .await;
    let response = envoy.next().await;
    envoy.accept(&response).await;
    ads.next_of(CLUSTER).await;
    setup.says(&["ready"]).await;

    server
        .script()
        .fail_always(Call::Discovery, Status::not_found("proxy is gone"));
    ads.end(Status::not_found("proxy is gone")).await;
    setup
        .says(&["proxy is gone", "-proxy-id", "-proxy-node-name"])
        .await;
    assert!(matches!(
        setup.readiness.report()[0].state,
        ReadyState::Failed(_)
    ));
    let mut second = setup.envoy().await;
    second.subscribe(CLUSTER).await;
    let response = second.next().await;
    assert_eq!(names(&response), ["c1"]);
    second.accept(&response).await;

    server.script().heal(Call::Discovery);
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    ads.send_resources(CLUSTER, "n1", vec![resource("c1", "v2")])
        .await;
    // The newest Envoy decides, then the other one gets the update.
    let response = second.next().await;
    assert_eq!(response.resources[0].version, "v2");
    second.accept(&response).await;
    assert_eq!(envoy.next().await.resources[0].version, "v2");
}

#[tokio::test]
async fn an_envoy_that_never_answers_loses_its_stream_and_blocks_no_other() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    let mut silent = setup.envoy().await;
    silent.subscribe(CLUSTER).await;
    // The silent stream is the newest once its requests have arrived; they arrive in order.
    silent.subscribe(LISTENER).await;
    let asked = async {
        while setup
            .relay
            .status()
            .await
            .is_none_or(|status| status.types.len() < 2)
        {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, asked).await.expect("both requests");
    ads.send_resources(CLUSTER, "n1", vec![resource("c1", "v1")])
        .await;
    assert_eq!(names(&silent.next().await), ["c1"]);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(121)).await;
    tokio::time::resume();
    assert!(silent.ended().await);
    assert_eq!(names(&envoy.next().await), ["c1"]);
}

/// Two servers with the same port; the session uses the first.
async fn two_servers() -> (FakeServer, FakeServer) {
    let first = FakeServer::plaintext().await;
    let second = FakeServer::start(FakeServerOptions {
        ip: Ipv4Addr::new(127, 0, 0, 2).into(),
        port: first.address().port(),
        tls: None,
    })
    .await;
    for server in [&first, &second] {
        server
            .script()
            .servers(vec![server_entry("127.0.0.1"), server_entry("127.0.0.2")]);
    }
    (first, second)
}

#[tokio::test]
async fn a_busy_server_sends_the_stream_to_another_and_envoy_does_not_notice() {
    let (first, second) = two_servers().await;
    let setup = start(first.address(), true).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut ads = first.accept_ads().await;
    ads.next_of(CLUSTER).await;
    ads.send_resources(CLUSTER, "n1", vec![resource("c1", "v1")])
        .await;
    let response = envoy.next().await;
    envoy.accept(&response).await;
    ads.next_of(CLUSTER).await;
    ads.end(Status::resource_exhausted("too many xDS streams"))
        .await;
    let mut ads = second.accept_ads().await;
    let resumed = ads.next_of(CLUSTER).await;
    assert_eq!(resumed.initial_resource_versions["c1"], "v1");
    ads.send_resources(CLUSTER, "n1", vec![resource("c2", "v1")])
        .await;
    assert_eq!(names(&envoy.next().await), ["c2"]);
}

#[tokio::test]
async fn the_old_stream_stays_until_a_new_server_accepts() {
    let (first, second) = two_servers().await;
    let setup = start(first.address(), true).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut old = first.accept_ads().await;
    old.next_of(CLUSTER).await;
    old.send_resources(CLUSTER, "n1", vec![resource("c1", "v1")])
        .await;
    let response = envoy.next().await;
    envoy.accept(&response).await;
    old.next_of(CLUSTER).await;

    // The session switches. The first server still serves the stream, and the second refuses it.
    second
        .script()
        .fail_next(Call::Discovery, Status::internal("not yet"));
    first.script().end_watches(Status::unavailable("leaving"));
    second.script().wait_for_calls(Call::Features, 1).await;
    setup.says(&["ready"]).await;
    let mut new = second.accept_ads().await;
    let resumed = new.next_of(CLUSTER).await;
    assert_eq!(resumed.initial_resource_versions["c1"], "v1");
    assert!(old.next().await.is_none(), "the old stream has ended");
    new.send_resources(CLUSTER, "n1", vec![resource("c2", "v1")])
        .await;
    assert_eq!(names(&envoy.next().await), ["c2"]);
    setup.session.close(PATIENCE).await;
}

#[tokio::test]
async fn a_stream_that_must_be_replaced_is_replaced_after_a_failure_too() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let by_name = setup.envoy().await;
    by_name
        .send(DeltaDiscoveryRequest {
            node: Bytes::from_static(b"node"),
            type_url: LISTENER.to_owned(),
            resource_names_subscribe: vec!["l1".to_owned()],
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    let mut old = server.accept_ads().await;
    assert_eq!(old.next_of(LISTENER).await.resource_names_subscribe, ["l1"]);

    // Servers accept a subscription to all resources only in the first request of a stream.
    server
        .script()
        .fail_next(Call::Discovery, Status::internal("not yet"));
    let all = setup.envoy().await;
    all.subscribe(LISTENER).await;
    let mut new = server.accept_ads().await;
    let request = new.next_of(LISTENER).await;
    assert!(request.resource_names_subscribe.is_empty());
    setup.scope.stop(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn envoy_can_use_a_unix_socket() {
    let server = FakeServer::plaintext().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("xds.sock");
    let bind = XdsAddress::Unix(path.clone());
    let setup = start_as(server.address(), false, &bind, Credentials::None).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    ads.send_resources(CLUSTER, "n1", vec![resource("c1", "v1")])
        .await;
    assert_eq!(names(&envoy.next().await), ["c1"]);
    drop(envoy);
    setup.scope.stop(PATIENCE).await.unwrap();
    assert!(!path.exists(), "the socket's file is left behind");
}
