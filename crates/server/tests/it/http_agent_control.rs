//! Agent operations: maintenance, reload, tokens, the log, and leave.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use legate_model::{CheckType, ServiceDefinition};
use legate_server::{Definitions, Parts, Reload, Scripts, ServerConfig, TokenSet};
use legate_testkit::wait::until;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, config, start};
use crate::running::Running;

const LIMIT: Duration = Duration::from_secs(30);

async fn check(client: &Client, id: &str) -> Value {
    client.get("/v1/agent/checks").await.json()[id].clone()
}

#[tokio::test]
async fn maintenance_is_a_critical_check_with_its_reason() {
    let (_server, client) = start(|_| {}).await;
    let web = json!({ "Name": "web", "Port": 1 });
    client.write("/v1/agent/service/register", &web).await;
    for (path, id, service) in [
        ("/v1/agent/maintenance", "_node_maintenance", ""),
        (
            "/v1/agent/service/maintenance/web",
            "_service_maintenance:web",
            "web",
        ),
    ] {
        client
            .write(&format!("{path}?enable=true&reason=broken"), &Value::Null)
            .await;
        // If maintenance mode is on already, it keeps its reason.
        client
            .write(&format!("{path}?enable=true"), &Value::Null)
            .await;
        let on = check(&client, id).await;
        assert_eq!(on["Notes"], "broken");
        assert_eq!(on["ServiceName"], service);
        assert_eq!(
            (&on["Status"], &on["Type"]),
            (&json!("critical"), &json!("maintenance"))
        );
        for (query, text) in [
            ("", "Missing value for enable"),
            ("?enable=x", "Invalid value"),
        ] {
            let refused = client.put(&format!("{path}{query}"), &Value::Null).await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST);
            assert!(refused.text().contains(text), "{}", refused.text());
        }
        client
            .write(&format!("{path}?enable=false"), &Value::Null)
            .await;
        assert_eq!(check(&client, id).await, Value::Null);
    }
    let unknown = "/v1/agent/service/maintenance/db?enable=true";
    let unknown = client.put(unknown, &Value::Null).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert!(unknown.text().starts_with("Unknown service ID \"db\""));
}

