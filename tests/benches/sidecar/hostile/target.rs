//! The attacked sidecar, observed from outside.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use legate_testkit::envoy;
use legate_tests::{Mesh, client};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep, timeout};

use super::API;
use legate_tests::program::{Program, Running};

/// The sidecar's limits of open files: a common soft limit, and a hard limit below the number of all
/// attackers.
pub(crate) const SOFT_FILES: u64 = 1_024;
pub(crate) const HARD_FILES: u64 = 4_096;
/// The number of attackers per port, if this program's limit of open files permits.
const ATTACKERS: u64 = 1_000;
/// The open files that this program needs otherwise, including the server and the applications of
/// the mesh.
const OWN_FILES: u64 = 500;

const ADMIN: u16 = 19_000;
/// The number of log lines shown for a sidecar that exited.
const LAST_LINES: usize = 5;
const POLL: Duration = Duration::from_millis(20);
/// The deadline for the start, with a wide margin.
const LIMIT: Duration = Duration::from_secs(60);

/// The sidecar's ports for other processes.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) xds: SocketAddr,
    pub(crate) lifecycle: SocketAddr,
    /// The merged metrics of Envoy, application and sidecar.
    pub(crate) merged: SocketAddr,
    pub(crate) own_metrics: SocketAddr,
    pub(crate) dns: SocketAddr,
}

impl Ports {
    fn at(address: IpAddr) -> Ports {
        let at = |port| SocketAddr::new(address, port);
        Ports {
            xds: at(18_502),
            lifecycle: at(20_300),
            merged: at(20_100),
            own_metrics: at(20_101),
            dns: at(8_653),
        }
    }

    pub(crate) fn all(&self) -> [SocketAddr; 5] {
        [
            self.lifecycle,
            self.merged,
            self.own_metrics,
            self.xds,
            self.dns,
        ]
    }
}

/// Memory in MiB, and the number of open files including sockets.
#[derive(Clone, Copy, Default)]
pub(crate) struct State {
    pub(crate) resident: f64,
    pub(crate) peak: f64,
    pub(crate) files: f64,
}

pub(crate) struct Target {
    running: Running,
    admin: SocketAddr,
    pub(crate) ports: Ports,
    most: State,
    /// The last known Envoy, which not every dataplane stops.
    envoy: Option<Pid>,
}

impl Target {
    /// Starts the sidecar and waits until its Envoy is ready.
    pub(crate) async fn start(
        mesh: &mut Mesh,
        program: &Program,
        application: SocketAddr,
    ) -> Target {
        let flags = mesh.flags(API.instance);
        let ports = Ports::at(flags.address);
        let address = flags.address.to_string();
        let flags = flags
            .with(
                "envoy-executable-path",
                envoy::binary().display().to_string(),
            )
            .with("envoy-admin-bind-address", &address)
            .with("graceful-addr", &address)
            .with("xds-bind-addr", &address)
            .with("xds-bind-port", ports.xds.port().to_string())
            .with("consul-dns-bind-addr", &address)
            .with("consul-dns-bind-port", ports.dns.port().to_string())
            .with(
                "telemetry-prom-service-metrics-url",
                format!("http://{application}/metrics"),
            );
        let limits =
            format!("ulimit -Sn {SOFT_FILES} && ulimit -Hn {HARD_FILES} && exec \"$0\" \"$@\"");
        let mut arguments = vec!["-c".to_owned(), limits, program.path.display().to_string()];
        let named = flags.flags.iter();
        arguments.extend(named.map(|(flag, value)| format!("-{flag}={value}")));
        let log = mesh.file(&format!("{}.log", program.name));
        let running = Running::start(Path::new("/bin/sh"), &arguments, log);
        let mut target = Target {
            running,
            admin: SocketAddr::new(flags.address, ADMIN),
            ports,
            most: State::default(),
            envoy: None,
        };
        let ready = async {
            while !target.ready().await {
                target.running.check();
                sleep(POLL).await;
            }
        };
        if timeout(LIMIT, ready).await.is_err() {
            panic!("{} is not ready:\n{}", program.name, target.running.log());
        }
        target
    }

    /// Whether Envoy reports itself ready.
    async fn ready(&self) -> bool {
        let answer = client::get(self.admin, "/ready").await;
        answer.is_ok_and(|(status, _)| status.is_success())
    }

    /// Whether the lifecycle port responds in time. Both programs have this path, and neither waits
    /// there unless a startup grace period is set.
    pub(crate) async fn probe(&self, limit: Duration) -> bool {
        let answer = client::get(self.ports.lifecycle, "/graceful_startup");
        matches!(timeout(limit, answer).await, Ok(Ok(_)))
    }

    /// Kills Envoy; returns the seconds until a new one is ready.
    pub(crate) async fn envoy_again(&self, limit: Duration) -> Option<f64> {
        let old = *self.running.children().first()?;
        kill(old, Signal::SIGKILL).expect("Envoy runs");
        let begun = Instant::now();
        let again = async {
            while self
                .running
                .children()
                .first()
                .is_none_or(|new| *new == old)
                || !self.ready().await
            {
                sleep(POLL).await;
            }
        };
        let again = timeout(limit, again).await;
        again.ok().map(|()| begun.elapsed().as_secs_f64())
    }

    /// The process state from the kernel; `None` if it has exited.
    pub(crate) fn state(&mut self) -> Option<State> {
        let usage = self.running.usage()?;
        self.envoy = self.running.children().first().copied().or(self.envoy);
        let state = State {
            resident: usage.resident / 1024.0,
            peak: usage.peak / 1024.0,
            files: usage.files as f64,
        };
        let most = &mut self.most;
        most.resident = most.resident.max(state.resident);
        most.peak = most.peak.max(state.peak);
        most.files = most.files.max(state.files);
        Some(state)
    }

    /// Samples the state forever.
    pub(crate) async fn watch(&mut self) {
        loop {
            self.state();
            sleep(POLL).await;
        }
    }

    /// The maximum values so far.
    pub(crate) fn most(&self) -> State {
        self.most
    }

    /// Stops it; `None` if it exited cleanly in time, else a description.
    pub(crate) async fn stop(mut self, limit: Duration) -> Option<String> {
        if let Some(status) = self.running.ended() {
            if let Some(envoy) = self.envoy {
                // The process is gone already if the dataplane stopped it.
                let _ = kill(envoy, Signal::SIGKILL);
            }
            let log = self.running.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
            return Some(format!("ended under attack with {status}:\n\n{last}"));
        }
        let stopped = timeout(limit, self.running.stop()).await;
        stopped
            .is_err()
            .then(|| format!("did not stop within {limit:?} and was killed"))
    }
}

/// Waits for a response with this status.
pub(crate) async fn answers(server: SocketAddr, status: u16) {
    loop {
        if let Ok((got, _)) = client::get(server, "/").await
            && got.as_u16() == status
        {
            return;
        }
        sleep(POLL).await;
    }
}

/// The number of attackers per port; raises this program's own limit of open files.
pub(crate) fn attackers_on_each_port() -> usize {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits can be read");
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    let files = if raised.is_ok() { hard } else { soft };
    let each = files.saturating_sub(OWN_FILES) / 5;
    usize::try_from(each.min(ATTACKERS)).unwrap_or_default()
}
