//! The dataplane process of a demo service.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http::{Method, StatusCode};
use legate_envoy::{FindError, find_executable, process};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::control_plane::{ControlPlane, NODE, Proxy, free_address};
use crate::http_client;

/// The deadline for a sidecar to become ready.
const READY_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// The number of log lines in an error.
const LOG_LINES: usize = 15;

/// The programs of a sidecar.
pub(crate) struct Programs {
    envoy: PathBuf,
    dataplane: PathBuf,
}

impl Programs {
    /// The programs that are named, or the usual ones.
    ///
    /// # Errors
    ///
    /// If one does not exist; the error names the option.
    pub(crate) fn find(envoy: Option<&Path>, dataplane: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self {
            envoy: find_envoy(envoy)?,
            dataplane: find_dataplane(dataplane)?,
        })
    }
}

/// A running `legate-dataplane`.
pub(crate) struct Sidecar {
    /// The proxy that it runs.
    pub(crate) proxy: Proxy,
    /// The address of Envoy's admin interface.
    pub(crate) admin: SocketAddr,
    /// The address for health, readiness and graceful shutdown.
    pub(crate) lifecycle: SocketAddr,
    /// Time from the start of the process until it was ready.
    pub(crate) ready_after: Duration,
    child: Child,
    log: PathBuf,
    started: Instant,
}

impl Sidecar {
    /// Starts the process; its output is written to a file that errors quote.
    pub(crate) fn start(
        programs: &Programs,
        control_plane: &ControlPlane,
        proxy: Proxy,
    ) -> anyhow::Result<Self> {
        let (admin, lifecycle) = (free_address()?, free_address()?);
        let log = control_plane.folder().join(format!("{}.log", proxy.id));
        let output =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let server = control_plane.grpc_tls();
        let mut command = Command::new(&programs.dataplane);
        command
            .args([
                "-addresses",
                &server.ip().to_string(),
                "-grpc-port",
                &server.port().to_string(),
            ])
            .arg("-ca-certs")
            .arg(control_plane.roots_file())
            .args(["-tls-server-name", "server.dc1.consul"])
            .args(["-proxy-node-name", NODE, "-proxy-id", &proxy.id])
            .args(["-envoy-admin-bind-port", &admin.port().to_string()])
            .args(["-graceful-port", &lifecycle.port().to_string()])
            .arg("-envoy-executable-path")
            .arg(&programs.envoy)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            // Ctrl-C in the terminal signals this program only, which then stops the sidecars in
            // order.
            .process_group(0);
        // If this program is killed, the sidecar can still stop its Envoy.
        process::tie(&mut command, Signal::SIGTERM, None);
        let started = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", programs.dataplane.display()))?;
        Ok(Self {
            proxy,
            admin,
            lifecycle,
            ready_after: Duration::ZERO,
            child,
            log,
            started,
        })
    }

    /// The log file of the sidecar and its Envoy.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Process ID.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until Envoy is live and fully configured.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let mut last = String::from("it did not answer");
        while self.started.elapsed() < READY_LIMIT {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the sidecar {} ended with {status}:\n{}",
                    self.proxy.id,
                    self.log_tail()
                );
            }
            if let Ok((status, body)) =
                http_client::request(Method::GET, self.lifecycle, "/readyz", None).await
            {
                if status == StatusCode::OK {
                    self.ready_after = self.started.elapsed();
                    return Ok(());
                }
                last = String::from_utf8_lossy(&body).trim().to_owned();
            }
            sleep(POLL).await;
        }
        bail!(
            "the sidecar {} is not ready after {READY_LIMIT:?}: {last}\n{}",
            self.proxy.id,
            self.log_tail()
        )
    }

    /// Requests a graceful shutdown and verifies the exit status.
    pub(crate) async fn stop(mut self, limit: Duration) -> anyhow::Result<()> {
        if let Some(pid) = self.child.id() {
            // The process may have just exited; the exit status is checked below.
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
        }
        let status = match timeout(limit, self.child.wait()).await {
            Ok(status) => status?,
            Err(_) => {
                self.child.kill().await?;
                bail!(
                    "the sidecar {} did not stop within {limit:?} and was killed:\n{}",
                    self.proxy.id,
                    self.log_tail()
                );
            }
        };
        if !status.success() {
            bail!(
                "the sidecar {} ended with {status}:\n{}",
                self.proxy.id,
                self.log_tail()
            );
        }
        Ok(())
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

/// Waits until one of the sidecars exits, which is an error while the mesh is running.
pub(crate) async fn first_exit(sidecars: &mut [Sidecar]) -> anyhow::Result<()> {
    loop {
        for sidecar in sidecars.iter_mut() {
            if let Some(status) = sidecar.child.try_wait()? {
                bail!(
                    "the sidecar {} ended with {status}:\n{}",
                    sidecar.proxy.id,
                    sidecar.log_tail()
                );
            }
        }
        sleep(POLL).await;
    }
}

/// The configured Envoy, or the first `envoy` on `PATH`.
#[expect(
    clippy::disallowed_methods,
    reason = "PATH is searched if no option is set"
)]
fn find_envoy(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let named = named.filter(|path| !path.as_os_str().is_empty());
    // The library's error names a setting of the sidecar, which users of this program do not have.
    find_executable(named, std::env::var_os("PATH").as_deref()).map_err(|error| match error {
        FindError::Named { path, reason } => anyhow!(
            "Envoy {} cannot be used: {reason}: set --envoy or LEGATE_ENVOY to another",
            path.display()
        ),
        FindError::NotFound { searched } => anyhow!(
            "no program called envoy on PATH ({searched}): install Envoy, or set --envoy or LEGATE_ENVOY"
        ),
    })
}

/// The configured dataplane, or the one in this program's folder.
fn find_dataplane(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let path = std::env::current_exe()
        .context("cannot find this program")?
        .with_file_name("legate-dataplane");
    if !path.is_file() {
        bail!("{} does not exist: set --dataplane", path.display());
    }
    Ok(path)
}
