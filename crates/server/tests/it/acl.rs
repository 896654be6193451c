//! ACLs over gRPC: tokens, logins and logouts.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use legate_api::acl::acl_service_client::AclServiceClient;
use legate_api::acl::{LoginRequest, LogoutRequest};
use legate_api::connectca::connect_ca_service_client::ConnectCaServiceClient;
use legate_api::connectca::{SignRequest, WatchRootsRequest};
use legate_api::dataplane::dataplane_service_client::DataplaneServiceClient;
use legate_api::dataplane::get_envoy_bootstrap_params_request::NodeSpec;
use legate_api::dataplane::{GetEnvoyBootstrapParamsRequest, GetSupportedDataplaneFeaturesRequest};
use legate_api::serverdiscovery::WatchServersRequest;
use legate_api::serverdiscovery::server_discovery_service_client::ServerDiscoveryServiceClient;
use legate_model::Secret;
use legate_model::acl::{AuthMethod, BindType, BindingRule, DefaultPolicy};
use legate_runtime::Clock;
use legate_server::{Parts, Server, ServerConfig};
use legate_store::{CaState, Command, TokenKey};
use legate_testkit::jwt::TestSigner;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::grpc::{STOP, channel, csr, grpc_only, register, sidecar, start, with_token};
use crate::running::Running;

pub(crate) const MANAGEMENT: &str = "6d1f4f7e-0c43-4a39-9c9a-6d2b7b1c2f10";
const NOW: u64 = 1_700_000_000;

pub(crate) fn deny_by_default(config: &mut ServerConfig) {
    config.acl.enabled = true;
    config.acl.default_policy = DefaultPolicy::Deny;
    config.acl.initial_management = Some(Secret::new(MANAGEMENT));
}

