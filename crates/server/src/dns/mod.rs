//! DNS for the catalog: services, nodes, mesh destinations and prepared queries below `consul.` or another
//! domain. Names in other domains are forwarded to recursors, if there are any.

mod answer;
mod current;
mod question;
mod records;
mod recursors;
mod wire;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::FutureExt;
use hickory_proto::op::{OpCode, ResponseCode};
use hickory_proto::rr::DNSClass;
use legate_model::acl::Authorizer;
use legate_model::{PreparedQuery, Tenancy};
use legate_runtime::{BoxError, CancellationToken, Clock, Spawner};
use legate_store::Reader;
use legate_wan::Wan;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::acl::Rights;
use crate::config::ServerConfig;
use crate::config::dns::DnsSettings;
use crate::net::{self, Admission};
use crate::prepared::{self, Selected};
use crate::rates::Rates;
use crate::wan;
use answer::{Answer, Asker, Known, Resolver, Wanted};
pub(crate) use current::CurrentDns;
use question::{Names, Target};
use wire::{Form, LARGEST_MESSAGE, Request};
pub(crate) use wire::{Transport, Undecodable};

/// Idle and write timeout of TCP clients.
const IDLE: Duration = Duration::from_secs(10);

/// Time that open connections get at shutdown.
const STOP: Duration = Duration::from_secs(2);

/// Delay after a receive error on UDP.
const RECEIVE_REST: Duration = Duration::from_millis(100);

/// The client of a request.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// The secret of its token; empty for the anonymous token.
    pub(crate) token: String,
    /// The tenancy of names that specify none.
    pub(crate) tenancy: Tenancy,
    /// Its address, if known.
    pub(crate) source: Option<IpAddr>,
    pub(crate) transport: Transport,
    /// The datacenter whose clients get the addresses `wan` of what is in others. `None`: nobody gets these.
    pub(crate) translate_for: Option<String>,
}

/// Answers DNS requests. Read-only.
#[derive(Clone)]
pub(crate) struct Responder {
    store: Reader,
    rights: Rights,
    clock: Clock,
    config: Arc<ServerConfig>,
    settings: CurrentDns,
    rates: Rates,
    wan: Option<Wan>,
}

/// The result of the first step.
enum Begun {
    /// The response to send, if any.
    Done(Option<Vec<u8>>),
    /// Others must be asked.
    Waits(Box<Waiting>),
}

/// A request that waits for others.
struct Waiting {
    request: Request,
    bytes: Vec<u8>,
    client: Client,
    access: Authorizer,
    settings: Arc<DnsSettings>,
    asks: Asks,
    _place: OwnedSemaphorePermit,
}

/// Who is asked for what this server does not know.
enum Asks {
    /// A server of another datacenter.
    Datacenter(String),
    /// Recursors, for the request itself.
    Request,
    /// Recursors, for host names in the answer.
    Hosts(Wanted),
    /// Other datacenters, to which a prepared query fails over.
    Query(Arc<PreparedQuery>),
}

/// An answer, and what is missing for a complete one.
struct Resolved {
    answer: Answer,
    hosts: Wanted,
    query: Option<Arc<PreparedQuery>>,
}

/// What others have said.
#[derive(Default)]
struct Heard {
    hosts: Known,
    executed: Option<Selected>,
}

impl Responder {
    pub(crate) fn new(
        store: Reader,
        rights: Rights,
        clock: Clock,
        config: Arc<ServerConfig>,
        settings: CurrentDns,
        rates: Rates,
    ) -> Self {
        Self {
            store,
            rights,
            clock,
            config,
            settings,
            rates,
            wan: None,
        }
    }

    /// See [`Client::translate_for`], for clients of this server.
    pub(crate) fn translates_for(&self) -> Option<String> {
        self.config.translates_for()
    }

    /// Passes names of other datacenters on to them.
    #[must_use]
    pub(crate) fn with_wan(self, wan: Option<Wan>) -> Self {
        Self { wan, ..self }
    }

