//! Sends the dataplane's own metrics to the statsd and dogstatsd sinks of the proxy's
//! configuration. What a sink does not take is lost, and said once.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use legate_runtime::Spawner;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Telemetry;
use super::push::{Dialect, Item, Push};

/// How often changes are sent.
const TICK: Duration = Duration::from_secs(1);

/// Every how many ticks all gauges are sent.
const FULL: u32 = 10;

/// How long a sink that failed is left alone.
const PAUSE: Duration = Duration::from_secs(5);

/// A sink that cannot be sent to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{url:?} is no address of a sink: use udp://IP:PORT or unix:///PATH")]
pub struct SinkAddressError {
    url: String,
}

/// Where a sink listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkAddress {
    /// UDP.
    Udp(SocketAddr),
    /// A unix datagram socket.
    Unix(PathBuf),
}

impl FromStr for SinkAddress {
    type Err = SinkAddressError;

    fn from_str(url: &str) -> Result<SinkAddress, SinkAddressError> {
        let error = || SinkAddressError {
            url: url.to_owned(),
        };
        if let Some(path) = url
            .strip_prefix("unix://")
            .filter(|path| path.starts_with('/'))
        {
            return Ok(SinkAddress::Unix(path.into()));
        }
        let address = url.strip_prefix("udp://").ok_or_else(error)?;
        address.parse().map(SinkAddress::Udp).map_err(|_| error())
    }
}

impl fmt::Display for SinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkAddress::Udp(address) => write!(f, "udp://{address}"),
            SinkAddress::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// A sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sink {
    /// What it understands.
    pub dialect: Dialect,
    /// Where it is.
    pub address: SinkAddress,
}

impl Sink {
    /// Largest datagram: what fits the usual Ethernet, and for unix sockets what agents take.
    fn limit(&self) -> usize {
        match (&self.dialect, &self.address) {
            (Dialect::Statsd, _) => 1_400,
            (Dialect::Dogstatsd { .. }, SinkAddress::Udp(_)) => 1_432,
            (Dialect::Dogstatsd { .. }, SinkAddress::Unix(_)) => 8_192,
        }
    }
}

/// Pushes to the sinks until the scope of `spawner` stops; what changed last is sent then.
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
        let mut count = 0;
        loop {
            let last = tokio::select! {
                () = stop.cancelled() => true,
                _ = ticks.tick() => false,
            };
            let items = push.tick(&telemetry.families(), count == 0 || last);
            count = (count + 1) % FULL;
            for outlet in &mut outlets {
                outlet.send(&items);
            }
            if last {
                return Ok::<_, Infallible>(());
            }
        }
    });
}

/// A socket that never waits.
enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl Socket {
    fn open(address: &SinkAddress) -> io::Result<Socket> {
        match address {
            SinkAddress::Udp(address) => {
                let any: SocketAddr = match address {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.set_nonblocking(true)?;
                socket.connect(address)?;
                Ok(Socket::Udp(socket))
            }
            SinkAddress::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                socket.connect(path)?;
                Ok(Socket::Unix(socket))
            }
        }
    }

    /// A sink whose queue is full loses this.
    fn send(&self, datagram: &[u8]) -> io::Result<()> {
        let sent = match self {
            Socket::Udp(socket) => socket.send(datagram),
            Socket::Unix(socket) => socket.send(datagram),
        };
        match sent {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

/// What sends to one sink.
struct Outlet {
    sink: Sink,
    socket: Option<Socket>,
    /// Left alone until then.
    until: Option<Instant>,
    /// Whether its failure was logged.
    logged: bool,
}

impl Outlet {
    fn new(sink: Sink) -> Outlet {
        Outlet {
            sink,
            socket: None,
            until: None,
            logged: false,
        }
    }

    fn send(&mut self, items: &[Item]) {
        if self.until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let datagrams = self.sink.dialect.datagrams(items, self.sink.limit());
        match self.try_send(&datagrams) {
            Ok(()) => (self.until, self.logged) = (None, self.logged && datagrams.is_empty()),
            Err(error) => {
                self.socket = None;
                self.until = Some(Instant::now() + PAUSE);
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
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => Socket::open(&self.sink.address)?,
        };
        let socket = self.socket.insert(socket);
        datagrams
            .iter()
            .try_for_each(|datagram| socket.send(datagram.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for url in [
            "udp://127.0.0.1:8125",
            "udp://[::1]:8125",
            "unix:///run/dsd.socket",
        ] {
            assert_eq!(url.parse::<SinkAddress>().unwrap().to_string(), url);
        }
        for url in [
            "tcp://127.0.0.1:1",
            "udp://host:1",
            "udp://127.0.0.1",
            "unix://run",
            "",
        ] {
            let error = url.parse::<SinkAddress>().unwrap_err().to_string();
            assert!(error.contains("udp://IP:PORT"), "{error}");
        }
    }
}
