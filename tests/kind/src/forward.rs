//! Ports of pods on this machine, as a user of `kubectl port-forward` has them.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

use crate::cluster::{eventually, output};
use crate::namespace::Namespace;

/// A local port forwarded to a pod until it is dropped.
pub(crate) struct Forward {
    child: Child,
    /// The port on 127.0.0.1.
    pub(crate) port: u16,
}

impl Forward {
    /// Forwards to a port of a pod of an object, such as `deployment/web`.
    pub(crate) fn start(space: &Namespace<'_>, object: &str, port: u16) -> anyhow::Result<Self> {
        let log = format!("legate-forward-{}-{}", std::process::id(), space.name);
        let log = std::env::temp_dir().join(log);
        let mut command = Command::new("kubectl");
        command
            .args(["--namespace", &space.name, "port-forward", object])
            .arg(format!(":{port}"))
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&log)?)
            .stderr(Stdio::inherit());
        let child = command.spawn().context("cannot start kubectl")?;
        let mut forward = Self { child, port: 0 };
        let found = eventually("kubectl forwards a port", || {
            let text = std::fs::read_to_string(&log)?;
            let port = text.split_once("127.0.0.1:").map(|(_, rest)| rest);
            let port = port.and_then(|rest| rest.split_once(" ->"));
            Ok(port.context(text.clone())?.0.parse()?)
        });
        std::fs::remove_file(&log)?;
        forward.port = found?;
        Ok(forward)
    }

    /// The status of the answer to a request with these headers. Certificates are not verified.
    pub(crate) fn status(
        &self,
        scheme: &str,
        path: &str,
        headers: &[&str],
    ) -> anyhow::Result<String> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--insecure", "--max-time", "5"])
            .args(["--output", "/dev/null", "--write-out", "%{http_code}"])
            .args(headers.iter().flat_map(|header| ["--header", header]))
            .arg(format!("{scheme}://127.0.0.1:{}/{path}", self.port));
        output(&mut curl, "")
    }

    /// Waits until a request has an answer with this status.
    pub(crate) fn await_status(
        &self,
        (scheme, path): (&str, &str),
        headers: &[&str],
        expected: &str,
    ) -> anyhow::Result<()> {
        eventually(
            &format!("{scheme} {path} {headers:?} is answered with {expected}"),
            || {
                let status = self.status(scheme, path, headers)?;
                ensure!(status == expected, "{status}");
                Ok(())
            },
        )
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
