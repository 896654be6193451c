//! The simulated proxies: each has a plaintext connection and a task. They report what they receive
//! and when; the caller evaluates it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::{Connection, SendRequest};
use h2::{RecvStream, SendStream};
use http::Request;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_runtime::{BoxError, Scope};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep};

use crate::catalog;
use crate::protocol::{self, References, Session};

/// The method of every stream.
const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// The flow control window in bytes, of a stream and of a connection. It exceeds the size of a
/// configuration, as with Envoy.
const WINDOW: u32 = 1024 * 1024;

/// The delay before a proxy reconnects.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);

/// The size of the gRPC message header: compression flag and length.
const PREFIX: usize = 5;

/// An event of a proxy.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) proxy: usize,
    pub(crate) at: Instant,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    /// The connection is open.
    Connected,
    /// The connection or stream ended, with the reason.
    Ended(String),
    /// The proxy has all required resources for the first time on this stream.
    Configured,
    /// A response for a configured proxy; the type is an index in `ORDERED`.
    Update(usize),
}

/// All simulated proxies. Dropping it disconnects them.
pub(crate) struct Proxies {
    _tasks: Scope,
    pub(crate) events: UnboundedReceiver<Event>,
}

impl Proxies {
    /// Connects this many proxies at the same moment.
    pub(crate) fn connect(count: usize, server: SocketAddr, references: References) -> Self {
        let tasks = Scope::new("proxies");
        let (sender, events) = mpsc::unbounded_channel();
        for number in 0..count {
            let (id, service) = (catalog::id(number), catalog::service(number));
            let proxy = Proxy {
                number,
                server,
                references,
                node: protocol::node(id, service, catalog::node(number)),
                events: sender.clone(),
            };
            tasks.spawn("proxy", proxy.run());
        }
        Self {
            _tasks: tasks,
            events,
        }
    }
}

struct Proxy {
    number: usize,
    server: SocketAddr,
    references: References,
    node: Bytes,
    events: UnboundedSender<Event>,
}

impl Proxy {
    async fn run(self) -> Result<(), Infallible> {
        loop {
            if let Err(error) = self.connection().await {
                self.say(What::Ended(error.to_string()));
            }
            sleep(AGAIN).await;
        }
    }

    fn say(&self, what: What) {
        // The receiver is only dropped at the end.
        let _ = self.events.send(Event {
            proxy: self.number,
            at: Instant::now(),
            what,
        });
    }

    /// Runs a connection until it ends.
    async fn connection(&self) -> Result<(), BoxError> {
        let (client, connection) = connect(self.server).await?;
        tokio::select! {
            ended = connection => ended?,
            ended = self.stream(client) => ended?,
        }
        Err("the server closed the connection".into())
    }

    async fn stream(&self, client: SendRequest<Bytes>) -> Result<(), BoxError> {
        let mut client = client.ready().await?;
        self.say(What::Connected);
        let (response, mut requests) = client.send_request(request(self.server)?, false)?;
        let (mut session, first) = Session::start(self.references, self.node.clone());
        send(&mut requests, &first)?;
        let mut responses = Messages::new(response.await?.into_body());
        let mut configured = false;
        while let Some(response) = responses.next().await? {
            let response = DeltaDiscoveryResponse::decode(response)?;
            let place = protocol::place(&response.type_url);
            for request in session.on_response(&response) {
                send(&mut requests, &request)?;
            }
            if configured {
                self.say(What::Update(place));
            } else if session.is_configured() {
                configured = true;
                self.say(What::Configured);
            }
        }
        Err(responses.ended().await)
    }
}

/// Connects to a server by HTTP/2.
pub(crate) async fn connect(
    server: SocketAddr,
) -> Result<(SendRequest<Bytes>, Connection<TcpStream>), BoxError> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let mut client = h2::client::Builder::new();
    client
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    Ok(client.handshake(stream).await?)
}

/// The request that opens a stream of resources.
pub(crate) fn request(server: SocketAddr) -> Result<Request<()>, http::Error> {
    Request::post(format!("http://{server}{METHOD}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
}

pub(crate) fn send(
    stream: &mut SendStream<Bytes>,
    request: &DeltaDiscoveryRequest,
) -> Result<(), BoxError> {
    let length = request.encoded_len();
    let mut message = BytesMut::with_capacity(PREFIX + length);
    message.put_u8(0);
    message.put_u32(u32::try_from(length)?);
    request.encode(&mut message)?;
    stream.send_data(message.freeze(), false)?;
    Ok(())
}

/// The messages of a gRPC stream.
pub(crate) struct Messages {
    body: RecvStream,
    read: BytesMut,
}

impl Messages {
    pub(crate) fn new(body: RecvStream) -> Self {
        let read = BytesMut::new();
        Self { body, read }
    }

    /// The next message; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        loop {
            if let Some(message) = self.complete() {
                return Ok(Some(message));
            }
            let Some(data) = self.body.data().await else {
                return Ok(None);
            };
            let data = data?;
            self.body.flow_control().release_capacity(data.len())?;
            self.read.extend_from_slice(&data);
        }
    }

    fn complete(&mut self) -> Option<Bytes> {
        let length = self.read.get(1..PREFIX)?.get_u32() as usize;
        if self.read.len() < PREFIX + length {
            return None;
        }
        let mut message = self.read.split_to(PREFIX + length);
        message.advance(PREFIX);
        Some(message.freeze())
    }

    /// The reason for the end of the stream.
    pub(crate) async fn ended(&mut self) -> BoxError {
        let trailers = self.body.trailers().await.ok().flatten();
        let trailers = trailers.unwrap_or_default();
        let field = |name| trailers.get(name).and_then(|value| value.to_str().ok());
        let (code, text) = (field("grpc-status"), field("grpc-message"));
        let (code, text) = (code.unwrap_or("none"), text.unwrap_or_default());
        format!("the stream ended with status {code}: {text}").into()
    }
}
