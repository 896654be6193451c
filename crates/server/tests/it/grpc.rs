//! The gRPC services of a running server, called over real connections.

use std::net::SocketAddr;
use std::time::Duration;

use legate_api::connectca::connect_ca_service_client::ConnectCaServiceClient;
use legate_api::connectca::{SignRequest, WatchRootsRequest};
use legate_api::dataplane::dataplane_service_client::DataplaneServiceClient;
use legate_api::dataplane::get_envoy_bootstrap_params_request::NodeSpec;
use legate_api::dataplane::{GetEnvoyBootstrapParamsRequest, GetSupportedDataplaneFeaturesRequest};
use legate_api::internal::peerstream::ExchangeSecretRequest;
use legate_api::internal::peerstream::peer_stream_service_client::PeerStreamServiceClient;
use legate_api::json;
use legate_api::serverdiscovery::WatchServersRequest;
use legate_api::serverdiscovery::server_discovery_service_client::ServerDiscoveryServiceClient;
use legate_identity::{CertificateInfo, tls};
use legate_model::{ConfigEntry, Node, ProxyDefaults, ServiceInstance, ServiceKind};
use legate_server::{Parts, Server, ServerConfig, TlsPolicy};
use legate_store::{Command, Registration};
use legate_testkit::certs::TestCa;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use crate::running::Running;

pub(crate) const NODE_ID: &str = "8f1d5b1e-7c8c-4f0a-8a61-5d6f1f5c9a01";
pub(crate) const STOP: Duration = Duration::from_secs(10);

/// A server with gRPC without TLS, and with the settings of `change`.
pub(crate) async fn start(change: impl FnOnce(&mut ServerConfig)) -> Running {
    let server = Running::start(grpc_only(), change, Parts::default()).await;
    server.unwrap()
}

/// The settings of a server with gRPC without TLS only.
pub(crate) fn grpc_only() -> ServerConfig {
    ServerConfig {
        http: None,
        grpc: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        grpc_tls: None,
        dns: None,
        update_coalesce: Duration::from_millis(10),
        ..ServerConfig::default()
    }
}

pub(crate) async fn channel(server: &Server) -> Channel {
    let uri = format!("http://{}", server.grpc_addr().unwrap());
    Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
}

/// A request with a token, if it is not empty.
pub(crate) fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        let value = token.parse().unwrap();
        request.metadata_mut().insert("x-consul-token", value);
    }
    request
}

/// Registers an instance on the node `vm-1`.
pub(crate) async fn register(server: &Server, service: ServiceInstance) {
    let registration = Registration {
        node: Node {
            id: NODE_ID.to_owned(),
            node: "vm-1".to_owned(),
            address: "10.0.0.1".to_owned(),
            datacenter: "dc1".to_owned(),
            ..Node::default()
        },
        service: Some(service),
        checks: Vec::new(),
        skip_node_update: false,
    };
    let command = Command::Register(Box::new(registration));
    server.store().apply(command).await.unwrap();
}

/// The sidecar of a service.
pub(crate) fn sidecar(destination: &str) -> ServiceInstance {
    let mut proxy = ServiceInstance {
        kind: ServiceKind::ConnectProxy,
        id: format!("{destination}-1-sidecar-proxy"),
        service: format!("{destination}-sidecar-proxy"),
        port: 20_000,
        ..ServiceInstance::default()
    };
    proxy.proxy.destination_service_name = destination.to_owned();
    proxy.proxy.local_service_port = 8_080;
    proxy
}

fn params(node: Option<NodeSpec>, proxy: &str) -> GetEnvoyBootstrapParamsRequest {
    GetEnvoyBootstrapParamsRequest {
        node_spec: node,
        proxy_id: proxy.to_owned(),
        ..Default::default()
    }
}

fn by_name(name: &str) -> Option<NodeSpec> {
    Some(NodeSpec::NodeName(name.to_owned()))
}

