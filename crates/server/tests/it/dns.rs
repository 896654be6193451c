//! DNS over UDP, TCP and gRPC.

use std::net::SocketAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use legate_api::dns::dns_service_client::DnsServiceClient;
use legate_api::dns::{Protocol, QueryRequest};
use legate_model::ServiceInstance;
use legate_server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tonic::{Code, Status};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::grpc::{STOP, channel, register, start, with_token};
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

/// `web` with this many instances, each at an address of its own.
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
    let free = "127.0.0.1:0".parse().unwrap();
    let server = start(|config| config.dns = Some(free)).await;
    let address = server.dns_addr().unwrap();
    (server, address)
}

#[tokio::test]
async fn every_way_gives_the_same_answer() {
    let (server, address) = with_dns().await;
    register_web(&server, 3).await;
    let request = question("web.service.consul.", None);
    let mut tcp = TcpStream::connect(address).await.unwrap();
    for reply in [
        over_udp(address, &request).await,
        ask_tcp(&mut tcp, &request).await,
        // One connection carries any number of questions.
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
async fn a_long_answer_is_cut_to_what_the_transport_takes() {
    let (server, address) = with_dns().await;
    register_web(&server, 200).await;
    let plain = question("web.service.consul.", None);
    let large = question("web.service.consul.", Some(8_192));
    let cut = over_udp(address, &plain).await;
    assert!(cut.metadata.truncation && cut.answers.len() < 200);
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
async fn what_is_wrong_gets_a_code() {
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
async fn grpc_refuses_what_it_cannot_answer() {
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
async fn answers_hold_what_the_token_may_see() {
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
async fn silent_connections_do_not_hold_up_the_stop() {
    let (server, address) = with_dns().await;
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(&[0]).await.unwrap();
    let silent = TcpStream::connect(address).await.unwrap();
    server.stop(STOP).await.unwrap();
    drop((half, silent));
}
