//! The CA with a real Vault as provider: verifies `docs/certificates.md`, including the policy in that
//! document.

use std::fmt::Write;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use legate_identity::tls::verify_server;
use legate_identity::{CertificateInfo, split_certificates};
use legate_server::{Parts, Server, ServerConfig, StoreConfig};
use legate_tests::interop::vault;
use legate_tests::wait::{LIMIT, eventually_within};
use legate_tests::{client, eventually};
use regex::Regex;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

const DOCUMENT: &str = include_str!("../../docs/certificates.md");
const ROOT_TOKEN: &str = "root";
const CONFIGURATION: &str = "/v1/connect/ca/configuration";
const STOP: Duration = Duration::from_secs(10);

/// The permissions required for the first root in Vault, with their requests.
const NEEDED_AT_ONCE: [(&str, &str); 11] = [
    ("auth/token/lookup-self", "GET"),
    ("sys/mounts/connect-root", "POST"),
    ("sys/mounts/connect-intermediate", "POST"),
    ("connect-root/ca/pem", "GET"),
    ("connect-root/root/generate/internal", "POST"),
    ("connect-root/root/sign-intermediate", "POST"),
    ("connect-intermediate/ca/pem", "GET"),
    ("connect-intermediate/roles/leaf-cert", "POST"),
    (
        "connect-intermediate/intermediate/generate/internal",
        "POST",
    ),
    ("connect-intermediate/intermediate/set-signed", "POST"),
    ("connect-intermediate/config/issuers", "GET"),
];

/// A Vault in development mode. Dropping it kills the process.
struct Vault {
    address: SocketAddr,
    _process: Child,
}

