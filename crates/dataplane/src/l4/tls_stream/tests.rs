//! The stream against the usual stream of the library, over real sockets.

mod hostile;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use futures_util::poll;
use legate_identity::tls::mesh::{MeshCertificate, MeshTls, MeshTrust};
use legate_identity::{Authority, LeafRequest, RootRequest};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Duration, timeout};
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::time_provider::TimeProvider;
use tokio_rustls::rustls::{AlertDescription, CertificateError, ProtocolVersion};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

type Peer = tokio_rustls::TlsStream<UnixStream>;

/// How long a test may take.
const LIMIT: Duration = Duration::from_secs(60);

const HOUR: Duration = Duration::from_secs(3600);

/// Which side is this stream, and the version of TLS.
#[derive(Clone, Copy, Debug)]
struct Case {
    accepts: bool,
    version: ProtocolVersion,
}

const CASES: [Case; 4] = [
    Case {
        accepts: true,
        version: ProtocolVersion::TLSv1_3,
    },
    Case {
        accepts: true,
        version: ProtocolVersion::TLSv1_2,
    },
    Case {
        accepts: false,
        version: ProtocolVersion::TLSv1_3,
    },
    Case {
        accepts: false,
        version: ProtocolVersion::TLSv1_2,
    },
];

fn root() -> Authority {
    root_named("test root")
}

fn root_named(name: &str) -> Authority {
    Authority::generate_root(RootRequest {
        common_name: name.to_owned(),
        uri: "spiffe://test.consul".to_owned(),
        serial: 1,
        now: SystemTime::now() - HOUR,
        ttl: 24 * HOUR,
    })
    .unwrap()
}

/// A certificate, valid for an hour, with others behind it.
fn certificate(root: &Authority, name: &str, others: &str) -> MeshCertificate {
    let leaf = root.issue(LeafRequest {
        uris: vec![format!("spiffe://test.consul/ns/default/dc/dc1/svc/{name}")],
        dns_names: Vec::new(),
        ips: Vec::new(),
        serial: 2,
        now: SystemTime::now(),
        ttl: HOUR,
    });
    let leaf = leaf.unwrap();
    let chain = leaf.cert_pem + others;
    MeshCertificate::parse(&chain, &leaf.key.to_pem(), name).unwrap()
}

/// The two sides of a connection.
#[derive(Clone)]
struct Sides {
    server: MeshTls,
    client: MeshTls,
}

impl Sides {
    fn new(version: ProtocolVersion) -> Self {
        Self::of(&root(), version)
    }

    fn of(root: &Authority, version: ProtocolVersion) -> Self {
        let side = |name| MeshTls {
            certificate: Some(certificate(root, name, "")),
            trust: Some(MeshTrust::authorities(root.cert_pem(), "test").unwrap()),
            only_newest: version == ProtocolVersion::TLSv1_3,
            only_older: version == ProtocolVersion::TLSv1_2,
            ..MeshTls::default()
        };
        Self {
            server: side("server"),
            client: side("client"),
        }
    }

    /// The handshake over a pair of sockets.
    async fn handshake(&self, accepts: bool) -> (io::Result<TlsStream>, io::Result<Peer>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.handshake_over(accepts, ours, theirs).await
    }

    async fn handshake_over(
        &self,
        accepts: bool,
        ours: UnixStream,
        theirs: UnixStream,
    ) -> (io::Result<TlsStream>, io::Result<Peer>) {
        handshake(accepts, self.configs(), ours, theirs).await
    }

    fn configs(&self) -> (MeshServer, MeshClient) {
        let server = self.server.server(true).unwrap();
        (server, self.client.client(false).unwrap())
    }
}

fn server_name() -> ServerName<'static> {
    ServerName::try_from("server.test").unwrap()
}

