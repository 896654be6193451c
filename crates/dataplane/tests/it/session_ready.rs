//! The readiness of the session, from the first attempt to an outage.

use std::time::Duration;

use legate_client::{ClientConfig, Session, SessionState};
use legate_dataplane::session_ready;
use legate_runtime::metrics::Registry;
use legate_runtime::{Readiness, ReadyState, Scope};
use legate_testkit::certs::{ServerTls, TestCa};
use legate_testkit::fake_server::FakeServer;
use legate_testkit::network::free_port;
use tokio::time::timeout;

use crate::envoy_side::PATIENCE;
use crate::run::page;
use crate::running::Running;

/// Polling interval for conditions without an event.
const POLL: Duration = Duration::from_millis(10);

struct Setup {
    server: FakeServer,
    session: Session,
    readiness: Readiness,
    scope: Scope,
}

impl Setup {
    /// Starts with a server that is down.
    async fn start() -> Setup {
        let mut server = FakeServer::plaintext().await;
        server.stop().await;
        let config = ClientConfig {
            server_watch_disabled: true,
            ..ClientConfig::new("127.0.0.1".parse().unwrap(), server.address().port())
        };
        let (scope, readiness) = (Scope::new("test"), Readiness::new());
        let spawner = scope.spawner();
        let session = legate_client::connect(config, &spawner, &Registry::new()).unwrap();
        session_ready::watch(session.clone(), &readiness, &spawner);
        Setup {
            server,
            session,
            readiness,
            scope,
        }
    }

    /// Waits until the component's state satisfies `like`.
    async fn is(&self, what: &str, like: impl Fn(&ReadyState) -> bool) {
        let mut readiness = self.readiness.clone();
        let found = async {
            loop {
                let report = readiness.report();
                let session = report.iter().find(|part| part.name == "session");
                if like(&session.unwrap().state) {
                    return;
                }
                readiness.changed().await;
            }
        };
        let found = timeout(PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("not {what}: {:?}", self.readiness.report()));
    }

    /// Waits for a connection attempt since the connection was lost.
    async fn has_tried(&self) {
        let tried = async {
            while self.session.snapshot().attempts < 2 {
                tokio::time::sleep(POLL).await;
            }
        };
        timeout(PATIENCE, tried).await.unwrap();
    }

    async fn is_ready(&self) {
        self.is("ready", |state| *state == ReadyState::Ready).await;
    }

    async fn is_pending(&self, words: &[&str]) {
        let like = |state: &ReadyState| match state {
            ReadyState::Pending(why) => words.iter().all(|word| why.contains(word)),
            _ => false,
        };
        self.is(&words.join(", "), like).await;
    }
}

#[tokio::test]
async fn an_outage_matters_until_everything_else_has_been_ready() {
    let mut setup = Setup::start().await;
    let configuration = setup.readiness.register("configuration");
    configuration.pending("Envoy has not asked for it");
    let address = setup.server.address().to_string();
    setup
        .is_pending(&[&address, "Connection refused", "trying again in "])
        .await;
    setup.server.restart().await;
    setup.is_ready().await;
    setup.server.stop().await;
    setup.is_pending(&[&address]).await;
    setup.server.restart().await;
    setup.is_ready().await;
    assert!(!setup.readiness.is_ready());

    configuration.ready();
    timeout(PATIENCE, setup.readiness.wait_ready())
        .await
        .unwrap();
    setup.server.stop().await;
    let mut states = setup.session.subscribe();
    let lost = states.wait_for(|state| matches!(state, SessionState::Connecting { .. }));
    timeout(PATIENCE, lost).await.unwrap().unwrap();
    setup.has_tried().await;
    assert!(setup.readiness.is_ready(), "traffic continues");
    configuration.pending("Envoy was started again");
    setup.is_ready().await;
    setup.scope.stop(PATIENCE).await.unwrap();
}

/// The body of `/ready` of a process without a server, once it contains `words`.
async fn unready(running: &Running, words: &str) -> String {
    let address = ([127, 0, 0, 1], running.port).into();
    let answer = timeout(PATIENCE, page(address, "/ready", words)).await;
    let answer = answer.unwrap_or_else(|_| panic!("no {words:?} in time"));
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        body.starts_with("session: "),
        "the cause comes first: {body}"
    );
    body.to_owned()
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_in_both_modes() {
    let nobody = ([127, 0, 0, 1], free_port()).into();
    for mode in ["-mode=sidecar", "-mode=dns-proxy"] {
        let running = Running::start(nobody, &["-tls-disabled", mode]);
        let body = unready(&running, "Connection refused").await;
        assert!(body.contains(&format!("server {nobody}: ")), "{body}");
        assert_eq!(
            body.contains("\nenvoy: not started yet"),
            mode == "-mode=sidecar"
        );
        assert_eq!(body.contains("\ndns: no server"), mode == "-mode=dns-proxy");
    }
}

#[tokio::test]
async fn a_login_that_is_refused_is_named() {
    let server = FakeServer::plaintext().await;
    server.script().accept_login("method", "bearer");
    let flags = [
        "-tls-disabled",
        "-credential-type=login",
        "-login-auth-method=method",
        "-login-bearer-token=not-the-bearer",
    ];
    let running = Running::start(server.address(), &flags);
    let body = unready(&running, "refuses the login").await;
    for words in [
        "bearer token does not verify",
        "\"method\"",
        "-login-bearer-token",
    ] {
        assert!(body.contains(words), "{words}: {body}");
    }
    assert!(!body.contains("not-the-bearer"), "{body}");
}

#[tokio::test]
async fn tls_that_does_not_match_is_named() {
    let plaintext = FakeServer::plaintext().await;
    let running = Running::start(plaintext.address(), &["-tls-insecure-skip-verify"]);
    let body = unready(&running, "TLS").await;
    assert!(body.contains("-tls-disabled"), "{body}");

    let names = ["localhost"];
    let tls = FakeServer::tls(TestCa::new().server_config(&names, ServerTls::default())).await;
    let running = Running::start(tls.address(), &["-tls-disabled"]);
    let body = unready(&running, "TLS: check -tls-disabled and -grpc-port; ").await;
    assert!(body.contains(&tls.address().to_string()), "{body}");
}
