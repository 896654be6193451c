//! Silent connections, and very many connections at once.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream;
use http::uri::PathAndQuery;
use legate_api::dataplane::dataplane_service_client::DataplaneServiceClient;
use legate_api::dataplane::{
    GetSupportedDataplaneFeaturesRequest, GetSupportedDataplaneFeaturesResponse,
};
use legate_runtime::file_limit;
use legate_server::{ApiLimit, Parts, Server};
use legate_testkit::state::State;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use crate::grpc::{STOP, channel, grpc_only, start, tls_channel};
use crate::http_client::Client;

/// Generous timeout for operations that must succeed, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The HTTP/2 preface and an empty SETTINGS frame.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The server program, started with a typical soft limit of open files.
struct Program {
    _process: Child,
    _state: State,
    http: SocketAddr,
    grpc: SocketAddr,
}

impl Program {
    async fn start() -> Self {
        file_limit::raise().unwrap();
        let state = State::new().await;
        let mut process = Command::new("sh")
            .args(["-c", "ulimit -S -n 1024 && exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_legate-server"))
            .args(["--http-port=0", "--grpc-port=0"])
            .args(["--grpc-tls-port=-1", "--dns-port=-1"])
            .args(state.flags())
            .env_remove("LEGATE_INITIAL_MANAGEMENT_TOKEN")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let started = loop {
            let line = log.next_line().await.unwrap().expect("it starts");
            if line.contains("started") {
                break line;
            }
        };
        let at = |name: &str| {
            let (_, rest) = started.split_once(name).unwrap();
            rest.split(' ').next().unwrap().parse().unwrap()
        };
        Self {
            _process: process,
            _state: state,
            http: at("http="),
            grpc: at("grpc="),
        }
    }
}

async fn connect_from(client: Ipv4Addr, server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    // The port is chosen at connect: there are enough for each pair of addresses.
    socket.bind(SocketAddr::from((client, 0)))?;
    socket.connect(server).await
}

/// Whether the server has kept a connection open. It may have sent data.
async fn is_open(stream: &TcpStream) -> bool {
    tokio::task::yield_now().await;
    let mut received = [0; 1_024];
    loop {
        match stream.try_read(&mut received) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

async fn call(server: SocketAddr, client: Ipv4Addr) -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = Endpoint::from_shared(format!("http://{server}"))?;
    let endpoint = endpoint.local_address(Some(IpAddr::V4(client)));
    let mut client = DataplaneServiceClient::new(endpoint.connect().await?);
    let request = GetSupportedDataplaneFeaturesRequest {};
    client.get_supported_dataplane_features(request).await?;
    Ok(())
}

#[tokio::test]
async fn silent_connections_do_not_switch_the_server_off() {
    let program = Program::start().await;
    let mut silent = Vec::new();
    for _ in 0..1_010 {
        silent.push(TcpStream::connect(program.grpc).await.unwrap());
    }
    let client = Client {
        address: program.http,
        token: String::new(),
    };
    let answer = client.get("/v1/status/leader");
    timeout(PATIENCE, answer).await.expect("HTTP").json();
    let called = call(program.grpc, Ipv4Addr::LOCALHOST);
    timeout(PATIENCE, called).await.expect("gRPC").unwrap();
    assert!(is_open(&silent[1_009]).await, "it still was, meanwhile");
}

#[tokio::test]
async fn silent_connections_do_not_hold_the_tls_port() {
    let server = start(|config| config.grpc_tls = config.grpc).await;
    let address = server.grpc_tls_addr().unwrap();
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let channel = tls_channel(&server, "localhost").await;
    channel.expect("a connection with TLS");
    assert!(is_open(&silent[0]).await, "it still was, meanwhile");
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let limit = ApiLimit {
        in_all: 6,
        per_address: 4,
    };
    let server = start(|config| config.connections.grpc = limit).await;
    let address = server.grpc_addr().unwrap();
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(TcpStream::connect(address).await.unwrap());
    }
    let mut refused = TcpStream::connect(address).await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap(), 0, "it is closed");
    let other = Ipv4Addr::new(127, 0, 0, 2);
    call(address, other).await.unwrap();
    server.stop(STOP).await.unwrap();
}

/// Paused time advances whenever all tasks are idle, even while the server waits for a file or etcd. So this
/// server always uses a store in memory.
#[tokio::test(start_paused = true)]
async fn a_call_without_a_message_is_not_waited_for() {
    let server = Server::start(grpc_only(), Parts::default()).await.unwrap();
    let mut client = tonic::client::Grpc::new(channel(&server).await);
    client.ready().await.unwrap();
    let path = "/hashicorp.consul.dataplane.DataplaneService/GetSupportedDataplaneFeatures";
    let silent = Request::new(stream::pending::<GetSupportedDataplaneFeaturesRequest>());
    let codec = ProstCodec::<_, GetSupportedDataplaneFeaturesResponse>::default();
    let path = PathAndQuery::from_static(path);
    let before = Instant::now();
    let answer = client.client_streaming(silent, path, codec);
    let ended = timeout(PATIENCE * 10, answer).await.expect("an end");
    assert_eq!(ended.unwrap_err().code(), Code::Cancelled);
    assert!(before.elapsed() < PATIENCE, "{:?}", before.elapsed());
    server.stop(STOP).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_at_once_are_all_served() {
    let program = Program::start().await;
    let connections = (0..10_000_u32).map(|number| {
        let client = Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + number % 5);
        async move {
            let mut stream = connect_from(client, program.grpc).await?;
            stream.write_all(HELLO).await?;
            let mut settings = [0; 9];
            stream.read_exact(&mut settings).await?;
            assert_eq!(settings[3], 4, "a SETTINGS frame");
            Ok::<_, std::io::Error>(stream)
        }
    });
    let served = timeout(PATIENCE, join_all(connections)).await.unwrap();
    let failed = served.iter().filter_map(|one| one.as_ref().err());
    let failed: Vec<String> = failed.map(ToString::to_string).collect();
    assert_eq!(failed, [""; 0]);
    call(program.grpc, Ipv4Addr::LOCALHOST).await.unwrap();
}
