//! A minimal HTTP/1.1 client: one request per connection, with a deadline and size limits for head
//! and body.
//!
//! Never follows redirects, uses proxies, retries, or reuses connections. Spawns no tasks: the future
//! that waits for the response, or reads its body, drives the connection, and dropping it closes the
//! connection.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{CONNECTION, HOST, HeaderMap, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// The maximum size of a response's head, and of the buffered part of a body, in bytes.
const BUFFER: usize = 64 * 1024;

/// The body of a request, held in memory; empty by default.
pub type Body = Full<Bytes>;

/// Why there is no complete response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The request is invalid, for example because its path cannot be parsed.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// No connection could be established, so nothing was sent.
    #[error("{0}")]
    Connect(#[source] io::Error),
    /// The deadline has passed.
    #[error("timed out")]
    Timeout,
    /// The peer does not use HTTP/1, or the response's head is too large.
    #[error("the answer is not HTTP: {}", WithCause(.0))]
    NotHttp(#[source] hyper::Error),
    /// The body exceeds this many bytes.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The connection broke.
    #[error("{}", WithCause(.0))]
    Broken(#[source] hyper::Error),
}

impl From<hyper::Error> for HttpError {
    fn from(error: hyper::Error) -> HttpError {
        match error.is_parse() {
            true => HttpError::NotHttp(error),
            false => HttpError::Broken(error),
        }
    }
}

/// Adds the cause, which hyper's errors do not print.
struct WithCause<'a>(&'a hyper::Error);

impl fmt::Display for WithCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = std::error::Error::source(self.0);
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// The head of a response, and the connection that delivers the body.
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    body: Incoming,
    connection: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Connects to `address` and sends `request`, whose URI is a path. Returns when the head of the
/// response has arrived.
///
/// # Errors
/// When there is no response before `deadline`.
pub async fn send(
    address: SocketAddr,
    mut request: Request<Body>,
    deadline: Instant,
) -> Result<Reply, HttpError> {
    let stream = timeout_at(deadline, TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| HttpError::Timeout)?;
    if let Ok(host) = HeaderValue::try_from(address.to_string()) {
        request.headers_mut().insert(HOST, host);
    }
    send_over(stream.map_err(HttpError::Connect)?, request, deadline).await
}

/// Sends a request over an existing connection. The request must have a `Host` header.
///
/// # Errors
/// When there is no response before `deadline`.
pub async fn send_over<S>(
    stream: S,
    mut request: Request<Body>,
    deadline: Instant,
) -> Result<Reply, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let close = HeaderValue::from_static("close");
    request.headers_mut().insert(CONNECTION, close);
    let exchange = async {
        let mut http = http1::Builder::new();
        let handshake = http.max_buf_size(BUFFER).handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await?;
        // Errors of the connection are also reported by the request and the body.
        let mut connection = Box::pin(connection.map(drop).fuse());
        let mut answer = pin!(sender.send_request(request));
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            () = &mut connection => answer.await,
        };
        let (head, body) = answer?.into_parts();
        Ok(Reply {
            status: head.status,
            headers: head.headers,
            body,
            connection,
        })
    };
    let reply = timeout_at(deadline, exchange).await;
    reply.map_err(|_| HttpError::Timeout)?
}

