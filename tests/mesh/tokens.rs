//! Intentions that require JSON Web Tokens, with real tokens and real Envoys.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::Method;
use legate_testkit::jwt::TestSigner;
use legate_tests::client::{self, Answer};
use legate_tests::{Mesh, MeshOptions, Sidecar, eventually};
use serde_json::{Value, json};

use crate::{API, WEB};

pub(crate) const ISSUER: &str = "https://okta.example/";
/// The year 2096.
pub(crate) const LATER: u64 = 4_000_000_000;

/// `web`, which calls `api`, with an issuer of tokens.
pub(crate) struct Scenario {
    pub(crate) mesh: Mesh,
    pub(crate) sidecars: Vec<Sidecar>,
    pub(crate) signer: TestSigner,
}

impl Scenario {
    pub(crate) async fn start(options: MeshOptions) -> Self {
        let mut mesh = Mesh::start(options).await;
        let sidecars = vec![mesh.add(&API).await, mesh.add(&WEB).await];
        let signer = TestSigner::generate();
        Self {
            mesh,
            sidecars,
            signer,
        }
    }

    pub(crate) async fn write(&self, entry: Value) {
        self.mesh.api(Method::PUT, "/v1/config", Some(entry)).await;
    }

    pub(crate) fn key_set(&self) -> Value {
        json!({"keys": [self.signer.public_jwk("k1")]})
    }

    /// Writes the provider `okta` with the scenario's key and additional fields.
    pub(crate) async fn provider(&self, more: Value) {
        let keys = STANDARD.encode(self.key_set().to_string());
        let mut entry = json!({
            "Kind": "jwt-provider", "Name": "okta", "Issuer": ISSUER,
            "JSONWebKeySet": {"Local": {"JWKS": keys}},
        });
        extend(&mut entry, more);
        self.write(entry).await;
    }

    /// Writes the intentions of `api` with `web` as the only source. If they require tokens, returns
    /// after the listener verifies them, so that no earlier connection remains.
    pub(crate) async fn intend(&self, source: Value, jwt: Option<Value>) {
        let mut source = source;
        source["Name"] = json!("web");
        let mut entry = json!({"Kind": "service-intentions", "Name": "api", "Sources": [source]});
        if let Some(jwt) = jwt {
            entry["JWT"] = jwt;
        }
        let asks = entry.to_string().contains("\"JWT\"");
        self.write(entry).await;
        if asks {
            let admin = self.sidecars[0].admin();
            let listeners = || client::get(admin, "/config_dump?resource=dynamic_listeners");
            let verifies = |answer: &Result<Answer, _>| match answer {
                Ok((_, text)) => text.contains("jwt_authn") && !text.contains("warming_state"),
                Err(_) => false,
            };
            drop(eventually("the listener verifies tokens", listeners, verifies).await);
        }
    }

    /// A valid token with changed claims.
    pub(crate) fn token(&self, changes: Value) -> String {
        let mut claims = json!({"iss": ISSUER, "aud": "mesh", "exp": LATER, "sub": "ada"});
        extend(&mut claims, changes);
        self.signer.sign_as("k1", &claims)
    }

