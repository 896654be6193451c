//! A fake server, a session with it, a DNS proxy on that session, and clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::{Name, RecordType};
use legate_api::dns::QueryRequest;
use legate_client::{ClientConfig, Credentials, Session, SessionState};
use legate_dataplane::dns::{DnsError, DnsOptions, DnsProxy, Limits};
use legate_model::Secret;
use legate_runtime::Scope;
use legate_runtime::metrics::{Registry, encode};
use legate_testkit::fake_server::{Body, Call, FakeServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// Far longer than any step takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Polling interval for conditions without an event.
const POLL: Duration = Duration::from_millis(20);

/// The token that the server requires.
pub(super) const TOKEN: &str = "dns-token";

/// Limits without short timeouts. Tests lower the one that they are about.
pub(super) fn limits() -> Limits {
    Limits {
        idle: PATIENCE,
        query: PATIENCE,
        stale_after: PATIENCE,
        connection: PATIENCE,
        drain: PATIENCE,
        ..Limits::default()
    }
}

pub(super) fn options(limits: Limits) -> DnsOptions {
    DnsOptions {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        namespace: String::new(),
        partition: String::new(),
        limits,
    }
}

/// The session has its own scope, which ends after the proxy's.
pub(super) struct Setup {
    pub(super) server: FakeServer,
    pub(super) session: Session,
    pub(super) registry: Registry,
    pub(super) proxy: DnsProxy,
    pub(super) scope: Scope,
    _session_scope: Scope,
}

pub(super) async fn start(limits: Limits) -> Setup {
    start_with(options(limits)).await
}

pub(super) async fn start_with(options: DnsOptions) -> Setup {
    let server = FakeServer::plaintext().await;
    let address = server.address();
    start_at(server, address, options).await
}

/// `address` is how the session reaches the server.
pub(super) async fn start_at(
    server: FakeServer,
    address: SocketAddr,
    options: DnsOptions,
) -> Setup {
    server.script().accept_token(TOKEN);
    let config = ClientConfig {
        credentials: Credentials::Static(Secret::new(TOKEN)),
        ..ClientConfig::new(address.ip().to_string().parse().unwrap(), address.port())
    };
    let (session_scope, scope) = (Scope::new("session"), Scope::new("dns"));
    let registry = Registry::new();
    let session = legate_client::connect(config, &session_scope.spawner(), &registry).unwrap();
    timeout(PATIENCE, session.connected())
        .await
        .unwrap()
        .unwrap();
    let proxy = DnsProxy::start(options, session.clone(), &scope.spawner(), &registry)
        .await
        .unwrap();
    Setup {
        server,
        session,
        registry,
        proxy,
        scope,
        _session_scope: session_scope,
    }
}

impl Setup {
    pub(super) async fn another(&self, options: DnsOptions) -> Result<DnsProxy, DnsError> {
        DnsProxy::start(
            options,
            self.session.clone(),
            &self.scope.spawner(),
            &Registry::new(),
        )
        .await
    }

    pub(super) async fn udp(&self) -> UdpClient {
        UdpClient::connect(self.proxy.udp).await
    }

    pub(super) async fn tcp(&self) -> TcpClient {
        TcpClient(TcpStream::connect(self.proxy.tcp).await.unwrap())
    }

    /// Queries that the server received, in order.
    pub(super) fn forwarded(&self) -> Vec<QueryRequest> {
        let calls = self.server.script().calls(Call::Dns).into_iter();
        calls
            .map(|call| match call.body {
                Body::Dns(query) => query,
                other => panic!("{other:?} is no DNS query"),
            })
            .collect()
    }

    /// Waits until the session has detected that the server is gone.
    pub(super) async fn disconnected(&self) {
        let mut states = self.session.subscribe();
        let gone = states.wait_for(|state| !matches!(state, SessionState::Connected(_)));
        timeout(PATIENCE, gone).await.unwrap().unwrap();
    }

    pub(super) fn generation(&self) -> Option<u64> {
        match self.session.state() {
            SessionState::Connected(connection) => Some(connection.generation),
            _ => None,
        }
    }

    pub(super) fn count(&self, transport: &str, outcome: &str) -> u64 {
        self.metric(&format!(
            "consul_dataplane_dns_queries_total{{outcome=\"{outcome}\",transport=\"{transport}\"}}"
        ))
    }

    pub(super) fn in_flight(&self, transport: &str) -> u64 {
        self.metric(&format!(
            "consul_dataplane_dns_queries_in_flight{{transport=\"{transport}\"}}"
        ))
    }

    fn metric(&self, series: &str) -> u64 {
        let text = encode(&self.registry);
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("{series} is not in\n{text}"))
            .trim()
            .parse()
            .unwrap()
    }
}

