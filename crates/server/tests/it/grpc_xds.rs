//! Delta xDS of a running server, with a client that acts as Envoy.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use legate_api::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::node::{BuildVersion, Node, SemanticVersion};
use legate_api::rpc;
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, SECRET};
use legate_model::acl::{Policy, PolicyLink, Role, RoleLink, ServiceIdentity, Token};
use legate_model::{Secret, ServiceInstance, Upstream};
use legate_server::Server;
use legate_store::{Command, Deregistration, TokenKey};
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::acl::deny_by_default;
use crate::grpc::{STOP, channel, register, sidecar, start, with_token};

const WEB_TOKEN: &str = "1c9f4f7e-0c43-4a39-9c9a-6d2b7b1c2f10";
const PATIENCE: Duration = Duration::from_secs(10);

/// An ADS stream of the sidecar of `web`.
pub(crate) struct Ads {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

fn node(id: &str, node_name: &str) -> Node {
    let name = Value {
        kind: Some(Kind::StringValue(node_name.to_owned())),
    };
    Node {
        id: id.to_owned(),
        metadata: Some(Struct {
            fields: [("node_name".to_owned(), name)].into(),
        }),
        ..Node::default()
    }
}

/// The first request of a stream.
pub(crate) fn first(type_url: &str) -> DeltaDiscoveryRequest {
    first_of("web-1-sidecar-proxy", type_url)
}

/// The first request of another proxy.
pub(crate) fn first_of(id: &str, type_url: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        node: node(id, "vm-1").encode_to_vec().into(),
        ..named(type_url, &[])
    }
}

pub(crate) fn named(type_url: &str, names: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    }
}

impl Ads {
    pub(crate) async fn open(server: &Server, token: &str) -> Result<Self, Status> {
        let (requests, outbound) = mpsc::channel(16);
        let mut client = AggregatedDiscoveryServiceClient::new(channel(server).await);
        let request = with_token(ReceiverStream::new(outbound), token);
        let responses = client.delta_aggregated_resources(request).await?;
        Ok(Self {
            requests,
            responses: responses.into_inner(),
        })
    }

