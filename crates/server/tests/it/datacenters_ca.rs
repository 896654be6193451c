//! The CA of a secondary datacenter: real servers, whose CAs follow each other over TLS.

use std::time::{Duration, SystemTime};

use http::{Method, StatusCode};
use legate_identity::{CertificateInfo, split_certificates, verify_chain};
use legate_model::Secret;
use legate_server::{AclConfig, DefaultPolicy, ServerConfig};
use legate_testkit::certs::TestCa;
use legate_testkit::wait::until;
use serde_json::{Value, json};

use crate::datacenters::{join, of_datacenter};
use crate::fake_vault::FakeVault;
use crate::http_client::{Client, config, start};
use crate::running::Running;

const PATIENCE: Duration = Duration::from_secs(10);
const CONFIGURATION: &str = "/v1/connect/ca/configuration";
const ROOTS: &str = "/v1/connect/ca/roots";
const MANAGEMENT: &str = "5c8e9a0e-8d0e-4a57-9f1e-2f3a3c1f5b11";

/// A server of dc2, whose primary is dc1.
fn secondary(ca: &TestCa) -> impl FnOnce(&mut ServerConfig) {
    let change = of_datacenter(ca, "dc2");
    move |config| {
        change(config);
        config.primary_datacenter = Some("dc1".to_owned());
    }
}

async fn roots(client: &Client) -> Value {
    let reply = client.get(ROOTS).await;
    match reply.status {
        StatusCode::OK => reply.json(),
        _ => Value::Null,
    }
}

fn active(roots: &Value) -> &Value {
    let all = roots["Roots"].as_array().unwrap();
    all.iter().find(|root| root["Active"] == true).unwrap()
}

/// Waits until the active root is another than `old`, and returns all roots.
async fn roots_after(client: &Client, old: &Value) -> Value {
    until(async || {
        let roots = roots(client).await;
        match !roots.is_null() && roots["ActiveRootID"] != *old {
            true => Ok(roots),
            false => Err(problem(client).await),
        }
    })
    .await
}

/// The certificate of a service, with its chain.
async fn leaf(client: &Client, service: &str) -> String {
    let path = format!("/v1/agent/connect/ca/leaf/{service}");
    let leaf = client.get(&path).await.json();
    leaf["CertPEM"].as_str().unwrap().to_owned()
}

fn verify(chain: &str, root: &Value) {
    let root = root["RootCert"].as_str().unwrap();
    verify_chain(chain, root, SystemTime::now()).unwrap();
}

/// Waits until this is what does not work.
async fn until_problem(client: &Client, is_it: impl Fn(&str) -> bool) {
    until(async || {
        let problem = problem(client).await;
        is_it(&problem).then_some(()).ok_or(problem)
    })
    .await;
}

/// What does not work with the CA of a server, by its status.
async fn problem(client: &Client) -> String {
    let status = client.get("/v1/internal/legate/status").await.json();
    let problems = status["Problems"].as_array().unwrap();
    let of_ca = problems
        .iter()
        .find(|one| one["What"] == "certificate authority");
    let reason = of_ca.and_then(|one| one["Reason"].as_str());
    reason.unwrap_or_default().to_owned()
}