/// An auth method `kubernetes` of type jwt that grants `web` to logins with the claim `service`.
pub(crate) async fn add_method(server: &Server, signer: &TestSigner, ttl: Duration) {
    let config = json!({
        "JWTValidationPubKeys": [signer.public_key_pem()],
        "JWTSupportedAlgs": ["ES256"],
        "BoundAudiences": ["mesh"],
        "ClaimMappings": {"service": "service"},
    });
    let method = AuthMethod {
        name: "kubernetes".to_owned(),
        r#type: AuthMethod::JWT.to_owned(),
        max_token_ttl: ttl,
        config: config.as_object().unwrap().clone(),
        ..AuthMethod::default()
    };
    let rule = BindingRule {
        id: "4c1f4f7e-0c43-4a39-9c9a-6d2b7b1c2f10".to_owned(),
        auth_method: method.name.clone(),
        selector: r#"value.service != "nobody""#.to_owned(),
        bind_type: BindType::Service,
        bind_name: "${value.service}".to_owned(),
        ..BindingRule::default()
    };
    let store = server.store();
    store
        .apply(Command::UpsertAuthMethod(Box::new(method)))
        .await
        .unwrap();
    store
        .apply(Command::UpsertBindingRule(Box::new(rule)))
        .await
        .unwrap();
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

pub(crate) async fn login(
    channel: &Channel,
    method: &str,
    bearer: String,
) -> Result<(String, String), Status> {
    let request = LoginRequest {
        auth_method: method.to_owned(),
        bearer_token: bearer,
        meta: [("pod".to_owned(), "web-1".to_owned())].into(),
        ..Default::default()
    };
    let answer = AclServiceClient::new(channel.clone())
        .login(request)
        .await?;
    let token = answer.into_inner().token.unwrap();
    Ok((token.accessor_id, token.secret_id))
}

async fn logout(channel: &Channel, token: &str) -> Result<(), Status> {
    let request = LogoutRequest {
        token: token.to_owned(),
        ..Default::default()
    };
    let answer = AclServiceClient::new(channel.clone()).logout(request).await;
    answer.map(|_| ())
}

/// The status of a request for the bootstrap parameters of a service's sidecar.
async fn bootstrap(channel: &Channel, service: &str, token: &str) -> Code {
    let request = GetEnvoyBootstrapParamsRequest {
        node_spec: Some(NodeSpec::NodeName("vm-1".to_owned())),
        proxy_id: format!("{service}-1-sidecar-proxy"),
        ..Default::default()
    };
    let mut client = DataplaneServiceClient::new(channel.clone());
    let answer = client
        .get_envoy_bootstrap_params(with_token(request, token))
        .await;
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

async fn features(channel: &Channel, token: &str) -> Result<(), Status> {
    let request = with_token(GetSupportedDataplaneFeaturesRequest {}, token);
    let mut client = DataplaneServiceClient::new(channel.clone());
    client
        .get_supported_dataplane_features(request)
        .await
        .map(|_| ())
}

#[tokio::test]
async fn a_login_gives_a_token_for_the_service_until_the_logout() {
    let server = start(deny_by_default).await;
    let signer = TestSigner::generate();
    add_method(&server, &signer, Duration::ZERO).await;
    register(&server, sidecar("web")).await;
    let channel = channel(&server).await;

    let bearer =
        signer.sign(&json!({"aud": "mesh", "exp": now() + 60, "nbf": now(), "service": "web"}));
    let (accessor, secret) = login(&channel, "kubernetes", bearer).await.unwrap();
    features(&channel, &secret).await.unwrap();
    assert_eq!(bootstrap(&channel, "web", &secret).await, Code::Ok);
    let token = server.store().state().read().token_by_accessor(&accessor);
    let token = token.unwrap();
    assert_eq!(token.auth_method, "kubernetes");
    assert_eq!(
        token.description,
        r#"token created via login: {"pod":"web-1"}"#
    );
    assert_eq!(token.service_identities[0].service_name, "web");
    assert!(token.local && token.expiration_time.is_none());

    logout(&channel, &secret).await.unwrap();
    let gone = features(&channel, &secret).await.unwrap_err();
    assert_eq!(gone.code(), Code::Unauthenticated);
    assert!(gone.message().contains("ACL not found"), "{gone}");
    // Logout is idempotent.
    logout(&channel, &secret).await.unwrap();
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn refused_logins_give_a_reason_and_create_no_token() {
    let server = start(deny_by_default).await;
    let signer = TestSigner::generate();
    add_method(&server, &signer, Duration::ZERO).await;
    let channel = channel(&server).await;
    let before = server.store().state().read().tokens().len();
    let sign = |claims: Value| signer.sign(&claims);
    let good = json!({"aud": "mesh", "exp": now() + 60, "service": "web"});
    let nobody = json!({"aud": "mesh", "exp": now() + 60, "service": "nobody"});
    let expired = json!({"aud": "mesh", "exp": now() - 600, "service": "web"});
    let elsewhere = json!({"aud": "other", "exp": now() + 60, "service": "web"});
    let stranger = TestSigner::generate().sign(&good);
    for (method, bearer, code, hint) in [
        (
            "",
            sign(good.clone()),
            Code::InvalidArgument,
            "login-auth-method",
        ),
        (
            "missing",
            sign(good),
            Code::InvalidArgument,
            r#""missing" not found"#,
        ),
        (
            "kubernetes",
            String::new(),
            Code::Unauthenticated,
            "bearer token",
        ),
        (
            "kubernetes",
            "nonsense".to_owned(),
            Code::Unauthenticated,
            "not a JWT",
        ),
        (
            "kubernetes",
            "x".repeat(100_000),
            Code::Unauthenticated,
            "100000 bytes",
        ),
        ("kubernetes", stranger, Code::Unauthenticated, "signature"),
        (
            "kubernetes",
            sign(expired),
            Code::Unauthenticated,
            "expired",
        ),
        (
            "kubernetes",
            sign(elsewhere),
            Code::Unauthenticated,
            "BoundAudiences",
        ),
        (
            "kubernetes",
            sign(nobody),
            Code::PermissionDenied,
            "binding rule",
        ),
    ] {
        let status = login(&channel, method, bearer).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(hint), "{status}");
    }
    assert_eq!(server.store().state().read().tokens().len(), before);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn tenancy_that_does_not_exist_is_refused() {
    let server = start(deny_by_default).await;
    let mut client = AclServiceClient::new(channel(&server).await);
    let at = |namespace: &str, partition: &str, datacenter: &str| LoginRequest {
        auth_method: "kubernetes".to_owned(),
        namespace: namespace.to_owned(),
        partition: partition.to_owned(),
        datacenter: datacenter.to_owned(),
        ..Default::default()
    };
    for (request, hint) in [
        (at("team", "", ""), "namespace"),
        (at("", "team", ""), "partition"),
        (at("default", "default", "dc2"), "dc2"),
        (at("default", "default", "dc1"), "not found"),
    ] {
        let status = client.login(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(hint), "{status}");
    }
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn only_tokens_of_logins_can_be_logged_out() {
    let server = start(deny_by_default).await;
    let channel = channel(&server).await;
    let refused = logout(&channel, MANAGEMENT).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    features(&channel, MANAGEMENT).await.unwrap();
    let empty = logout(&channel, "").await.unwrap_err();
    assert_eq!(empty.code(), Code::InvalidArgument);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_token_has_the_permissions_of_its_identity() {
    let server = start(deny_by_default).await;
    let signer = TestSigner::generate();
    add_method(&server, &signer, Duration::ZERO).await;
    register(&server, sidecar("web")).await;
    let channel = channel(&server).await;
    let bearer = signer.sign(&json!({"aud": "mesh", "exp": now() + 60, "service": "web"}));
    let (_, web) = login(&channel, "kubernetes", bearer).await.unwrap();

    for (token, expected) in [
        (MANAGEMENT, Code::Ok),
        (&web, Code::Ok),
        ("", Code::PermissionDenied),
        ("anonymous", Code::PermissionDenied),
        ("unknown", Code::Unauthenticated),
    ] {
        assert_eq!(
            bootstrap(&channel, "web", token).await,
            expected,
            "{token:?}"
        );
    }
    let domain = server.ca().trust_domain();
    let mut ca = ConnectCaServiceClient::new(channel);
    for (path, token, expected) in [
        ("ns/default/dc/dc1/svc/web", web.as_str(), Code::Ok),
        ("ns/default/dc/dc1/svc/api", &web, Code::PermissionDenied),
        ("agent/server/dc/dc1", &web, Code::PermissionDenied),
        ("gateway/mesh/dc/dc1", &web, Code::PermissionDenied),
        ("agent/server/dc/dc1", MANAGEMENT, Code::Ok),
        ("gateway/mesh/dc/dc1", MANAGEMENT, Code::Ok),
        ("ns/default/dc/dc1/svc/web", "", Code::PermissionDenied),
        (
            "ns/default/dc/dc1/svc/web",
            "unknown",
            Code::Unauthenticated,
        ),
    ] {
        let csr = csr(&[&format!("spiffe://{domain}/{path}")]);
        let signed = ca.sign(with_token(SignRequest { csr }, token)).await;
        let code = signed.map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(code, expected, "{path} {token:?}");
    }
    // The request of a caller without any permission is not decoded.
    let csr = "nonsense".to_owned();
    let refused = ca.sign(with_token(SignRequest { csr }, "")).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn roots_are_sent_to_tokens_that_still_exist() {
    let server = start(deny_by_default).await;
    let signer = TestSigner::generate();
    add_method(&server, &signer, Duration::ZERO).await;
    let channel = channel(&server).await;
    let bearer = signer.sign(&json!({"aud": "mesh", "exp": now() + 60, "service": "web"}));
    let (accessor, web) = login(&channel, "kubernetes", bearer).await.unwrap();
    let mut ca = ConnectCaServiceClient::new(channel);
    let watch = ca.watch_roots(with_token(WatchRootsRequest {}, &web));
    let mut roots = watch.await.unwrap().into_inner();
    roots.message().await.unwrap().unwrap();

    let store = server.store();
    store
        .apply(Command::DeleteToken(TokenKey::Accessor(accessor)))
        .await
        .unwrap();
    let mut changed = CaState::clone(&store.state().read().ca().unwrap());
    Arc::make_mut(&mut changed.roots).active_root_id = "another".to_owned();
    let command = Command::SetCa(Box::new(changed));
    store.apply(command).await.unwrap();
    let end = roots.message().await.unwrap_err();
    assert_eq!(end.code(), Code::Unauthenticated);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn calls_for_any_token_reject_anonymous_callers() {
    let server = start(|config| {
        deny_by_default(config);
        config.acl.default_policy = DefaultPolicy::Allow;
    })
    .await;
    let channel = channel(&server).await;
    for token in ["", "anonymous", "unknown"] {
        let mut statuses = vec![features(&channel, token).await.unwrap_err()];
        let mut servers = ServerDiscoveryServiceClient::new(channel.clone());
        let request = with_token(WatchServersRequest { wan: false }, token);
        statuses.push(servers.watch_servers(request).await.unwrap_err());
        let mut ca = ConnectCaServiceClient::new(channel.clone());
        let request = with_token(WatchRootsRequest {}, token);
        statuses.push(ca.watch_roots(request).await.unwrap_err());
        for status in statuses {
            assert_eq!(status.code(), Code::Unauthenticated);
            let hint = if token == "unknown" {
                "ACL not found"
            } else {
                "x-consul-token"
            };
            assert!(status.message().contains(hint), "{status}");
        }
    }
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn without_acls_tokens_are_neither_required_nor_issued() {
    let server = start(|_| {}).await;
    let channel = channel(&server).await;
    features(&channel, "").await.unwrap();
    features(&channel, "unknown").await.unwrap();
    let refused = login(&channel, "kubernetes", "x".to_owned())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "ACL support disabled");
    let refused = logout(&channel, "x").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_token_ends_with_its_time() {
    let start = UNIX_EPOCH + Duration::from_secs(NOW);
    let parts = Parts {
        clock: Clock::at(start),
        ..Parts::default()
    };
    let server = Running::start(grpc_only(), deny_by_default, parts).await;
    let server = server.unwrap();
    let signer = TestSigner::generate();
    add_method(&server, &signer, Duration::from_secs(60)).await;
    let channel = channel(&server).await;
    let bearer = signer.sign(&json!({"aud": "mesh", "exp": NOW + 60, "service": "web"}));
    let (accessor, secret) = login(&channel, "kubernetes", bearer).await.unwrap();
    features(&channel, &secret).await.unwrap();

    let state = server.store().state();
    let txn = state.read();
    txn.tokens();
    let mut tokens = server.store().watch(&txn.into_reads());
    drop(state);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    let refused = features(&channel, &secret).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    while server
        .store()
        .state()
        .read()
        .token_by_accessor(&accessor)
        .is_some()
    {
        tokens.changed().await;
    }
    features(&channel, MANAGEMENT).await.unwrap();
    server.stop(STOP).await.unwrap();
}
