//! Edge cases of the relay: sizes, metadata and tokens, other methods, refusals and rejections in
//! logs and counters.

use std::time::Duration;

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use legate_api::rpc;
use legate_api::type_url::{CLUSTER, ENDPOINT};
use legate_client::Credentials;
use legate_dataplane::relay::limits::MAX_STREAMS;
use legate_dataplane::relay::status::RelayStatus;
use legate_dataplane::settings::XdsAddress;
use legate_model::Secret;
use legate_runtime::metrics::encode;
use legate_testkit::fake_server::{Call, FakeServer};
use prost::Message;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::envoy_side::{EnvoyStream, PATIENCE, connect, resource};
use crate::log::Log;
use crate::relay::{loopback, start, start_as};

const MIB: usize = 1024 * 1024;

/// 64 MiB of resources of both kinds: copied when encoded, and not.
fn large() -> Vec<Resource> {
    let sized = |name: String, size| Resource {
        name,
        version: "v1".to_owned(),
        resource: Bytes::from(vec![b'x'; size]),
        aliases: Vec::new(),
    };
    let large = (0..32).map(|number| sized(format!("large-{number}"), MIB));
    let small = (0..32 * 256).map(|number| sized(format!("small-{number}"), 4096));
    large.chain(small).collect()
}

#[tokio::test]
async fn a_response_of_64_mib_passes_on_both_kinds_of_sockets() {
    let folder = tempfile::tempdir().unwrap();
    for bind in [loopback(), XdsAddress::Unix(folder.path().join("xds.sock"))] {
        let server = FakeServer::plaintext().await;
        let setup = start_as(server.address(), false, &bind, Credentials::None).await;
        let mut envoy = setup.envoy().await;
        envoy.subscribe(CLUSTER).await;
        let mut ads = server.accept_ads().await;
        ads.next_of(CLUSTER).await;
        let sent = large();
        ads.send_resources(CLUSTER, "n1", sent.clone()).await;
        let response = envoy.next().await;
        assert!(response.resources == sent, "{bind:?}: other resources");
        envoy.accept(&response).await;
        assert_eq!(ads.next_of(CLUSTER).await.response_nonce, "n1");
        let status = setup.relay.status().await.unwrap();
        assert_eq!(status.types[0].bytes, 64 * MIB);
        // From the cache, for a restarted Envoy.
        let mut second = setup.envoy().await;
        second.subscribe(CLUSTER).await;
        assert_eq!(second.next().await.resources.len(), sent.len());
        setup.scope.stop(PATIENCE).await.unwrap();
    }
}

#[tokio::test]
async fn an_envoy_that_does_not_read_blocks_no_other() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    ads.send_resources(CLUSTER, "n1", large()).await;
    let response = envoy.next().await;
    envoy.accept(&response).await;
    assert_eq!(ads.next_of(CLUSTER).await.response_nonce, "n1");
    // It subscribes to everything and reads nothing: its windows fill up.
    let deaf = setup.envoy().await;
    deaf.subscribe(CLUSTER).await;
    let subscription = DeltaDiscoveryRequest {
        type_url: ENDPOINT.to_owned(),
        resource_names_subscribe: vec!["e1".to_owned()],
        ..DeltaDiscoveryRequest::default()
    };
    envoy.send(subscription).await;
    ads.next_of(ENDPOINT).await;
    ads.send_resources(ENDPOINT, "n2", vec![resource("e1", "v1")])
        .await;
    let response = envoy.next().await;
    assert_eq!(response.type_url, ENDPOINT);
    envoy.accept(&response).await;
    assert_eq!(ads.next_of(ENDPOINT).await.response_nonce, "n2");
}