#[tokio::test]
async fn every_feature_is_listed() {
    let server = start(|_| {}).await;
    let mut client = DataplaneServiceClient::new(channel(&server).await);
    let request = GetSupportedDataplaneFeaturesRequest {};
    let features = client.get_supported_dataplane_features(request).await;
    let features = features.unwrap().into_inner().supported_dataplane_features;
    let listed: Vec<(i32, bool)> = features
        .iter()
        .map(|one| (one.feature_name, one.supported))
        .collect();
    assert_eq!(listed, [(1, true), (2, true), (3, true), (4, false)]);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn bootstrap_parameters_are_the_merged_registration() {
    let server = start(|_| {}).await;
    let mut proxy = sidecar("web");
    let own = json!({"envoy_prometheus_bind_addr": "0.0.0.0:9102"});
    proxy.proxy.config = own.as_object().unwrap().clone();
    register(&server, proxy).await;
    let central = json!({"local_connect_timeout_ms": 1234, "envoy_prometheus_bind_addr": "x"});
    let entry = ConfigEntry::ProxyDefaults(ProxyDefaults {
        name: ProxyDefaults::NAME.to_owned(),
        config: central.as_object().unwrap().clone(),
        ..ProxyDefaults::default()
    });
    let entry = Box::new(entry);
    let command = Command::UpsertConfigEntry { entry, cas: None };
    server.store().apply(command).await.unwrap();

    let mut client = DataplaneServiceClient::new(channel(&server).await);
    let by_id = Some(NodeSpec::NodeId(NODE_ID.to_owned()));
    for node in [by_name("vm-1"), by_id] {
        let answer = client
            .get_envoy_bootstrap_params(params(node, "web-1-sidecar-proxy"))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.identity, "web");
        assert_eq!(answer.node_name, "vm-1");
        assert_eq!(answer.datacenter, "dc1");
        assert_eq!(
            (answer.namespace.as_str(), answer.partition.as_str()),
            ("default", "default")
        );
        assert_eq!(answer.access_logs, Vec::<String>::new());
        let config = json::from_struct(&answer.config.unwrap());
        assert_eq!(config["local_connect_timeout_ms"], 1234);
        assert_eq!(config["envoy_prometheus_bind_addr"], "0.0.0.0:9102");
    }

    #[expect(deprecated, reason = "older dataplanes send both names")]
    let old = GetEnvoyBootstrapParamsRequest {
        service_id: "web-1-sidecar-proxy".to_owned(),
        ..params(by_name("vm-1"), "ignored")
    };
    let answer = client.get_envoy_bootstrap_params(old).await.unwrap();
    #[expect(deprecated, reason = "older dataplanes read the old name")]
    let service = answer.into_inner().service;
    assert_eq!(service, "web");
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn bootstrap_parameters_that_do_not_exist_name_the_setting() {
    let server = start(|_| {}).await;
    register(&server, sidecar("web")).await;
    let mut client = DataplaneServiceClient::new(channel(&server).await);
    let foreign = GetEnvoyBootstrapParamsRequest {
        namespace: "a.b".to_owned(),
        ..params(by_name("vm-1"), "web-1-sidecar-proxy")
    };
    for (request, code, hint) in [
        (params(None, "x"), Code::InvalidArgument, "proxy-node-name"),
        (
            params(by_name(""), "x"),
            Code::InvalidArgument,
            "proxy-node-name",
        ),
        (
            params(by_name("vm-9"), "x"),
            Code::NotFound,
            "proxy-node-name",
        ),
        (params(by_name("vm-1"), "x"), Code::NotFound, "proxy-id"),
        (foreign, Code::InvalidArgument, "namespace"),
    ] {
        let status = client
            .get_envoy_bootstrap_params(request)
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(hint), "{status}");
    }
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_call_with_an_invalid_tenancy_is_refused() {
    let server = start(|_| {}).await;
    let mut ca = ConnectCaServiceClient::new(channel(&server).await);
    let mut discovery = ServerDiscoveryServiceClient::new(channel(&server).await);
    for key in ["x-consul-namespace", "x-consul-partition"] {
        let mut roots = Request::new(WatchRootsRequest {});
        roots.metadata_mut().insert(key, "a/b".parse().unwrap());
        let mut servers = Request::new(WatchServersRequest { wan: false });
        *servers.metadata_mut() = roots.metadata().clone();
        for status in [
            ca.watch_roots(roots).await.unwrap_err(),
            discovery.watch_servers(servers).await.unwrap_err(),
        ] {
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            assert!(status.message().contains(key), "{status}");
        }
    }
    let mut served = Request::new(WatchRootsRequest {});
    let default = "Default".parse().unwrap();
    served.metadata_mut().insert("x-consul-partition", default);
    ca.watch_roots(served).await.unwrap();
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn the_server_list_is_sent_at_once_and_the_stream_stays_open() {
    let server = start(|config| config.advertise = "192.0.2.7".parse().unwrap()).await;
    let address = server.grpc_addr().unwrap();
    let mut client = ServerDiscoveryServiceClient::new(channel(&server).await);
    let watch = client
        .watch_servers(WatchServersRequest { wan: false })
        .await;
    let mut watch = watch.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    let addresses: Vec<&str> = first
        .servers
        .iter()
        .map(|one| one.address.as_str())
        .collect();
    assert_eq!(addresses, ["192.0.2.7"]);

    let (end, stopped) = tokio::join!(watch.message(), server.stop(STOP));
    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    stopped.unwrap();
    // The port is free again at once.
    let next = start(|config| config.grpc = Some(address)).await;
    assert_eq!(next.grpc_addr(), Some(address));
    next.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_client_that_reads_nothing_does_not_hold_up_the_stop() {
    let server = start(|_| {}).await;
    let mut client = ServerDiscoveryServiceClient::new(channel(&server).await);
    let request = WatchServersRequest { wan: false };
    let unread = client.watch_servers(request).await.unwrap();
    let silent = TcpStream::connect(server.grpc_addr().unwrap())
        .await
        .unwrap();
    server.stop(STOP).await.unwrap();
    drop((unread, silent));
}

#[tokio::test]
async fn roots_are_streamed_and_leaves_are_signed() {
    let server = start(|_| {}).await;
    let mut client = ConnectCaServiceClient::new(channel(&server).await);
    let roots = client.watch_roots(WatchRootsRequest {}).await.unwrap();
    let roots = roots.into_inner().message().await.unwrap().unwrap();
    let domain = server.ca().trust_domain();
    assert_eq!(roots.trust_domain, domain.as_str());
    let [root] = &roots.roots[..] else {
        panic!("{roots:?}");
    };
    assert!(root.active && root.id == roots.active_root_id);

    let uri = |path: &str| format!("spiffe://{domain}/{path}");
    let web = uri("ns/default/dc/dc1/svc/web");
    let signed = client
        .sign(SignRequest { csr: csr(&[&web]) })
        .await
        .unwrap();
    let leaf = CertificateInfo::from_pem(&signed.into_inner().cert_pem).unwrap();
    assert_eq!(leaf.uris, [web.as_str()]);
    assert_eq!(leaf.authority_key_id.as_ref(), Some(&root.signing_key_id));

    let elsewhere = uri("ns/default/dc/dc2/svc/web");
    let foreign = "spiffe://other.consul/ns/default/dc/dc1/svc/web";
    for bad in [
        String::new(),
        "nonsense".to_owned(),
        csr(&[]),
        csr(&[&web, &web.replace("web", "api")]),
        csr(&[&elsewhere]),
        csr(&[foreign]),
        csr(&["https://example.com"]),
        csr_for(vec![
            SanType::URI(web.as_str().try_into().unwrap()),
            SanType::DnsName("server.dc1.consul".try_into().unwrap()),
        ]),
        csr_for(vec![
            SanType::URI(web.as_str().try_into().unwrap()),
            SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()),
        ]),
        csr(&[&format!("spiffe://{domain}")]),
    ] {
        let status = client.sign(SignRequest { csr: bad }).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    server.stop(STOP).await.unwrap();
}

/// A server of an older version accepted such settings.
#[tokio::test]
async fn stored_settings_that_are_nested_too_deeply_do_not_stop_a_dataplane() {
    let server = start(|_| {}).await;
    let deep = (0..60).fold(json!(1), |inner, _| json!({ "a": inner }));
    let mut proxy = sidecar("web");
    let own = json!({ "own": deep, "local_connect_timeout_ms": 5 });
    proxy.proxy.config = own.as_object().unwrap().clone();
    register(&server, proxy).await;
    let central = json!({ "central": deep, "protocol": "http" });
    let entry = Box::new(ConfigEntry::ProxyDefaults(ProxyDefaults {
        name: ProxyDefaults::NAME.to_owned(),
        config: central.as_object().unwrap().clone(),
        ..ProxyDefaults::default()
    }));
    let command = Command::UpsertConfigEntry { entry, cas: None };
    server.store().apply(command).await.unwrap();
    let mut client = DataplaneServiceClient::new(channel(&server).await);
    let asked = params(by_name("vm-1"), "web-1-sidecar-proxy");
    let answer = client.get_envoy_bootstrap_params(asked).await.unwrap();
    let config = json::from_struct(&answer.into_inner().config.unwrap());
    let keys: Vec<_> = config.keys().map(String::as_str).collect();
    assert_eq!(keys, ["local_connect_timeout_ms", "protocol"]);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_mesh_gateway_gets_the_names_of_its_registration() {
    let server = start(|_| {}).await;
    let domain = server.ca().trust_domain();
    let mut client = ConnectCaServiceClient::new(channel(&server).await);
    let mut sign = async |name: &str| {
        let uri = format!("spiffe://{domain}/gateway/mesh/dc/dc1");
        let csr = csr_for(vec![
            SanType::URI(uri.as_str().try_into().unwrap()),
            SanType::DnsName(name.try_into().unwrap()),
        ]);
        let signed = client.sign(SignRequest { csr }).await;
        signed.map_err(|status| (status.code(), status.message().to_owned()))
    };
    let (code, text) = sign("gateway.example.com").await.unwrap_err();
    assert_eq!(code, Code::InvalidArgument);
    assert!(text.contains("no mesh gateway is registered"), "{text}");
    for (kind, address) in [
        (ServiceKind::MeshGateway, "Gateway.example.com"),
        (ServiceKind::MeshGateway, "server.dc1.consul"),
        (ServiceKind::Typical, "web.example.com"),
    ] {
        let instance = ServiceInstance {
            kind,
            id: address.to_owned(),
            service: "gateway".to_owned(),
            address: address.to_owned(),
            port: 8443,
            ..ServiceInstance::default()
        };
        register(&server, instance).await;
    }
    let signed = sign("gateway.example.com").await.unwrap();
    let leaf = CertificateInfo::from_pem(&signed.into_inner().cert_pem).unwrap();
    assert_eq!(leaf.dns_names, ["gateway.example.com"]);
    for name in ["web.example.com", "server.dc1.consul"] {
        assert_eq!(sign(name).await.unwrap_err().0, Code::InvalidArgument);
    }
    server.stop(STOP).await.unwrap();
}

/// A CSR with these URIs.
pub(crate) fn csr(uris: &[&str]) -> String {
    let uri = |uri: &&str| SanType::URI((*uri).try_into().unwrap());
    csr_for(uris.iter().map(uri).collect())
}

/// A CSR with these names.
fn csr_for(names: Vec<SanType>) -> String {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = names;
    params.serialize_request(&key).unwrap().pem().unwrap()
}

#[tokio::test]
async fn tls_serves_the_same_with_the_certificate_of_the_mesh() {
    let free = "127.0.0.1:0".parse().unwrap();
    let server = start(|config| config.grpc_tls = Some(free)).await;
    let address = server.grpc_tls_addr().unwrap();
    // Clients that never start the TLS handshake do not block others.
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let channel = tls_channel(&server, "server.dc1.consul").await.unwrap();
    let mut client = DataplaneServiceClient::new(channel);
    let request = GetSupportedDataplaneFeaturesRequest {};
    client
        .get_supported_dataplane_features(request)
        .await
        .unwrap();
    let wrong_name = tls_channel(&server, "server.dc9.consul").await;
    assert!(wrong_name.is_err());
    server.stop(STOP).await.unwrap();
    drop(silent);
}

#[tokio::test]
async fn without_a_certificate_a_peer_reaches_only_the_peering_service() {
    let clients = TestCa::new();
    let free = "127.0.0.1:0".parse().unwrap();
    let server = start(|config| {
        config.grpc_tls = Some(free);
        config.grpc_tls_policy = TlsPolicy {
            verify_incoming: true,
            client_authorities: vec![clients.ca_file()],
            ..TlsPolicy::default()
        };
    })
    .await;
    let roots = server.store().state().read().ca_roots().unwrap();
    let peering_name = format!("server.dc1.peering.{}", roots.trust_domain);

    let channel = tls_channel(&server, &peering_name).await.unwrap();
    let refused = DataplaneServiceClient::new(channel.clone())
        .get_supported_dataplane_features(GetSupportedDataplaneFeaturesRequest {})
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("the peering service only"));
    let refused = PeerStreamServiceClient::new(channel)
        .exchange_secret(ExchangeSecretRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.message(), "invalid peering establishment secret");

    // By any other name a certificate is needed. With TLS 1.3 the connection ends after the client's handshake.
    if let Ok(channel) = tls_channel(&server, "server.dc1.consul").await {
        let ended = DataplaneServiceClient::new(channel)
            .get_supported_dataplane_features(GetSupportedDataplaneFeaturesRequest {})
            .await
            .unwrap_err();
        assert_ne!(ended.code(), Code::PermissionDenied);
    }
    server.stop(STOP).await.unwrap();
}

pub(crate) async fn tls_channel(
    server: &Server,
    name: &str,
) -> Result<Channel, tonic::transport::Error> {
    let roots = server.store().state().read().ca_roots().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, roots.bundle_pem()).unwrap();
    let config = tls::client_config(&tls::ClientTls {
        ca: Some(file),
        alpn_h2: true,
        ..tls::ClientTls::default()
    });
    let connector = TlsConnector::from(config.unwrap());
    let name = tls::server_name(name).unwrap();
    let address = server.grpc_tls_addr().unwrap();
    let connect = tower::service_fn(move |_| {
        let (connector, name) = (connector.clone(), name.clone());
        async move {
            let stream = TcpStream::connect(address).await?;
            let stream = connector.connect(name, stream).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://server");
    endpoint.connect_with_connector(connect).await
}
