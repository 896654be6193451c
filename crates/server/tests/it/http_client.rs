//! A server for HTTP tests, and a client that uses one connection per request.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use legate_runtime::BoxError;
use legate_server::{Parts, ServerConfig};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::running::Running;

/// A server with HTTP only, and with the settings of `change`.
pub(crate) async fn start(change: impl FnOnce(&mut ServerConfig)) -> (Running, Client) {
    let server = Running::start(config(), change, Parts::default()).await;
    let server = server.unwrap();
    let client = Client::of(&server);
    (server, client)
}

/// The settings of a server with HTTP only.
pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        http: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        grpc: None,
        grpc_tls: None,
        dns: None,
        ..ServerConfig::default()
    }
}

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn index(&self) -> u64 {
        self.header("x-consul-index").parse().unwrap()
    }
}

impl Client {
    pub(crate) fn of(server: &Running) -> Self {
        Self {
            address: server.http_addr().unwrap(),
            token: String::new(),
        }
    }

    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, "").await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.send(Method::DELETE, path, "").await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        self.send(Method::PUT, path, &body.to_string()).await
    }

    /// A write that must succeed.
    #[track_caller]
    pub(crate) fn write(&self, path: &str, body: &Value) -> impl Future<Output = Value> + use<> {
        let caller = std::panic::Location::caller();
        let (this, path, body) = (self.clone(), path.to_owned(), body.clone());
        async move {
            let reply = this.put(&path, &body).await;
            assert_eq!(reply.status, StatusCode::OK, "{caller}: {}", reply.text());
            if reply.body.is_empty() {
                return Value::Null;
            }
            reply.json()
        }
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: &str) -> Reply {
        self.send_as(method, path, body.as_bytes()).await
    }

    pub(crate) async fn send_bytes(&self, path: &str, body: &[u8]) -> Reply {
        self.send_as(Method::PUT, path, body).await
    }

    async fn send_as(&self, method: Method, path: &str, body: &[u8]) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        if !self.token.is_empty() {
            request = request.header("x-consul-token", &self.token);
        }
        let body = Full::new(Bytes::copy_from_slice(body));
        self.exchange(request.body(body).unwrap()).await
    }

    pub(crate) async fn exchange(&self, request: Request<Full<Bytes>>) -> Reply {
        self.try_exchange(request).await.unwrap()
    }

    /// Fails if there is no whole reply.
    pub(crate) async fn try_exchange(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Reply, BoxError> {
        request
            .headers_mut()
            .entry("host")
            .or_insert_with(|| "localhost".parse().unwrap());
        let stream = TcpStream::connect(self.address).await?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await?;
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let (head, body) = response.into_parts();
            Ok(Reply {
                status: head.status,
                headers: head.headers,
                body: body.collect().await?.to_bytes(),
            })
        };
        let connection = async {
            // The exchange reports errors of the connection.
            let _ = connection.await;
            std::future::pending().await
        };
        tokio::select! {
            reply = exchange => reply,
            () = connection => unreachable!("it never ends"),
        }
    }
}
