//! A server of this workspace as a process, which is killed and started again.

use std::fs::OpenOptions;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Stdio;

use legate_testkit::envoy::workspace_binary;
use tokio::process::{Child, Command};

use crate::client;
use crate::control_plane::HTTP;
use crate::mesh::MANAGEMENT;
use crate::wait;

/// A server. Dropping it kills the process.
pub(crate) struct ServerProcess {
    /// `legate-server` or `legate`.
    pub(crate) program: &'static str,
    /// The address of its HTTP API.
    pub(crate) address: IpAddr,
    pub(crate) arguments: Vec<String>,
    /// Whether it gets the management token.
    pub(crate) acl: bool,
    pub(crate) log: PathBuf,
    /// The process, once it was started.
    pub(crate) child: Option<Child>,
}

impl ServerProcess {
    pub(crate) fn start(&mut self) {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.expect("the log can be written");
        let mut command = Command::new(workspace_binary(self.program));
        command
            .env_clear()
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .kill_on_drop(true);
        if self.acl {
            command.env("LEGATE_INITIAL_MANAGEMENT_TOKEN", MANAGEMENT);
        }
        let child = command.spawn().expect("the server can be started");
        self.child = Some(child);
    }

    /// Waits until it serves.
    pub(crate) async fn ready(&mut self) {
        let http = (self.address, HTTP).into();
        let child = self.child.as_mut().expect("it was started");
        let probe = || {
            let runs = matches!(child.try_wait(), Ok(None));
            async move {
                let answer = client::get(http, "/v1/status/leader").await;
                (runs, answer.is_ok_and(|(status, _)| status.is_success()))
            }
        };
        let settled = |(runs, serves): &(bool, bool)| !runs || *serves;
        let (runs, _) = wait::eventually("a server starts", probe, settled).await;
        assert!(runs, "{} has ended:\n{}", self.program, self.log());
    }

    /// Kills it (SIGKILL).
    pub(crate) async fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().await.expect("it can be killed");
    }

    pub(crate) fn runs(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