async fn handshake(
    accepts: bool,
    (server, client): (MeshServer, MeshClient),
    ours: UnixStream,
    theirs: UnixStream,
) -> (io::Result<TlsStream>, io::Result<Peer>) {
    let ours = Socket::Unix(ours);
    if accepts {
        let peer = TlsConnector::from(Arc::clone(client.config())).connect(server_name(), theirs);
        let (ours, peer) = tokio::join!(TlsStream::accept(&server, ours), peer);
        (ours, peer.map(Peer::Client))
    } else {
        let peer = TlsAcceptor::from(Arc::clone(server.config())).accept(theirs);
        let (ours, peer) = tokio::join!(TlsStream::connect(&client, server_name(), ours), peer);
        (ours, peer.map(Peer::Server))
    }
}

/// Both sides after the handshake.
async fn pair(case: Case) -> (TlsStream, Peer) {
    let (ours, peer) = Sides::new(case.version).handshake(case.accepts).await;
    let ours = ours.unwrap();
    assert_eq!(ours.session().protocol_version(), Some(case.version));
    (ours, peer.unwrap())
}

async fn each_case(test: impl AsyncFn(Case)) {
    for case in CASES {
        let done = timeout(LIMIT, test(case)).await;
        assert!(done.is_ok(), "{case:?} is not done within {LIMIT:?}");
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// Checks that a stream holds no buffer.
#[track_caller]
fn assert_at_rest(stream: &TlsStream) {
    assert_eq!(stream.partial.capacity(), 0);
    assert_eq!(stream.plaintext.bytes.capacity(), 0);
    assert_eq!(stream.unsent.bytes.capacity(), 0);
}

fn library_error(error: &io::Error) -> &Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    cause.unwrap_or_else(|| panic!("not an error of the library: {error:?}"))
}

/// Writes pieces of a pattern and ends the direction.
async fn write_pieces(mut writer: impl AsyncWrite + Unpin, pieces: &[usize]) {
    let bytes = pattern(pieces.iter().sum());
    let mut rest = &bytes[..];
    for length in pieces {
        let (piece, behind) = rest.split_at(*length);
        writer.write_all(piece).await.unwrap();
        if length % 2 == 0 {
            writer.flush().await.unwrap();
        }
        rest = behind;
    }
    writer.shutdown().await.unwrap();
}

/// Reads to the end with buffers of these sizes, one after the other.
async fn read_pieces(mut reader: impl AsyncRead + Unpin, sizes: &[usize]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 128 * 1024];
    for size in sizes.iter().cycle() {
        match reader.read(&mut buffer[..*size]).await.unwrap() {
            0 => break,
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
    all
}

/// Forwards in pieces of these sizes, one after the other.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, sizes: &[usize]) {
    let mut buffer = vec![0; 128 * 1024];
    for size in sizes.iter().cycle() {
        match from.read(&mut buffer[..*size]).await.unwrap() {
            0 => break,
            count => to.write_all(&buffer[..count]).await.unwrap(),
        }
        yield_now().await;
    }
    to.shutdown().await.unwrap();
}

#[derive(Clone, Debug)]
struct Traffic {
    case: Case,
    ours: Vec<usize>,
    theirs: Vec<usize>,
    reads: Vec<usize>,
    forwards: Vec<usize>,
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let piece = || prop_oneof![1usize..100, 16_000usize..17_000, 1usize..100_000];
    let size = || prop_oneof![Just(1usize), 1usize..100, 1usize..100_000];
    (
        proptest::sample::select(&CASES[..]),
        proptest::collection::vec(piece(), 0..5),
        proptest::collection::vec(piece(), 0..5),
        proptest::collection::vec(size(), 1..4),
        proptest::collection::vec(prop_oneof![1usize..30_000, 1usize..100], 1..4),
    )
        .prop_map(|(case, ours, theirs, reads, forwards)| Traffic {
            case,
            ours,
            theirs,
            reads,
            forwards,
        })
}

async fn check_traffic(traffic: &Traffic) {
    let case = traffic.case;
    let (ours, our_relay) = UnixStream::pair().unwrap();
    let (theirs, their_relay) = UnixStream::pair().unwrap();
    let ((our_in, our_out), (their_in, their_out)) =
        (our_relay.into_split(), their_relay.into_split());
    let sides = Sides::new(case.version);
    let talk = async {
        let (ours, theirs) = sides.handshake_over(case.accepts, ours, theirs).await;
        let (our_reader, our_writer) = split(ours.unwrap());
        let (their_reader, their_writer) = split(theirs.unwrap());
        let mut our_reader = our_reader;
        let (received, arrived, ..) = tokio::join!(
            read_pieces(&mut our_reader, &traffic.reads),
            read_pieces(their_reader, &[64 * 1024]),
            async {
                let mut our_writer = our_writer;
                write_pieces(&mut our_writer, &traffic.ours).await;
                our_writer
            },
            write_pieces(their_writer, &traffic.theirs),
        );
        assert!(received == pattern(traffic.theirs.iter().sum()));
        assert!(arrived == pattern(traffic.ours.iter().sum()));
    };
    let done = timeout(LIMIT, async {
        tokio::join!(
            talk,
            forward(our_in, their_out, &traffic.forwards),
            forward(their_in, our_out, &traffic.forwards),
        )
    });
    assert!(done.await.is_ok(), "not done within {LIMIT:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn both_directions_arrive_in_any_pieces(traffic in traffic()) {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check_traffic(&traffic));
    }
}

#[tokio::test]
async fn a_stream_that_waits_holds_no_buffer() {
    each_case(async |case| {
        let (mut ours, mut peer) = pair(case).await;
        assert_at_rest(&ours);
        for length in [1, 1000, 100_000] {
            let data = pattern(length);
            let mut back = vec![0; length];
            let (sent, received) = tokio::join!(
                async { ours.write_all(&data).await.and(ours.flush().await) },
                peer.read_exact(&mut back)
            );
            sent.unwrap();
            received.unwrap();
            let (sent, received) = tokio::join!(
                async { peer.write_all(&data).await.and(peer.flush().await) },
                ours.read_exact(&mut back)
            );
            sent.unwrap();
            received.unwrap();
            assert!(data == back);
            assert_at_rest(&ours);
        }
    })
    .await;
}

#[tokio::test]
async fn the_session_names_its_peer() {
    each_case(async |case| {
        let (ours, peer) = pair(case).await;
        let (_, theirs) = peer.get_ref();
        let ours = ours.session();
        assert_eq!(
            ours.negotiated_cipher_suite(),
            theirs.negotiated_cipher_suite()
        );
        let uris = crate::l4::tls::uris(ours.peer_certificates());
        let name = if case.accepts { "client" } else { "server" };
        assert_eq!(
            uris,
            [format!("spiffe://test.consul/ns/default/dc/dc1/svc/{name}")]
        );
    })
    .await;
}

#[tokio::test]
async fn it_reads_after_it_has_ended_its_own_direction() {
    each_case(async |case| {
        let (mut ours, mut peer) = pair(case).await;
        ours.write_all(b"first").await.unwrap();
        ours.shutdown().await.unwrap();
        ours.shutdown().await.unwrap();
        let error = ours.write_all(b"more").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(read_pieces(&mut peer, &[100]).await, b"first");
        peer.write_all(b"second").await.unwrap();
        peer.shutdown().await.unwrap();
        assert_eq!(read_pieces(&mut ours, &[4]).await, b"second");
        assert_eq!(ours.read(&mut [0; 4]).await.unwrap(), 0);
        assert_at_rest(&ours);
    })
    .await;
}

#[tokio::test]
async fn it_writes_after_the_peer_has_ended_its_direction() {
    each_case(async |case| {
        let (mut ours, mut peer) = pair(case).await;
        peer.write_all(b"first").await.unwrap();
        peer.shutdown().await.unwrap();
        assert_eq!(read_pieces(&mut ours, &[4]).await, b"first");
        ours.write_all(b"second").await.unwrap();
        ours.shutdown().await.unwrap();
        assert_eq!(read_pieces(&mut peer, &[100]).await, b"second");
        assert_at_rest(&ours);
    })
    .await;
}

/// Writes until nothing more is taken. Returns how much was.
async fn fill(stream: &mut TlsStream) -> usize {
    let bytes = pattern(MAX_WRITE);
    let mut taken = 0;
    loop {
        // Yields, because a task may not do everything at once.
        yield_now().await;
        let start = taken % 251;
        match poll!(Box::pin(stream.write(&bytes[start..]))) {
            Poll::Ready(count) => taken += count.unwrap(),
            Poll::Pending => return taken,
        }
    }
}

#[tokio::test]
async fn a_peer_that_does_not_read_costs_one_write() {
    each_case(async |case| {
        let (mut ours, mut peer) = pair(case).await;
        let taken = fill(&mut ours).await;
        let kept = ours.unsent.rest().len();
        assert!(kept > 0 && kept <= MAX_WRITE + 1024, "{kept}");
        assert_eq!(fill(&mut ours).await, 0);
        assert_eq!(ours.unsent.rest().len(), kept);
        let mut received = vec![0; taken];
        let (flushed, read) = tokio::join!(ours.flush(), peer.read_exact(&mut received));
        flushed.unwrap();
        read.unwrap();
        assert!(received == pattern(taken));
        assert_at_rest(&ours);
    })
    .await;
}

#[tokio::test]
async fn a_reader_sends_what_no_writer_waits_for() {
    each_case(async |case| {
        let (mut ours, mut peer) = pair(case).await;
        let taken = fill(&mut ours).await;
        ours.writer = None;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            ours.read_exact(&mut [0]).await.unwrap();
            ours
        });
        yield_now().await;
        let mut received = vec![0; taken];
        peer.read_exact(&mut received).await.unwrap();
        assert!(received == pattern(taken));
        peer.write_all(b"x").await.unwrap();
        peer.flush().await.unwrap();
        let ours = tasks.join_next().await.unwrap().unwrap();
        assert_at_rest(&ours);
    })
    .await;
}