    pub(crate) async fn ask(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = format!("GET {path} HTTP/1.1\r\nhost: api\r\nconnection: close\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        let answer = client::raw(self.mesh.upstream("web", 0), &request).await;
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub(crate) async fn bearer(&self, path: &str, token: &str) -> u16 {
        let value = format!("Bearer {token}");
        let (status, _) = self.ask(path, &[("authorization", &value)]).await;
        status.as_u16()
    }

    /// Waits until a request gets this status.
    pub(crate) async fn settle(&self, path: &str, headers: &[(&str, &str)], status: u16) {
        let what = format!("{path} is answered with {status}");
        let is = |answer: &Answer| answer.0.as_u16() == status;
        eventually(&what, || self.ask(path, headers), is).await;
    }

    pub(crate) async fn stop(self) {
        for mut sidecar in self.sidecars {
            assert!(sidecar.stop().await.success(), "{}", sidecar.log());
        }
        self.mesh.stop().await;
    }
}

fn extend(base: &mut Value, more: Value) {
    if let (Value::Object(base), Value::Object(more)) = (base, more) {
        base.extend(more);
    }
}

pub(crate) fn required(claims: Value) -> Value {
    json!({"Providers": [{"Name": "okta", "VerifyClaims": claims}]})
}

fn seen(answer: &Answer) -> Value {
    let body = answer.1.trim_start_matches(|c: char| c != '{');
    let end = body.rfind('}').map_or(0, |at| at + 1);
    serde_json::from_str(&body[..end]).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_valid_token_is_refused() {
    let mesh = Scenario::start(MeshOptions::default()).await;
    mesh.provider(json!({
        "Audiences": ["mesh"], "CacheConfig": {"Size": 10},
        "Forwarding": {"HeaderName": "x-claims"},
    }))
    .await;
    mesh.intend(json!({"Action": "allow"}), Some(required(json!([]))))
        .await;
    let good = mesh.token(json!({}));
    let value = format!("Bearer {good}");
    mesh.settle("/", &[("authorization", &value)], 200).await;

    // The application receives the claims and not the token; clients cannot forge that header.
    let answer = mesh
        .ask("/", &[("authorization", &value), ("x-claims", "forged")])
        .await;
    let headers = seen(&answer)["headers"].clone();
    assert_eq!(headers.get("authorization"), None, "{headers}");
    let claims = URL_SAFE_NO_PAD
        .decode(headers["x-claims"].as_str().expect("a header"))
        .expect("base64");
    let claims: Value = serde_json::from_slice(&claims).expect("JSON");
    assert_eq!(claims["sub"], "ada");

    let (status, _) = mesh.ask("/", &[]).await;
    assert_eq!(status.as_u16(), 403);
    let stranger = TestSigner::generate();
    let claims = json!({"iss": ISSUER, "aud": "mesh", "exp": LATER});
    for (why, bad) in [
        ("expired", mesh.token(json!({"exp": 1_000_000_000}))),
        ("not yet", mesh.token(json!({"nbf": LATER}))),
        ("for others", mesh.token(json!({"aud": "shop"}))),
        ("for nobody", mesh.token(json!({"aud": []}))),
        (
            "by another issuer",
            mesh.token(json!({"iss": "https://evil.example/"})),
        ),
        ("with another key", stranger.sign_as("k1", &claims)),
        ("cut", good[..good.len() - 2].to_owned()),
        ("no token", "x.y.z".to_owned()),
    ] {
        assert_eq!(mesh.bearer("/", &bad).await, 403, "{why}");
    }
    // One of several audiences matches.
    let several = mesh.token(json!({"aud": ["shop", "mesh"]}));
    assert_eq!(mesh.bearer("/", &several).await, 200);
    assert_eq!(mesh.bearer("/", &good).await, 200);
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_claims_apply_to_open_connections() {
    let mut mesh = Scenario::start(MeshOptions::default()).await;
    mesh.provider(json!({})).await;
    let role = |value: &str| required(json!([{"Path": ["perms", "role"], "Value": value}]));
    mesh.intend(json!({"Action": "allow"}), Some(role("admin")))
        .await;
    let admin = mesh.token(json!({"perms": {"role": "admin"}}));
    let value = format!("Bearer {admin}");
    mesh.settle("/", &[("authorization", &value)], 200).await;
    for (claims, status) in [
        (json!({"perms": {"role": "guest"}}), 403),
        (json!({"perms": {"role": ["guest", "admin"]}}), 200),
        (json!({"perms": {"role": ["guest"]}}), 403),
        (json!({"perms": {"role": {"admin": "admin"}}}), 403),
        (json!({"perms": "admin"}), 403),
        (json!({"role": "admin"}), 403),
        (json!({}), 403),
    ] {
        let token = mesh.token(claims.clone());
        assert_eq!(mesh.bearer("/", &token).await, status, "{claims}");
    }
    // Changed claims affect routes only: the listener and its connections stay.
    let public = format!(
        "listener.{}_20000.downstream_cx_total",
        mesh.sidecars[0].address
    );
    let drained = "listener_manager.total_listeners_draining";
    let modified = mesh.sidecars[0]
        .stat("listener_manager.listener_modified")
        .await;
    let connections = mesh.sidecars[0].stat(&public).await;
    for _ in 0..2 {
        mesh.intend(json!({"Action": "allow"}), Some(role("owner")))
            .await;
        mesh.settle("/", &[("authorization", &value)], 403).await;
        mesh.intend(json!({"Action": "allow"}), Some(role("admin")))
            .await;
        mesh.settle("/", &[("authorization", &value)], 200).await;
    }
    assert_eq!(
        mesh.sidecars[0]
            .stat("listener_manager.listener_modified")
            .await,
        modified
    );
    assert_eq!(mesh.sidecars[0].stat(drained).await, 0);
    assert!(connections > 0);
    // Without the requirement no token is needed, and the provider can be deleted.
    mesh.intend(json!({"Action": "allow"}), None).await;
    mesh.settle("/", &[], 200).await;
    mesh.mesh
        .api(Method::DELETE, "/v1/config/jwt-provider/okta", None)
        .await;
    mesh.settle("/", &[], 200).await;
    mesh.sidecars[0].ready().await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_read_from_the_providers_locations() {
    let mesh = Scenario::start(MeshOptions::default()).await;
    mesh.provider(json!({
        "Issuer": "",
        "Locations": [
            {"Header": {"Name": "X-Token", "ValuePrefix": "JWT ", "Forward": true}},
            {"QueryParam": {"Name": "token"}},
            {"Cookie": {"Name": "session"}},
        ],
        "Forwarding": {"HeaderName": "x-claims", "PadForwardPayloadHeader": true},
    }))
    .await;
    mesh.intend(json!({"Action": "allow"}), Some(required(json!([]))))
        .await;
    // Without an issuer, any token signed with the key is valid.
    let token = mesh.token(json!({"iss": "anybody"}));
    let nameless = mesh.signer.sign_as("k1", &json!({"exp": LATER}));
    let header = format!("JWT {token}");
    mesh.settle("/", &[("x-token", &header)], 200).await;
    let answer = mesh.ask("/", &[("x-token", &header)]).await;
    let headers = seen(&answer)["headers"].clone();
    assert_eq!(headers["x-token"], header, "it is forwarded");
    let padded = headers["x-claims"].as_str().expect("a header").len();
    assert_eq!(padded % 4, 0, "{headers}");

    let cookie = format!("theme=dark; session={token}");
    let bearer = format!("Bearer {token}");
    for (path, headers, status) in [
        (format!("/?token={token}"), vec![], 200),
        (format!("/?token={nameless}"), vec![], 200),
        ("/".to_owned(), vec![("cookie", cookie.as_str())], 200),
        (
            "/".to_owned(),
            vec![("authorization", bearer.as_str())],
            403,
        ),
        (format!("/?access_token={token}"), vec![], 403),
        ("/".to_owned(), vec![("x-token", token.as_str())], 403),
    ] {
        let (answered, _) = mesh.ask(&path, &headers).await;
        assert_eq!(answered.as_u16(), status, "{path} {headers:?}");
    }
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permission_can_require_a_different_token() {
    for allow in [false, true] {
        let mesh = Scenario::start(MeshOptions {
            allow,
            ..MeshOptions::default()
        })
        .await;
        mesh.provider(json!({})).await;
        let admin = required(json!([{"Path": ["role"], "Value": "admin"}]));
        let permissions = json!([
            {"Action": "deny", "HTTP": {"PathPrefix": "/secret"}},
            {"Action": "allow", "HTTP": {"PathPrefix": "/admin"}, "JWT": admin},
            {"Action": "allow", "HTTP": {"PathPrefix": "/public"}},
            {"Action": "allow", "HTTP": {"PathPrefix": "/"}, "JWT": required(json!([]))},
        ]);
        mesh.intend(json!({"Permissions": permissions}), None).await;
        let admin = mesh.token(json!({"role": "admin"}));
        let guest = mesh.token(json!({"role": "guest"}));
        mesh.settle("/secret", &[], 403).await;
        let value = format!("Bearer {admin}");
        mesh.settle("/admin", &[("authorization", &value)], 200)
            .await;
        for (path, none, as_guest, as_admin) in [
            ("/admin", 403, 403, 200),
            ("/admin/x", 403, 403, 200),
            ("/./admin", 403, 403, 200),
            ("/public/../admin", 403, 403, 200),
            ("/%61dmin", 403, 403, 200),
            ("/public", 200, 200, 200),
            ("/other", 403, 200, 200),
            ("/secret", 403, 403, 403),
        ] {
            let (status, _) = mesh.ask(path, &[]).await;
            assert_eq!(status.as_u16(), none, "{path}");
            assert_eq!(mesh.bearer(path, &guest).await, as_guest, "{path}");
            assert_eq!(mesh.bearer(path, &admin).await, as_admin, "{path}");
        }
        // The requirement of all requests applies in addition.
        let permissions = json!([{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]);
        mesh.intend(
            json!({"Permissions": permissions}),
            Some(required(json!([]))),
        )
        .await;
        mesh.settle("/public", &[], 403).await;
        assert_eq!(mesh.bearer("/public", &guest).await, 200);
        mesh.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_one_of_several_providers_is_enough() {
    let mesh = Scenario::start(MeshOptions::default()).await;
    mesh.provider(json!({})).await;
    let corp = TestSigner::generate();
    let keys = json!({"keys": [corp.public_jwk("k1")]});
    mesh.write(json!({
        "Kind": "jwt-provider", "Name": "corp", "Issuer": "corp",
        "JSONWebKeySet": {"Local": {"JWKS": STANDARD.encode(keys.to_string())}},
    }))
    .await;
    let admin = json!([{"Path": ["role"], "Value": "admin"}]);
    let either = json!({"Providers": [
        {"Name": "corp"}, {"Name": "okta", "VerifyClaims": admin},
    ]});
    mesh.intend(json!({"Action": "allow"}), Some(either)).await;
    let of_corp = |issuer: &str| corp.sign_as("k1", &json!({"iss": issuer, "exp": LATER}));
    let value = format!("Bearer {}", of_corp("corp"));
    mesh.settle("/", &[("authorization", &value)], 200).await;
    for (why, token, status) in [
        (
            "the claim of the one",
            mesh.token(json!({"role": "admin"})),
            200,
        ),
        ("no claim", mesh.token(json!({})), 403),
        ("the issuer of the other", of_corp(ISSUER), 403),
        (
            "the other's claims",
            mesh.token(json!({"iss": "corp"})),
            403,
        ),
    ] {
        assert_eq!(mesh.bearer("/", &token).await, status, "{why}");
    }
    mesh.stop().await;
}
