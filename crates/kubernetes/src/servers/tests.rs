use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use legate_runtime::Scope;
use legate_testkit::certs::{ServerTls, TestCa};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

use super::*;

/// A request as received by the fake server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    token: Option<String>,
    pub(crate) body: String,
}

type Handler = Arc<dyn Fn(&Seen) -> (u16, String) + Send + Sync>;

/// A fake server that responds as the test specifies and records requests.
pub(crate) struct Fake {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    scope: Scope,
}

impl Fake {
    pub(crate) async fn start(
        handler: impl Fn(&Seen) -> (u16, String) + Send + Sync + 'static,
    ) -> Fake {
        Fake::start_with(None, handler).await
    }

    async fn start_with(
        tls: Option<tokio_rustls::TlsAcceptor>,
        handler: impl Fn(&Seen) -> (u16, String) + Send + Sync + 'static,
    ) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, scope) = (Arc::default(), Scope::new("fake"));
        let handler: Handler = Arc::new(handler);
        let (log, spawner) = (Arc::clone(&seen), scope.spawner());
        scope.spawn("accept", async move {
            loop {
                let (stream, _) = listener.accept().await?;
                let (handler, log, tls) = (Arc::clone(&handler), Arc::clone(&log), tls.clone());
                spawner.spawn("connection", async move {
                    match tls {
                        None => serve(stream, handler, log).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, handler, log).await;
                            }
                        }
                    }
                    Ok::<(), Infallible>(())
                });
            }
            #[expect(unreachable_code, reason = "gives the task its error type")]
            Ok::<(), std::io::Error>(())
        });
        Fake {
            address,
            seen,
            scope,
        }
    }

    fn seen(&self) -> Vec<(String, Option<String>)> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .map(|seen| (format!("{} {}", seen.method, seen.path), seen.token.clone()))
            .collect()
    }

    /// The requests that change something: method, path and body.
    pub(crate) fn changes(&self) -> Vec<(String, String, String)> {
        let seen = self.seen.lock().unwrap();
        let changes = seen.iter().filter(|seen| seen.method != Method::GET);
        changes
            .map(|seen| {
                (
                    seen.method.to_string(),
                    seen.path.clone(),
                    seen.body.clone(),
                )
            })
            .collect()
    }

    /// A client without a token.
    pub(crate) fn servers(&self) -> Servers {
        self.client("127.0.0.1", None, Credentials::None)
    }

    fn client(&self, host: &str, tls: Option<Tls>, credentials: Credentials) -> Servers {
        let options = Options {
            host: host.to_owned(),
            port: self.address.port(),
            tls,
            credentials,
            partition: None,
        };
        Servers::new(options, self.scope.spawner()).unwrap()
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    handler: Handler,
    log: Arc<Mutex<Vec<Seen>>>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, log) = (Arc::clone(&handler), Arc::clone(&log));
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let token = parts.headers.get("x-consul-token");
            let seen = Seen {
                method: parts.method,
                path: parts.uri.to_string(),
                token: token.map(|token| token.to_str().unwrap().to_owned()),
                body: String::from_utf8(body.to_vec()).unwrap(),
            };
            log.lock().unwrap().push(seen.clone());
            let (status, text) = handler(&seen);
            let answer = Response::builder()
                .status(status)
                .body(Full::new(Bytes::from(text)));
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn nodes() -> Path {
    Path::of(["catalog", "nodes"])
}

fn login(folder: &tempfile::TempDir) -> Credentials {
    let file = folder.path().join("bearer");
    std::fs::write(&file, "jwt\n").unwrap();
    Credentials::Login(Login {
        auth_method: "component".to_owned(),
        bearer_token_file: file,
        meta: BTreeMap::from([("pod".to_owned(), "ns/operator-0".to_owned())]),
    })
}

#[test]
fn names_stay_one_segment() {
    let path = Path::of(["catalog", "node", "a/b c?"])
        .with("filter", "Meta[\"x\"] == \"é\"")
        .with("dc", "dc1");
    assert_eq!(
        path.to_string(),
        "/v1/catalog/node/a%2Fb%20c%3F?filter=Meta%5B%22x%22%5D%20%3D%3D%20%22%C3%A9%22&dc=dc1"
    );
}

