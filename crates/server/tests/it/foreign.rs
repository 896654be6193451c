//! A fake external server: an identity provider or a Kubernetes API server. It serves HTTP over real TLS, with
//! responses set by the test.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use legate_runtime::{Scope, Spawner};
use legate_testkit::certs::{ServerTls, TestCa};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// A request that the server received.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) bearer: String,
    pub(crate) body: Value,
}

type Answer = dyn Fn(&Asked) -> Reaction + Send + Sync;

/// The server's response to a request.
pub(crate) enum Reaction {
    /// Status and JSON document.
    Json(u16, Value),
    /// A body of this many bytes.
    Huge(usize),
    /// No response.
    Silence,
    /// Closes the connection.
    Hangup,
    /// Redirects to this URL.
    Redirect(String),
}

/// The server. Stops when dropped.
pub(crate) struct Foreign {
    pub(crate) ca: TestCa,
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    _scope: Scope,
}

struct State {
    answer: Mutex<Arc<Answer>>,
    asked: Mutex<Vec<Asked>>,
}

impl Foreign {
    pub(crate) async fn start(answer: impl Fn(&Asked) -> Reaction + Send + Sync + 'static) -> Self {
        let ca = TestCa::new();
        let tls = ServerTls {
            alpn: false,
            ..ServerTls::default()
        };
        let tls = TlsAcceptor::from(ca.server_config(&["localhost", "127.0.0.1"], tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            answer: Mutex::new(Arc::new(answer)),
            asked: Mutex::default(),
        });
        let scope = Scope::new("foreign server");
        let serve = accept(listener, tls, state.clone(), scope.spawner());
        scope.spawn("listener", serve);
        Self {
            ca,
            address,
            state,
            _scope: scope,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    /// Replaces the handler for subsequent requests.
    pub(crate) fn answer(&self, answer: impl Fn(&Asked) -> Reaction + Send + Sync + 'static) {
        *self.state.answer.lock().unwrap() = Arc::new(answer);
    }

    /// Takes the requests received since the last call.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state.asked.lock().unwrap())
    }
}

async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    state: Arc<State>,
    spawner: Spawner,
) -> Result<(), Infallible> {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let serve = serve(stream, tls.clone(), state.clone());
        spawner.spawn("connection", async move {
            serve.await;
            Ok::<(), Infallible>(())
        });
    }
}

async fn serve(stream: TcpStream, tls: TlsAcceptor, state: Arc<State>) {
    // The client may reject the certificate.
    let Ok(stream) = tls.accept(stream).await else {
        return;
    };
    let service = service_fn(move |request| react(request, state.clone()));
    let connection = hyper::server::conn::http1::Builder::new();
    // Errors of the connection are up to the client.
    let _ = connection
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn react(
    request: Request<Incoming>,
    state: Arc<State>,
) -> Result<Response<Full<Bytes>>, &'static str> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let bearer = head.headers.get("authorization");
    let bearer = bearer.map_or("", |value| value.to_str().unwrap());
    let asked = Asked {
        method: head.method,
        path: head.uri.to_string(),
        bearer: bearer.trim_start_matches("Bearer ").to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    state.asked.lock().unwrap().push(asked.clone());
    let answer = state.answer.lock().unwrap().clone();
    let response = Response::builder();
    let response = match answer(&asked) {
        Reaction::Json(status, value) => response
            .status(status)
            .header("content-type", "application/json")
            .body(value.to_string().into()),
        Reaction::Huge(bytes) => response.body("x".repeat(bytes).into()),
        Reaction::Silence => std::future::pending().await,
        Reaction::Hangup => return Err("closed"),
        Reaction::Redirect(to) => response
            .status(302)
            .header("location", to)
            .body(Full::default()),
    };
    Ok(response.unwrap())
}