#[tokio::test]
async fn a_writer_keeps_its_wake_up_while_another_task_reads() {
    each_case(async |case| {
        let (ours, mut peer) = pair(case).await;
        let (mut reader, mut writer) = split(ours);
        let length = 2 * 1024 * 1024;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            writer.write_all(&pattern(length)).await.unwrap();
            writer.flush().await.unwrap();
            writer.shutdown().await.unwrap();
        });
        tasks.spawn(async move {
            // Reads forever, until the peer ends its direction.
            read_pieces(&mut reader, &[1]).await;
        });
        let mut received = Vec::new();
        loop {
            // The reader runs while the writer waits.
            peer.write_all(b"x").await.unwrap();
            peer.flush().await.unwrap();
            for _ in 0..3 {
                yield_now().await;
            }
            let mut buffer = [0; 16 * 1024];
            match peer.read(&mut buffer).await.unwrap() {
                0 => break,
                count => received.extend_from_slice(&buffer[..count]),
            }
        }
        assert!(received == pattern(length));
        peer.shutdown().await.unwrap();
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn key_updates_of_the_peer_are_answered() {
    each_case(async |case| {
        if case.version == ProtocolVersion::TLSv1_2 {
            return;
        }
        let (mut ours, mut peer) = pair(case).await;
        for round in 0..10 {
            for _ in 0..=round {
                match &mut peer {
                    Peer::Client(peer) => peer.get_mut().1.refresh_traffic_keys().unwrap(),
                    Peer::Server(peer) => peer.get_mut().1.refresh_traffic_keys().unwrap(),
                }
            }
            peer.write_all(b"ping").await.unwrap();
            peer.flush().await.unwrap();
            let mut buffer = [0; 4];
            ours.read_exact(&mut buffer).await.unwrap();
            assert_eq!(&buffer, b"ping");
            assert_at_rest(&ours);
            ours.write_all(b"pong").await.unwrap();
            ours.flush().await.unwrap();
            peer.read_exact(&mut buffer).await.unwrap();
            assert_eq!(&buffer, b"pong");
        }
        // The answer goes out before the end, too.
        if let Peer::Client(peer) = &mut peer {
            peer.get_mut().1.refresh_traffic_keys().unwrap();
        }
        peer.shutdown().await.unwrap();
        assert_eq!(ours.read(&mut [0; 4]).await.unwrap(), 0);
        ours.shutdown().await.unwrap();
        assert_eq!(peer.read(&mut [0; 4]).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn session_tickets_are_sent_and_accepted() {
    each_case(async |case| {
        let sides = Sides::new(case.version);
        let (ours, peer) = sides.handshake(case.accepts).await;
        let (mut ours, mut peer) = (ours.unwrap(), peer.unwrap());
        peer.write_all(b"ping").await.unwrap();
        peer.flush().await.unwrap();
        let mut buffer = [0; 4];
        ours.read_exact(&mut buffer).await.unwrap();
        ours.write_all(&buffer).await.unwrap();
        ours.flush().await.unwrap();
        peer.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"ping");
        assert_at_rest(&ours);
    })
    .await;
}

/// An exchange of one connection. Returns whether it has resumed a session, for both sides.
async fn exchange(configs: &(MeshServer, MeshClient)) -> (bool, bool) {
    let (server, client) = configs.clone();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (server, client) = tokio::join!(
        TlsStream::accept(&server, Socket::Unix(theirs)),
        TlsStream::connect(&client, server_name(), Socket::Unix(ours)),
    );
    let (mut server, mut client) = (server.unwrap(), client.unwrap());
    server.write_all(b"ping").await.unwrap();
    server.flush().await.unwrap();
    client.read_exact(&mut [0; 4]).await.unwrap();
    assert_at_rest(&client);
    let peer = server.session().peer_certificates().unwrap();
    let uris = legate_identity::tls::mesh::certificate_uris(&peer[0]);
    assert_eq!(uris, ["spiffe://test.consul/ns/default/dc/dc1/svc/client"]);
    (server.is_resumed(), client.is_resumed())
}

#[tokio::test]
async fn sessions_are_resumed_between_the_same_configurations_only() {
    let sides = Sides::new(ProtocolVersion::TLSv1_3);
    let mut configs = sides.configs();
    let (full, resumed) = ((false, false), (true, true));
    assert_eq!(exchange(&configs).await, full);
    assert_eq!(exchange(&configs).await, resumed);
    assert_eq!(exchange(&configs).await, resumed);
    // Another server, or the same one with another certificate or other authorities.
    configs.0 = sides.configs().0;
    assert_eq!(exchange(&configs).await, full);
    assert_eq!(exchange(&configs).await, resumed);
    configs.1 = sides.configs().1;
    assert_eq!(exchange(&configs).await, full);
    assert_eq!(exchange(&configs).await, resumed);
}

/// As with the link of a rotated root, when nobody needs it any more.
#[tokio::test]
async fn an_expired_certificate_that_is_not_needed_stops_no_session() {
    let root = root();
    let expired = Authority::generate_root(RootRequest {
        common_name: "an earlier root".to_owned(),
        uri: "spiffe://test.consul".to_owned(),
        serial: 7,
        now: SystemTime::now() - 48 * HOUR,
        ttl: 24 * HOUR,
    });
    let expired = expired.unwrap();
    let mut sides = Sides::of(&root, ProtocolVersion::TLSv1_3);
    sides.server.certificate = Some(certificate(&root, "server", expired.cert_pem()));
    sides.client.certificate = Some(certificate(&root, "client", expired.cert_pem()));
    let configs = sides.configs();
    assert_eq!(exchange(&configs).await, (false, false));
    assert_eq!(exchange(&configs).await, (true, true));
}

/// Seconds after the start of a test.
#[derive(Debug)]
struct Clock(UnixTime, AtomicU64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.as_secs() + self.1.load(Ordering::Relaxed);
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

#[tokio::test]
async fn a_session_whose_certificates_have_expired_is_not_resumed() {
    use CertificateError::{Expired, ExpiredContext};
    for late_server in [true, false] {
        let clock = Arc::new(Clock(UnixTime::now(), AtomicU64::new(0)));
        let mut sides = Sides::new(ProtocolVersion::TLSv1_3);
        let late = match late_server {
            true => &mut sides.server,
            false => &mut sides.client,
        };
        late.time = Some(Arc::clone(&clock) as _);
        let configs = sides.configs();
        assert_eq!(exchange(&configs).await, (false, false));
        assert_eq!(exchange(&configs).await, (true, true));
        clock.1.store(2 * HOUR.as_secs(), Ordering::Relaxed);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (server, client) = tokio::join!(
            TlsStream::accept(&configs.0, Socket::Unix(theirs)),
            TlsStream::connect(&configs.1, server_name(), Socket::Unix(ours)),
        );
        let error = if late_server { server } else { client }.unwrap_err();
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        let is_expired = matches!(
            cause,
            Some(Error::InvalidCertificate(Expired | ExpiredContext { .. }))
        );
        assert!(is_expired, "{error}");
    }
}

/// A message that needs several records is put together.
#[tokio::test]
async fn long_certificate_chains_are_read() {
    each_case(async |case| {
        let root = root();
        let mut sides = Sides::of(&root, case.version);
        let others = root.cert_pem().repeat(60);
        sides.server.certificate = Some(certificate(&root, "server", &others));
        sides.client.certificate = Some(certificate(&root, "client", &others));
        let (ours, peer) = sides.handshake(case.accepts).await;
        let (mut ours, mut peer) = (ours.unwrap(), peer.unwrap());
        let certificates = ours.session().peer_certificates().unwrap();
        let length: usize = certificates
            .iter()
            .map(|certificate| certificate.len())
            .sum();
        assert!(length > MAX_RECORD, "{length}");
        peer.write_all(b"ping").await.unwrap();
        peer.flush().await.unwrap();
        ours.read_exact(&mut [0; 4]).await.unwrap();
        assert_at_rest(&ours);
    })
    .await;
}

/// What comes together with the end of the handshake is kept until somebody reads.
#[tokio::test]
async fn data_right_behind_the_handshake_is_kept() {
    for version in [ProtocolVersion::TLSv1_3, ProtocolVersion::TLSv1_2] {
        let sides = Sides::new(version);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let connector =
            TlsConnector::from(Arc::clone(sides.client.client(false).unwrap().config()));
        let server = sides.server.server(true).unwrap();
        let peer = async {
            let mut peer = connector.connect(server_name(), theirs).await.unwrap();
            for piece in pattern(10_000).chunks(100) {
                peer.write_all(piece).await.unwrap();
            }
            peer.flush().await.unwrap();
            peer
        };
        let (ours, mut peer) = tokio::join!(TlsStream::accept(&server, Socket::Unix(ours)), peer);
        let mut ours = ours.unwrap();
        let mut received = Vec::new();
        while received.len() < 10_000 {
            let mut buffer = [0; 7];
            let count = ours.read(&mut buffer).await.unwrap();
            received.extend_from_slice(&buffer[..count]);
            if received.len() % 70 == 0 {
                ours.write_all(b"x").await.unwrap();
                ours.flush().await.unwrap();
                peer.read_exact(&mut [0]).await.unwrap();
            }
        }
        assert!(received == pattern(10_000));
        assert_at_rest(&ours);
    }
}
