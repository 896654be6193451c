//! Requests to servers of other datacenters: one HTTP/2 connection for each purpose to each server that is used.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use legate_runtime::Spawner;
use tokio::time::Instant;

use crate::executor::Tasks;
use crate::membership::{Member, ServerName};
use crate::port::Body;
use crate::{PING, Protocol, Wan};

/// The bytes of a response that may be on their way: enough for a long and fast link.
const WINDOW: u32 = 4 * 1024 * 1024;

/// How long a server that could not be reached is not tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The connection to a server. Requests that need one wait until the first of them has connected, or has failed to.
type Link = Arc<tokio::sync::Mutex<State>>;

#[derive(Default)]
struct State {
    sender: Option<SendRequest<Body>>,
    failed: Option<(Instant, String)>,
}

/// The connections. Those that nobody uses stay open; there is one a server.
pub(crate) struct Links {
    open: Mutex<HashMap<ServerName, Link>>,
    spawner: Spawner,
}

/// Why a server did not answer.
pub(crate) enum Failure {
    /// It has not received the request.
    NotSent(Box<Request<Body>>, io::Error),
    /// It may have received the request, and acted on it.
    Sent(io::Error),
}

impl Links {
    pub(crate) fn new(spawner: Spawner) -> Self {
        Self {
            open: Mutex::default(),
            spawner,
        }
    }

    /// Sends a request to a server.
    pub(crate) async fn send(
        &self,
        wan: &Wan,
        server: &Member,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, Failure> {
        let mut sender = match self.connected(wan, server).await {
            Ok(sender) => sender,
            Err(error) => return Err(Failure::NotSent(Box::new(request), error)),
        };
        match sender.try_send_request(request).await {
            Ok(response) => Ok(response),
            Err(mut failed) => {
                let request = failed.take_message();
                let error = io::Error::other(failed.into_error());
                Err(match request {
                    Some(request) => Failure::NotSent(Box::new(request), error),
                    None => Failure::Sent(error),
                })
            }
        }
    }

    async fn connected(&self, wan: &Wan, server: &Member) -> io::Result<SendRequest<Body>> {
        let link = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(open.entry(server.name.clone()).or_default())
        };
        let mut link = link.lock().await;
        if let Some(sender) = link.sender.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        if let Some((_, error)) = link
            .failed
            .as_ref()
            .filter(|(at, _)| at.elapsed() < RETRY_AFTER)
        {
            return Err(io::Error::other(error.clone()));
        }
        link.failed = None;
        match self.connect(wan, server).await {
            Ok(sender) => {
                link.sender = Some(sender.clone());
                Ok(sender)
            }
            Err(error) => {
                link.sender = None;
                link.failed = Some((Instant::now(), error.to_string()));
                Err(error)
            }
        }
    }

    async fn connect(&self, wan: &Wan, server: &Member) -> io::Result<SendRequest<Body>> {
        let dialled = wan.connect(&server.name, server.address, Protocol::Requests);
        let dialled = dialled.await?;
        let mut builder = http2::Builder::new(Tasks(self.spawner.clone()));
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .keep_alive_while_idle(true);
        let shaken = builder.handshake(TokioIo::new(dialled.stream)).await;
        let (sender, connection) = shaken.map_err(io::Error::other)?;
        // Boxed outside of the task: the compiler cannot prove in it that the connection is `Send`.
        let connection: BoxFuture<'static, _> = Box::pin(connection);
        let name = server.name.clone();
        let stop = self.spawner.token();
        self.spawner.spawn("connection to a server", async move {
            if let Some(Err(error)) = stop.run_until_cancelled(connection).await {
                tracing::debug!(server = %name, %error, "the connection to a server of another datacenter has ended");
            }
            Ok::<_, Infallible>(())
        });
        Ok(sender)
    }

    /// Forgets the connections to servers that are not members any more.
    pub(crate) fn retain(&self, is_member: impl Fn(&ServerName) -> bool) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|name, _| is_member(name));
    }
}
