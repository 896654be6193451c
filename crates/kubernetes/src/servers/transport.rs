//! HTTP requests over pooled connections: choice of address, TLS, timeouts and size limits.
//! Independent of the API.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioTimer;
use legate_identity::tls::{self, ClientTls};
use legate_model::Secret;
use legate_runtime::Spawner;
use serde_json::Value;
use tokio::sync::watch;

use super::answer::{ANSWER_SIZE, Answer};
use super::error::{ServersError, is_unavailable};
use super::path::Path;

/// The request timeout, including connecting and reading the response. consul-k8s has the same
/// default (`global.consulAPITimeout`).
pub const REQUEST_TIME: Duration = Duration::from_secs(5);

/// The connect timeout of one address, before the next is tried.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// The idle timeout of a connection, which is shorter than that of the servers.
const IDLE_TIME: Duration = Duration::from_secs(30);

/// The maximum number of idle connections.
const IDLE_CONNECTIONS: usize = 16;

/// The connections to the servers.
#[derive(Debug)]
pub(super) struct Transport {
    /// `http://host:port`.
    origin: String,
    /// The partition of requests, if it is not the default one.
    partition: Option<String>,
    host: String,
    tls: Option<Verification>,
    spawner: Spawner,
    addresses: Addresses,
    current: Mutex<Option<Current>>,
}

/// How servers are verified.
#[derive(Debug)]
pub(super) struct Verification {
    pub(super) ca: Ca,
    pub(super) server_name: Option<String>,
}

/// The source of the CA.
#[derive(Debug)]
pub(super) enum Ca {
    System,
    File(PathBuf),
    Pem(watch::Receiver<Option<String>>),
}

/// The current connections, and the CA that verified them.
#[derive(Clone, Debug)]
struct Current {
    client: Connections,
    ca: Mark,
}

type Tcp = HttpConnector<Addresses>;

/// A connection pool. Clones share it.
#[derive(Clone, Debug)]
enum Connections {
    Plain(Client<Tcp, Full<Bytes>>),
    Tls(Client<HttpsConnector<Tcp>, Full<Bytes>>),
}

impl Transport {
    pub(super) fn new(
        host: &str,
        port: u16,
        partition: Option<String>,
        tls: Option<Verification>,
        spawner: Spawner,
    ) -> Result<Transport, ServersError> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let shown = match bare.contains(':') {
            true => format!("[{bare}]"),
            false => bare.to_owned(),
        };
        let origin = format!("{scheme}://{shown}:{port}");
        let is_host = tls::server_name(bare).is_ok() && origin.parse::<Uri>().is_ok();
        if !is_host {
            return Err(ServersError::Host {
                host: host.to_owned(),
            });
        }
        if let Some(name) = tls.as_ref().and_then(|tls| tls.server_name.as_deref()) {
            tls::server_name(name)?;
        }
        Ok(Transport {
            origin,
            partition,
            host: bare.to_owned(),
            tls,
            spawner,
            addresses: Addresses::default(),
            current: Mutex::default(),
        })
    }

    pub(super) fn url(&self, path: &Path) -> String {
        let path = path.in_partition(self.partition.as_deref());
        format!("{}{path}", self.origin)
    }

    /// The error for an unsuccessful response.
    pub(super) fn refusal(&self, method: &Method, path: &Path, answer: &Answer) -> ServersError {
        ServersError::Refused {
            method: method.clone(),
            url: self.url(path),
            status: answer.status,
            text: answer.text(),
        }
    }

    /// Sends one request and reads its response.
    pub(super) async fn send(
        &self,
        method: &Method,
        path: &Path,
        body: Option<&Value>,
        token: Option<&Secret>,
    ) -> Result<Answer, ServersError> {
        let unreachable = |reason: String| ServersError::Unreachable {
            method: method.clone(),
            url: self.url(path),
            reason,
        };
        let request = self
            .build(method, path, body, token)
            .map_err(|error| unreachable(error.to_string()))?;
        let client = self.client()?;
        let answer = match tokio::time::timeout(REQUEST_TIME, exchange(&client, request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(reason)) => {
                self.next_server();
                return Err(unreachable(reason));
            }
            Err(_) => {
                self.next_server();
                return Err(ServersError::Timeout {
                    method: method.clone(),
                    url: self.url(path),
                    after: REQUEST_TIME,
                });
            }
        };
        if is_unavailable(answer.status, &answer.text()) {
            self.next_server();
        }
        Ok(answer)
    }

    fn build(
        &self,
        method: &Method,
        path: &Path,
        body: Option<&Value>,
        token: Option<&Secret>,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::builder().method(method).uri(self.url(path));
        if let Some(token) = token.filter(|token| !token.is_empty()) {
            let mut value = HeaderValue::from_str(token.expose())?;
            value.set_sensitive(true);
            request = request.header("X-Consul-Token", value);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        request.body(Full::new(Bytes::from(body)))
    }

    /// The connection pool, which is replaced after a failure and when the CA has changed.
    fn client(&self) -> Result<Connections, ServersError> {
        let ca = self.tls.as_ref().map_or(Mark::Fixed, |tls| tls.ca.mark());
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = current.as_ref().filter(|current| current.ca == ca) {
            return Ok(current.client.clone());
        }
        let client = self.connections(&ca)?;
        *current = Some(Current {
            client: client.clone(),
            ca,
        });
        Ok(client)
    }

    /// Makes the next request use another address, on a new connection.
    fn next_server(&self) {
        self.addresses.first.fetch_add(1, Ordering::Relaxed);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn connections(&self, ca: &Mark) -> Result<Connections, ServersError> {
        let mut tcp = HttpConnector::new_with_resolver(self.addresses.clone());
        tcp.enforce_http(self.tls.is_none());
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIME));
        tcp.set_keepalive(Some(IDLE_TIME));
        let mut builder = Client::builder(ConnectionTasks(self.spawner.clone()));
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIME)
            .pool_max_idle_per_host(IDLE_CONNECTIONS);
        let Some(tls) = &self.tls else {
            return Ok(Connections::Plain(builder.build(tcp)));
        };
        let name = tls::server_name(tls.server_name.as_deref().unwrap_or(&self.host))?;
        let files = |ca: Option<PathBuf>| ClientTls {
            ca,
            ..ClientTls::default()
        };
        let config = match (&tls.ca, ca) {
            (Ca::Pem(_), Mark::Pem(Some(pem))) => {
                tls::client_config_with_roots(pem, "the CA of the servers")?
            }
            (Ca::Pem(_), _) => return Err(ServersError::NoCa),
            (Ca::File(path), _) => tls::client_config(&files(Some(path.clone())))?,
            (Ca::System, _) => tls::client_config(&files(None))?,
        };
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config.as_ref().clone())
            .https_only()
            .with_server_name_resolver(FixedServerNameResolver::new(name))
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Connections::Tls(builder.build(connector)))
    }
}