#[tokio::test]
async fn a_token_file_is_read_for_every_request_and_the_next_address_is_taken() {
    let fake = Fake::start(|_| (200, "[]".to_owned())).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    // With IPv6 the name has two addresses; the server listens on the second.
    let servers = fake.client("localhost", None, Credentials::File(file.clone()));
    let missing = servers.get_json::<Value>(&nodes()).await.unwrap_err();
    assert!(missing.to_string().contains("--token-file"), "{missing}");
    for token in ["first", "second"] {
        std::fs::write(&file, format!("{token}\n")).unwrap();
        servers.get_json::<Value>(&nodes()).await.unwrap();
    }
    let call = "GET /v1/catalog/nodes".to_owned();
    let some = |token: &str| Some(token.to_owned());
    assert_eq!(
        fake.seen(),
        [(call.clone(), some("first")), (call, some("second"))]
    );
}

#[tokio::test]
async fn a_refusal_has_the_servers_status_and_text() {
    let fake = Fake::start(|seen| match seen.path.as_str() {
        "/v1/config/mesh/mesh" => (404, "Config entry not found".to_owned()),
        "/v1/status/leader" => (500, "No cluster leader".to_owned()),
        "/v1/status/peers" => (200, "nonsense".to_owned()),
        _ => (400, " Invalid request: Port \n".to_owned()),
    })
    .await;
    let servers = fake.client("127.0.0.1", None, Credentials::None);
    let refused = servers.register(&json!({"Node": "n"})).await.unwrap_err();
    let url = format!("http://{}/v1/catalog/register", fake.address);
    assert_eq!(
        refused.to_string(),
        format!("PUT {url} was answered with 400 Bad Request: Invalid request: Port")
    );
    assert_eq!(refused.refusal(), Some("Invalid request: Port"));
    assert_eq!(
        servers.config_entry("mesh", "mesh", None).await.unwrap(),
        None
    );
    assert!(
        !servers
            .delete(&Path::of(["config", "mesh", "mesh"]))
            .await
            .unwrap()
    );
    let leader = servers
        .get_json::<Value>(&Path::of(["status", "leader"]))
        .await;
    assert_eq!(
        leader.unwrap_err().refusal(),
        None,
        "no word on the request"
    );
    let peers = servers
        .get_json::<Value>(&Path::of(["status", "peers"]))
        .await;
    assert!(matches!(peers, Err(ServersError::BadAnswer { .. })));
}

