//! A plain HTTP server for the fakes of these tests.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use legate_runtime::Scope;
use tokio::net::TcpListener;

pub(super) type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Serves on a free port of loopback, in `scope`.
pub(super) async fn serve<F, R>(scope: &Scope, answer: F) -> SocketAddr
where
    F: Fn(Request<Bytes>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Option<Answer>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let spawner = scope.spawner();
    scope.spawn("accept", async move {
        loop {
            let (stream, _) = listener.accept().await?;
            let answer = answer.clone();
            spawner.spawn("connection", async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = answer.clone();
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
                        // Without a response the connection is cut, as by an unreachable server.
                        let answer = answer(Request::from_parts(head, body)).await;
                        answer.ok_or_else(|| io::Error::other("cut"))
                    }
                });
                let serve = hyper::server::conn::http1::Builder::new();
                let _cut = serve.serve_connection(TokioIo::new(stream), service).await;
                Ok::<(), Infallible>(())
            });
        }
        #[expect(unreachable_code, reason = "names the type of the error")]
        Ok::<(), std::io::Error>(())
    });
    address
}