async fn exchange(client: &Connections, request: Request<Full<Bytes>>) -> Result<Answer, String> {
    let sent = match client {
        Connections::Plain(client) => client.request(request),
        Connections::Tls(client) => client.request(request),
    };
    let answer = sent.await.map_err(|error| with_causes(&error))?;
    let status = answer.status();
    let index = answer.headers().get("x-consul-index");
    let index = index.and_then(|index| index.to_str().ok()?.parse().ok());
    let body = Limited::new(answer.into_body(), ANSWER_SIZE)
        .collect()
        .await
        .map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => format!("the response is larger than {ANSWER_SIZE} bytes"),
            None => with_causes(error.as_ref()),
        })?;
    let body = body.to_bytes();
    Ok(Answer {
        status,
        index,
        body,
    })
}

/// hyper's own texts have few details; the causes name the failure.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    text
}

/// The version of the CA; the pool is replaced when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mark {
    Fixed,
    /// A mounted Secret that changes is a different file.
    File(Option<(SystemTime, u64, Option<PathBuf>)>),
    Pem(Option<String>),
}

impl Ca {
    fn mark(&self) -> Mark {
        match self {
            Ca::System => Mark::Fixed,
            Ca::Pem(pem) => Mark::Pem(pem.borrow().clone()),
            Ca::File(path) => Mark::File(std::fs::metadata(path).ok().map(|metadata| {
                let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                (modified, metadata.len(), path.canonicalize().ok())
            })),
        }
    }
}

/// Resolves the servers' name; the first address changes after each failure.
#[derive(Clone, Debug, Default)]
struct Addresses {
    first: Arc<AtomicUsize>,
}

impl tower::Service<Name> for Addresses {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let first = self.first.load(Ordering::Relaxed);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let mut found: Vec<SocketAddr> = found.collect();
            if !found.is_empty() {
                let first = first % found.len();
                found.rotate_left(first);
            }
            Ok(found.into_iter())
        })
    }
}

/// Runs connections in an owned scope.
#[derive(Clone, Debug)]
struct ConnectionTasks(Spawner);

impl<F> hyper::rt::Executor<F> for ConnectionTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, connection: F) {
        self.0.spawn("connection to the servers", async move {
            connection.await;
            Ok::<(), std::convert::Infallible>(())
        });
    }
}
