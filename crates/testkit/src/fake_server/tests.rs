//! The fake server follows its script, tested with ordinary clients.

use legate_api::acl::acl_service_client::AclServiceClient;
use legate_api::dataplane::GetSupportedDataplaneFeaturesRequest;
use legate_api::dataplane::dataplane_service_client::DataplaneServiceClient;
use legate_api::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use legate_api::serverdiscovery::WatchServersRequest;
use legate_api::serverdiscovery::server_discovery_service_client::ServerDiscoveryServiceClient;
use legate_api::type_url;
use prost_types::Any;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use super::*;

async fn connect(server: &FakeServer) -> Channel {
    Endpoint::from_shared(format!("http://{}", server.address()))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

fn with_token<T>(body: T, token: &'static str) -> Request<T> {
    let mut request = Request::new(body);
    request
        .metadata_mut()
        .insert(legate_api::metadata::TOKEN, token.parse().unwrap());
    request
}

#[tokio::test]
async fn tokens_are_required_when_acls_are_enabled() {
    let server = FakeServer::plaintext().await;
    let mut client = DataplaneServiceClient::new(connect(&server).await);
    let request = || GetSupportedDataplaneFeaturesRequest {};
    client
        .get_supported_dataplane_features(request())
        .await
        .unwrap();
    server.script().accept_token("right");
    let refused = client
        .get_supported_dataplane_features(request())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    client
        .get_supported_dataplane_features(with_token(request(), "right"))
        .await
        .unwrap();
    let refused = client
        .get_supported_dataplane_features(with_token(request(), "wrong"))
        .await
        .unwrap_err();
    assert_eq!(refused.message(), "ACL not found");
    let calls = server.script().wait_for_calls(Call::Features, 4).await;
    assert_eq!(calls[2].token.as_deref(), Some("right"));
    assert_eq!(calls[0].authority, Some(server.address().to_string()));
}

#[tokio::test]
async fn a_login_creates_a_token_and_a_logout_deletes_it() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("k8s", "jwt");
    let mut client = AclServiceClient::new(connect(&server).await);
    let login = |method: &str, bearer: &str| legate_api::acl::LoginRequest {
        auth_method: method.into(),
        bearer_token: bearer.into(),
        ..Default::default()
    };
    let code = |status: tonic::Status| status.code();
    assert_eq!(
        client
            .login(login("other", "jwt"))
            .await
            .map_err(code)
            .unwrap_err(),
        Code::InvalidArgument
    );
    assert_eq!(
        client
            .login(login("k8s", "bad"))
            .await
            .map_err(code)
            .unwrap_err(),
        Code::Unauthenticated
    );
    let token = client
        .login(login("k8s", "jwt"))
        .await
        .unwrap()
        .into_inner()
        .token
        .unwrap();
    assert!(server.script().tokens().contains(&token.secret_id));
    let logout = legate_api::acl::LogoutRequest {
        token: token.secret_id,
        datacenter: String::new(),
    };
    client.logout(logout.clone()).await.unwrap();
    assert!(server.script().tokens().is_empty());
    assert_eq!(server.script().logouts(), [logout]);
    assert_eq!(server.script().logins().len(), 3);
}

#[tokio::test]
async fn tokens_expire_or_are_deleted() {
    let server = FakeServer::plaintext().await;
    let script = server.script();
    script.accept_login("k8s", "jwt");
    let mut client = AclServiceClient::new(connect(&server).await);
    let login = legate_api::acl::LoginRequest {
        auth_method: "k8s".into(),
        bearer_token: "jwt".into(),
        ..Default::default()
    };
    client.login(login.clone()).await.unwrap();
    script.token_lifetime(Duration::ZERO);
    client.login(login.clone()).await.unwrap();
    assert_eq!(
        script.tokens(),
        ["login-secret-1"],
        "the second has ended already"
    );
    script.delete_token("login-secret-1");
    assert!(script.tokens().is_empty());
    let mut client = DataplaneServiceClient::new(connect(&server).await);
    let request = || GetSupportedDataplaneFeaturesRequest {};
    for token in ["login-secret-1", "login-secret-2"] {
        let refused = client
            .get_supported_dataplane_features(with_token(request(), token))
            .await;
        assert_eq!(refused.unwrap_err().message(), "ACL not found");
    }
}

