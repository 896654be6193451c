//! The CA with HashiCorp Vault as its provider, using `fake_vault`.

use std::time::Duration;

use http::StatusCode;
use legate_identity::{is_issued_by, split_certificates};
use legate_server::{Parts, ServerConfig};
use legate_testkit::wait::until;
use serde_json::{Value, json};

use crate::fake_vault::{FakeVault, Wrong};
use crate::grpc::{csr, tls_channel};
use crate::http_client::{self, Client, start};
use crate::running::Running;

const STOP: Duration = Duration::from_secs(5);
const CONFIGURATION: &str = "/v1/connect/ca/configuration";

fn configuration(vault: &FakeVault, access: &Value) -> Value {
    let mut config = json!({
        "Address": format!("http://{}", vault.address),
        "RootPKIPath": "root",
        "IntermediatePKIPath": "inter/",
        "Namespace": "team",
    });
    let more = access.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(more);
    json!({ "Provider": "vault", "Config": config })
}

async fn roots(client: &Client) -> Value {
    client.get("/v1/connect/ca/roots").await.json()
}

fn active(roots: &Value) -> &Value {
    let all = roots["Roots"].as_array().unwrap();
    let id = &roots["ActiveRootID"];
    all.iter().find(|root| root["ID"] == *id).unwrap()
}

/// The CA's response to a request for a service's certificate.
async fn sign(server: &Running, service: &str) -> Result<Vec<String>, String> {
    let uri = format!(
        "spiffe://{}/ns/default/dc/dc1/svc/{service}",
        server.ca().trust_domain()
    );
    let csr = csr(&[&uri]);
    let request = server.ca().check_csr(&csr).unwrap();
    let signed = server.ca().sign_csr(&request).await;
    let pem = signed.map_err(|error| error.to_string())?;
    Ok(split_certificates(&pem).unwrap())
}