    /// Answers one request.
    ///
    /// `None` if the bytes are a DNS response, which must not be answered.
    ///
    /// # Errors
    /// If the bytes are not a DNS message.
    pub(crate) async fn query(
        &self,
        client: Client,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, Undecodable> {
        match self.begin(client, bytes, false)? {
            Begun::Done(reply) => Ok(reply),
            Begun::Waits(waiting) => Ok(self.finish(*waiting).await),
        }
    }

    /// Answers a request from the state, or returns it for recursors. `counts` tells whether the lookup counts
    /// against the rate limits; requests over gRPC have been counted as calls.
    fn begin(&self, client: Client, bytes: &[u8], counts: bool) -> Result<Begun, Undecodable> {
        let Some(request) = Request::read(bytes)? else {
            return Ok(Begun::Done(None));
        };
        let settings = self.settings.get();
        let fails = |code| {
            let answer = Answer::failed(code);
            Ok(Begun::Done(write(&request, &client, &settings, answer)))
        };
        if request.metadata.op_code != OpCode::Query {
            return fails(ResponseCode::NotImp);
        }
        if !matches!(request.question.query_class(), DNSClass::IN | DNSClass::ANY) {
            return fails(ResponseCode::Refused);
        }
        let access = match self.rights.of(&client.token) {
            Ok(access) => access,
            Err(error) => {
                tracing::debug!(%error, "DNS query refused");
                return fails(ResponseCode::Refused);
            }
        };
        let reads = || {
            let (question, names) = (&request.question, self.names(&client.tenancy, &settings));
            let (target, _) = names.read(question.name(), question.query_type());
            target.is_read()
        };
        if counts && reads() && self.rates.refuse(false, "DNS") {
            return fails(ResponseCode::ServFail);
        }
        let resolved = self.resolve(&client, &request, &access, &settings, Heard::default());
        let Resolved {
            answer,
            hosts,
            query,
        } = resolved;
        let asks = match hosts {
            _ if let Some(datacenter) = self.other_datacenter(&request, &client, &settings) => {
                Asks::Datacenter(datacenter)
            }
            _ if self.is_elsewhere(&request, &client, &settings, &answer) => Asks::Request,
            _ if let Some(query) = query.filter(|_| self.wan.is_some()) => Asks::Query(query),
            hosts if hosts.is_empty() => {
                return Ok(Begun::Done(write(&request, &client, &settings, answer)));
            }
            hosts => Asks::Hosts(hosts),
        };
        let Some(place) = self.settings.places.take() else {
            tracing::debug!("too many DNS requests wait for recursors");
            return fails(ResponseCode::ServFail);
        };
        Ok(Begun::Waits(Box::new(Waiting {
            request,
            bytes: bytes.to_vec(),
            client,
            access,
            settings,
            asks,
            _place: place,
        })))
    }

    /// Asks the others and completes the answer.
    async fn finish(&self, waiting: Waiting) -> Option<Vec<u8>> {
        let Waiting {
            request,
            bytes,
            client,
            access,
            settings,
            asks,
            _place,
        } = waiting;
        let answer = match asks {
            Asks::Datacenter(datacenter) => {
                if let Some(wan) = &self.wan
                    && let Some(reply) = wan::ask_dns(wan, &datacenter, &client, bytes).await
                {
                    return Some(reply);
                }
                Answer::failed(ResponseCode::ServFail)
            }
            Asks::Hosts(wanted) => {
                let heard = Heard {
                    hosts: recursors::look_up(&settings, wanted).await,
                    executed: None,
                };
                let resolved = self.resolve(&client, &request, &access, &settings, heard);
                resolved.answer
            }
            Asks::Query(query) => {
                let heard = Heard {
                    executed: self.execute(&client, &request, &access, &query).await,
                    ..Heard::default()
                };
                let resolved = self.resolve(&client, &request, &access, &settings, heard);
                resolved.answer
            }
            Asks::Request => {
                let end = request.question_end;
                let asked = recursors::forward(&settings, &bytes, end, client.transport);
                if let Some(reply) = asked.await {
                    return Some(reply);
                }
                Answer {
                    is_foreign: true,
                    ..Answer::failed(ResponseCode::ServFail)
                }
            }
        };
        write(&request, &client, &settings, answer)
    }

    /// Executes a prepared query in all datacenters. `None` if its token does not exist any more.
    async fn execute(
        &self,
        client: &Client,
        request: &Request,
        access: &Authorizer,
        query: &PreparedQuery,
    ) -> Option<Selected> {
        let (own, token) = match query.token.is_empty() {
            true => (None, client.token.as_str()),
            false => {
                let token = query.token.expose();
                (Some(self.rights.of(token).ok()?), token)
            }
        };
        let caller = prepared::Caller {
            authorizer: own.as_ref().unwrap_or(access),
            node: &self.config.node_name,
            source: request.subnet().map(|subnet| subnet.ip).or(client.source),
        };
        let sought = prepared::Sought {
            wanted: &query.service,
            connect: query.service.connect,
            near: &query.service.near,
        };
        let servers = self.wan.as_ref();
        let executed = prepared::select_everywhere(
            &self.store,
            &caller,
            sought,
            token,
            servers,
            wan::DNS_QUERY_TIMEOUT,
        )
        .await;
        Some(executed.selected)
    }

    /// The other datacenter that a name is in.
    fn other_datacenter(
        &self,
        request: &Request,
        client: &Client,
        settings: &DnsSettings,
    ) -> Option<String> {
        let (question, own) = (&request.question, self.names(&client.tenancy, settings));
        let target = |names: Names<'_>| names.read(question.name(), question.query_type()).0;
        let wan = self.wan.as_ref()?;
        if target(own) != Target::Nothing {
            return None;
        }
        let mut others = wan.datacenters().into_iter().skip(1);
        others.find(|datacenter| target(Names { datacenter, ..own }).is_read())
    }

    /// Whether recursors must answer: names in other domains, and addresses that are not in the catalog.
    fn is_elsewhere(
        &self,
        request: &Request,
        client: &Client,
        settings: &DnsSettings,
        answer: &Answer,
    ) -> bool {
        let question = &request.question;
        let names = self.names(&client.tenancy, settings);
        let (target, _) = names.read(question.name(), question.query_type());
        let is_other = match target {
            Target::Elsewhere => true,
            Target::Reverse(_) | Target::Nothing => {
                let arpa = question.name().iter().next_back();
                arpa.is_some_and(|label| label.eq_ignore_ascii_case(b"arpa"))
                    && answer.code == ResponseCode::NXDomain
            }
            _ => false,
        };
        is_other && !settings.recursors.is_empty()
    }

    fn names<'a>(&'a self, tenancy: &'a Tenancy, settings: &DnsSettings) -> Names<'a> {
        Names {
            domains: &self.config.dns_domains,
            datacenter: &self.config.datacenter,
            tenancy,
            prefer_namespace: settings.prefer_namespace,
        }
    }

    fn resolve(
        &self,
        client: &Client,
        request: &Request,
        access: &Authorizer,
        settings: &DnsSettings,
        heard: Heard,
    ) -> Resolved {
        let since_epoch = self.clock.now().duration_since(UNIX_EPOCH);
        let state = self.store.state();
        let resolver = Resolver {
            state: &state,
            asker: Asker {
                access,
                source: request.subnet().map(|subnet| subnet.ip).or(client.source),
                has_edns: request.edns.is_some(),
            },
            rights: &|token| self.rights.of(token).ok(),
            settings,
            names: self.names(&client.tenancy, settings),
            node: &self.config.node_name,
            server: self.config.advertise,
            // Truncated: serial numbers are compared modulo 2^32.
            serial: since_epoch.map_or(0, |time| time.as_secs() as u32),
            known: &heard.hosts,
            executed: heard.executed,
            translate_for: client.translate_for.as_deref(),
            fails_over: RefCell::default(),
            wanted: RefCell::default(),
        };
        let question = &request.question;
        let answer = resolver.answer(question.name(), question.query_type());
        Resolved {
            answer,
            hosts: resolver.wanted.into_inner(),
            query: resolver.fails_over.into_inner(),
        }
    }

    /// Starts a request from a socket. It uses the agent's DNS token. A panic ends only this request, which
    /// gets no response.
    fn begin_safely(&self, request: &[u8], client: SocketAddr, transport: Transport) -> Begun {
        let client = Client {
            token: self.rights.dns_token(),
            tenancy: Tenancy::default(),
            source: Some(client.ip().to_canonical()),
            transport,
            translate_for: self.config.translates_for(),
        };
        match catch_unwind(AssertUnwindSafe(|| self.begin(client, request, true))) {
            Ok(Ok(begun)) => begun,
            Ok(Err(error)) => {
                tracing::debug!(%error, "DNS request refused");
                Begun::Done(wire::format_error(request))
            }
            Err(_) => {
                // The panic hook has logged the details.
                tracing::error!("a DNS request panicked");
                Begun::Done(None)
            }
        }
    }

    /// [`Self::finish`], which also catches panics.
    async fn finish_safely(&self, waiting: Waiting) -> Option<Vec<u8>> {
        let finished = AssertUnwindSafe(self.finish(waiting)).catch_unwind().await;
        finished.unwrap_or_else(|_| {
            tracing::error!("a DNS request panicked");
            None
        })
    }
}

/// Encodes an answer.
fn write(
    request: &Request,
    client: &Client,
    settings: &DnsSettings,
    answer: Answer,
) -> Option<Vec<u8>> {
    let recursion_available = !settings.recursors.is_empty();
    let mut reply = request.reply(answer.code);
    reply.metadata.authoritative = answer.code != ResponseCode::Refused && !answer.is_foreign;
    reply.metadata.recursion_available = recursion_available;
    reply.answers = answer.answers;
    reply.authorities = answer.authorities;
    reply.additionals = answer.additionals;
    request.add_edns(&mut reply, answer.depends_on_client);
    let written = Form::of(request, client.transport, settings).write(reply);
    written
        .or_else(|error| {
            tracing::error!(%error, "a DNS response could not be encoded");
            request.reply(ResponseCode::ServFail).to_vec()
        })
        .ok()
}

/// Serves UDP and TCP until `stop`.
///
/// # Errors
/// If a socket fails.
pub(crate) async fn serve(
    responder: Responder,
    spawner: Spawner,
    udp: UdpSocket,
    tcp: TcpListener,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    tokio::try_join!(
        serve_udp(&responder, &spawner, udp, &stop),
        serve_tcp(&responder, &spawner, &tcp, &stop)
    )?;
    Ok(())
}

/// Handles datagrams one at a time: an answer takes microseconds, and datagrams queue in the socket's bounded
/// buffer. Only requests that wait for recursors get their own task, limited by [`current::Places`].
async fn serve_udp(
    responder: &Responder,
    spawner: &Spawner,
    socket: UdpSocket,
    stop: &CancellationToken,
) -> Result<(), BoxError> {
    let waiting = spawner.child("dns udp");
    let socket = Arc::new(socket);
    let mut buffer = vec![0; LARGEST_MESSAGE];
    loop {
        let received = stop
            .run_until_cancelled(socket.recv_from(&mut buffer))
            .await;
        let (length, client) = match received {
            None => break,
            Some(Ok(received)) => received,
            Some(Err(error)) => {
                // The error concerns an earlier client; the socket is still usable.
                tracing::debug!(%error, "UDP receive");
                tokio::time::sleep(RECEIVE_REST).await;
                continue;
            }
        };
        match responder.begin_safely(&buffer[..length], client, Transport::Udp) {
            Begun::Done(None) => {}
            Begun::Done(Some(reply)) => send(&socket, &reply, client).await,
            Begun::Waits(request) => {
                let (responder, socket) = (responder.clone(), Arc::clone(&socket));
                let stop = stop.clone();
                waiting.spawn("dns udp request", async move {
                    let finished = stop.run_until_cancelled(responder.finish_safely(*request));
                    if let Some(Some(reply)) = finished.await {
                        send(&socket, &reply, client).await;
                    }
                    Ok::<(), BoxError>(())
                });
            }
        }
    }
    if let Err(error) = waiting.stop(STOP).await {
        tracing::debug!(%error, "DNS requests");
    }
    Ok(())
}

async fn send(socket: &UdpSocket, reply: &[u8], client: SocketAddr) {
    if let Err(error) = socket.send_to(reply, client).await {
        tracing::debug!(%client, %error, "a DNS response could not be sent");
    }
}

async fn serve_tcp(
    responder: &Responder,
    spawner: &Spawner,
    listener: &TcpListener,
    stop: &CancellationToken,
) -> Result<(), BoxError> {
    let connections = spawner.child("dns");
    let limit = responder.config.connections.dns;
    let admission = Admission::new("dns", limit, Some("--dns-max-connections"));
    let accepting = async {
        loop {
            let (stream, client) = net::accept("dns", listener).await;
            let Some(place) = admission.admit(client.ip()) else {
                continue;
            };
            let (responder, stop) = (responder.clone(), stop.clone());
            connections.spawn(format!("dns {client}"), async move {
                let _place = place;
                // An idle or slow client does not delay the shutdown.
                let served = stop.run_until_cancelled(serve_connection(&responder, stream, client));
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

/// Handles requests one at a time, each prefixed with its length.
async fn serve_connection(
    responder: &Responder,
    mut stream: TcpStream,
    client: SocketAddr,
) -> Result<(), BoxError> {
    let mut request = Vec::new();
    loop {
        let Ok(length) = timeout(IDLE, stream.read_u16()).await? else {
            // The client closed the connection.
            return Ok(());
        };
        request.resize(usize::from(length), 0);
        timeout(IDLE, stream.read_exact(&mut request)).await??;
        let reply = match responder.begin_safely(&request, client, Transport::Tcp) {
            Begun::Done(reply) => reply,
            Begun::Waits(waiting) => responder.finish_safely(*waiting).await,
        };
        let Some(reply) = reply else {
            return Ok(());
        };
        let mut framed = Vec::with_capacity(2 + reply.len());
        framed.extend_from_slice(&u16::try_from(reply.len())?.to_be_bytes());
        framed.extend_from_slice(&reply);
        timeout(IDLE, stream.write_all(&framed)).await??;
    }
}
