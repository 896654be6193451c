//! Sessions with real servers over real sockets.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod addresses;
mod codes;
mod credentials;
mod failover;
mod proxy;
mod renewals;
mod silence;
mod snapshot;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use legate_api::dataplane::GetEnvoyBootstrapParamsRequest;
use legate_client::{
    ClientConfig, Connection, Credentials, ErrorKind, Session, SessionError, SessionSnapshot,
    SessionState, Timing, connect,
};
use legate_runtime::Scope;
use legate_runtime::metrics::{Registry, encode};
use legate_testkit::fake_server::{FakeServer, FakeServerOptions, WAIT};
use legate_testkit::network::free_port_on;
use tonic::Status;

/// Time limit for closing a session: that of its logout, with a margin.
const CLOSE: Duration = Duration::from_secs(10);

/// A session with its environment.
struct Client {
    session: Session,
    registry: Registry,
    scope: Scope,
}

fn config(addresses: &str, port: u16) -> ClientConfig {
    ClientConfig::new(addresses.parse().unwrap(), port)
}

fn with(credentials: Credentials, server: &FakeServer) -> ClientConfig {
    ClientConfig {
        credentials,
        ..config("127.0.0.1", server.address().port())
    }
}

impl Client {
    fn start(config: ClientConfig) -> Self {
        let scope = Scope::new("test");
        let registry = Registry::new();
        let session = connect(config, &scope.spawner(), &registry).unwrap();
        Self {
            session,
            registry,
            scope,
        }
    }

    fn with(config: ClientConfig, timing: Timing) -> Self {
        Self::start(ClientConfig { timing, ..config })
    }

    async fn connected(&self) -> Connection {
        tokio::time::timeout(WAIT, self.session.connected())
            .await
            .unwrap_or_else(|_| panic!("no connection: {:?}", self.session.state()))
            .unwrap()
    }

    /// Waits until the session's snapshot satisfies `shown`.
    async fn shows(&self, what: &str, shown: impl Fn(&SessionSnapshot) -> bool) -> SessionSnapshot {
        let found = async {
            loop {
                let snapshot = self.session.snapshot();
                if shown(&snapshot) {
                    return snapshot;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        match tokio::time::timeout(WAIT, found).await {
            Ok(snapshot) => snapshot,
            Err(_) => panic!("not {what}: {:?}", self.session.snapshot()),
        }
    }

    async fn refused(&self) -> SessionError {
        tokio::time::timeout(WAIT, self.session.connected())
            .await
            .unwrap_or_else(|_| panic!("no end: {:?}", self.session.state()))
            .unwrap_err()
    }

    /// The first connection after this one.
    async fn after(&self, connection: &Connection) -> Connection {
        let mut states = self.session.subscribe();
        let next = states.wait_for(
            |state| matches!(state, SessionState::Connected(next) if next.generation > connection.generation),
        );
        match tokio::time::timeout(WAIT, next).await {
            Ok(Ok(state)) => match &*state {
                SessionState::Connected(next) => next.clone(),
                state => panic!("{state:?}"),
            },
            _ => panic!("no further connection: {:?}", self.session.state()),
        }
    }

    async fn close(&self) {
        self.session.close(CLOSE).await;
        assert!(matches!(self.session.state(), SessionState::Closed));
        self.scope.stop(CLOSE).await.unwrap();
    }

    fn metrics(&self) -> String {
        encode(&self.registry)
    }
}

/// Intervals short enough for a test.
fn hasty() -> Timing {
    Timing {
        silence: Duration::from_millis(100),
        answer: Duration::from_secs(1),
        files: Duration::from_millis(50),
    }
}

/// An arbitrary call with the session's token.
async fn call(connection: &Connection) -> Result<(), Status> {
    let request = GetEnvoyBootstrapParamsRequest {
        proxy_id: "web-proxy".into(),
        ..Default::default()
    };
    connection
        .dataplane()
        .get_envoy_bootstrap_params(request)
        .await
        .map(drop)
}

/// Servers on 127.0.0.1 and 127.0.0.2 with the same port.
async fn two_servers() -> [FakeServer; 2] {
    let ips = ["127.0.0.1", "127.0.0.2"].map(|ip| ip.parse().unwrap());
    let port = free_port_on(&ips);
    let start = |ip| {
        FakeServer::start(FakeServerOptions {
            ip,
            port,
            tls: None,
        })
    };
    [start(ips[0]).await, start(ips[1]).await]
}

const BOTH: &str = "127.0.0.1,127.0.0.2";

/// Of two servers, the one with this address first.
fn sorted(
    servers: &mut [FakeServer; 2],
    address: SocketAddr,
) -> (&mut FakeServer, &mut FakeServer) {
    let [first, second] = servers;
    if first.address() == address {
        (first, second)
    } else {
        (second, first)
    }
}
