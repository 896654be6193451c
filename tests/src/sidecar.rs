//! A dataplane process with its Envoy: `legate-dataplane`, or a program that takes its place.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use legate_testkit::envoy;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::client;
use crate::control_plane::GRPC;
use crate::wait::{LIMIT, eventually};

/// Envoy's admin port on the sidecar's own address.
const ADMIN: u16 = 19000;
/// The port of health, readiness and graceful shutdown.
const LIFECYCLE: u16 = 20300;

/// The flags of a sidecar.
#[derive(Debug, Clone)]
pub struct SidecarFlags {
    /// Another program with the same flags; `legate-dataplane` if `None`.
    pub program: Option<PathBuf>,
    /// The address of its own listeners.
    pub address: IpAddr,
    /// All other flags with their values.
    pub flags: Vec<(&'static str, String)>,
    /// The value of `-proxy`, which other programs lack.
    pub proxy_kind: &'static str,
}

impl SidecarFlags {
    /// Sets or replaces a flag.
    #[must_use]
    pub fn with(mut self, flag: &'static str, value: impl Into<String>) -> Self {
        self.flags.retain(|(name, _)| *name != flag);
        self.flags.push((flag, value.into()));
        self
    }

    /// Removes a flag.
    #[must_use]
    pub fn without(mut self, flag: &'static str) -> Self {
        self.flags.retain(|(name, _)| *name != flag);
        self
    }

    /// Uses plaintext to the server.
    #[must_use]
    pub fn plaintext(self) -> Self {
        self.without("ca-certs")
            .without("tls-server-name")
            .with("tls-disabled", "true")
            .with("grpc-port", GRPC.to_string())
    }
}

/// A running sidecar. Dropping it kills the process and its Envoy.
pub struct Sidecar {
    /// Its own address: listeners of its Envoy, admin interface and lifecycle server.
    pub address: IpAddr,
    /// The address and path of its readiness endpoint.
    readiness: (SocketAddr, &'static str),
    child: Child,
    log: PathBuf,
}

impl Sidecar {
    /// Starts the process; its output is written to `log`.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(flags: &SidecarFlags, log: PathBuf) -> Self {
        let output = File::create(&log).expect("the log can be written");
        let address = flags.address.to_string();
        let mut command = Command::new(match &flags.program {
            Some(program) => program.clone(),
            None => envoy::workspace_binary("legate-dataplane"),
        });
        command
            .env_clear()
            .arg("-envoy-executable-path")
            .arg(envoy::binary())
            .args([
                "-envoy-admin-bind-address",
                &address,
                "-graceful-addr",
                &address,
            ])
            .args(
                flags
                    .flags
                    .iter()
                    .map(|(flag, value)| format!("-{flag}={value}")),
            )
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file can be shared"))
            .stderr(output)
            .kill_on_drop(true);
        if flags.program.is_none() {
            // Several sidecars share the network here; other programs lack this setting.
            command.arg(format!("-telemetry-prom-bind-addr={address}"));
            command.arg(format!("-proxy={}", flags.proxy_kind));
        }
        let child = command.spawn().expect("the dataplane can be started");
        // Other programs have no readiness of their own, only Envoy's.
        let readiness = match &flags.program {
            Some(_) => ((flags.address, ADMIN).into(), "/ready"),
            None => ((flags.address, LIFECYCLE).into(), "/readyz"),
        };
        Self {
            address: flags.address,
            readiness,
            child,
            log,
        }
    }

    /// Process ID.
    ///
    /// # Panics
    ///
    /// If the process has been waited for.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().expect("the process runs").cast_signed())
    }

    /// The dataplane's Envoy process.
    ///
    /// # Panics
    ///
    /// If there is not exactly one.
    #[must_use]
    pub fn envoy(&self) -> Pid {
        let children = self.children();
        let [envoy] = children.as_slice() else {
            panic!("children of the dataplane: {children:?}")
        };
        *envoy
    }

    /// Child processes of all threads of the dataplane.
    fn children(&self) -> Vec<Pid> {
        let Some(pid) = self.child.id() else {
            return Vec::new();
        };
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
        let children = threads.flatten().flatten().map(|thread| {
            std::fs::read_to_string(thread.path().join("children")).unwrap_or_default()
        });
        let children: String = children.collect();
        let pids = children.split_whitespace();
        pids.filter_map(|pid| pid.parse().ok().map(Pid::from_raw))
            .collect()
    }

