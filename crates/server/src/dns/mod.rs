//! DNS for the catalog: services, nodes and mesh destinations below `consul.`. It answers from the
//! tables at hand and never asks another server.

mod answer;
mod question;
mod records;
mod wire;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::DNSClass;
use legate_runtime::{BoxError, CancellationToken, Clock, Spawner};
use legate_store::Reader;
use rand::seq::SliceRandom;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::acl::Rights;
use crate::config::ServerConfig;
use crate::handles::Handles;
use crate::net::{self, Admission};
use answer::{Answer, Resolver};
pub(crate) use wire::{Transport, Undecodable};

/// How long a TCP client may be silent, or take to read an answer.
const IDLE: Duration = Duration::from_secs(10);

/// How long open connections may take to notice the stop.
const STOP: Duration = Duration::from_secs(2);

/// How long UDP rests after an error.
const RECEIVE_REST: Duration = Duration::from_millis(100);

/// The longest DNS message.
const LARGEST_MESSAGE: usize = 65_535;

/// Answers DNS messages. It reads, and has nothing to write with.
#[derive(Clone)]
pub(crate) struct Responder {
    store: Reader,
    rights: Rights,
    clock: Clock,
    config: Arc<ServerConfig>,
}

impl Responder {
    pub(crate) fn new(handles: &Handles) -> Self {
        Self {
            store: handles.store.reader(),
            rights: handles.rights(),
            clock: handles.clock.clone(),
            config: Arc::clone(&handles.config),
        }
    }

    /// Answers one request as the owner of `token` may see it. An empty token is the anonymous one.
    ///
    /// `None`: the bytes are a response, which is not answered.
    ///
    /// # Errors
    /// When the bytes are no DNS message.
    pub(crate) fn query(
        &self,
        token: &str,
        bytes: &[u8],
        transport: Transport,
    ) -> Result<Option<Vec<u8>>, Undecodable> {
        let request = wire::decode(bytes)?;
        if !wire::is_request(&request) {
            return Ok(None);
        }
        let mut reply = wire::reply_to(&request);
        let answer = self.resolve(token, &request);
        reply.metadata.response_code = answer.code;
        reply.metadata.authoritative = answer.code != ResponseCode::Refused;
        reply.answers = answer.answers;
        reply.authorities = answer.authorities;
        reply.additionals = answer.additionals;
        // Clients take the first: the order spreads them.
        reply.answers.shuffle(&mut rand::rng());
        match wire::encode(reply, &request, transport) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => {
                tracing::error!(%error, "a DNS answer could not be written");
                let mut failure = wire::reply_to(&request);
                failure.metadata.response_code = ResponseCode::ServFail;
                Ok(failure.to_vec().ok())
            }
        }
    }

    fn resolve(&self, token: &str, request: &Message) -> Answer {
        let failed = |code| Answer {
            code,
            ..Answer::default()
        };
        if request.metadata.op_code != OpCode::Query {
            return failed(ResponseCode::NotImp);
        }
        let [question] = &request.queries[..] else {
            return failed(ResponseCode::FormErr);
        };
        if !matches!(question.query_class(), DNSClass::IN | DNSClass::ANY) {
            return failed(ResponseCode::Refused);
        }
        let access = match self.rights.of(token) {
            Ok(access) => access,
            Err(error) => {
                tracing::debug!(%error, "DNS query refused");
                return failed(ResponseCode::Refused);
            }
        };
        let since_epoch = self.clock.now().duration_since(UNIX_EPOCH);
        let state = self.store.state();
        let resolver = Resolver {
            state: &state.read(),
            access: &access,
            only_passing: self.config.dns_only_passing,
            datacenter: &self.config.datacenter,
            server: self.config.advertise,
            // Serial numbers are compared modulo 2^32.
            serial: since_epoch.map_or(0, |time| time.as_secs() as u32),
        };
        resolver.answer(question.name(), question.query_type())
    }

    /// What goes back to a client of the sockets: they have no token but the agent's for DNS. A request that makes the server
    /// panic gets no answer, and nobody else notices.
    fn reply(&self, request: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let token = self.rights.dns_token();
        let answer = || self.query(&token, request, transport);
        match catch_unwind(AssertUnwindSafe(answer)) {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => {
                tracing::debug!(%error, "DNS request refused");
                wire::format_error(request)
            }
            Err(_) => {
                // The panic hook has written what happened where.
                tracing::error!("a DNS request panicked");
                None
            }
        }
    }
}