impl Vault {
    /// Starts a Vault on an address of its own; `None` if these scenarios are disabled.
    async fn start(ip: &str) -> Option<Self> {
        let program = vault()?;
        let address: SocketAddr = format!("{ip}:8200").parse().expect("an address");
        let process = Command::new(program)
            .args(["server", "-dev", "-dev-no-store-token"])
            .arg(format!("-dev-root-token-id={ROOT_TOKEN}"))
            .arg(format!("-dev-listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let vault = Self {
            address,
            _process: process.expect("Vault can be started"),
        };
        let health = || async move {
            let answer = client::get(address, "/v1/sys/health").await;
            answer.is_ok_and(|(status, _)| status.is_success())
        };
        eventually_within(LIMIT * 2, "Vault is ready", health, |ready| *ready).await;
        Some(vault)
    }

    /// Sends a request with the root token.
    async fn ask(&self, method: Method, path: &str, body: &Value) -> Value {
        let request = Request::builder()
            .method(method.clone())
            .uri(format!("/v1/{path}"))
            .header("host", self.address.to_string())
            .header("x-vault-token", ROOT_TOKEN)
            .body(Full::new(Bytes::from(body.to_string())));
        let answer = client::ask(self.address, request.expect("a request")).await;
        let answer = answer.expect("an answer");
        let text = String::from_utf8_lossy(answer.body());
        assert!(answer.status().is_success(), "{method} {path}: {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    async fn write(&self, path: &str, body: Value) -> Value {
        self.ask(Method::POST, path, &body).await
    }

    /// Writes a policy, replacing an existing one.
    async fn policy(&self, name: &str, policy: &str) {
        let path = format!("sys/policies/acl/{name}");
        self.write(&path, json!({ "policy": policy })).await;
    }

    /// A token with only this policy, and its accessor.
    async fn token(&self, policy: &str, ttl: &str) -> (String, String) {
        let asked = json!({ "policies": [policy], "no_default_policy": true, "ttl": ttl });
        let made = self.write("auth/token/create", asked).await;
        let field = |name| made["auth"][name].as_str().expect("a text").to_owned();
        (field("client_token"), field("accessor"))
    }

    async fn has_mount(&self, path: &str) -> bool {
        let mounts = self.ask(Method::GET, "sys/mounts", &Value::Null).await;
        mounts["data"][format!("{path}/")].is_object()
    }

    /// The configuration of a CA; `more` replaces or adds fields.
    fn configuration(&self, token: &str, more: &Value) -> Value {
        let mut config = json!({
            "Address": format!("http://{}", self.address),
            "Token": token,
            "RootPKIPath": "connect-root",
            "IntermediatePKIPath": "connect-intermediate",
        });
        let more = more.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(more);
        json!({ "Provider": "vault", "Config": config })
    }
}

/// The paths of the document's policy with their capabilities.
fn rights() -> Vec<(String, String)> {
    let (_, policy) = DOCUMENT.split_once("```hcl\n").expect("there is a policy");
    let (policy, _) = policy.split_once("```").expect("it ends");
    let line = Regex::new(r#"(?m)^path "([^"]+)" (\{.*\})$"#).expect("an expression");
    let found = line.captures_iter(policy);
    found
        .map(|found| (found[1].to_owned(), found[2].to_owned()))
        .collect()
}

/// The document's policy without one path, for mounts with a numeric suffix.
fn policy_without(missing: &str, mounts: usize) -> String {
    let mut policy = String::new();
    for (path, allowed) in rights() {
        if path != missing {
            let path = numbered(&path, mounts);
            writeln!(policy, "path \"{path}\" {allowed}").expect("a text grows");
        }
    }
    policy
}

fn numbered(path: &str, mounts: usize) -> String {
    let root = path.replace("connect-root", &format!("connect-root-{mounts}"));
    root.replace(
        "connect-intermediate",
        &format!("connect-intermediate-{mounts}"),
    )
}

/// Additional configuration, with mounts with a numeric suffix.
fn on_mounts(mounts: usize, mut more: Value) -> Value {
    more["RootPKIPath"] = numbered("connect-root", mounts).into();
    more["IntermediatePKIPath"] = numbered("connect-intermediate", mounts).into();
    more
}

/// A server in this process with in-memory state.
async fn server(change: impl FnOnce(&mut ServerConfig)) -> Server {
    let mut config = ServerConfig {
        http: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        grpc: None,
        grpc_tls: None,
        dns: None,
        store: StoreConfig::Memory,
        ..ServerConfig::default()
    };
    change(&mut config);
    let server = Server::start(config, Parts::default()).await;
    server.expect("the server starts")
}

async fn send(server: &Server, method: Method, path: &str, body: &Value) -> client::Answer {
    let address = server.http_addr().expect("HTTP is served");
    let body = (!body.is_null()).then_some(body);
    let sent = client::send(method, address, path, None, body);
    sent.await.expect("an answer")
}

async fn configure(server: &Server, configuration: &Value) {
    let (status, text) = send(server, Method::PUT, CONFIGURATION, configuration).await;
    assert_eq!(status, StatusCode::OK, "{text}");
}

/// The reason why a configuration is refused.
async fn refused(server: &Server, configuration: &Value) -> String {
    let before = active_root(server).await;
    let (status, text) = send(server, Method::PUT, CONFIGURATION, configuration).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
    assert_eq!(active_root(server).await, before, "{text}");
    text
}

/// The active root, as PEM.
async fn active_root(server: &Server) -> String {
    let path = "/v1/connect/ca/roots";
    let (_, text) = send(server, Method::GET, path, &Value::Null).await;
    let roots: Value = serde_json::from_str(&text).expect("JSON");
    let all = roots["Roots"].as_array().expect("a list");
    let active = all.iter().find(|root| root["Active"] == true);
    let active = active.expect("one is active");
    active["RootCert"].as_str().expect("a text").to_owned()
}

/// A leaf with its intermediates.
async fn chain(server: &Server) -> Result<String, String> {
    let issued = server.ca().issue_server(&[], &[]).await;
    issued
        .map(|issued| issued.cert_pem)
        .map_err(|error| error.to_string())
}

/// Whether a client that trusts only `root` accepts a chain.
fn accepts(root: &str, chain: &str) -> bool {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let chain = chain.expect("certificates");
    let (name, now) = ("server.dc1.consul", SystemTime::now());
    verify_server(&chain, root, "the root", name, now).is_ok()
}

#[tokio::test]
async fn a_mesh_begins_with_vault_and_renews_its_token() {
    let Some(vault) = Vault::start("127.0.77.41").await else {
        return;
    };
    let (policy, lifetime) = ("first", Duration::from_secs(12));
    let rights = policy_without("", 1);
    vault.policy(policy, &rights).await;
    let (token, accessor) = vault.token(policy, "12s").await;
    let asked = vault.configuration(&token, &on_mounts(1, json!({})));
    let server = server(|config| {
        config.ca.provider = "vault".to_owned();
        config.ca.more.0 = asked["Config"].as_object().expect("an object").clone();
    })
    .await;
    let root = active_root(&server).await;
    let pem = chain(&server).await.expect("a leaf");
    assert!(accepts(&root, &pem));
    let [leaf, intermediate] = &split_certificates(&pem).expect("certificates")[..] else {
        panic!("{pem}");
    };
    let (leaf, intermediate) = (
        CertificateInfo::from_pem(leaf).expect("a certificate"),
        CertificateInfo::from_pem(intermediate).expect("a certificate"),
    );
    assert!(!leaf.is_ca && intermediate.is_ca);
    let lives = leaf.not_after.duration_since(leaf.not_before);
    let hours = lives.expect("it has a lifetime").as_secs() / 3600;
    assert_eq!(hours, 72, "Consul's LeafCertTTL");
    let (_, leaf) = send(
        &server,
        Method::GET,
        "/v1/agent/connect/ca/leaf/web",
        &Value::Null,
    )
    .await;
    let leaf: Value = serde_json::from_str(&leaf).expect("JSON");
    assert_eq!(leaf["Service"], "web");

    let about = || async {
        let body = json!({ "accessor": accessor });
        let path = "auth/token/lookup-accessor";
        vault.write(path, body).await["data"].clone()
    };
    let made = about().await["creation_time"].as_u64().expect("a time");
    let made = SystemTime::UNIX_EPOCH + Duration::from_secs(made);
    let outlived = |_: &Value| made.elapsed().is_ok_and(|age| age > lifetime * 3 / 2);
    // Vault forgets an expired token and would refuse this request.
    let known = eventually("the token outlives its first lifetime", about, outlived).await;
    assert!(known["last_renewal"].is_string(), "{known}");
    chain(&server).await.expect("a leaf");

    // Vault would sign with a different key, as after an incomplete change.
    let path = "connect-intermediate-1/root/generate/internal";
    let other = vault.write(path, json!({ "common_name": "other" })).await;
    let default = json!({ "default": other["data"]["issuer_id"] });
    vault
        .write("connect-intermediate-1/config/issuers", default)
        .await;
    let error = chain(&server).await.expect_err("it is not under the root");
    assert!(error.contains("not signed by the root"), "{error}");
    let mended = || chain(&server);
    let pem = eventually("there is another intermediate", mended, Result::is_ok).await;
    assert!(accepts(&root, &pem.expect("just seen")));
    server.stop(STOP).await.expect("the server stops");
}

#[tokio::test]
async fn trust_is_kept_on_the_way_to_vault_to_another_root_and_back() {
    let Some(vault) = Vault::start("127.0.77.42").await else {
        return;
    };
    let server = server(|_| {}).await;
    let built_in = active_root(&server).await;
    configure(&server, &vault.configuration(ROOT_TOKEN, &json!({}))).await;
    let first = active_root(&server).await;
    let pem = chain(&server).await.expect("a leaf");
    assert!(accepts(&built_in, &pem) && accepts(&first, &pem));

    // The same mount signs leaves, under a root with another key type.
    let more = json!({
        "RootPKIPath": "second-root", "PrivateKeyType": "rsa", "PrivateKeyBits": 2048,
    });
    configure(&server, &vault.configuration(ROOT_TOKEN, &more)).await;
    let second = active_root(&server).await;
    let kind = CertificateInfo::from_pem(&second).expect("a certificate");
    assert_eq!((kind.key_type, kind.key_bits), ("rsa", 2048));
    let pem = chain(&server).await.expect("a leaf");
    assert!(accepts(&first, &pem) && accepts(&second, &pem));
    assert!(
        !accepts(&built_in, &pem),
        "only the root before has signed the new one"
    );

    let back = json!({ "Provider": "consul", "Config": {} });
    configure(&server, &back).await;
    let last = active_root(&server).await;
    let pem = chain(&server).await.expect("a leaf");
    assert!(accepts(&second, &pem) && accepts(&last, &pem));
    assert!(!vault.has_mount("connect-intermediate").await);
    assert!(vault.has_mount("connect-root").await && vault.has_mount("second-root").await);
    server.stop(STOP).await.expect("the server stops");
}

#[tokio::test]
async fn an_intermediate_is_replaced_and_the_old_one_removed() {
    let Some(vault) = Vault::start("127.0.77.43").await else {
        return;
    };
    let server = server(|_| {}).await;
    vault.policy("legate", &policy_without("", 1)).await;
    let (token, _) = vault.token("legate", "10m").await;
    let ttls = |leaf: &str| {
        // Vault backdates certificates by half a minute, which is half of such a lifetime.
        let more = json!({
            "SkipValidate": true, "LeafCertTTL": leaf, "IntermediateCertTTL": "20s",
        });
        vault.configuration(&token, &on_mounts(1, more))
    };
    let issuers = || async {
        let path = "connect-intermediate-1/config/issuers";
        let known = vault.ask(Method::GET, path, &Value::Null).await;
        let path = "connect-intermediate-1/keys?list=true";
        let list = vault.ask(Method::GET, path, &Value::Null).await;
        let keys = list["data"]["keys"].as_array().map(Vec::len);
        (known["data"]["default"].clone(), keys)
    };
    configure(&server, &ttls("2s")).await;
    let (first, keys) = issuers().await;
    assert_eq!(keys, Some(1));
    let root = active_root(&server).await;
    configure(&server, &ttls("3s")).await;
    let (second, keys) = issuers().await;
    assert!(
        first != second && keys == Some(1),
        "{first} {second} {keys:?}"
    );
    assert_eq!(active_root(&server).await, root);
    let pem = chain(&server).await.expect("a leaf");
    assert!(accepts(&root, &pem));
    server.stop(STOP).await.expect("the server stops");
}

#[tokio::test]
async fn the_documented_rights_are_enough_and_each_that_is_missing_is_named() {
    let Some(vault) = Vault::start("127.0.77.44").await else {
        return;
    };
    let server = server(|_| {}).await;
    let built_in = active_root(&server).await;
    let configuration =
        |token: &str, mounts: usize| vault.configuration(token, &on_mounts(mounts, json!({})));
    for (mounts, (missing, method)) in NEEDED_AT_ONCE.into_iter().enumerate() {
        vault.policy("less", &policy_without(missing, mounts)).await;
        let (token, _) = vault.token("less", "10m").await;
        let text = refused(&server, &configuration(&token, mounts)).await;
        let path = numbered(missing, mounts);
        let expected = format!("Vault answers 403 Forbidden to {method} {path}: ");
        assert!(text.contains(&expected), "without {path}: {text}");
        assert!(!text.contains(&token), "{text}");
    }

    // The state left by the last attempt is found again.
    let mounts = NEEDED_AT_ONCE.len() - 1;
    vault.policy("enough", &policy_without("", mounts)).await;
    let (token, _) = vault.token("enough", "10m").await;
    configure(&server, &configuration(&token, mounts)).await;
    let root = active_root(&server).await;
    let pem = chain(&server).await.expect("a leaf");
    assert!(accepts(&root, &pem) && accepts(&built_in, &pem));

    let missing = "connect-intermediate/sign/leaf-cert";
    vault
        .policy("enough", &policy_without(missing, mounts))
        .await;
    let error = chain(&server).await.expect_err("it may not");
    assert!(error.contains(&numbered(missing, mounts)), "{error}");

    // Another root with the same intermediate: if that fails, leaves are unaffected.
    let missing = "connect-root/root/sign-self-issued";
    vault
        .policy("enough", &policy_without(missing, mounts))
        .await;
    let mut other = configuration(ROOT_TOKEN, mounts);
    other["Config"]["RootPKIPath"] = json!("other-root");
    for next in [other, json!({ "Provider": "consul", "Config": {} })] {
        let text = refused(&server, &next).await;
        assert!(text.contains(&numbered(missing, mounts)), "{text}");
        let pem = chain(&server).await.expect("a leaf");
        assert!(accepts(&root, &pem));
    }

    vault.policy("enough", &policy_without("", mounts)).await;
    let back = json!({ "Provider": "consul", "Config": {} });
    configure(&server, &back).await;
    assert!(accepts(&root, &chain(&server).await.expect("a leaf")));
    let intermediate = numbered("connect-intermediate", mounts);
    assert!(!vault.has_mount(&intermediate).await);
    server.stop(STOP).await.expect("the server stops");
}

#[tokio::test]
async fn a_login_is_repeated_when_its_token_is_revoked() {
    let Some(vault) = Vault::start("127.0.77.45").await else {
        return;
    };
    vault.policy("legate", &policy_without("", 1)).await;
    vault
        .write("sys/auth/approle", json!({ "type": "approle" }))
        .await;
    let role = json!({ "token_policies": "legate", "token_ttl": "10m" });
    vault.write("auth/approle/role/legate", role).await;
    let path = "auth/approle/role/legate/role-id";
    let role = vault.ask(Method::GET, path, &Value::Null).await["data"]["role_id"].clone();
    let path = "auth/approle/role/legate/secret-id";
    let secret = vault.write(path, json!({})).await["data"]["secret_id"].clone();
    let more = json!({ "AuthMethod": {
        "Type": "approle", "Params": { "role_id": role, "secret_id": secret },
    }});
    let more = on_mounts(1, more);
    let server = server(|_| {}).await;
    configure(&server, &vault.configuration("", &more)).await;
    let root = active_root(&server).await;
    assert!(accepts(&root, &chain(&server).await.expect("a leaf")));
    let revoke = vault.write("sys/leases/revoke-prefix/auth/approle/login", json!({}));
    revoke.await;
    assert!(accepts(&root, &chain(&server).await.expect("a leaf")));
    server.stop(STOP).await.expect("the server stops");
}
