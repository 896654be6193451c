//! A client of the HTTP API that reuses its connection.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use legate_runtime::{BoxError, Scope};
use serde_json::Value;
use tokio::net::TcpStream;

/// One connection.
pub(crate) struct Client {
    server: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
    // Closes the connection on drop.
    _connection: Scope,
}

impl Client {
    pub(crate) async fn connect(server: SocketAddr) -> Result<Self, BoxError> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let scope = Scope::new("connection");
        scope.spawn("connection", async move {
            // Errors are reported by the request.
            drop(connection.await);
            Ok::<(), BoxError>(())
        });
        Ok(Self {
            server,
            sender,
            _connection: scope,
        })
    }

    /// The body of a response with status 200.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Bytes, BoxError> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// The number of elements in a list.
    pub(crate) async fn count(&mut self, path: &str) -> Result<usize, BoxError> {
        let body = self.get(path).await?;
        let list: Vec<Value> = serde_json::from_slice(&body)?;
        Ok(list.len())
    }

    pub(crate) async fn put(&mut self, path: &str, body: &Value) -> Result<Bytes, BoxError> {
        let body = Bytes::from(body.to_string());
        self.send(Method::PUT, path, body).await
    }

    async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Bytes, BoxError> {
        let answer = self.ask(method, path, body).await?;
        Ok(answer.into_body())
    }

    /// Sends a request and expects status 200.
    pub(crate) async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Bytes>, BoxError> {
        self.sender.ready().await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.server.to_string())
            .body(Full::new(body))?;
        let response = self.sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let (status, body) = (head.status, body.collect().await?.to_bytes());
        if status != StatusCode::OK {
            return Err(format!("{path}: {status}: {}", String::from_utf8_lossy(&body)).into());
        }
        Ok(Response::from_parts(head, body))
    }
}