/// A request as bytes, so that many can be sent at once.
fn framed(type_url: &str, subscribe: &str, unsubscribe: &str) -> Vec<u8> {
    let request = DeltaDiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names_subscribe: vec![subscribe.to_owned()],
        resource_names_unsubscribe: vec![unsubscribe.to_owned()],
        ..DeltaDiscoveryRequest::default()
    };
    let length = u32::try_from(request.encoded_len()).unwrap();
    let mut bytes = [&[0][..], &length.to_be_bytes()].concat();
    request.encode(&mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn many_requests_at_once_do_not_cost_the_stream_of_the_server() {
    const TYPES: usize = 16;
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let XdsAddress::Tcp(address) = setup.address else {
        panic!("a port")
    };
    let client = TcpStream::connect(address).await.unwrap();
    let (mut calls, connection) = h2::client::handshake(client).await.unwrap();
    let mut open = || {
        let path = "envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
        let call = http::Request::post(format!("http://{address}/{path}"));
        calls.send_request(call.body(()).unwrap(), false).unwrap()
    };
    let flood = async {
        // All but one subscribe to a name of each type; the names are dropped when they disconnect.
        let mut streams: Vec<_> = (0..MAX_STREAMS).map(|_| open()).collect();
        let (_answer, mut busy) = streams.pop().unwrap();
        for (number, (_, requests)) in streams.iter_mut().enumerate() {
            let name = number.to_string();
            let all = (0..TYPES).flat_map(|kind| framed(&format!("type-{kind}"), &name, ""));
            requests
                .send_data(all.collect::<Vec<_>>().into(), false)
                .unwrap();
        }
        let mut ads = server.accept_ads().await;
        let status = || async { setup.relay.status().await.unwrap() };
        let wanted = TYPES * streams.len();
        let names = |status: RelayStatus| status.types.iter().map(|kind| kind.names).sum::<usize>();
        while names(status().await) < wanted {
            tokio::task::yield_now().await;
        }
        // One name replaces the previous one, many times, while all others disconnect.
        let name = |number: usize| format!("busy-{number}");
        let many = (1..=2_000).flat_map(|it| framed("type-0", &name(it), &name(it - 1)));
        busy.send_data(many.collect::<Vec<_>>().into(), false)
            .unwrap();
        for (_, requests) in &mut streams {
            requests.send_data(Bytes::new(), true).unwrap();
        }
        let last = [name(2_000)];
        while ads.next_of("type-0").await.resource_names_subscribe != last {}
        let upstream = status().await.upstream;
        assert_eq!((upstream.streams_opened, upstream.last_error), (1, None));
    };
    tokio::select! {
        () = flood => {}
        ended = connection => panic!("the connection ended: {ended:?}"),
    }
}

#[tokio::test]
async fn a_request_larger_than_the_windows_passes() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let envoy = setup.envoy().await;
    let names: Vec<String> = (0..25_000)
        .map(|number| format!("{number:->100}"))
        .collect();
    envoy
        .send(DeltaDiscoveryRequest {
            node: Bytes::from_static(b"node"),
            type_url: ENDPOINT.to_owned(),
            resource_names_subscribe: names.clone(),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    let mut ads = server.accept_ads().await;
    let mut asked = ads.next_of(ENDPOINT).await.resource_names_subscribe;
    asked.sort_unstable();
    let mut wanted = names;
    wanted.sort_unstable();
    assert!(asked == wanted, "{} names", asked.len());
}

#[tokio::test]
async fn the_session_sends_its_token_and_envoys_metadata() {
    let server = FakeServer::plaintext().await;
    server.script().accept_token("of-the-session");
    let credentials = Credentials::Static(Secret::new("of-the-session"));
    let setup = start_as(server.address(), false, &loopback(), credentials).await;
    let mut metadata = MetadataMap::new();
    metadata.insert("x-consul-token", "of-envoy".parse().unwrap());
    metadata.insert("x-envoy-internal", "true".parse().unwrap());
    let envoy = EnvoyStream::with(connect(&setup.address).await, metadata).await;
    envoy.subscribe(CLUSTER).await;
    let ads = server.accept_ads().await;
    let tokens: Vec<_> = ads.metadata().get_all("x-consul-token").iter().collect();
    assert_eq!(tokens, ["of-the-session"]);
    assert_eq!(ads.metadata().get("x-envoy-internal").unwrap(), "true");
    let agents: Vec<_> = ads.metadata().get_all("user-agent").iter().collect();
    assert_eq!(agents.len(), 1);
    assert!(agents[0].to_str().unwrap().starts_with("legate-dataplane/"));
    // The same applies to later streams.
    ads.end(Status::unavailable("leaving")).await;
    let ads = server.accept_ads().await;
    assert_eq!(ads.token(), Some("of-the-session"));
    assert_eq!(ads.metadata().get("x-envoy-internal").unwrap(), "true");
}

#[tokio::test]
async fn without_credentials_envoys_token_is_not_forwarded_either() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let mut metadata = MetadataMap::new();
    metadata.insert("x-consul-token", "of-envoy".parse().unwrap());
    let envoy = EnvoyStream::with(connect(&setup.address).await, metadata).await;
    envoy.subscribe(CLUSTER).await;
    let token = server
        .accept_ads()
        .await
        .token()
        .unwrap_or_default()
        .to_owned();
    assert_eq!(token, "");
}

#[tokio::test]
async fn only_the_delta_variant_is_served() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    for path in [
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
        "/envoy.service.discovery.v3.ClusterDiscoveryService/DeltaClusters",
    ] {
        let mut grpc = tonic::client::Grpc::new(connect(&setup.address).await);
        grpc.ready().await.unwrap();
        let codec =
            tonic_prost::ProstCodec::<DeltaDiscoveryRequest, DeltaDiscoveryRequest>::default();
        let request = tonic::Request::new(DeltaDiscoveryRequest::default());
        let answer = grpc.unary(request, path.parse().unwrap(), codec).await;
        assert_eq!(answer.unwrap_err().code(), Code::Unimplemented, "{path}");
    }
    // A client that sends an invalid request loses its stream, without effect on others.
    let mut grpc = tonic::client::Grpc::new(connect(&setup.address).await);
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<rpc::Status, DeltaDiscoveryResponse>::default();
    let wrong = rpc::Status {
        code: 7,
        ..rpc::Status::default()
    };
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
    let request = tonic::Request::new(tokio_stream::once(wrong));
    let stream = grpc.streaming(request, path.parse().unwrap(), codec).await;
    let mut stream = stream.unwrap().into_inner();
    assert!(!matches!(stream.message().await, Ok(Some(_))));
    assert!(setup.relay.status().await.is_some());
}