#[tokio::test]
async fn a_mesh_moves_to_vault_and_back_without_losing_trust() {
    let vault = FakeVault::start().await;
    let (server, client) = start(|_| {}).await;
    let before = roots(&client).await;
    let old = active(&before)["RootCert"].as_str().unwrap().to_owned();
    let asked = configuration(&vault, &json!({ "Token": "root" }));
    client.write(CONFIGURATION, &asked).await;

    let after = roots(&client).await;
    assert_eq!(after["Roots"].as_array().unwrap().len(), 2);
    let new = active(&after);
    assert_eq!(new["Name"], "Vault CA Primary Cert");
    let root = new["RootCert"].as_str().unwrap().to_owned();
    let chain = sign(&server, "web").await.unwrap();
    let [leaf, link, intermediate] = &chain[..] else {
        panic!("{chain:?}");
    };
    assert!(is_issued_by(leaf, intermediate).unwrap());
    assert!(is_issued_by(intermediate, &root).unwrap());
    assert!(is_issued_by(intermediate, link).unwrap());
    assert!(is_issued_by(link, &old).unwrap());
    let leaf = client.get("/v1/agent/connect/ca/leaf/api").await.json();
    assert_eq!(leaf["Service"], "api");
    let shown = client.get(CONFIGURATION).await.json();
    assert_eq!(shown["Config"]["Token"], "hidden");
    assert!(
        vault
            .kept()
            .asked
            .contains(&"POST inter/roles/leaf-cert".to_owned())
    );
    assert!(vault.kept().namespaces.contains("team"));

    // Writes back the configuration as read with one change: the token and the root stay.
    let mut shown = shown.clone();
    shown["Config"]["LeafCertTTL"] = json!("2h");
    client.write(CONFIGURATION, &shown).await;
    assert_eq!(roots(&client).await["ActiveRootID"], after["ActiveRootID"]);
    sign(&server, "web").await.unwrap();

    // Switches back.
    let back = json!({ "Provider": "consul", "Config": {} });
    client.write(CONFIGURATION, &back).await;
    let last = roots(&client).await;
    assert_eq!(last["Roots"].as_array().unwrap().len(), 3);
    let chain = sign(&server, "web").await.unwrap();
    assert_eq!(chain.len(), 2);
    assert!(
        is_issued_by(&chain[1], &root).unwrap(),
        "linked by Vault's root"
    );
    assert!(!vault.has_mount("inter"), "what nobody needs is removed");
    assert!(vault.has_mount("root"));
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_vault_that_misbehaves_changes_nothing() {
    let vault = FakeVault::start().await;
    let (server, client) = start(|_| {}).await;
    let before = roots(&client).await;
    let asked = configuration(&vault, &json!({ "Token": "root" }));
    for (wrong, expected) in [
        (
            Wrong::Sealed,
            "503 Service Unavailable to GET auth/token/lookup-self: Vault is sealed",
        ),
        (Wrong::Page, "cannot be used"),
        (Wrong::Endless, "larger than"),
        (
            Wrong::ForeignIntermediate,
            "the intermediate is not signed by the root",
        ),
    ] {
        vault.kept().wrong = Some(wrong);
        let reply = client.put(CONFIGURATION, &asked).await;
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
        let text = reply.text();
        assert!(
            text.starts_with("error configuring provider: ") && text.contains(expected),
            "{wrong:?}: {text}"
        );
        assert_eq!(roots(&client).await, before, "{wrong:?}");
    }
    vault.kept().wrong = None;
    let token = configuration(&vault, &json!({ "Token": "another" }));
    let reply = client.put(CONFIGURATION, &token).await;
    assert!(
        reply.text().contains("permission denied"),
        "{}",
        reply.text()
    );
    assert!(!reply.text().contains("another"));

    // A rotation that was started is resumed.
    client.write(CONFIGURATION, &asked).await;
    for (wrong, expected) in [
        (Wrong::OtherKey, "for another key"),
        (Wrong::OtherIdentity, "another identity"),
        (Wrong::Page, "certificate"),
        (Wrong::Sealed, "Vault is sealed"),
    ] {
        vault.kept().wrong = Some(wrong);
        let error = sign(&server, "web").await.unwrap_err();
        assert!(error.contains(expected), "{wrong:?}: {error}");
    }
    vault.kept().wrong = Some(Wrong::NoLink);
    let back = json!({ "Provider": "consul", "Config": {} });
    let reply = client.put(CONFIGURATION, &back).await;
    assert!(reply.text().contains("does not link"), "{}", reply.text());
    vault.kept().wrong = None;
    sign(&server, "web").await.unwrap();
    server.stop(STOP).await.unwrap();
}

/// The settings of a new mesh whose provider is this Vault.
fn of_vault(vault: &FakeVault) -> impl Fn(&mut ServerConfig) + Clone + use<> {
    let asked = configuration(vault, &json!({ "Token": "root" }));
    let config = asked["Config"].as_object().unwrap().clone();
    move |server| {
        server.ca.provider = "vault".to_owned();
        server.ca.more.0 = config.clone();
        server.grpc_tls = Some(([127, 0, 0, 1], 0).into());
    }
}

/// What the server reports as not working.
async fn problems(client: &Client) -> Vec<String> {
    let status = client.get("/v1/internal/legate/status").await.json();
    let problems = status["Problems"].as_array().unwrap().iter();
    problems
        .map(|one| {
            let text = |key: &str| one[key].as_str().unwrap();
            let expected = ["Vault is sealed", "the mesh has no CA yet"];
            assert!(
                expected.iter().any(|words| text("Reason").contains(words)),
                "{one}"
            );
            text("What").to_owned()
        })
        .collect()
}

async fn solved(client: &Client) {
    until(async || match problems(client).await {
        none if none.is_empty() => Ok(()),
        some => Err(format!("{some:?}")),
    })
    .await;
}

#[tokio::test]
async fn a_new_mesh_is_served_before_its_vault_answers() {
    let vault = FakeVault::start().await;
    vault.kept().wrong = Some(Wrong::Sealed);
    let (server, client) = start(of_vault(&vault)).await;
    client.write("/v1/kv/a", &json!(1)).await;
    let reply = client.get("/v1/connect/ca/roots").await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    let leaf = client.get("/v1/agent/connect/ca/leaf/web").await;
    assert!(leaf.status.is_server_error(), "{}", leaf.text());
    until(async || match problems(&client).await {
        found if found.contains(&"certificate authority".to_owned()) => Ok(()),
        found => Err(format!("{found:?}")),
    })
    .await;

    vault.kept().wrong = None;
    solved(&client).await;
    let roots = roots(&client).await;
    assert_eq!(active(&roots)["Name"], "Vault CA Primary Cert");
    sign(&server, "web").await.unwrap();
    until(async || {
        let connected = tls_channel(&server, "server.dc1.consul").await;
        connected.map(drop).map_err(|error| error.to_string())
    })
    .await;
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_known_mesh_is_served_while_its_vault_is_away() {
    let vault = FakeVault::start().await;
    let (server, client) = start(of_vault(&vault)).await;
    let before = roots(&client).await;
    let kept = server.stop_and_keep(STOP).await;
    vault.kept().wrong = Some(Wrong::Sealed);
    let mut config = http_client::config();
    of_vault(&vault)(&mut config);
    let server = kept.start(config).await;
    let client = Client::of(&server);
    assert_eq!(roots(&client).await["ActiveRootID"], before["ActiveRootID"]);
    tls_channel(&server, "server.dc1.consul").await.unwrap_err();
    assert_eq!(
        problems(&client).await,
        ["certificate of the TLS listeners"]
    );
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_vault_that_refuses_the_settings_stops_the_start() {
    let vault = FakeVault::start().await;
    vault.kept().tokens.clear();
    let started = Running::start(http_client::config(), of_vault(&vault), Parts::default()).await;
    let error = started.unwrap_err().to_string();
    assert!(error.contains("permission denied"), "{error}");
}

#[tokio::test]
async fn a_login_is_repeated_when_its_token_is_revoked() {
    let vault = FakeVault::start().await;
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "sesame\n").unwrap();
    let login = json!({ "AuthMethod": { "Type": "approle", "Params": {
        "role_id": "role", "secret_id_file_path": secret,
    }}});
    let asked = configuration(&vault, &login);
    // Also as the provider of a new mesh.
    let config = asked["Config"].as_object().unwrap().clone();
    let (server, _) = start(|server| {
        server.ca.provider = "vault".to_owned();
        server.ca.more.0 = config;
    })
    .await;
    sign(&server, "web").await.unwrap();
    vault.kept().tokens.clear();
    sign(&server, "web").await.unwrap();
    vault.kept().tokens.clear();
    std::fs::write(&secret, "wrong").unwrap();
    let error = sign(&server, "web").await.unwrap_err();
    assert!(error.contains("invalid role or secret ID"), "{error}");
    assert!(!error.contains("wrong"), "{error}");
    server.stop(STOP).await.unwrap();
}