    /// The address of Envoy's admin interface.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        (self.address, ADMIN).into()
    }

    /// The address of health, readiness and graceful shutdown.
    #[must_use]
    pub fn lifecycle(&self) -> SocketAddr {
        (self.address, LIFECYCLE).into()
    }

    /// Waits until it reports ready.
    ///
    /// # Panics
    ///
    /// If the process exits or the timeout has passed, with the log.
    pub async fn ready(&mut self) {
        let (server, path) = self.readiness;
        let mut ended = None;
        let wait = eventually(
            "a sidecar gets ready",
            || {
                ended = self.child.try_wait().ok().flatten();
                let dead = ended.is_some();
                async move {
                    (
                        dead,
                        client::get(server, path)
                            .await
                            .map_err(|error| error.to_string()),
                    )
                }
            },
            |(dead, answer)| *dead || matches!(answer, Ok((status, _)) if status.is_success()),
        );
        let (dead, _) = timeout(LIMIT * 2, wait).await.expect("probes end");
        assert!(!dead, "the sidecar ended:\n{}", self.log());
    }

    /// The output of the sidecar and its Envoy so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    ///
    /// If it does not exit, with the log.
    pub async fn exit(&mut self) -> ExitStatus {
        match timeout(LIMIT, self.child.wait()).await {
            Ok(status) => status.expect("the process can be waited for"),
            Err(_) => panic!("the sidecar does not end:\n{}", self.log()),
        }
    }

    /// Sends a signal to the dataplane.
    ///
    /// # Panics
    ///
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the process runs");
    }

    /// Stops it gracefully with SIGTERM.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.exit().await
    }

    /// The status document.
    ///
    /// # Panics
    ///
    /// If the lifecycle server does not return one.
    pub async fn status(&self) -> Value {
        let (_, body) = client::get(self.lifecycle(), "/status")
            .await
            .expect("the lifecycle server answers");
        serde_json::from_str(&body).expect("the status is JSON")
    }

    /// Requests a restart of Envoy and waits for the response.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub async fn restart(&self) -> client::Answer {
        client::post_within(LIMIT * 2, self.lifecycle(), "/restart")
            .await
            .expect("the lifecycle server answers")
    }

    /// Serial number of the leaf certificate that Envoy presents.
    ///
    /// # Panics
    ///
    /// If the admin interface does not respond.
    pub async fn leaf_serial(&self) -> Option<String> {
        let (_, body) = client::get(self.admin(), "/certs")
            .await
            .expect("Envoy's admin API answers");
        let certs: Value = serde_json::from_str(&body).ok()?;
        let chains = certs["certificates"].as_array()?;
        let leaf = chains.iter().find_map(|entry| entry["cert_chain"].get(0))?;
        leaf["serial_number"].as_str().map(str::to_owned)
    }

    /// A counter or gauge of Envoy; 0 if it does not exist.
    ///
    /// # Panics
    ///
    /// If the admin interface does not respond.
    pub async fn stat(&self, name: &str) -> u64 {
        let (_, body) = client::get(self.admin(), "/stats")
            .await
            .expect("Envoy's admin API answers");
        let value = body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value
            .and_then(|value| value.parse().ok())
            .unwrap_or_default()
    }

    /// Addresses of all endpoints of mesh destinations in Envoy.
    ///
    /// # Panics
    ///
    /// If the admin interface does not respond.
    pub async fn endpoints(&self) -> Vec<String> {
        let (_, body) = client::get(self.admin(), "/clusters")
            .await
            .expect("Envoy's admin API answers");
        let hosts = body
            .lines()
            .filter_map(|line| line.strip_suffix("::hostname::"));
        let mesh = hosts.filter(|line| line.contains(".internal."));
        mesh.filter_map(|line| line.split("::").nth(1).map(str::to_owned))
            .collect()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // Not every dataplane stops its Envoy when it is killed.
        if matches!(self.child.try_wait(), Ok(None)) {
            for child in self.children() {
                let _ = kill(child, Signal::SIGKILL);
            }
        }
    }
}