/// The configuration files of an in-process server: their current definitions.
#[derive(Clone, Default)]
struct FilesNow(Arc<Mutex<Vec<&'static str>>>);

impl FilesNow {
    fn set(&self, services: &[&'static str]) {
        *self.0.lock().unwrap() = services.to_vec();
    }

    fn definitions(&self) -> Definitions {
        let names = self.0.lock().unwrap().clone();
        let services = names.into_iter().map(|name| ServiceDefinition {
            name: name.to_owned(),
            checks: vec![CheckType {
                ttl: LIMIT,
                ..CheckType::default()
            }],
            ..ServiceDefinition::default()
        });
        Definitions {
            services: services.collect(),
            checks: Vec::new(),
            ..Definitions::default()
        }
    }

    async fn start(&self) -> (Running, Client) {
        let files = self.clone();
        let parts = Parts {
            reload: Some(Reload::new(move || Ok(files.definitions()))),
            ..Parts::default()
        };
        let now = self.definitions();
        let change = |config: &mut ServerConfig| config.agent.services = now.services;
        let server = Running::start(config(), change, parts).await.unwrap();
        let client = Client::of(&server);
        (server, client)
    }
}

async fn services(client: &Client) -> Vec<String> {
    let all = client.get("/v1/agent/services").await.json();
    all.as_object().unwrap().keys().cloned().collect()
}

#[tokio::test]
async fn services_are_removed_with_their_files_and_api_services_stay() {
    let files = FilesNow::default();
    files.set(&["a", "b"]);
    let (server, client) = files.start().await;
    let own = json!({ "Name": "own", "Checks": [{ "TTL": "1h" }] });
    client.write("/v1/agent/service/register", &own).await;
    // The API may take over a service that a file defined.
    let taken = json!({ "Name": "b", "Port": 7 });
    client.write("/v1/agent/service/register", &taken).await;
    assert_eq!(services(&client).await, ["a", "b", "own"]);
    files.set(&["c"]);
    client.write("/v1/agent/reload", &Value::Null).await;
    assert_eq!(services(&client).await, ["b", "c", "own"]);
    assert_eq!(check(&client, "service:a").await, Value::Null);
    assert_eq!(check(&client, "service:c").await["ServiceName"], "c");
    // The same applies at startup.
    let kept = server.stop_and_keep(LIMIT).await;
    files.set(&[]);
    let server = kept.start(config()).await;
    assert_eq!(services(&Client::of(&server)).await, ["b", "own"]);
    server.stop(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_definition_waits_for_its_namespace() {
    let definition = || ServiceDefinition {
        name: "web".to_owned(),
        namespace: "team".parse().unwrap(),
        ..ServiceDefinition::default()
    };
    let with_team = |config: &mut ServerConfig| {
        let node_wide = ServiceDefinition {
            name: "api".to_owned(),
            ..ServiceDefinition::default()
        };
        config.agent.services = vec![definition(), node_wide];
    };
    let of_team = "/v1/agent/services?ns=team";
    let problems = async |client: &Client| {
        let status = client.get("/v1/internal/legate/status").await.json();
        status["Problems"].as_array().unwrap().clone()
    };
    let mut config = config();
    with_team(&mut config);
    let (server, client) = start(with_team).await;
    assert_eq!(services(&client).await, ["api"]);
    let [problem] = &problems(&client).await[..] else {
        panic!("one problem");
    };
    assert_eq!(problem["What"], "service \"web\"");
    assert!(
        problem["Reason"].as_str().unwrap().contains("team"),
        "{problem}"
    );

    client
        .write("/v1/namespace", &json!({ "Name": "team" }))
        .await;
    until(async || match client.get(of_team).await.json() {
        all if all["web"].is_object() => Ok(()),
        all => Err(all.to_string()),
    })
    .await;
    until(async || match problems(&client).await {
        none if none.is_empty() => Ok(()),
        some => Err(format!("{some:?}")),
    })
    .await;

    // Deleted while the server is stopped or running, it does not stop the next start.
    client.delete("/v1/namespace/team").await;
    let kept = server.stop_and_keep(LIMIT).await;
    let server = kept.start(config).await;
    let client = Client::of(&server);
    assert_eq!(services(&client).await, ["api"]);
    assert_eq!(problems(&client).await[0]["What"], "service \"web\"");
    server.stop(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_reload_that_is_refused_changes_nothing() {
    let files = FilesNow::default();
    files.set(&["a"]);
    let (_server, client) = files.start().await;
    files.set(&["b", "no/name"]);
    let refused = client.put("/v1/agent/reload", &Value::Null).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(refused.text().contains("no/name"), "{}", refused.text());
    assert_eq!(services(&client).await, ["a"]);
}

#[tokio::test]
async fn a_definition_that_fails_aborts_the_whole_reload() {
    let definitions = || Definitions {
        services: vec![ServiceDefinition {
            name: "new".to_owned(),
            ..ServiceDefinition::default()
        }],
        checks: vec![CheckType {
            name: "lost".to_owned(),
            service_id: "nobody".to_owned(),
            ttl: LIMIT,
            ..CheckType::default()
        }],
        ..Definitions::default()
    };
    let parts = Parts {
        reload: Some(Reload::new(move || Ok(definitions()))),
        ..Parts::default()
    };
    let server = Running::start(config(), |_| {}, parts).await.unwrap();
    let client = Client::of(&server);
    let refused = client.put("/v1/agent/reload", &Value::Null).await;
    assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(refused.text().contains("lost"), "{}", refused.text());
    assert_eq!(services(&client).await, Vec::<String>::new());
}

#[tokio::test]
async fn programs_of_the_api_are_refused_unless_the_settings_permit_them() {
    let check = json!({ "Name": "c", "ScriptArgs": ["true"], "Interval": "10s" });
    let service = json!({ "Name": "web", "Check": check });
    let mut docker = check.clone();
    docker["DockerContainerID"] = json!("web");
    for scripts in [Scripts::Off, Scripts::OfFiles] {
        let (_server, client) = start(|config| config.agent.check_settings.scripts = scripts).await;
        for (path, body) in [
            ("/v1/agent/check/register", &check),
            ("/v1/agent/check/register", &docker),
            ("/v1/agent/service/register", &service),
        ] {
            let refused = client.put(path, body).await;
            assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
            assert!(
                refused
                    .text()
                    .contains("Scripts are disabled on this agent")
            );
        }
    }
    let (_server, client) =
        start(|config| config.agent.check_settings.scripts = Scripts::All).await;
    client.write("/v1/agent/check/register", &check).await;
    let passes = async {
        while self::check(&client, "c").await["Status"] != "passing" {
            let wait = "/v1/health/node/legate?index=1&wait=100ms";
            client.get(wait).await;
        }
    };
    timeout(LIMIT, passes).await.expect("the program is run");
}

#[tokio::test]
async fn agent_operations_require_permissions() {
    let (_server, client) = start(deny_by_default).await;
    for (path, right) in [
        ("/v1/agent/maintenance?enable=true", "node:write"),
        ("/v1/agent/reload", "agent:write"),
        ("/v1/agent/leave", "agent:write"),
        ("/v1/agent/join/127.0.0.1", "agent:write"),
        ("/v1/agent/force-leave/x", "operator:write"),
        ("/v1/agent/token/default", "agent:write"),
    ] {
        let refused = client.put(path, &json!({ "Token": "x" })).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
        assert!(refused.text().contains(right), "{}", refused.text());
    }
    for (path, right) in [
        ("/v1/agent/host", "operator:read"),
        ("/v1/agent/monitor", "agent:read"),
        ("/v1/agent/metrics/stream", "agent:read"),
    ] {
        let refused = client.get(path).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
        assert!(refused.text().contains(right), "{}", refused.text());
    }
}

#[tokio::test]
async fn agent_tokens_take_effect_at_once() {
    let tokens = TokenSet {
        agent_recovery: Some("open".into()),
        ..TokenSet::default()
    };
    let (_server, client) = start(|config| {
        deny_by_default(config);
        config.agent.tokens = tokens;
    })
    .await;
    let path = "/v1/acl/tokens";
    assert_eq!(client.get(path).await.status, StatusCode::FORBIDDEN);
    // The recovery token can write the agent, and nothing else.
    let recovery = client.with_token("open");
    assert_eq!(recovery.get("/v1/agent/self").await.status, StatusCode::OK);
    assert_eq!(recovery.get(path).await.status, StatusCode::FORBIDDEN);
    let unknown = recovery
        .put("/v1/agent/token/x", &json!({ "Token": "y" }))
        .await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let default = json!({ "Token": MANAGEMENT });
    recovery.write("/v1/agent/token/default", &default).await;
    assert_eq!(client.get(path).await.status, StatusCode::OK);
    let none = json!({ "Token": "" });
    recovery.write("/v1/agent/token/acl_token", &none).await;
    assert_eq!(client.get(path).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_reload_takes_the_tokens_of_the_files() {
    let definitions = || Definitions {
        tokens: TokenSet {
            default: Some(MANAGEMENT.into()),
            ..TokenSet::default()
        },
        ..Definitions::default()
    };
    let parts = Parts {
        reload: Some(Reload::new(move || Ok(definitions()))),
        ..Parts::default()
    };
    let server = Running::start(config(), deny_by_default, parts).await;
    let server = server.unwrap();
    let client = Client::of(&server);
    let path = "/v1/acl/tokens";
    assert_eq!(client.get(path).await.status, StatusCode::FORBIDDEN);
    let manager = client.with_token(MANAGEMENT);
    manager.write("/v1/agent/reload", &Value::Null).await;
    assert_eq!(client.get(path).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_server_joins_only_nodes_of_its_store_and_leaves_on_request() {
    let (server, client) = start(|_| {}).await;
    let other = json!({ "Node": "other", "Address": "192.0.2.7" });
    client.write("/v1/catalog/register", &other).await;
    let own = client.get("/v1/agent/self").await.json();
    let address = own["DebugConfig"]["SerfAdvertiseAddrLAN"].as_str().unwrap();
    let address = address.strip_prefix("tcp://").unwrap();
    for path in [
        format!("/v1/agent/join/{address}"),
        "/v1/agent/join/127.0.0.1".to_owned(),
        "/v1/agent/join/192.0.2.7:8301".to_owned(),
        "/v1/agent/join/Other".to_owned(),
        "/v1/agent/force-leave/legate?prune=1".to_owned(),
    ] {
        client.write(&path, &Value::Null).await;
    }
    for (path, text) in [
        ("/v1/agent/join/192.0.2.1", "Failed to join 192.0.2.1"),
        ("/v1/agent/force-leave/x", "No node found with name 'x'"),
    ] {
        let refused = client.put(path, &Value::Null).await;
        assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(refused.text().contains(text), "{}", refused.text());
    }
    client.write("/v1/agent/leave", &Value::Null).await;
    timeout(LIMIT, server.left()).await.expect("it leaves");
}

#[tokio::test]
async fn the_log_and_the_metrics_are_streamed() {
    use legate_runtime::logging::{self, Level, LogOptions};

    let options = LogOptions {
        name: "legate",
        level: Level::Error,
        json: false,
    };
    // A global subscriber, because the server's tasks log from other threads.
    let log = logging::subscriber(options, std::io::sink);
    let _ = tracing::subscriber::set_global_default(log);
    let (_server, client) = start(|_| {}).await;
    let unknown = client.get("/v1/agent/monitor?loglevel=loud").await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
    let mut lines = stream(&client, "/v1/agent/monitor?loglevel=debug&logjson").await;
    let register = json!({ "Name": "logged-by-name" });
    client.write("/v1/agent/service/register", &register).await;
    let seen = async {
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            let line: Value = serde_json::from_str(&line).unwrap();
            assert!(line["@level"].is_string(), "{line}");
            if line["service"] == "logged-by-name" {
                return;
            }
        }
    };
    timeout(LIMIT, seen).await.expect("it is logged");
    let mut metrics = stream(&client, "/v1/agent/metrics/stream").await;
    let mut text = String::new();
    while !text.ends_with("\n}") {
        let line = timeout(LIMIT, metrics.next_line()).await.unwrap();
        text = format!("{text}\n{}", line.unwrap().unwrap());
    }
    let first: Value = serde_json::from_str(&text).unwrap();
    assert!(first["Gauges"].is_array());
}

/// The lines of a streaming response after its head. HTTP/1.0 avoids chunked encoding.
async fn stream(client: &Client, path: &str) -> Lines<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(client.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    while !lines.next_line().await.unwrap().unwrap().is_empty() {}
    lines
}