async fn stop(servers: impl IntoIterator<Item = Running>) {
    for server in servers {
        server.stop(PATIENCE).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_of_a_secondary_are_valid_under_the_roots_of_the_primary() {
    let ca = TestCa::new();
    // The secondary starts first, and has no CA.
    let (two, other) = start(secondary(&ca)).await;
    let missing = other.get(ROOTS).await;
    assert_eq!(missing.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        other.send(Method::PUT, "/v1/kv/a", "x").await.json(),
        json!(true),
        "it serves what needs no CA"
    );
    until_problem(&other, |problem| problem.contains("No path to datacenter")).await;
    let (one, client) = start(of_datacenter(&ca, "dc1")).await;
    join(&client, &two).await;
    let theirs = roots_after(&other, &Value::Null).await;
    until_problem(&other, str::is_empty).await;
    let own = roots(&client).await;
    for field in ["ActiveRootID", "TrustDomain"] {
        assert_eq!(theirs[field], own[field]);
    }
    let (root, at) = (active(&own), active(&theirs));
    assert_eq!(root["RootCert"], at["RootCert"]);
    assert_eq!(root["IntermediateCerts"], json!([]));
    let intermediate = at["IntermediateCerts"][0].as_str().unwrap();
    let info = CertificateInfo::from_pem(intermediate).unwrap();
    assert_eq!(at["SigningKeyID"], json!(info.subject_key_id));
    let (first, second) = (leaf(&client, "web").await, leaf(&other, "web").await);
    verify(&first, root);
    verify(&second, root);
    let chain = split_certificates(&second).unwrap();
    assert_eq!((chain.len(), chain[1].trim()), (2, intermediate.trim()));
    let web = CertificateInfo::from_pem(&second).unwrap();
    let domain = own["TrustDomain"].as_str().unwrap();
    let uri = format!("spiffe://{domain}/ns/default/dc/dc2/svc/web");
    assert_eq!(web.uris, [uri]);

    // A rotation in the primary.
    let mut configuration = client.get(CONFIGURATION).await.json();
    configuration["Config"]["PrivateKeyBits"] = json!(384);
    client.write(CONFIGURATION, &configuration).await;
    let theirs = roots_after(&other, &own["ActiveRootID"]).await;
    assert_eq!(theirs["Roots"].as_array().unwrap().len(), 2);
    let renewed = leaf(&other, "web").await;
    assert_ne!(renewed, second);
    verify(&renewed, active(&theirs));
    // By the link, which the old root has signed.
    verify(&renewed, root);

    // Without the primary leaves are signed, settings change, and the server starts again.
    one.stop(PATIENCE).await.unwrap();
    verify(&leaf(&other, "api").await, active(&theirs));
    let mut configuration = other.get(CONFIGURATION).await.json();
    configuration["Config"]["LeafCertTTL"] = json!("5h");
    other.write(CONFIGURATION, &configuration).await;
    configuration["Config"]["PrivateKey"] = json!("hunter2");
    let refused = other.put(CONFIGURATION, &configuration).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    let expected = "PrivateKey is not served in a secondary datacenter";
    assert!(refused.text().starts_with(expected), "{}", refused.text());
    let kept = two.stop_and_keep(PATIENCE).await;
    let mut again = config();
    secondary(&ca)(&mut again);
    let two = kept.start(again).await;
    let other = Client::of(&two);
    let db = leaf(&other, "db").await;
    verify(&db, active(&theirs));
    let info = CertificateInfo::from_pem(&db).unwrap();
    let life = info.not_after.duration_since(info.not_before).unwrap();
    assert_eq!(life, Duration::from_secs(5 * 3600));
    stop([two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replication_token_may_have_an_intermediate_signed() {
    let ca = TestCa::new();
    let with_acls = |config: &mut ServerConfig| {
        config.acl = AclConfig {
            enabled: true,
            default_policy: DefaultPolicy::Deny,
            initial_management: Some(Secret::new(MANAGEMENT)),
            key_list_policy: false,
        };
    };
    let change = of_datacenter(&ca, "dc1");
    let (one, client) = start(|config| {
        change(config);
        with_acls(config);
    })
    .await;
    let client = client.with_token(MANAGEMENT);
    let (two, other) = start(secondary(&ca)).await;
    join(&other, &one).await;
    until_problem(&other, |problem| problem.contains("operator:write")).await;
    assert!(roots(&other).await.is_null());
    two.stop(PATIENCE).await.unwrap();

    let rules = json!({"Name": "ca", "Rules": "operator = \"write\""});
    client.write("/v1/acl/policy", &rules).await;
    let policies = json!({"Policies": [{"Name": "ca"}]});
    let token = client.write("/v1/acl/token", &policies).await;
    let token = Secret::new(token["SecretID"].as_str().unwrap());
    let change = secondary(&ca);
    let (two, other) = start(|config| {
        change(config);
        config.agent.tokens.replication = Some(token);
    })
    .await;
    join(&other, &one).await;
    let theirs = roots_after(&other, &Value::Null).await;
    let own = roots(&client).await;
    assert_eq!(theirs["TrustDomain"], own["TrustDomain"]);
    verify(&leaf(&other, "web").await, active(&own));

    // Only servers ask for intermediates.
    let path = "/v1/internal/legate/servers/ca/intermediate";
    let refused = client.send(Method::POST, path, "{}").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text());
    stop([one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_with_vault_signs_the_intermediate_there() {
    let ca = TestCa::new();
    let vault = FakeVault::start().await;
    let (one, client) = start(of_datacenter(&ca, "dc1")).await;
    let (two, other) = start(secondary(&ca)).await;
    join(&other, &one).await;
    let before = roots_after(&other, &Value::Null).await;
    let asked = json!({"Provider": "vault", "Config": {
        "Address": format!("http://{}", vault.address),
        "RootPKIPath": "root", "IntermediatePKIPath": "inter", "Token": "root",
    }});
    client.write(CONFIGURATION, &asked).await;
    let theirs = roots_after(&other, &before["ActiveRootID"]).await;
    let own = roots(&client).await;
    assert_eq!(own["ActiveRootID"], theirs["ActiveRootID"]);
    let web = leaf(&other, "web").await;
    verify(&web, active(&own));
    verify(&web, active(&before));
    // The link and the own intermediate, but not Vault's.
    assert_eq!(split_certificates(&web).unwrap().len(), 3);
    stop([one, two]).await;
}
