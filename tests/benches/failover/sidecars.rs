//! The measured sidecars, each with a real Envoy.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use legate_testkit::envoy;
use legate_tests::client;
use legate_tests::program::{Program, Running};
use legate_tests::wait::eventually_within;
use tokio::time::{Instant, sleep};

use crate::network::{CONTROL, Network};
use crate::servers::{GRPC, SERVER_NAME, Servers, address};

/// The deadline of a start, with a wide margin.
const START: Duration = Duration::from_secs(60);

/// The deadline of a change. A sidecar that does not get it in time counts with this time.
const CHANGE: Duration = Duration::from_secs(120);

/// A running sidecar. Dropping it kills it and its Envoy.
pub(crate) struct Sidecar {
    running: Running,
    admin: SocketAddr,
}

impl Sidecar {
    /// Starts a sidecar, which is configured with the address of one server and gets the others from
    /// it. Its number determines its addresses.
    pub(crate) fn start(
        program: &Program,
        number: u8,
        server: u8,
        (network, servers): (&Network, &Servers),
        folder: &Path,
    ) -> Self {
        let admin = SocketAddr::from((CONTROL, 21_000 + u16::from(number)));
        let arguments = [
            network.enter(),
            program.path.display().to_string(),
            format!("-addresses={}", address(server)),
            format!("-grpc-port={GRPC}"),
            format!("-ca-certs={}", servers.ca_file().display()),
            format!("-tls-server-name={SERVER_NAME}"),
            "-proxy-node-name=node-1".to_owned(),
            format!("-proxy-id=web-{number}-proxy"),
            format!("-envoy-executable-path={}", envoy::binary().display()),
            format!("-envoy-admin-bind-address={}", admin.ip()),
            format!("-envoy-admin-bind-port={}", admin.port()),
            "-envoy-concurrency=1".to_owned(),
            format!("-graceful-addr=127.0.9.{number}"),
        ];
        let log = folder.join(format!("{}-{number}.log", program.name));
        Self {
            running: Running::start(Path::new("/usr/bin/nsenter"), &arguments, log),
            admin,
        }
    }

    /// Waits until Envoy has an endpoint.
    pub(crate) async fn configured(&mut self, endpoint: &str) {
        let admin = self.admin;
        let probe = || {
            self.running.check();
            has(admin, endpoint)
        };
        eventually_within(START, "Envoy is configured", probe, |has| *has).await;
    }

    /// Seconds from `since` until Envoy has an endpoint.
    pub(crate) async fn gets(&self, endpoint: &str, poll: Duration, since: Instant) -> f64 {
        while !has(self.admin, endpoint).await && since.elapsed() < CHANGE {
            sleep(poll).await;
        }
        since.elapsed().min(CHANGE).as_secs_f64()
    }
}

/// Whether an Envoy has an endpoint.
async fn has(admin: SocketAddr, endpoint: &str) -> bool {
    let clusters = client::get(admin, "/clusters").await;
    clusters.is_ok_and(|(_, text)| text.contains(endpoint))
}