#[tokio::test]
async fn a_rejection_is_logged_with_names_and_counted() {
    let log = Log::start();
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    let resources = vec![resource("good", "v1"), resource("bad", "v1")];
    ads.send_resources(CLUSTER, "n1", resources).await;
    let response = envoy.next().await;
    envoy.reject(&response, "bad has no type").await;
    ads.next_of(CLUSTER).await;
    let lines = log.lines(&[
        "WARN",
        "rejected",
        "clusters",
        "good, bad",
        "bad has no type",
    ]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    ads.send_resources(CLUSTER, "n2", vec![resource("good", "v1")])
        .await;
    let response = envoy.next().await;
    envoy.accept(&response).await;
    ads.next_of(CLUSTER).await;
    let text = encode(&setup.registry);
    for line in [
        r#"consul_dataplane_xds_responses_total{answer="nack",type="clusters"} 1"#,
        r#"consul_dataplane_xds_responses_total{answer="ack",type="clusters"} 1"#,
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_refused_for_good_is_reported_once_and_not_tried_hot() {
    let log = Log::start();
    let server = FakeServer::plaintext().await;
    let script = server.script();
    let refusal = Status::invalid_argument("Envoy 1.2.3 is too old for Consul");
    script.fail_always(Call::Discovery, refusal);
    let setup = start(server.address(), false).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    // A few refusals are tolerated, because a server may have stale state.
    let attempts = async {
        loop {
            let upstream = setup.relay.status().await.unwrap().upstream;
            if upstream.streams_opened == 3 && upstream.server.is_none() {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, attempts).await.expect("three attempts");
    setup
        .says(&["Envoy 1.2.3 is too old", "Envoy's version"])
        .await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    let status = setup.relay.status().await.unwrap();
    tokio::time::resume();
    assert_eq!(status.upstream.streams_opened, 3);
    assert!(status.upstream.refused);
    let lines = log.lines(&["ERROR", "InvalidArgument", "Envoy 1.2.3 is too old"]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    // Envoy's stream is still open, and is served once the server accepts.
    script.heal(Call::Discovery);
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    ads.send_resources(CLUSTER, "n1", vec![resource("c1", "v1")])
        .await;
    assert_eq!(envoy.next().await.resources[0].name, "c1");
    assert_eq!(log.lines(&["INFO", "is served again"]).len(), 1);
}

fn endpoints(names: Vec<String>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        node: Bytes::from_static(b"stranger"),
        type_url: ENDPOINT.to_owned(),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    }
}

#[tokio::test]
async fn only_a_stream_that_exceeds_its_limits_is_closed_and_dropped() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut ads = server.accept_ads().await;
    ads.next_of(CLUSTER).await;
    let many = |from: usize| {
        (from..from + 60_000)
            .map(|number| number.to_string())
            .collect()
    };
    let invented = vec!["no such endpoints".to_owned()];
    for (requests, code, bound) in [
        (
            vec![endpoints(vec!["x".repeat(55 * MIB)])],
            Code::ResourceExhausted,
            "too large",
        ),
        (
            vec![endpoints(vec!["x".repeat(5_000)])],
            Code::InvalidArgument,
            "4096 bytes",
        ),
        (
            vec![endpoints(many(0)), endpoints(many(60_000))],
            Code::ResourceExhausted,
            "100000 resources",
        ),
        (
            vec![endpoints(invented), endpoints(vec![String::new(); 100_001])],
            Code::ResourceExhausted,
            "100000 resources",
        ),
    ] {
        let mut stranger = setup.envoy().await;
        for request in requests {
            stranger.send(request).await;
        }
        let status = stranger.refused().await;
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(bound), "{status:?}");
    }
    // The names are unsubscribed at the server, on the same stream, which continues.
    let (mut asked, mut taken_back) = (0, 0);
    while taken_back < 60_001 {
        let request = ads.next_of(ENDPOINT).await;
        asked += request.resource_names_subscribe.len();
        taken_back += request.resource_names_unsubscribe.len();
    }
    assert_eq!(asked, taken_back);
    let status = setup.relay.status().await.unwrap();
    assert_eq!(status.envoy_streams, 1);
    assert_eq!(status.upstream.streams_opened, 1);
    let names = status.types.iter().map(|one| one.names).sum::<usize>();
    assert_eq!(names, 0, "{status:?}");
    ads.send_resources(CLUSTER, "n1", vec![resource("c1", "v1")])
        .await;
    let response = envoy.next().await;
    envoy.accept(&response).await;
    assert_eq!(ads.next_of(CLUSTER).await.response_nonce, "n1");
}

#[tokio::test]
async fn streams_without_subscriptions_make_room_for_envoy() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let mut silent = Vec::new();
    for _ in 0..MAX_STREAMS {
        silent.push(setup.envoy().await);
    }
    let mut streams = Vec::new();
    for stranger in &mut silent {
        let envoy = setup.envoy().await;
        let status = stranger.refused().await;
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        envoy
            .send(endpoints(vec![format!("e{}", streams.len())]))
            .await;
        streams.push(envoy);
    }
    // All of these have subscriptions, so none is closed.
    let asked = async {
        loop {
            let types = setup.relay.status().await.unwrap().types;
            if types.iter().any(|one| one.names == MAX_STREAMS) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, asked).await.expect("all requests");
    let channel = connect(&setup.address).await;
    let refused = EnvoyStream::try_with(channel, MetadataMap::new()).await;
    assert_eq!(refused.err().unwrap().code(), Code::ResourceExhausted);
    assert_eq!(
        setup.relay.status().await.unwrap().envoy_streams,
        MAX_STREAMS
    );
}

#[tokio::test]
async fn silent_connections_are_few_and_end() {
    let server = FakeServer::plaintext().await;
    let setup = start(server.address(), false).await;
    let XdsAddress::Tcp(address) = setup.address else {
        panic!("{:?}", setup.address)
    };
    let mut envoy = setup.envoy().await;
    envoy.subscribe(CLUSTER).await;
    let mut ads = server.accept_ads().await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    // The oldest of them are closed.
    let mut byte = [0; 64];
    for stranger in &mut silent[..80] {
        let end = async { while matches!(stranger.read(&mut byte).await, Ok(1..)) {} };
        timeout(PATIENCE, end).await.expect("an end in time");
    }
    // The others get their time, and Envoy is served during and after it.
    let mut second = setup.envoy().await;
    second.subscribe(CLUSTER).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    for stranger in &mut silent[80..] {
        let end = async { while matches!(stranger.read(&mut byte).await, Ok(1..)) {} };
        timeout(PATIENCE, end).await.expect("an end in time");
    }
    ads.next_of(CLUSTER).await;
    ads.send_resources(CLUSTER, "n1", vec![resource("c1", "v1")])
        .await;
    let response = second.next().await;
    second.accept(&response).await;
    assert_eq!(envoy.next().await.resources[0].name, "c1");
}
