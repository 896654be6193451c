//! Asks the other servers whether they are alive and whom they know, over connections that are kept.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::client::TlsStream;

use crate::dial::{Connection, dial};
use crate::membership::{Description, Question, ServerName};
use crate::{Protocol, Wan, exchange};

/// The time for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The largest number of questions at a time.
const AT_A_TIME: usize = 64;

/// The open connections to servers that answer. A connection in use is not in it.
#[derive(Default)]
pub(crate) struct Conversations(Mutex<HashMap<ServerName, TlsStream<TcpStream>>>);

impl Conversations {
    fn take(&self, name: &ServerName) -> Option<TlsStream<TcpStream>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(name)
    }

    fn keep(&self, name: ServerName, stream: TlsStream<TcpStream>) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(name, stream);
    }

    /// Closes the connections to servers that are not members any more.
    fn retain(&self, is_member: impl Fn(&ServerName) -> bool) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|name, _| is_member(name));
    }
}

impl Wan {
    /// Asks each server when it is due, for ever.
    pub(crate) async fn ask(&self) {
        let free = Arc::new(Semaphore::new(AT_A_TIME));
        loop {
            let due = self.membership().due(Instant::now());
            for question in due {
                let Ok(permit) = Arc::clone(&free).acquire_owned().await else {
                    return;
                };
                let asking = self.clone();
                self.0
                    .spawner
                    .spawn_until_stop("question to a server", async move {
                        asking.ask_one(question).await;
                        drop(permit);
                    });
            }
            self.forget();
            let next = self.membership().next();
            let wait = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.0.changed.notified() => {}
            }
        }
    }

    /// Closes connections to servers that are forgotten.
    fn forget(&self) {
        let known = self.membership().names();
        self.0.conversations.retain(|name| known.contains(name));
        self.0.links.retain(|name| known.contains(name));
    }

    async fn ask_one(&self, question: Question) {
        let Question { to, address } = question;
        let told = self.tell(&to, address).await;
        let now = Instant::now();
        let mut membership = self.membership();
        match told {
            Ok((round_trip, list)) if list.first().is_some_and(|own| own.name() == to) => {
                membership.answered(&to, round_trip, list, now);
            }
            Ok((_, list)) => {
                let other = list.first().map(|own| own.name().to_string());
                let error = format!("{} answers at {address}", other.unwrap_or_default());
                membership.unanswered(&to, error, rand::random(), now);
                membership.take(list, now);
            }
            Err(error) => membership.unanswered(&to, error.to_string(), rand::random(), now),
        }
        drop(membership);
        self.0.changed.notify_one();
    }

    /// Tells a server what this one knows. Returns what it knows, and the time that its answer took.
    pub(crate) async fn tell(
        &self,
        name: &ServerName,
        address: SocketAddr,
    ) -> io::Result<(Duration, Vec<Description>)> {
        if let Some(mut stream) = self.0.conversations.take(name)
            && let Ok(answer) = self.talk(&mut stream, &name.datacenter).await
        {
            self.0.conversations.keep(name.clone(), stream);
            return Ok(answer);
        }
        // None is open, or it was closed since the last question.
        let datacenter = Some(name.datacenter.as_str());
        let dialled = dial(self.identity(), address, datacenter, Protocol::Members).await;
        let Connection {
            mut stream,
            datacenter,
        } = dialled?;
        let answer = self.talk(&mut stream, &datacenter).await?;
        self.0.conversations.keep(name.clone(), stream);
        Ok(answer)
    }

    /// Asks a server whose name is not known yet.
    pub(crate) async fn meet(&self, address: SocketAddr) -> io::Result<ServerName> {
        let dialled = dial(self.identity(), address, None, Protocol::Members).await?;
        let Connection {
            mut stream,
            datacenter,
        } = dialled;
        let (round_trip, list) = self.talk(&mut stream, &datacenter).await?;
        let name = list.first().map(Description::name);
        let name = name.ok_or(io::ErrorKind::InvalidData)?;
        let now = Instant::now();
        let mut membership = self.membership();
        if name != membership.own().name() {
            membership.take(list.clone(), now);
            membership.answered(&name, round_trip, list, now);
            self.0.conversations.keep(name.clone(), stream);
        }
        self.0.changed.notify_one();
        Ok(name)
    }

    async fn talk(
        &self,
        stream: &mut TlsStream<TcpStream>,
        datacenter: &str,
    ) -> io::Result<(Duration, Vec<Description>)> {
        let own = self.membership().list();
        let asked = Instant::now();
        let talk = async {
            exchange::send(stream, &own).await?;
            exchange::receive(stream, datacenter).await
        };
        let list = timeout(PATIENCE, talk).await??;
        let list = list.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((asked.elapsed(), list))
    }
}
