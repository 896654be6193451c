//! Runs `consul agent -dev` on free ports, for clients that do not start an agent themselves.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};

use super::Environment;

/// The maximum number of attempts to connect to the agent, and the pause between them.
const ATTEMPTS: u32 = 400;
const PAUSE: Duration = Duration::from_millis(50);

/// A running agent, stopped on drop.
pub(super) struct Agent {
    child: Child,
    http: u16,
}

impl Agent {
    /// Starts an agent and waits until its HTTP port accepts connections.
    pub(super) fn start(place: &Environment) -> anyhow::Result<Self> {
        let http = free_port()?;
        let mut command = Command::new(place.consul());
        command.args(["agent", "-dev", "-bind", "127.0.0.1", "-log-level", "warn"]);
        command.arg(format!("-http-port={http}"));
        for port in ["-grpc-port", "-grpc-tls-port", "-dns-port"] {
            command.arg(format!("{port}={}", free_port()?));
        }
        if is_consul(place) {
            for port in ["-serf-lan-port", "-serf-wan-port", "-server-port"] {
                command.arg(format!("{port}={}", free_port()?));
            }
        }
        let child = command.stdout(Stdio::null()).spawn();
        let child = child.context("cannot start the agent")?;
        let mut agent = Self { child, http };
        agent.wait()?;
        Ok(agent)
    }

    /// The address of its HTTP API, without a scheme.
    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.http)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        for _ in 0..ATTEMPTS {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.http)).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the agent ended with {status} when it started");
            }
            sleep(PAUSE);
        }
        bail!(
            "the agent does not listen on {} after {:?}",
            self.address(),
            PAUSE * ATTEMPTS
        )
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Consul has additional ports, which two agents on one machine must not share.
fn is_consul(place: &Environment) -> bool {
    let target = place.consul().canonicalize();
    target.is_ok_and(|target| target.file_name().is_some_and(|name| name == "consul"))
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}