/// Polls a condition without an event.
pub(super) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let reached = async {
        while !condition() {
            tokio::time::sleep(POLL).await;
        }
    };
    assert!(timeout(PATIENCE, reached).await.is_ok(), "never: {what}");
}

pub(super) struct UdpClient(UdpSocket);

impl UdpClient {
    async fn connect(proxy: SocketAddr) -> Self {
        let own = SocketAddr::new(proxy.ip(), 0);
        let socket = UdpSocket::bind(own).await.unwrap();
        socket.connect(proxy).await.unwrap();
        Self(socket)
    }

    pub(super) async fn send(&self, query: &[u8]) {
        self.0.send(query).await.unwrap();
    }

    pub(super) async fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; 65_535];
        let length = timeout(PATIENCE, self.0.recv(&mut buffer))
            .await
            .expect("a reply")
            .unwrap();
        buffer.truncate(length);
        buffer
    }

    pub(super) async fn ask(&self, query: &[u8]) -> Vec<u8> {
        self.send(query).await;
        self.receive().await
    }
}

pub(super) struct TcpClient(pub(super) TcpStream);

impl TcpClient {
    pub(super) async fn send(&mut self, queries: &[&[u8]]) {
        let mut bytes = Vec::new();
        for query in queries {
            bytes.extend(u16::try_from(query.len()).unwrap().to_be_bytes());
            bytes.extend(*query);
        }
        self.send_raw(&bytes).await;
    }

    pub(super) async fn send_raw(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// `None` once the proxy has closed the connection, orderly or not.
    pub(super) async fn receive(&mut self) -> Option<Vec<u8>> {
        let reply = async {
            let length = self.0.read_u16().await.ok()?;
            let mut reply = vec![0; length.into()];
            self.0.read_exact(&mut reply).await.ok()?;
            Some(reply)
        };
        timeout(PATIENCE, reply).await.expect("a reply or the end")
    }

    pub(super) async fn ask(&mut self, query: &[u8]) -> Option<Vec<u8>> {
        self.send(&[query]).await;
        self.receive().await
    }
}

/// A real query, with EDNS.
pub(super) fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message.set_edns(Edns::new());
    message.to_vec().unwrap()
}

/// A query of this length, at least 32 bytes, with meaningless padding.
pub(super) fn long_query(id: u16, length: usize) -> Vec<u8> {
    let mut query = Vec::with_capacity(length);
    query.extend(id.to_be_bytes());
    // One question for the root's addresses, and one additional record: EDNS with one option.
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1]);
    query.extend([0, 0, 41, 0x10, 0, 0, 0, 0, 0]);
    let padding = u16::try_from(length - query.len() - 6).unwrap();
    query.extend((padding + 4).to_be_bytes());
    query.extend(65_001_u16.to_be_bytes());
    query.extend(padding.to_be_bytes());
    query.extend(&noise(id, length)[query.len()..]);
    query
}

/// Unrelated queries.
pub(super) fn queries<const COUNT: usize>() -> [Vec<u8>; COUNT] {
    std::array::from_fn(|id| query(id as u16, &format!("web-{id}.service.consul.")))
}

/// Bytes that start like a query with this id but are not a DNS message.
pub(super) fn noise(id: u16, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length)
        .map(|index| (index * 31 + index / 251) as u8)
        .collect();
    bytes[..2].copy_from_slice(&id.to_be_bytes());
    bytes[2] &= 0x7f;
    bytes
}

/// The default answer of the fake server.
pub(super) fn answer_to(query: &[u8]) -> Vec<u8> {
    let mut answer = query.to_vec();
    answer[2] |= 0x80;
    answer
}

/// Checks that a reply declines this query, and returns the info code of its explanation.
pub(super) fn declined(reply: &[u8], query: &[u8]) -> u16 {
    let (reply, query) = (
        Message::from_vec(reply).unwrap(),
        Message::from_vec(query).unwrap(),
    );
    assert_eq!(reply.metadata.id, query.metadata.id);
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(reply.queries, query.queries);
    match reply.edns.unwrap().option(EdnsCode::Unknown(15)) {
        Some(EdnsOption::Unknown(_, data)) => u16::from_be_bytes([data[0], data[1]]),
        other => panic!("{other:?} is no explanation"),
    }
}

// Info codes of extended errors.
pub(super) const OVERLOADED: u16 = 0;
pub(super) const STOPPING: u16 = 14;
pub(super) const NO_SERVER: u16 = 22;
pub(super) const SERVER_FAILED: u16 = 23;