#[tokio::test]
async fn failures_occur_in_order() {
    let server = FakeServer::plaintext().await;
    let mut client = DataplaneServiceClient::new(connect(&server).await);
    server
        .script()
        .fail_next(Call::Features, tonic::Status::unavailable("first"));
    server
        .script()
        .fail_always(Call::Features, tonic::Status::internal("then"));
    let mut call = async || {
        let answer = client
            .get_supported_dataplane_features(GetSupportedDataplaneFeaturesRequest {})
            .await;
        answer
            .map(drop)
            .map_err(|status| status.message().to_owned())
    };
    assert_eq!(call().await, Err("first".to_owned()));
    assert_eq!(call().await, Err("then".to_owned()));
    assert_eq!(call().await, Err("then".to_owned()));
    server.script().heal(Call::Features);
    assert_eq!(call().await, Ok(()));
}

#[tokio::test]
async fn watches_follow_the_list_until_they_are_ended() {
    let server = FakeServer::plaintext().await;
    server.script().servers(vec![server_entry("127.0.0.1")]);
    let mut client = ServerDiscoveryServiceClient::new(connect(&server).await);
    let mut watch = client
        .watch_servers(WatchServersRequest { wan: false })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        watch.message().await.unwrap().unwrap().servers[0].address,
        "127.0.0.1"
    );
    server.script().servers(vec![server_entry("127.0.0.2")]);
    assert_eq!(
        watch.message().await.unwrap().unwrap().servers[0].address,
        "127.0.0.2"
    );
    server.script().end_watches(tonic::Status::aborted("moved"));
    assert_eq!(watch.message().await.unwrap_err().message(), "moved");
    let mut watch = client
        .watch_servers(WatchServersRequest { wan: false })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        watch.message().await.unwrap().unwrap().servers[0].address,
        "127.0.0.2"
    );
}

#[tokio::test]
async fn ads_streams_are_controlled_by_the_test() {
    let server = FakeServer::plaintext().await;
    server.script().accept_token("right");
    let mut client = AggregatedDiscoveryServiceClient::new(connect(&server).await);
    let (requests, outgoing) = mpsc::channel(4);
    let stream = ReceiverStream::new(outgoing);
    let mut responses = client
        .delta_aggregated_resources(with_token(stream, "right"))
        .await
        .unwrap()
        .into_inner();
    let mut ads = server.accept_ads().await;
    assert_eq!(ads.token(), Some("right"));
    let request = legate_api::discovery::DeltaDiscoveryRequest {
        type_url: type_url::CLUSTER.into(),
        ..Default::default()
    };
    requests.send(request.clone()).await.unwrap();
    assert_eq!(ads.next_of(type_url::CLUSTER).await, request);
    let any = Any {
        type_url: type_url::CLUSTER.into(),
        value: vec![1, 2, 3],
    };
    assert!(
        ads.send_resources(type_url::CLUSTER, "1", vec![resource("web", "v1", &any)])
            .await
    );
    assert_eq!(
        responses.message().await.unwrap().unwrap().resources[0].name,
        "web"
    );
    ads.end(tonic::Status::resource_exhausted("elsewhere"))
        .await;
    assert_eq!(
        responses.message().await.unwrap_err().code(),
        Code::ResourceExhausted
    );
    assert_eq!(server.script().calls(Call::Discovery).len(), 1);
}

#[tokio::test]
async fn a_stopped_server_refuses_and_a_restarted_one_responds() {
    let mut server = FakeServer::plaintext().await;
    let address = server.address();
    let mut client = DataplaneServiceClient::new(connect(&server).await);
    client
        .get_supported_dataplane_features(GetSupportedDataplaneFeaturesRequest {})
        .await
        .unwrap();
    server.stop().await;
    assert!(
        client
            .get_supported_dataplane_features(GetSupportedDataplaneFeaturesRequest {})
            .await
            .is_err()
    );
    assert!(TcpStream::connect(address).await.is_err());
    server.restart().await;
    assert_eq!(server.address(), address);
    let mut client = DataplaneServiceClient::new(connect(&server).await);
    client
        .get_supported_dataplane_features(GetSupportedDataplaneFeaturesRequest {})
        .await
        .unwrap();
    server.cut_connections();
    // The connection is gone, the server is not: tonic reconnects by itself.
    while client
        .get_supported_dataplane_features(GetSupportedDataplaneFeaturesRequest {})
        .await
        .is_err()
    {}
    let calls = server.script().calls(Call::Features);
    assert_ne!(calls.first().unwrap().peer, calls.last().unwrap().peer);
}