impl Reply {
    /// The next chunk of the body; `None` at the end.
    ///
    /// # Errors
    /// When neither arrives before `deadline`.
    pub async fn piece(&mut self, deadline: Instant) -> Result<Option<Bytes>, HttpError> {
        loop {
            let frame = async {
                tokio::select! {
                    biased;
                    frame = self.body.frame() => frame,
                    () = &mut self.connection => self.body.frame().await,
                }
            };
            let frame = timeout_at(deadline, frame).await;
            match frame.map_err(|_| HttpError::Timeout)?.transpose()? {
                None => return Ok(None),
                Some(frame) => {
                    // Frames without data are trailers.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Reads the whole body, of at most `limit` bytes.
    ///
    /// # Errors
    /// When it is larger, or not complete before `deadline`.
    pub async fn body(mut self, limit: usize, deadline: Instant) -> Result<Bytes, HttpError> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece(deadline).await? {
            if piece.len() > limit - body.len() {
                return Err(HttpError::TooLarge(limit));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body.into())
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reply = &mut f.debug_struct("Reply");
        reply.field("status", &self.status).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::net::TcpListener;

    use super::*;
    use crate::Scope;

    const LIMIT: usize = 100;

    fn request() -> Request<Body> {
        Request::get("/x").body(Body::default()).unwrap()
    }

    /// A server that handles one connection: sends these chunks and closes it.
    async fn server(scope: &Scope, pieces: &[&str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pieces: Vec<String> = pieces.iter().map(|piece| (*piece).to_owned()).collect();
        scope.spawn("server", async move {
            let (mut stream, _) = listener.accept().await?;
            let mut asked = [0; 512];
            let length = stream.read(&mut asked).await?;
            let asked = String::from_utf8_lossy(&asked[..length]);
            assert!(asked.starts_with("GET /x HTTP/1.1\r\n"), "{asked}");
            assert!(asked.contains(&format!("host: {address}\r\n")), "{asked}");
            for piece in pieces {
                // The peer may have stopped reading.
                let _ = stream.write_all(piece.as_bytes()).await;
                tokio::task::yield_now().await;
            }
            Ok::<_, io::Error>(())
        });
        address
    }

    async fn answered(pieces: &[&str]) -> Result<(u16, String), String> {
        let scope = Scope::new("test");
        let address = server(&scope, pieces).await;
        let deadline = Instant::now() + Duration::from_secs(30);
        let answer = async {
            let reply = send(address, request(), deadline).await?;
            Ok((reply.status.as_u16(), reply.body(LIMIT, deadline).await?))
        };
        let (status, body) = answer.await.map_err(|error: HttpError| error.to_string())?;
        Ok((status, String::from_utf8(body.to_vec()).unwrap()))
    }

    #[tokio::test]
    async fn body_lengths_follow_the_head() {
        let ok = |body: &str| Ok((200, body.to_owned()));
        for pieces in [
            &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, and more"][..],
            &[
                "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2\r\nhe\r\n",
                "3;x=y\r\nllo\r\n0\r\n\r\n",
            ],
            &["HTTP/1.0 200\r\n\r\nhel", "lo"],
        ] {
            assert_eq!(answered(pieces).await, ok("hello"), "{pieces:?}");
        }
        let empty = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(answered(&[empty]).await, Ok((503, String::new())));
        let full = "x".repeat(LIMIT);
        let answer = format!("HTTP/1.1 200 OK\r\n\r\n{full}");
        assert_eq!(answered(&[&answer]).await, ok(&full));
    }

    #[tokio::test]
    async fn incomplete_responses_are_errors() {
        let long = "x".repeat(LIMIT + 1);
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(2 * BUFFER));
        let by_length = format!("HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n{long}");
        let by_end = format!("HTTP/1.1 200 OK\r\n\r\n{long}");
        let by_chunk = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n65\r\n{long}");
        let cut_off = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello";
        let bad_chunk = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
        for (answer, expected) in [
            ("", "closed before message completed"),
            ("SSH-2.0-OpenSSH\r\n", "not HTTP"),
            ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "not HTTP"),
            (cut_off, "end of file before message length reached"),
            (bad_chunk, "chunk size"),
            (&endless, "not HTTP: message head is too large"),
            (&by_length, "larger than 100"),
            (&by_end, "larger than 100"),
            (&by_chunk, "larger than 100"),
        ] {
            let error = answered(&[answer]).await.unwrap_err();
            assert!(error.contains(expected), "{answer:.80}: {error}");
        }
    }

    #[tokio::test]
    async fn the_deadline_applies_to_head_and_body() {
        // Accepts the connection and never responds.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let soon = || Instant::now() + Duration::from_millis(20);
        let late = send(silent.local_addr().unwrap(), request(), soon()).await;
        assert!(matches!(late, Err(HttpError::Timeout)), "{late:?}");

        let (mut reply, _there) =
            half_answered("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello").await;
        assert_eq!(&*reply.piece(soon()).await.unwrap().unwrap(), b"hello");
        let late = reply.body(LIMIT, soon()).await;
        assert!(matches!(late, Err(HttpError::Timeout)), "{late:?}");
    }

    /// A partial response on a connection that remains open.
    async fn half_answered(answer: &str) -> (Reply, DuplexStream) {
        let (here, mut there) = tokio::io::duplex(1024);
        let deadline = Instant::now() + Duration::from_secs(30);
        let reply = send_over(here, request(), deadline);
        let answer = async {
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                there.read_buf(&mut asked).await.unwrap();
            }
            there.write_all(answer.as_bytes()).await.unwrap();
        };
        (tokio::join!(reply, answer).0.unwrap(), there)
    }

    #[tokio::test]
    async fn dropping_the_response_closes_the_connection() {
        let (reply, mut there) = half_answered("HTTP/1.1 200 OK\r\n\r\nx").await;
        drop(reply);
        assert_eq!(there.read(&mut [0]).await.unwrap(), 0);
    }
}