    pub(crate) async fn send(&self, request: DeltaDiscoveryRequest) {
        self.requests.send(request).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> Result<DeltaDiscoveryResponse, Status> {
        let next = timeout(PATIENCE, self.responses.message()).await;
        Ok(next
            .expect("a response in time")?
            .expect("the stream goes on"))
    }

    /// Receives the next response and ACKs it.
    pub(crate) async fn accept(&mut self) -> DeltaDiscoveryResponse {
        let response = self.next().await.unwrap();
        self.send(DeltaDiscoveryRequest {
            response_nonce: response.nonce.clone(),
            ..named(&response.type_url, &[])
        })
        .await;
        response
    }

    /// The status with which the stream ends after this request.
    async fn end_of(server: &Server, token: &str, request: DeltaDiscoveryRequest) -> Status {
        let mut ads = match Self::open(server, token).await {
            Ok(ads) => ads,
            Err(status) => return status,
        };
        ads.send(request).await;
        ads.next().await.unwrap_err()
    }
}

pub(crate) fn names(response: &DeltaDiscoveryResponse) -> Vec<&str> {
    response
        .resources
        .iter()
        .map(|one| one.name.as_str())
        .collect()
}

fn versions(response: &DeltaDiscoveryResponse) -> HashMap<String, String> {
    let pair = |one: &legate_api::discovery::Resource| (one.name.clone(), one.version.clone());
    response.resources.iter().map(pair).collect()
}

/// Registers the sidecar of `web`, which has the upstream `api`, and a sidecar of `api`.
pub(crate) async fn register_mesh(server: &Server) {
    let mut web = sidecar("web");
    let upstream = Upstream {
        destination_name: "api".to_owned(),
        local_bind_port: 9_191,
        ..Upstream::default()
    };
    web.proxy.upstreams = vec![Arc::new(upstream)];
    register(server, web).await;
    register(server, api(20_001)).await;
}

fn api(port: u16) -> ServiceInstance {
    ServiceInstance {
        id: format!("api-{port}-sidecar-proxy"),
        port,
        ..sidecar("api")
    }
}

async fn deregister(server: &Server, id: &str) {
    let command = Command::Deregister(Deregistration {
        node: "vm-1".to_owned(),
        service_id: Some(id.to_owned()),
        check_id: None,
    });
    server.store().apply(command).await.unwrap();
}

fn upstream_cluster(server: &Server) -> String {
    format!("api.default.dc1.internal.{}", server.ca().trust_domain())
}

#[tokio::test]
async fn an_envoy_gets_its_configuration_in_order_and_follows_changes() {
    let server = start(|_| {}).await;
    register_mesh(&server).await;
    let cluster = upstream_cluster(&server);
    let mut ads = Ads::open(&server, "").await.unwrap();
    ads.send(first(CLUSTER)).await;
    let clusters = ads.accept().await;
    assert_eq!(names(&clusters), [cluster.as_str(), "local_app"]);
    assert_eq!(clusters.nonce, "00000001");
    ads.send(named(ENDPOINT, &[&cluster])).await;
    let endpoints = ads.accept().await;
    assert_eq!(names(&endpoints), [cluster.as_str()]);
    ads.send(named(LISTENER, &[])).await;
    let listeners = ads.accept().await;
    let [upstream, public] = names(&listeners)[..] else {
        panic!("{listeners:?}");
    };
    assert_eq!(upstream, "api:127.0.0.1:9191");
    assert!(public.starts_with("public_listener:"), "{public}");
    ads.send(named(SECRET, &["leaf", "roots"])).await;
    assert_eq!(names(&ads.accept().await), ["leaf", "roots"]);
    assert_eq!(server.proxies().len(), 1);

    register(&server, api(20_002)).await;
    let changed = ads.accept().await;
    assert_eq!(
        (changed.type_url.as_str(), names(&changed)),
        (ENDPOINT, vec![cluster.as_str()])
    );
    assert_ne!(versions(&changed), versions(&endpoints));
    deregister(&server, "api-20002-sidecar-proxy").await;
    let back = ads.accept().await;
    assert_eq!(versions(&back), versions(&endpoints));

    drop(ads);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_reconnecting_client_gets_only_changes() {
    let server = start(|_| {}).await;
    register_mesh(&server).await;
    let mut ads = Ads::open(&server, "").await.unwrap();
    ads.send(first(CLUSTER)).await;
    let mut held = versions(&ads.accept().await);
    drop(ads);

    held.insert("gone".to_owned(), "1".to_owned());
    let mut ads = Ads::open(&server, "").await.unwrap();
    ads.send(DeltaDiscoveryRequest {
        initial_resource_versions: held,
        ..first(CLUSTER)
    })
    .await;
    let nothing_new = ads.accept().await;
    assert!(nothing_new.resources.is_empty() && nothing_new.removed_resources.is_empty());
    let removed = ads.accept().await;
    assert!(removed.resources.is_empty());
    assert_eq!(removed.removed_resources, ["gone"]);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_refused_update_waits_for_the_next_version() {
    let server = start(|_| {}).await;
    register_mesh(&server).await;
    let cluster = upstream_cluster(&server);
    let mut ads = Ads::open(&server, "").await.unwrap();
    ads.send(DeltaDiscoveryRequest {
        resource_names_subscribe: vec![cluster.clone()],
        ..first(ENDPOINT)
    })
    .await;
    let refused = ads.next().await.unwrap();
    ads.send(DeltaDiscoveryRequest {
        response_nonce: refused.nonce.clone(),
        error_detail: Some(rpc::Status {
            code: 13,
            message: "malformed".to_owned(),
            details: Vec::new(),
        }),
        ..named(ENDPOINT, &[])
    })
    .await;
    register(&server, api(20_002)).await;
    let next = ads.accept().await;
    assert_eq!(names(&next), [cluster.as_str()]);
    assert_ne!(versions(&next), versions(&refused));
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn the_first_request_must_contain_a_node() {
    let server = start(|_| {}).await;
    register_mesh(&server).await;
    register(&server, {
        let mut nobody = sidecar("nobody");
        nobody.proxy.destination_service_name = String::new();
        nobody
    })
    .await;
    let web = ServiceInstance {
        id: "web-1".to_owned(),
        service: "web".to_owned(),
        port: 8_080,
        ..ServiceInstance::default()
    };
    register(&server, web).await;
    let as_node = |node: Node| DeltaDiscoveryRequest {
        node: node.encode_to_vec().into(),
        ..named(CLUSTER, &[])
    };
    let old_envoy = Node {
        user_agent_name: "envoy".to_owned(),
        user_agent_build_version: Some(BuildVersion {
            version: Some(SemanticVersion {
                major: 1,
                minor: 20,
                patch: 0,
            }),
            ..BuildVersion::default()
        }),
        ..node("web-1-sidecar-proxy", "vm-1")
    };
    for (request, code, hint) in [
        (first(""), Code::InvalidArgument, "type_url"),
        (named(CLUSTER, &[]), Code::InvalidArgument, "node"),
        (as_node(node("", "vm-1")), Code::InvalidArgument, "node.id"),
        (as_node(old_envoy), Code::InvalidArgument, "too old"),
        (
            as_node(node("x", "vm-9")),
            Code::NotFound,
            "proxy-node-name",
        ),
        (as_node(node("x", "vm-1")), Code::NotFound, "proxy-id"),
        (
            as_node(node("web-1", "vm-1")),
            Code::InvalidArgument,
            "not a proxy",
        ),
        (
            as_node(node("nobody-1-sidecar-proxy", "vm-1")),
            Code::InvalidArgument,
            "DestinationServiceName",
        ),
    ] {
        let status = Ads::end_of(&server, "", request).await;
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(hint), "{status}");
    }
    server.stop(STOP).await.unwrap();
}

async fn add_token(server: &Server, secret: &str, service: &str) {
    let token = Token {
        accessor_id: format!("accessor of {service}"),
        secret_id: Secret::new(secret),
        service_identities: vec![ServiceIdentity {
            service_name: service.to_owned(),
            ..ServiceIdentity::default()
        }],
        ..Token::default()
    };
    let command = Command::UpsertToken(Box::new(token));
    server.store().apply(command).await.unwrap();
}

#[tokio::test]
async fn configuration_requires_service_write() {
    const API_TOKEN: &str = "2c9f4f7e-0c43-4a39-9c9a-6d2b7b1c2f10";
    let server = start(deny_by_default).await;
    register_mesh(&server).await;
    add_token(&server, WEB_TOKEN, "web").await;
    add_token(&server, API_TOKEN, "api").await;
    for (token, code) in [
        ("unknown", Code::Unauthenticated),
        ("", Code::PermissionDenied),
        (API_TOKEN, Code::PermissionDenied),
    ] {
        let status = Ads::end_of(&server, token, first(CLUSTER)).await;
        assert_eq!(status.code(), code, "{status}");
    }

    let mut ads = Ads::open(&server, WEB_TOKEN).await.unwrap();
    ads.send(first(CLUSTER)).await;
    assert!(!ads.accept().await.resources.is_empty());
    let key = TokenKey::Secret(Secret::new(WEB_TOKEN));
    server
        .store()
        .apply(Command::DeleteToken(key))
        .await
        .unwrap();
    // The token is checked again at the next change.
    register(&server, api(20_002)).await;
    let status = ads.next().await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_stream_ends_when_its_token_loses_permission() {
    let server = start(deny_by_default).await;
    register_mesh(&server).await;
    let policy = Policy {
        id: "p".to_owned(),
        name: "web".to_owned(),
        rules: r#"service "web" { policy = "write" }"#.to_owned(),
        ..Policy::default()
    };
    let role = Role {
        id: "r".to_owned(),
        name: "web".to_owned(),
        policies: vec![PolicyLink {
            name: "web".to_owned(),
            ..PolicyLink::default()
        }],
        ..Role::default()
    };
    let token = Token {
        accessor_id: "t".to_owned(),
        secret_id: Secret::new(WEB_TOKEN),
        roles: vec![RoleLink {
            name: "web".to_owned(),
            ..RoleLink::default()
        }],
        ..Token::default()
    };
    for command in [
        Command::UpsertPolicy(Box::new(policy.clone())),
        Command::UpsertRole(Box::new(role)),
        Command::UpsertToken(Box::new(token)),
    ] {
        server.store().apply(command).await.unwrap();
    }
    let mut ads = Ads::open(&server, WEB_TOKEN).await.unwrap();
    ads.send(first(CLUSTER)).await;
    assert!(!ads.accept().await.resources.is_empty());
    let less = Policy {
        rules: r#"service "web" { policy = "read" }"#.to_owned(),
        ..policy
    };
    let command = Command::UpsertPolicy(Box::new(less));
    server.store().apply(command).await.unwrap();
    // The token is checked again at the next change.
    register(&server, api(20_002)).await;
    let status = ads.next().await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_stop_ends_streams_so_that_clients_reconnect_elsewhere() {
    let server = start(|_| {}).await;
    register_mesh(&server).await;
    let mut ads = Ads::open(&server, "").await.unwrap();
    ads.send(first(CLUSTER)).await;
    ads.accept().await;
    let (end, stopped) = tokio::join!(ads.next(), server.stop(STOP));
    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    stopped.unwrap();
}
