//! Probes the other servers: exchanges lists with them, over connections that are kept.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use crate::dial::Connection;
use crate::membership::{Description, Probe, ServerName};
use crate::{Protocol, Wan, exchange};

/// The time for an answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The largest number of probes at a time.
const AT_A_TIME: usize = 64;

/// The open connections to servers that answer. A connection in use is not in it.
#[derive(Default)]
pub(crate) struct OpenConnections(Mutex<HashMap<ServerName, Connection>>);

impl OpenConnections {
    fn take(&self, name: &ServerName) -> Option<Connection> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(name)
    }

    fn keep(&self, name: ServerName, connection: Connection) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(name, connection);
    }

    /// Closes the connections to servers that are not members any more.
    fn retain(&self, is_member: impl Fn(&ServerName) -> bool) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|name, _| is_member(name));
    }
}

impl Wan {
    /// Probes each server when it is due, for ever.
    pub(crate) async fn probe_all(&self) {
        let free = Arc::new(Semaphore::new(AT_A_TIME));
        loop {
            let due = self.membership().due(Instant::now());
            for probe in due {
                let Ok(permit) = Arc::clone(&free).acquire_owned().await else {
                    return;
                };
                let probing = self.clone();
                self.0
                    .spawner
                    .spawn_until_stop("probe of a server", async move {
                        probing.probe(probe).await;
                        drop(permit);
                    });
            }
            self.forget();
            let next = self.membership().next_probe();
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
        self.0.connections.retain(|name| known.contains(name));
        for links in [&self.0.links, &self.0.forwards] {
            links.retain(|name| known.contains(name));
        }
    }

    async fn probe(&self, probe: Probe) {
        let Probe { to, address } = probe;
        let exchanged = self.exchange(&to, address).await;
        let now = Instant::now();
        let mut membership = self.membership();
        match exchanged {
            Ok((round_trip, list)) if list.first().is_some_and(|own| own.name() == to) => {
                membership.succeeded(&to, round_trip, list, now);
            }
            Ok((_, list)) => {
                let other = list.first().map(|own| own.name().to_string());
                let error = format!("{} answers at {address}", other.unwrap_or_default());
                membership.failed(&to, error, rand::random(), now);
                membership.merge_list(list, now);
            }
            Err(error) => membership.failed(&to, error.to_string(), rand::random(), now),
        }
        drop(membership);
        self.0.changed.notify_one();
    }

    /// Exchanges lists with a server. Returns its list, and the time that its answer took.
    pub(crate) async fn exchange(
        &self,
        name: &ServerName,
        address: SocketAddr,
    ) -> io::Result<(Duration, Vec<Description>)> {
        if let Some(mut connection) = self.0.connections.take(name)
            && let Ok(answer) = self.exchange_over(&mut connection).await
        {
            self.0.connections.keep(name.clone(), connection);
            return Ok(answer);
        }
        // None is open, or it was closed since the last probe.
        let mut connection = self.connect(name, address, Protocol::Members).await?;
        let answer = self.exchange_over(&mut connection).await?;
        let gateway = connection.gateway.as_ref().map(ToString::to_string);
        self.membership().set_gateway(name, gateway);
        self.0.connections.keep(name.clone(), connection);
        Ok(answer)
    }

    /// Exchanges lists with a server whose name is not known yet.
    pub(crate) async fn discover(&self, mut connection: Connection) -> io::Result<ServerName> {
        let (round_trip, list) = self.exchange_over(&mut connection).await?;
        let name = list.first().map(Description::name);
        let name = name.ok_or(io::ErrorKind::InvalidData)?;
        let now = Instant::now();
        let mut membership = self.membership();
        if name != membership.own().name() {
            membership.succeeded(&name, round_trip, list, now);
            let gateway = connection.gateway.as_ref().map(ToString::to_string);
            membership.set_gateway(&name, gateway);
            self.0.connections.keep(name.clone(), connection);
        }
        self.0.changed.notify_one();
        Ok(name)
    }

    async fn exchange_over(
        &self,
        connection: &mut Connection,
    ) -> io::Result<(Duration, Vec<Description>)> {
        let Connection {
            stream,
            datacenters,
            ..
        } = connection;
        let own = self.membership().list();
        let sent = Instant::now();
        let exchange = async {
            exchange::send(stream, &own).await?;
            exchange::receive(stream, datacenters).await
        };
        let list = timeout(TIMEOUT, exchange).await??;
        let list = list.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((sent.elapsed(), list))
    }
}
