//! Queries recursors: for client queries in other domains, and for host names that instances are registered
//! with. Off unless recursors are set.
//!
//! Each query has a random id and its own port, and a response must match it. Concurrent queries and their
//! duration are limited.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use futures_util::future::join_all;
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, Record, RecordType};
use rand::seq::SliceRandom;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::answer::{Known, Wanted};
use super::wire::{LARGEST_MESSAGE, Transport};
use crate::config::dns::{DnsSettings, RecursorStrategy};

/// Maximum host names looked up for one answer.
const MAX_LOOKUPS: usize = 8;

/// Length of the message header. The question follows it.
const HEADER: usize = 12;

/// Maximum response size that is parsed here, in bytes; longer ones are only forwarded.
const MAX_READ: usize = 4096;

/// Response codes after which no other recursor is tried: NOERROR and NXDOMAIN.
const FINAL_CODES: [u8; 2] = [0, 3];

/// Forwards `request`, whose question ends at `end`, and returns the first final response. `None` if no
/// recursor has one.
pub(super) async fn forward(
    settings: &DnsSettings,
    request: &[u8],
    end: usize,
    transport: Transport,
) -> Option<Vec<u8>> {
    let id = [*request.first()?, *request.get(1)?];
    let mut sent = request.to_vec();
    for server in in_order(settings) {
        let own: [u8; 2] = rand::random();
        sent[..2].copy_from_slice(&own);
        let question = Question { sent: &sent, end };
        let asked = timeout(settings.recursor_timeout, question.ask(server, transport));
        let reason = match asked.await {
            Ok(Ok(mut reply)) if question.is_final(&reply) => {
                reply[..2].copy_from_slice(&id);
                return Some(reply);
            }
            Ok(Ok(reply)) => format!("response code {}", reply[3] & 0x0f),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no response within {:?}", settings.recursor_timeout),
        };
        tracing::debug!(%server, reason, "a recursor failed");
    }
    tracing::warn!("no recursor answered a DNS request");
    None
}

/// Looks up the addresses of host names in other domains.
pub(super) async fn look_up(settings: &DnsSettings, wanted: Wanted) -> Known {
    let mut known = Known::new();
    let mut asked = Vec::new();
    for (name, kind) in wanted {
        // Names beyond the limit have no addresses.
        known.insert((name.clone(), kind), Vec::new());
        if asked.len() < MAX_LOOKUPS {
            asked.push(async move {
                let records = addresses(settings, &name, kind).await;
                ((name, kind), records)
            });
        }
    }
    known.extend(join_all(asked).await);
    known
}

async fn addresses(settings: &DnsSettings, name: &Name, kind: RecordType) -> Vec<Record> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name.clone(), kind));
    let Ok(request) = message.to_vec() else {
        return Vec::new();
    };
    let reply = forward(settings, &request, request.len(), Transport::Udp).await;
    let read = reply.filter(|reply| reply.len() <= MAX_READ);
    let reply = read.and_then(|reply| Message::from_vec(&reply).ok());
    reply.map(|reply| reply.answers).unwrap_or_default()
}

/// The recursors, in the order in which they are tried.
fn in_order(settings: &DnsSettings) -> Vec<SocketAddr> {
    let mut servers = settings.recursors.clone();
    if settings.recursor_strategy == RecursorStrategy::Random {
        servers.shuffle(&mut rand::rng());
    }
    servers
}

/// An encoded request, and the offset at which its question ends.
struct Question<'a> {
    sent: &'a [u8],
    end: usize,
}

impl Question<'_> {
    /// Cancel safe: drops the socket.
    async fn ask(&self, server: SocketAddr, transport: Transport) -> io::Result<Vec<u8>> {
        match transport {
            Transport::Udp => self.ask_udp(server).await,
            Transport::Tcp => self.ask_tcp(server).await,
        }
    }

    async fn ask_udp(&self, server: SocketAddr) -> io::Result<Vec<u8>> {
        let any = match server {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(server).await?;
        socket.send(self.sent).await?;
        let mut buffer = vec![0; LARGEST_MESSAGE];
        loop {
            let length = socket.recv(&mut buffer).await?;
            // Datagrams may be forged or answer earlier queries.
            if self.is_answered_by(&buffer[..length]) {
                buffer.truncate(length);
                return Ok(buffer);
            }
        }
    }

    async fn ask_tcp(&self, server: SocketAddr) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(server).await?;
        let length = u16::try_from(self.sent.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let framed = [&length.to_be_bytes()[..], self.sent].concat();
        stream.write_all(&framed).await?;
        let length = stream.read_u16().await?;
        let mut reply = vec![0; length.into()];
        stream.read_exact(&mut reply).await?;
        match self.is_answered_by(&reply) {
            true => Ok(reply),
            false => Err(io::Error::other("the response does not match the query")),
        }
    }

    /// Whether these bytes are a response with the same id and question. Error responses may have no question.
    fn is_answered_by(&self, reply: &[u8]) -> bool {
        let Some(header) = reply.get(..HEADER) else {
            return false;
        };
        let is_response = header[2] & 0x80 != 0;
        let is_same = match [header[4], header[5]] {
            [0, 1] => {
                let asked = &self.sent[HEADER..self.end];
                let answered = reply.get(HEADER..self.end);
                answered.is_some_and(|answered| answered.eq_ignore_ascii_case(asked))
            }
            [0, 0] => header[3] & 0x0f != 0,
            _ => false,
        };
        is_response && header[..2] == self.sent[..2] && is_same
    }

    fn is_final(&self, reply: &[u8]) -> bool {
        FINAL_CODES.contains(&(reply[3] & 0x0f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_about_the_question_and_has_its_id() {
        let mut message = Message::query();
        let name = Name::from_ascii("host.example.com.").unwrap();
        message.add_query(Query::query(name, RecordType::A));
        let sent = message.to_vec().unwrap();
        let question = Question {
            sent: &sent,
            end: sent.len(),
        };
        assert!(!question.is_answered_by(&sent), "a question");
        let mut reply = sent.clone();
        reply[2] |= 0x80;
        assert!(question.is_answered_by(&reply) && question.is_final(&reply));
        let mut other_case = reply.clone();
        other_case[13] = b'H';
        assert!(question.is_answered_by(&other_case));
        for (at, value) in [(0, !reply[0]), (13, b'x'), (5, 2), (5, 0)] {
            let mut other = reply.clone();
            other[at] = value;
            assert!(!question.is_answered_by(&other), "{at}");
        }
        for length in 0..reply.len() {
            assert!(!question.is_answered_by(&reply[..length]), "{length}");
        }
        let mut failure = reply[..HEADER].to_vec();
        failure[3] |= 2;
        failure[5] = 0;
        assert!(question.is_answered_by(&failure) && !question.is_final(&failure));
    }
}
