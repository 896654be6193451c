//! The lifecycle server over real connections.

use std::net::SocketAddr;
use std::time::Duration;

use legate_client::{ClientConfig, Credentials};
use legate_dataplane::leave::Drainer;
use legate_dataplane::lifecycle::{self, EnvoyControls, LifecycleParts};
use legate_dataplane::restart;
use legate_dataplane::settings::{Lifecycle, Proxy};
use legate_dataplane::signals::{self, Signals, Urgency};
use legate_dataplane::status::{ConnectionCounter, StatusSource};
use legate_dataplane::telemetry::Telemetry;
use legate_envoy::admin::AdminClient;
use legate_envoy::supervision::{self, EpochReport, EpochState, Report};
use legate_model::Secret;
use legate_runtime::{Readiness, ReadyHandle, Scope};
use legate_testkit::fake_server::FakeServer;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::envoy_side::PATIENCE;
use crate::log::Log;
use crate::run::load;

const TOKEN: &str = "a-token-that-nobody-may-see";

struct Setup {
    address: SocketAddr,
    envoy: ReadyHandle,
    signals: Signals,
    scope: Scope,
    _server: FakeServer,
    report: watch::Sender<Report>,
    restarts: mpsc::Receiver<restart::Request>,
    /// The address of Envoy's admin interface, which a test may serve.
    admin: TcpListener,
}

async fn start(startup_grace: Duration) -> Setup {
    let server = FakeServer::plaintext().await;
    server.script().accept_token(TOKEN);
    let address = server.address();
    let config = ClientConfig {
        server_watch_disabled: true,
        credentials: Credentials::Static(Secret::new(TOKEN)),
        ..ClientConfig::new(address.ip().to_string().parse().unwrap(), address.port())
    };
    let scope = Scope::new("test");
    let telemetry = Telemetry::new(Instant::now()).unwrap();
    let session = legate_client::connect(config, &scope.spawner(), telemetry.registry()).unwrap();
    timeout(PATIENCE, session.connected())
        .await
        .unwrap()
        .unwrap();
    let readiness = Readiness::new();
    let envoy = readiness.register("envoy");
    envoy.pending("Envoy was not started yet");
    let (stop, signals) = signals::channel();
    let (report, seen) = watch::channel(Report::default());
    let (restarter, restarts) = restart::channel(seen.clone());
    let listener = lifecycle::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let admin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = AdminClient::new(admin.local_addr().unwrap());
    let parts = LifecycleParts {
        settings: Lifecycle {
            bind: address,
            // A path from the settings takes precedence over the fixed ones.
            startup_path: "/status/".to_owned(),
            startup_grace,
            ..load(&["-addresses=127.0.0.1", "-proxy-id=web-proxy"]).lifecycle
        },
        status: StatusSource {
            proxy: Proxy {
                id: "web-proxy".to_owned(),
                ..Proxy::default()
            },
            session,
            relay: None,
            admin: "127.0.0.1:19000".parse().unwrap(),
            envoy: Some(seen),
            built_in: None,
            choice: None,
            readiness,
            telemetry,
            counter: ConnectionCounter::default(),
        },
        stop,
        envoy: Some(EnvoyControls {
            restarter: Some(restarter),
            drainer: Drainer::new(client, supervision::handle().0, scope.spawner()),
        }),
    };
    lifecycle::serve(listener, parts, &scope.spawner());
    Setup {
        address,
        envoy,
        signals,
        scope,
        _server: server,
        report,
        restarts,
        admin,
    }
}

impl Setup {
    async fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }
}

