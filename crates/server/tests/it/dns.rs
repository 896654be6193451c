//! DNS over UDP, TCP and gRPC.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use http::{Method, StatusCode};
use legate_api::dns::dns_service_client::DnsServiceClient;
use legate_api::dns::{Protocol, QueryRequest};
use legate_model::{CheckServiceNode, ServiceInstance, Tenancy};
use legate_server::{
    Definitions, DnsDomains, DnsSettings, LimitMode, Parts, Reload, RequestLimits, Server,
};
use legate_store::{Unavailable, WriteTxn};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tonic::{Code, Status};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::grpc::{STOP, channel, grpc_only, register, start, with_token};
use crate::http_acl_policies::text;
use crate::http_client::Client;
use crate::running::Running;

pub(crate) fn question(name: &str, payload: Option<u16>) -> Vec<u8> {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    let name = Name::from_ascii(name).unwrap();
    message.add_query(Query::query(name, RecordType::A));
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

pub(crate) fn question_of(kind: RecordType, name: &str) -> Vec<u8> {
    let mut message = Message::from_vec(&question(name, None)).unwrap();
    message.queries[0].query_type = kind;
    message.to_vec().unwrap()
}

pub(crate) async fn over_udp(server: SocketAddr, request: &[u8]) -> Message {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(request, server).await.unwrap();
    let mut buffer = vec![0; 65_535];
    let (length, _) = socket.recv_from(&mut buffer).await.unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

async fn ask_tcp(stream: &mut TcpStream, request: &[u8]) -> Message {
    let length = u16::try_from(request.len()).unwrap();
    stream.write_u16(length).await.unwrap();
    stream.write_all(request).await.unwrap();
    let length = stream.read_u16().await.unwrap();
    let mut reply = vec![0; length.into()];
    stream.read_exact(&mut reply).await.unwrap();
    Message::from_vec(&reply).unwrap()
}

async fn over_grpc(
    server: &Server,
    msg: Vec<u8>,
    protocol: Protocol,
    token: &str,
) -> Result<Message, Status> {
    let request = QueryRequest {
        msg: msg.into(),
        protocol: protocol.into(),
    };
    let mut client = DnsServiceClient::new(channel(server).await);
    let reply = client.query(with_token(request, token)).await?;
    Ok(Message::from_vec(&reply.into_inner().msg).unwrap())
}

/// Registers this many instances of `web`, each with its own address.
async fn register_web(server: &Server, count: u8) {
    for number in 1..=count {
        let service = ServiceInstance {
            id: format!("web-{number}"),
            service: "web".to_owned(),
            address: format!("10.0.0.{number}"),
            port: 80,
            ..ServiceInstance::default()
        };
        register(server, service).await;
    }
}

async fn with_dns() -> (Running, SocketAddr) {
    with_settings(DnsSettings::default()).await
}

async fn with_settings(settings: DnsSettings) -> (Running, SocketAddr) {
    let free = "127.0.0.1:0".parse().unwrap();
    let server = start(|config| {
        config.dns = Some(free);
        config.dns_settings = settings;
    });
    let server = server.await;
    let address = server.dns_addr().unwrap();
    (server, address)
}

#[tokio::test]
async fn all_transports_give_the_same_answer() {
    let (server, address) = with_dns().await;
    register_web(&server, 3).await;
    let request = question("web.service.consul.", None);
    let mut tcp = TcpStream::connect(address).await.unwrap();
    for reply in [
        over_udp(address, &request).await,
        ask_tcp(&mut tcp, &request).await,
        // A connection can carry several queries.
        ask_tcp(&mut tcp, &request).await,
        over_grpc(&server, request.clone(), Protocol::Udp, "")
            .await
            .unwrap(),
        over_grpc(&server, request.clone(), Protocol::Tcp, "")
            .await
            .unwrap(),
    ] {
        assert_eq!(reply.metadata.id, 4711);
        assert_eq!(reply.metadata.message_type, MessageType::Response);
        assert!(reply.metadata.authoritative && !reply.metadata.truncation);
        let mut found: Vec<String> = reply
            .answers
            .iter()
            .map(|one| one.data.to_string())
            .collect();
        found.sort();
        assert_eq!(found, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    }
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn long_answers_are_truncated_for_the_transport() {
    let settings = DnsSettings {
        enable_truncate: true,
        ..DnsSettings::default()
    };
    let (server, address) = with_settings(settings).await;
    register_web(&server, 200).await;
    let plain = question("web.service.consul.", None);
    let large = question("web.service.consul.", Some(8_192));
    let cut = over_udp(address, &plain).await;
    assert_eq!((cut.metadata.truncation, cut.answers.len()), (true, 3));
    let whole = over_udp(address, &large).await;
    assert_eq!(
        (whole.metadata.truncation, whole.answers.len()),
        (false, 200)
    );
    let mut tcp = TcpStream::connect(address).await.unwrap();
    let whole = ask_tcp(&mut tcp, &plain).await;
    assert_eq!(
        (whole.metadata.truncation, whole.answers.len()),
        (false, 200)
    );
    let cut = over_grpc(&server, plain.clone(), Protocol::Udp, "")
        .await
        .unwrap();
    assert!(cut.metadata.truncation);
    let whole = over_grpc(&server, plain, Protocol::Tcp, "").await.unwrap();
    assert_eq!(whole.answers.len(), 200);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn malformed_requests_get_an_error_code() {
    let (server, address) = with_dns().await;
    let code = async |name: &str| {
        let reply = over_udp(address, &question(name, None)).await;
        reply.metadata.response_code
    };
    assert_eq!(
        code("missing.service.consul.").await,
        ResponseCode::NXDomain
    );
    assert_eq!(code("example.com.").await, ResponseCode::Refused);

    let mut update = Message::from_vec(&question("web.service.consul.", None)).unwrap();
    update.metadata.op_code = OpCode::Notify;
    let reply = over_udp(address, &update.to_vec().unwrap()).await;
    assert_eq!(reply.metadata.response_code, ResponseCode::NotImp);
    let garbage = [0x12, 0x34, 0x01, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0xff];
    let reply = over_udp(address, &garbage).await;
    assert_eq!(reply.metadata.response_code, ResponseCode::FormErr);
    assert_eq!(reply.metadata.id, 0x1234);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn grpc_rejects_malformed_requests() {
    let server = start(|_| {}).await;
    let good = question("web.service.consul.", None);
    let refused = over_grpc(&server, good, Protocol::UnsetUnspecified, "").await;
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    let refused = over_grpc(&server, vec![1, 2, 3], Protocol::Udp, "")
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    assert!(
        refused
            .message()
            .starts_with("failure decoding dns request"),
        "{refused}"
    );
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn answers_are_filtered_by_the_token() {
    let server = start(deny_by_default).await;
    register_web(&server, 1).await;
    let ask = async |token: &str| {
        let request = question("web.service.consul.", None);
        let reply = over_grpc(&server, request, Protocol::Udp, token)
            .await
            .unwrap();
        (reply.metadata.response_code, reply.answers.len())
    };
    assert_eq!(ask(MANAGEMENT).await, (ResponseCode::NoError, 1));
    assert_eq!(ask("").await, (ResponseCode::NXDomain, 0));
    assert_eq!(ask("unknown").await, (ResponseCode::Refused, 0));
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn names_in_a_namespace_require_permission_there() {
    let server = start(|config| {
        deny_by_default(config);
        config.http = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    })
    .await;
    let client = Client::of(&server).with_token(MANAGEMENT);
    client
        .write("/v1/namespace", &json!({"Name": "team"}))
        .await;
    let registration = json!({"Node": "vm-1", "Address": "10.0.0.1", "SkipNodeUpdate": false,
        "Service": {"Service": "web", "Namespace": "team", "Address": "10.1.0.9"}});
    client.write("/v1/catalog/register", &registration).await;
    let rules = json!({"Name": "reads", "Rules":
        "service_prefix \"\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }"});
    client.write("/v1/acl/policy", &rules).await;
    let token = json!({"Policies": [{"Name": "reads"}]});
    let token = client.write("/v1/acl/token", &token).await;
    let ask = async |name: &str, token: &str| {
        let reply = over_grpc(&server, question(name, None), Protocol::Udp, token).await;
        reply.unwrap().answers.len()
    };
    let name = "web.service.team.ns.default.ap.consul.";
    assert_eq!(ask(name, MANAGEMENT).await, 1);
    // Rules outside a namespace block apply to the default namespace, which has no such service.
    assert_eq!(ask(name, text(&token, "SecretID")).await, 0);
    assert_eq!(ask("web.service.consul.", MANAGEMENT).await, 0);
    let name_of_address = async |token: &str| {
        let ptr = question_of(RecordType::PTR, "9.0.1.10.in-addr.arpa.");
        let reply = over_grpc(&server, ptr, Protocol::Udp, token).await;
        data(&reply.unwrap())
    };
    let name = "web.service.team.ns.dc1.dc.consul.";
    assert_eq!(name_of_address(MANAGEMENT).await, [name]);
    assert!(name_of_address(text(&token, "SecretID")).await.is_empty());
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_prepared_query_returns_nodes_of_its_partition() {
    let server = start(|config| config.http = Some(SocketAddr::from(([127, 0, 0, 1], 0)))).await;
    let client = Client::of(&server);
    client
        .write("/v1/partition", &json!({"Name": "east"}))
        .await;
    let registration = json!({"Node": "vm-1", "Address": "10.0.0.1", "Partition": "east",
        "SkipNodeUpdate": false, "Service": {"Service": "web", "Port": 80}});
    client.write("/v1/catalog/register", &registration).await;
    let query = json!({"Name": "far", "Service": {"Service": "web", "Partition": "east"}});
    let query = query.to_string();
    let made = client.send(Method::POST, "/v1/query", &query).await;
    assert_eq!(made.status, StatusCode::OK);
    let srv = question_of(RecordType::SRV, "far.query.consul.");
    let found = over_grpc(&server, srv, Protocol::Udp, "").await.unwrap();
    assert_eq!(data(&found), ["1 1 80 vm-1.node.east.ap.dc1.dc.consul."]);
    // Names with an explicit partition are looked up there.
    let node = question("vm-1.node.east.ap.dc1.dc.consul.", None);
    let node = over_grpc(&server, node, Protocol::Udp, "").await.unwrap();
    assert_eq!(data(&node), ["10.0.0.1"]);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_prepared_query_returns_what_is_imported_from_a_peer() {
    let server = start(|config| config.http = Some(SocketAddr::from(([127, 0, 0, 1], 0)))).await;
    let client = Client::of(&server);
    let instance = |id: &str, address: &str| -> CheckServiceNode {
        let service = json!({"ID": id, "Service": "web", "Port": 80, "Address": address});
        let node = json!({"Node": "vm-1", "Address": "10.0.0.1", "Datacenter": "far"});
        serde_json::from_value(json!({"Node": node, "Service": service, "Checks": []})).unwrap()
    };
    let imported = [instance("a", ""), instance("b", "10.0.0.2")];
    let import = move |txn: &mut WriteTxn| -> Result<_, Unavailable> {
        let of_peer = Tenancy::default().of_peer("alpha");
        Ok(txn.in_tenancy(&of_peer, |txn| txn.put_imported("web", &imported)))
    };
    server.store().write(import).await.unwrap().1.unwrap();
    let query = json!({"Name": "far", "Service": {
        "Service": "web", "Failover": {"Targets": [{"Peer": "alpha"}]},
    }});
    let made = client
        .send(Method::POST, "/v1/query", &query.to_string())
        .await;
    assert_eq!(made.status, StatusCode::OK);
    let srv = question_of(RecordType::SRV, "far.query.consul.");
    let found = over_grpc(&server, srv, Protocol::Udp, "").await.unwrap();
    let mut found = data(&found);
    found.sort();
    assert_eq!(
        found,
        [
            "1 1 80 0a000002.addr.consul.",
            "1 1 80 vm-1.node.alpha.peer.consul.",
        ]
    );
    // These names lead to the addresses.
    for (name, address) in [
        ("0a000002.addr.consul.", "10.0.0.2"),
        ("vm-1.node.alpha.peer.consul.", "10.0.0.1"),
    ] {
        let found = over_grpc(&server, question(name, None), Protocol::Udp, "").await;
        assert_eq!(data(&found.unwrap()), [address], "{name}");
    }
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn silent_connections_do_not_hold_up_the_stop() {
    let (server, address) = with_dns().await;
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(&[0]).await.unwrap();
    let silent = TcpStream::connect(address).await.unwrap();
    server.stop(STOP).await.unwrap();
    drop((half, silent));
}

/// An upstream DNS server that responds to every query with one address, or with an error code.
struct Recursor {
    udp: UdpSocket,
    tcp: TcpListener,
    code: ResponseCode,
}

impl Recursor {
    async fn new(code: ResponseCode) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let udp = UdpSocket::bind(tcp.local_addr().unwrap()).await.unwrap();
        Self { udp, tcp, code }
    }

    fn address(&self) -> SocketAddr {
        self.udp.local_addr().unwrap()
    }

    fn reply(&self, request: &[u8]) -> Vec<u8> {
        let request = Message::from_vec(request).unwrap();
        let mut reply = Message::response(request.metadata.id, OpCode::Query);
        reply.metadata.response_code = self.code;
        reply.add_queries(request.queries.clone());
        if self.code == ResponseCode::NoError {
            let name = request.queries[0].name().clone();
            let data = RData::A(A::new(192, 0, 2, 7));
            reply.add_answer(Record::from_rdata(name, 60, data));
        }
        reply.to_vec().unwrap()
    }

    /// Serves queries while `other` runs.
    async fn during<T>(&self, other: impl Future<Output = T>) -> T {
        let udp = async {
            let mut buffer = [0; 4096];
            loop {
                let (length, client) = self.udp.recv_from(&mut buffer).await.unwrap();
                // Responses from another address, or to another query, are ignored.
                let stray = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                let mut wrong = self.reply(&buffer[..length]);
                stray.send_to(&wrong, client).await.unwrap();
                wrong[0] ^= 1;
                self.udp.send_to(&wrong, client).await.unwrap();
                let reply = self.reply(&buffer[..length]);
                self.udp.send_to(&reply, client).await.unwrap();
            }
        };
        let tcp = async {
            loop {
                let (mut stream, _) = self.tcp.accept().await.unwrap();
                let length = stream.read_u16().await.unwrap();
                let mut request = vec![0; length.into()];
                stream.read_exact(&mut request).await.unwrap();
                let reply = self.reply(&request);
                let length = u16::try_from(reply.len()).unwrap();
                stream.write_u16(length).await.unwrap();
                stream.write_all(&reply).await.unwrap();
            }
        };
        tokio::select! {
            done = other => done,
            () = udp => unreachable!("it goes on"),
            () = tcp => unreachable!("it goes on"),
        }
    }
}

fn asking(recursors: &[&Recursor]) -> DnsSettings {
    DnsSettings {
        recursors: recursors.iter().map(|one| one.address()).collect(),
        recursor_timeout: Duration::from_secs(30),
        ..DnsSettings::default()
    }
}

fn data(reply: &Message) -> Vec<String> {
    reply
        .answers
        .iter()
        .map(|one| one.data.to_string())
        .collect()
}

#[tokio::test]
async fn recursors_answer_for_other_domains() {
    let failing = Recursor::new(ResponseCode::ServFail).await;
    let good = Recursor::new(ResponseCode::NoError).await;
    let (server, address) = with_settings(asking(&[&failing, &good])).await;
    let outside = ServiceInstance {
        id: "outside".to_owned(),
        service: "outside".to_owned(),
        address: "ext.example.com".to_owned(),
        ..ServiceInstance::default()
    };
    register(&server, outside).await;
    let ask = async {
        for name in ["example.com.", "9.9.9.10.in-addr.arpa."] {
            let request = question(name, Some(1232));
            let mut tcp = TcpStream::connect(address).await.unwrap();
            for reply in [
                over_udp(address, &request).await,
                ask_tcp(&mut tcp, &request).await,
                over_grpc(&server, request.clone(), Protocol::Udp, "")
                    .await
                    .unwrap(),
            ] {
                assert_eq!(reply.metadata.id, 4711);
                assert_eq!(data(&reply), ["192.0.2.7"]);
            }
        }
        let reply = over_udp(address, &question("outside.service.consul.", None)).await;
        assert!(reply.metadata.authoritative && reply.metadata.recursion_available);
        assert_eq!(data(&reply), ["ext.example.com.", "192.0.2.7"]);
        // Names in the own domain are not forwarded.
        let reply = over_udp(address, &question("missing.service.consul.", None)).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
    };
    failing.during(good.during(ask)).await;
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn failing_recursors_fail_only_their_requests() {
    let failing = Recursor::new(ResponseCode::Refused).await;
    let settings = DnsSettings {
        recursor_timeout: Duration::from_millis(200),
        ..asking(&[&failing])
    };
    let (server, address) = with_settings(settings).await;
    register_web(&server, 1).await;
    let asked = async {
        let reply = over_udp(address, &question("example.com.", Some(1232))).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
        assert!(reply.metadata.recursion_available && reply.edns.is_some());
    };
    failing.during(asked).await;
    // No recursor responds now.
    let (silent, ours) = (
        question("example.com.", None),
        question("web.service.consul.", None),
    );
    let (reply, web) = tokio::join!(over_udp(address, &silent), over_udp(address, &ours),);
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(data(&web), ["10.0.0.1"]);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn lookups_are_among_the_requests_that_are_limited() {
    // One query is permitted at once, and the next one after ten seconds.
    let limits = RequestLimits {
        mode: LimitMode::Enforcing,
        read_rate: Some(0.1),
        write_rate: None,
    };
    let server = start(|config| {
        config.dns = Some("127.0.0.1:0".parse().unwrap());
        config.request_limits = limits;
    })
    .await;
    let address = server.dns_addr().unwrap();
    let code = async |name: &str| {
        let reply = over_udp(address, &question(name, None)).await;
        reply.metadata.response_code
    };
    assert_eq!(code("example.com.").await, ResponseCode::Refused);
    assert_eq!(code("7f000001.addr.consul.").await, ResponseCode::NoError);
    assert_eq!(code("web.service.consul.").await, ResponseCode::NXDomain);
    assert_eq!(code("web.service.consul.").await, ResponseCode::ServFail);
    assert_eq!(code("7f000001.addr.consul.").await, ResponseCode::NoError);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn settings_change_while_it_runs_and_domains_do_not() {
    let settings = Arc::new(Mutex::new(DnsSettings::default()));
    let read = Arc::clone(&settings);
    let reload = Reload::new(move || {
        Ok(Definitions {
            dns: read.lock().unwrap().clone(),
            ..Definitions::default()
        })
    });
    let parts = Parts {
        reload: Some(reload),
        ..Parts::default()
    };
    let change = |config: &mut legate_server::ServerConfig| {
        config.dns = Some("127.0.0.1:0".parse().unwrap());
        config.dns_domains = DnsDomains::new("mesh.example", None).unwrap();
    };
    let server = Running::start(grpc_only(), change, parts).await.unwrap();
    let address = server.dns_addr().unwrap();
    register_web(&server, 6).await;
    let ask = || async {
        let reply = over_udp(address, &question("web.service.mesh.example.", None)).await;
        (reply.answers.len(), reply.metadata.truncation)
    };
    assert_eq!(ask().await, (3, false));
    *settings.lock().unwrap() = DnsSettings {
        udp_answer_limit: 5,
        enable_truncate: true,
        ..DnsSettings::default()
    };
    server.reload().await.unwrap();
    assert_eq!(ask().await, (5, true));
    let other = over_udp(address, &question("web.service.consul.", None)).await;
    assert_eq!(other.metadata.response_code, ResponseCode::Refused);
    server.stop(STOP).await.unwrap();
}