/// Answers over UDP and TCP until `stop`.
///
/// # Errors
/// When a socket breaks down.
pub(crate) async fn serve(
    responder: Responder,
    spawner: Spawner,
    udp: UdpSocket,
    tcp: TcpListener,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    tokio::try_join!(
        serve_udp(&responder, &udp, &stop),
        serve_tcp(&responder, &spawner, &tcp, &stop)
    )?;
    Ok(())
}

/// One datagram after the other: an answer takes microseconds, and what waits does so in the
/// socket's own bounded buffer.
async fn serve_udp(
    responder: &Responder,
    socket: &UdpSocket,
    stop: &CancellationToken,
) -> Result<(), BoxError> {
    let mut buffer = vec![0; LARGEST_MESSAGE];
    loop {
        let received = stop
            .run_until_cancelled(socket.recv_from(&mut buffer))
            .await;
        let (length, client) = match received {
            None => return Ok(()),
            Some(Ok(received)) => received,
            Some(Err(error)) => {
                // An earlier client is gone; the socket is as good as before.
                tracing::debug!(%error, "UDP receive");
                tokio::time::sleep(RECEIVE_REST).await;
                continue;
            }
        };
        let Some(reply) = responder.reply(&buffer[..length], Transport::Udp) else {
            continue;
        };
        if let Err(error) = socket.send_to(&reply, client).await {
            tracing::debug!(%client, %error, "a DNS answer could not be sent");
        }
    }
}

async fn serve_tcp(
    responder: &Responder,
    spawner: &Spawner,
    listener: &TcpListener,
    stop: &CancellationToken,
) -> Result<(), BoxError> {
    let connections = spawner.child("dns");
    let admission = Admission::new("dns", responder.config.connections.dns);
    let accepting = async {
        loop {
            let (stream, client) = net::accept("dns", listener).await;
            let Some(place) = admission.admit(client.ip()) else {
                continue;
            };
            let (responder, stop) = (responder.clone(), stop.clone());
            connections.spawn(format!("dns {client}"), async move {
                let _place = place;
                // A client that waits or dawdles does not hold up the stop.
                let served = stop.run_until_cancelled(serve_connection(&responder, stream));
                if let Some(Err(error)) = served.await {
                    tracing::debug!(%client, %error, "DNS connection");
                }
                Ok::<(), BoxError>(())
            });
        }
    };
    let result = tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = accepting => Ok(()),
    };
    if let Err(error) = connections.stop(STOP).await {
        tracing::debug!(%error, "DNS connections");
    }
    result
}

/// One request after the other, each with its length in front.
async fn serve_connection(responder: &Responder, mut stream: TcpStream) -> Result<(), BoxError> {
    let mut request = Vec::new();
    loop {
        let Ok(length) = timeout(IDLE, stream.read_u16()).await? else {
            // The client has closed, as it should.
            return Ok(());
        };
        request.resize(usize::from(length), 0);
        timeout(IDLE, stream.read_exact(&mut request)).await??;
        let Some(reply) = responder.reply(&request, Transport::Tcp) else {
            return Ok(());
        };
        let mut framed = Vec::with_capacity(2 + reply.len());
        framed.extend_from_slice(&u16::try_from(reply.len())?.to_be_bytes());
        framed.extend_from_slice(&reply);
        timeout(IDLE, stream.write_all(&framed)).await??;
    }
}