#[tokio::test]
async fn health_readiness_status_and_metrics() {
    let setup = start(Duration::ZERO).await;
    assert_eq!(
        setup.ask("GET", "/healthz").await,
        (200, "alive\n".to_owned())
    );
    let (status, why) = setup.ask("GET", "/readyz").await;
    assert_eq!(
        (status, why.as_str()),
        (503, "envoy: Envoy was not started yet\n")
    );
    let (status, document) = setup.ask("GET", "/status").await;
    assert_eq!(status, 200);
    assert!(!document.contains(TOKEN), "{document}");
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["ready"], false);
    assert_eq!(document["proxy"]["id"], "web-proxy");
    assert_eq!(document["session"]["state"], "connected");
    assert_eq!(
        document["components"][0]["reason"],
        "Envoy was not started yet"
    );
    let (_, metrics) = setup.ask("GET", "/metrics").await;
    assert!(
        metrics.contains("consul_dataplane_consul_connected 1"),
        "{metrics}"
    );

    setup.envoy.ready();
    assert_eq!(
        setup.ask("GET", "/readyz").await,
        (200, "ready\n".to_owned())
    );
    setup.envoy.failed("Envoy has exited");
    assert_eq!(
        setup.ask("GET", "/readyz").await.1,
        "envoy: failed: Envoy has exited\n"
    );
    assert_eq!(setup.ask("GET", "/elsewhere").await.0, 404);
    setup.scope.stop(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_graceful_shutdown_is_requested_and_answered_at_once() {
    let log = Log::start();
    let mut setup = start(Duration::ZERO).await;
    assert_eq!(setup.signals.urgency(), Urgency::None);
    for method in ["GET", "POST"] {
        assert_eq!(
            setup.ask(method, "/graceful_shutdown").await,
            (200, String::new())
        );
    }
    let urgency = timeout(PATIENCE, setup.signals.beyond(Urgency::None))
        .await
        .unwrap();
    assert_eq!(
        urgency,
        Urgency::Graceful,
        "asking twice does not make it urgent"
    );
    assert_eq!(log.lines(&["graceful shutdown requested"]).len(), 1);
}

#[tokio::test]
async fn a_graceful_startup_waits_until_ready_but_never_fails() {
    let setup = start(Duration::from_millis(50)).await;
    assert_eq!(
        setup.ask("GET", "/status/").await.0,
        200,
        "the grace period is over"
    );
    let setup = start(Duration::from_secs(3600)).await;
    let (answer, ()) = tokio::join!(setup.ask("GET", "/status/anything"), async {
        tokio::task::yield_now().await;
        setup.envoy.ready();
    });
    assert_eq!(answer.0, 200);
}

#[tokio::test]
async fn a_taken_port_names_the_setting() {
    let setup = start(Duration::ZERO).await;
    let error = lifecycle::bind(setup.address).unwrap_err().to_string();
    assert!(error.contains("-graceful-port"), "{error}");
}

#[tokio::test]
async fn a_restart_is_requested_with_post_and_answered_when_the_new_envoy_serves() {
    let mut setup = start(Duration::ZERO).await;
    assert_eq!(setup.ask("GET", "/restart").await.0, 405);
    let epoch = |number, pid, state| EpochReport {
        epoch: number,
        pid,
        state,
        since: Instant::now(),
        adopted: false,
    };
    let before = Report {
        epochs: vec![epoch(0, 10, EpochState::Healthy)],
        starts: 1,
        ..Report::default()
    };
    setup.report.send_replace(before.clone());
    let mut restarts = std::mem::replace(&mut setup.restarts, mpsc::channel(1).1);
    let fulfil = async {
        let request = restarts.recv().await.unwrap();
        request.send(Ok(before.clone())).unwrap();
        let mut after = before;
        after.epochs[0].state = EpochState::Draining;
        after.epochs.push(epoch(1, 11, EpochState::Serving));
        setup.report.send_replace(after);
        let request = restarts.recv().await.unwrap();
        request.send(Err("no such file".to_owned())).unwrap();
    };
    let ask = async {
        let served = setup.ask("POST", "/restart").await;
        let expected = "epoch 1 (pid 11) serves, epoch 0 (pid 10) is draining\n";
        assert_eq!(served, (200, expected.to_owned()));
        let (_, document) = setup.ask("GET", "/status").await;
        let document: Value = serde_json::from_str(&document).unwrap();
        let epochs = document["envoy"]["epochs"].as_array().unwrap();
        assert_eq!((epochs.len(), &epochs[1]["pid"]), (2, &Value::from(11)));
        assert!(
            epochs.iter().all(|epoch| epoch["age_seconds"].is_f64()),
            "{epochs:?}"
        );
        assert_eq!(
            setup.ask("POST", "/restart").await,
            (409, "no such file\n".to_owned())
        );
    };
    tokio::join!(fulfil, ask);
}

/// The listeners of a sidecar, as Envoy tells them.
const LISTENERS: &str =
    r#"{"configs":[{"active_state":{"listener":{"traffic_direction":"INBOUND"}}}]}"#;

/// The next request to the admin interface that changes something, answered with this status.
async fn admin_asked(setup: &Setup, status: u16) -> String {
    loop {
        let (mut stream, _) = timeout(PATIENCE, setup.admin.accept())
            .await
            .unwrap()
            .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert!(stream.read_buf(&mut head).await.unwrap() > 0);
        }
        let head = String::from_utf8(head).unwrap();
        let reads = head.starts_with("GET /config_dump?");
        let (status, body) = if reads {
            (200, LISTENERS)
        } else {
            (status, "")
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        if !reads {
            return head.lines().next().unwrap().to_owned();
        }
    }
}

const GRACEFUL: &str = "POST /drain_listeners?inboundonly&graceful&skip_exit HTTP/1.1";
const CLOSE: &str = "POST /drain_listeners?inboundonly HTTP/1.1";

#[tokio::test]
async fn inbound_connections_are_drained_on_request_and_refused_later() {
    let setup = start(Duration::ZERO).await;
    assert_eq!(setup.ask("GET", "/drain").await.0, 405);
    assert_eq!(setup.ask("POST", "/drain?accept_ms=soon").await.0, 400);
    // After an error from Envoy the request can be repeated.
    let (answer, asked) = tokio::join!(
        setup.ask("POST", "/drain?accept_ms=50"),
        admin_asked(&setup, 500)
    );
    assert_eq!((answer.0, asked.as_str()), (503, GRACEFUL));
    let (answer, asked) = tokio::join!(
        setup.ask("POST", "/drain?accept_ms=50"),
        admin_asked(&setup, 200)
    );
    assert_eq!((answer.0, asked.as_str()), (200, GRACEFUL));
    // Further requests are no-ops meanwhile.
    assert_eq!(setup.ask("POST", "/drain").await.0, 200);
    assert_eq!(admin_asked(&setup, 200).await, CLOSE);
    assert!(setup.scope.stop(PATIENCE).await.is_ok());
    assert_eq!(setup.signals.urgency(), Urgency::None, "nothing ends");
}

#[tokio::test]
async fn without_a_time_new_connections_are_refused_at_once() {
    let setup = start(Duration::ZERO).await;
    let envoy = async {
        [
            admin_asked(&setup, 200).await,
            admin_asked(&setup, 200).await,
        ]
    };
    let (answer, asked) = tokio::join!(setup.ask("POST", "/drain"), envoy);
    assert_eq!(
        (answer.0, asked),
        (200, [GRACEFUL, CLOSE].map(str::to_owned))
    );
}

#[tokio::test]
async fn a_new_envoy_is_drained_by_a_new_request() {
    let setup = start(Duration::ZERO).await;
    for _ in 0..2 {
        let envoy = async {
            [
                admin_asked(&setup, 200).await,
                admin_asked(&setup, 200).await,
            ]
        };
        let (answer, asked) = tokio::join!(setup.ask("POST", "/drain"), envoy);
        assert_eq!(answer.0, 200);
        assert_eq!(asked, [GRACEFUL, CLOSE].map(str::to_owned));
    }
}

#[tokio::test]
async fn a_drain_whose_client_disconnects_can_be_requested_again() {
    let setup = start(Duration::ZERO).await;
    let mut client = TcpStream::connect(setup.address).await.unwrap();
    let request = b"POST /drain HTTP/1.1\r\nhost: x\r\n\r\n";
    client.write_all(request).await.unwrap();
    let (mut unanswered, _) = setup.admin.accept().await.unwrap();
    drop(client);
    let mut asked = Vec::new();
    let ends = unanswered.read_to_end(&mut asked);
    timeout(PATIENCE, ends).await.unwrap().unwrap();
    let envoy = async {
        [
            admin_asked(&setup, 200).await,
            admin_asked(&setup, 200).await,
        ]
    };
    let (answer, asked) = tokio::join!(setup.ask("POST", "/drain"), envoy);
    assert_eq!(answer.0, 200);
    assert_eq!(asked, [GRACEFUL, CLOSE].map(str::to_owned));
}

#[tokio::test]
async fn whether_the_application_accepts_connections() {
    let setup = start(Duration::ZERO).await;
    let application = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let path = format!("/check/tcp/{}", application.local_addr().unwrap().port());
    assert_eq!(setup.ask("GET", &path).await.0, 200);
    drop(application);
    let (status, why) = setup.ask("GET", &path).await;
    assert_eq!(status, 503);
    assert!(why.contains("accepts no connection"), "{why}");
    for path in ["/check/tcp/", "/check/tcp/70000", "/check/tcp/8080/x"] {
        assert_eq!(setup.ask("GET", path).await.0, 404, "{path}");
    }
}
