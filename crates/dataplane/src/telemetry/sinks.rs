//! Sends the dataplane's own metrics to the statsd and dogstatsd sinks of the proxy's configuration. Data that a
//! sink does not accept is dropped; each outage is logged once.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use legate_envoy::bootstrap::SinkAddress;
use legate_runtime::Spawner;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::push::{Dialect, Item, Push};
use super::registry::Telemetry;

/// How often changes are sent.
const TICK: Duration = Duration::from_secs(1);

/// All gauges are sent once per this number of ticks.
const FULL: u64 = 10;

/// Maximum size of a datagram in bytes: fits the usual Ethernet MTU.
const DATAGRAM: usize = 1_400;

/// How long a failed sink is skipped.
const PAUSE: Duration = Duration::from_secs(5);

/// A sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sink {
    /// Its protocol.
    pub dialect: Dialect,
    /// Its address.
    pub address: SinkAddress,
}

/// Pushes to the sinks until the scope of `spawner` stops, with a final push at the end.
pub fn push(telemetry: Telemetry, sinks: Vec<Sink>, spawner: &Spawner) {
    if sinks.is_empty() {
        return;
    }
    let stop = spawner.token();
    spawner.spawn("metrics sinks", async move {
        let mut outlets: Vec<_> = sinks.into_iter().map(Outlet::new).collect();
        let mut push = Push::default();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for count in 0_u64.. {
            let last = stop.run_until_cancelled(ticks.tick()).await.is_none();
            let items = push.tick(&telemetry.families(), count % FULL == 0 || last);
            for outlet in &mut outlets {
                outlet.send(&items);
            }
            if last {
                break;
            }
        }
        Ok::<_, Infallible>(())
    });
}

/// Opens a non-blocking socket connected to the sink.
fn open(address: &SinkAddress) -> io::Result<Socket> {
    let (domain, address) = match address {
        SinkAddress::Udp(address) => (Domain::for_address(*address), (*address).into()),
        SinkAddress::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
    };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&address)?;
    Ok(socket)
}

/// Sends to one sink.
struct Outlet {
    sink: Sink,
    socket: Option<Socket>,
    /// Skipped until then.
    until: Instant,
    /// Whether its failure was logged.
    logged: bool,
}

impl Outlet {
    fn new(sink: Sink) -> Outlet {
        Outlet {
            sink,
            socket: None,
            until: Instant::now(),
            logged: false,
        }
    }

    fn send(&mut self, items: &[Item]) {
        if Instant::now() < self.until {
            return;
        }
        let datagrams = self.sink.dialect.datagrams(items, DATAGRAM);
        match self.try_send(&datagrams) {
            Ok(()) => self.logged &= datagrams.is_empty(),
            Err(error) => {
                self.socket = None;
                self.until = Instant::now() + PAUSE;
                if !std::mem::replace(&mut self.logged, true) {
                    tracing::warn!(
                        target: "metrics",
                        sink = %self.sink.address,
                        %error,
                        "own metrics do not reach a sink; trying again every {PAUSE:?}"
                    );
                }
            }
        }
    }

    fn try_send(&mut self, datagrams: &[String]) -> io::Result<()> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(open(&self.sink.address)?),
        };
        for datagram in datagrams {
            match socket.send(datagram.as_bytes()) {
                // If the sink's queue is full, the data is dropped.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => _ = sent?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sink_that_is_not_there_is_tried_again_after_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dsd.socket");
        let mut outlet = Outlet::new(Sink {
            dialect: Dialect::Statsd,
            address: SinkAddress::Unix(path.clone()),
        });
        let families = [crate::telemetry::families::gauge("x", "x", Some(1.0))];
        let items = Push::default().tick(&families, true);
        outlet.send(&items);
        assert!(outlet.logged);
        let listener = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut received = [0; 100];
        outlet.send(&items);
        assert!(listener.recv(&mut received).is_err(), "it is left alone");
        tokio::time::advance(PAUSE).await;
        outlet.send(&items);
        let length = listener.recv(&mut received).unwrap();
        assert_eq!(&received[..length], b"x:1.000000|g\n");
        assert!(!outlet.logged, "its next failure is logged");
    }
}