#[tokio::test]
async fn a_login_is_repeated_when_the_token_is_gone_and_logged_out_at_the_end() {
    let logins = Arc::new(Mutex::new(0));
    let fake = Fake::start({
        let logins = Arc::clone(&logins);
        move |seen| match seen.path.as_str() {
            "/v1/acl/login" => {
                *logins.lock().unwrap() += 1;
                let secret = format!("token-{}", logins.lock().unwrap());
                (
                    200,
                    json!({"SecretID": secret, "AccessorID": "x"}).to_string(),
                )
            }
            "/v1/acl/logout" => (200, String::new()),
            _ if seen.token.as_deref() == Some("token-1") => (403, "ACL not found".to_owned()),
            _ => (200, "[]".to_owned()),
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let servers = fake.client("127.0.0.1", None, login(&folder));
    let (one, two, three) = (nodes(), nodes(), nodes());
    let (one, two, three) = tokio::join!(
        servers.get_json::<Value>(&one),
        servers.get_json::<Value>(&two),
        servers.get_json::<Value>(&three),
    );
    for answer in [one, two, three] {
        answer.unwrap();
    }
    assert_eq!(
        *logins.lock().unwrap(),
        2,
        "one login for all, then one more"
    );
    let first = fake.seen.lock().unwrap()[0].clone();
    assert_eq!(
        serde_json::from_str::<Value>(&first.body).unwrap(),
        json!({"AuthMethod": "component", "BearerToken": "jwt", "Meta": {"pod": "ns/operator-0"}})
    );
    servers.logout().await.unwrap();
    let last = fake.seen().pop().unwrap();
    assert_eq!(
        last,
        ("POST /v1/acl/logout".to_owned(), Some("token-2".to_owned()))
    );
    servers.logout().await.unwrap();
    assert_eq!(fake.seen().pop().unwrap(), last, "nothing to log out");
}

#[tokio::test]
async fn a_refused_login_has_the_reason() {
    let fake = Fake::start(|_| (403, "Permission denied: no binding rule".to_owned())).await;
    let folder = tempfile::tempdir().unwrap();
    let servers = fake.client("127.0.0.1", None, login(&folder));
    let error = servers.get_json::<Value>(&nodes()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the servers refuse the login by auth method \"component\" with 403 Forbidden: \
         Permission denied: no binding rule"
    );
}

#[tokio::test]
async fn a_changed_ca_file_is_used_at_once() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let config = ca.server_config(
        &["localhost"],
        ServerTls {
            alpn: false,
            ..ServerTls::default()
        },
    );
    let fake = Fake::start_with(Some(config.into()), |_| (200, "[]".to_owned())).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let tls = Tls {
        ca: Some(file.clone()),
        server_name: Some("localhost".to_owned()),
    };
    let servers = fake.client("127.0.0.1", Some(tls), Credentials::None);
    let missing = servers.get_json::<Value>(&nodes()).await;
    assert!(matches!(missing, Err(ServersError::Tls(_))), "{missing:?}");
    std::fs::copy(other.folder().join("ca.pem"), &file).unwrap();
    let unknown = servers.get_json::<Value>(&nodes()).await.unwrap_err();
    assert!(unknown.to_string().contains("certificate"), "{unknown}");
    std::fs::copy(ca.folder().join("ca.pem"), folder.path().join("new")).unwrap();
    std::fs::rename(folder.path().join("new"), &file).unwrap();
    servers.get_json::<Value>(&nodes()).await.unwrap();
}

#[tokio::test]
async fn the_latest_published_ca_is_used() {
    let ca = TestCa::new();
    let tls = ServerTls {
        alpn: false,
        ..ServerTls::default()
    };
    let config = ca.server_config(&["127.0.0.1"], tls);
    let fake = Fake::start_with(Some(config.into()), |_| (200, "[]".to_owned())).await;
    let (made, known) = watch::channel(None);
    let options = Options {
        host: "127.0.0.1".to_owned(),
        port: fake.address.port(),
        tls: Some(Tls::default()),
        credentials: Credentials::None,
        partition: None,
    };
    let servers = Servers::trusting(options, known, fake.scope.spawner()).unwrap();
    let none = servers.get_json::<Value>(&nodes()).await;
    assert!(matches!(none, Err(ServersError::NoCa)), "{none:?}");
    made.send_replace(Some(TestCa::new().ca_pem()));
    let other = servers.get_json::<Value>(&nodes()).await;
    assert!(matches!(other, Err(ServersError::Unreachable { .. })));
    made.send_replace(Some(ca.ca_pem()));
    servers.get_json::<Value>(&nodes()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_waited_for_a_bounded_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scope = Scope::new("test");
    let options = Options {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().unwrap().port(),
        tls: None,
        credentials: Credentials::None,
        partition: None,
    };
    let servers = Servers::new(options, scope.spawner()).unwrap();
    let error = servers.get_json::<Value>(&nodes()).await.unwrap_err();
    assert!(matches!(error, ServersError::Timeout { .. }), "{error}");
    drop(listener);
    let error = servers.get_json::<Value>(&nodes()).await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn an_endless_response_is_not_read() {
    let fake = Fake::start(|_| (200, "x".repeat(ANSWER_SIZE + 1))).await;
    let servers = fake.client("127.0.0.1", None, Credentials::None);
    let error = servers.get_json::<Value>(&nodes()).await.unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
}

#[tokio::test]
async fn an_invalid_host_is_refused() {
    let scope = Scope::new("test");
    for host in ["", "a b", "http://x", "x/y"] {
        let options = Options {
            host: host.to_owned(),
            port: 8500,
            tls: None,
            credentials: Credentials::None,
            partition: None,
        };
        let refused = Servers::new(options, scope.spawner());
        assert!(
            matches!(refused, Err(ServersError::Host { .. })),
            "{host:?}"
        );
    }
}
