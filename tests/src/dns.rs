//! DNS queries over UDP and TCP.

use std::io;
use std::net::{IpAddr, SocketAddr};

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::wait::LIMIT;

/// Response code and IPv4 addresses of a DNS response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsAnswer {
    /// The response code.
    pub code: ResponseCode,
    /// The addresses in the order of the response.
    pub addresses: Vec<IpAddr>,
}

/// Queries the IPv4 addresses of a name over UDP.
///
/// # Errors
///
/// If there is no DNS response in time.
pub async fn over_udp(server: SocketAddr, name: &str) -> io::Result<DnsAnswer> {
    let exchange = async {
        let socket = UdpSocket::bind(SocketAddr::new(server.ip(), 0)).await?;
        socket.connect(server).await?;
        socket.send(&question(name)?).await?;
        let mut reply = vec![0; usize::from(u16::MAX)];
        let length = socket.recv(&mut reply).await?;
        answer(&reply[..length])
    };
    timeout(LIMIT, exchange).await?
}

/// Queries the IPv4 addresses of a name over TCP.
///
/// # Errors
///
/// If there is no DNS response in time.
pub async fn over_tcp(server: SocketAddr, name: &str) -> io::Result<DnsAnswer> {
    let exchange = async {
        let question = question(name)?;
        let mut stream = TcpStream::connect(server).await?;
        let length = u16::try_from(question.len()).map_err(io::Error::other)?;
        stream.write_u16(length).await?;
        stream.write_all(&question).await?;
        let mut reply = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut reply).await?;
        answer(&reply)
    };
    timeout(LIMIT, exchange).await?
}

fn question(name: &str) -> io::Result<Vec<u8>> {
    let name = Name::from_ascii(name).map_err(io::Error::other)?;
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, RecordType::A));
    message.to_vec().map_err(io::Error::other)
}

fn answer(reply: &[u8]) -> io::Result<DnsAnswer> {
    let message = Message::from_vec(reply).map_err(io::Error::other)?;
    let address = |data: &RData| match data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        _ => None,
    };
    Ok(DnsAnswer {
        code: message.metadata.response_code,
        addresses: message
            .answers
            .iter()
            .filter_map(|record| address(&record.data))
            .collect(),
    })
}
