//! Checks that run a program in a Docker container. Exit code and output are evaluated as for
//! programs on the machine.
//!
//! Uses the HTTP API of the Docker daemon at one address, with a separate connection for each of
//! three calls: create, start and inspect. Never uses TLS, and never terminates a program, since the
//! API has no call for it.

use std::time::Duration;

use ::http::header::{CONTENT_TYPE, HOST};
use ::http::{Method, Request};
use legate_model::{CheckStatus, CheckType, printed_url};
use legate_runtime::http_client::{Body, HttpError, Reply, send_over};
use serde::Deserialize;
use serde_json::json;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};

use super::dial::{Dialer, Stream};
use super::output::{Output, RunResult, cut};
use super::script::status;

/// The maximum size of responses to create and inspect, in bytes. Inspect repeats the arguments.
const MAX_ANSWER: usize = 256 * 1024;
/// Delay after the end of a program's output until its end is queried again, which Docker notices
/// slightly later.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs the program of a check in its container, with the Docker daemon at `host`. The last `size`
/// bytes of its output are retained.
pub(super) async fn run(
    dialer: &Dialer,
    host: &str,
    check: &CheckType,
    limit: Duration,
    size: usize,
) -> RunResult {
    let daemon = Daemon {
        dialer,
        host,
        container: &check.docker_container_id,
        deadline: Instant::now() + limit,
    };
    let mut output = Output::new(size);
    let run = daemon.run(&check.script_args, &mut output);
    match timeout_at(daemon.deadline, run).await {
        Ok(Ok(code)) => (status(Some(code)), output.text()),
        // A call may notice the deadline first.
        Ok(Err(mut error)) if Instant::now() < daemon.deadline => {
            cut(&mut error, size);
            (CheckStatus::Critical, error)
        }
        _ => output.timed_out(limit),
    }
}

/// The Docker daemon, with the parameters of one run in one container.
struct Daemon<'a> {
    dialer: &'a Dialer,
    host: &'a str,
    container: &'a str,
    deadline: Instant,
}

/// Response to create.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Created {
    id: String,
}

/// Response to inspect.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    #[serde(default)]
    running: bool,
    exit_code: Option<i32>,
}

impl Daemon<'_> {
    /// Runs the program and returns its exit code.
    async fn run(&self, command: &[String], output: &mut Output) -> Result<i32, String> {
        let id = self.create(command).await?;
        self.start(&id, output).await?;
        self.exit_code(&id).await
    }

    async fn create(&self, command: &[String]) -> Result<String, String> {
        let container = self.container;
        let failed = |error| format!("create exec failed for container {container}: {error}");
        let body = json!({
            "AttachStdin": false, "AttachStdout": true, "AttachStderr": true, "Tty": false,
            "Cmd": command,
        });
        let path = format!("/containers/{container}/exec");
        let reply = self.call(Method::POST, &path, Some(body)).await;
        let reply = reply.map_err(failed)?;
        let code = reply.status.as_u16();
        let answer = self.answer(reply).await.map_err(failed)?;
        match code {
            201 => {
                let created: Created = serde_json::from_slice(&answer).map_err(|error| {
                    format!(
                        "create exec response for container {container} cannot be parsed: {error}"
                    )
                })?;
                match created.id.chars().all(|c| c.is_ascii_alphanumeric()) {
                    true => Ok(created.id),
                    false => Err(failed(format!("{:?} is not an exec id", created.id))),
                }
            }
            404 => Err(format!(
                "create exec failed for unknown container {container}"
            )),
            409 => Err(format!(
                "create exec failed since container {container} is paused or stopped"
            )),
            _ => Err(with_status("create", container, code, &answer)),
        }
    }

    /// Starts the program and reads its output to the end.
    async fn start(&self, id: &str, output: &mut Output) -> Result<(), String> {
        let container = self.container;
        let failed = |error| format!("start exec failed for container {container}: {error}");
        // Without a terminal, as in create, so that the stream has both outputs.
        let body = json!({ "Detach": false, "Tty": false });
        let path = format!("/exec/{id}/start");
        let reply = self.call(Method::POST, &path, Some(body)).await;
        let mut reply = reply.map_err(failed)?;
        match reply.status.as_u16() {
            200 => {}
            404 => return Err(failed(format!("invalid exec id {id}"))),
            409 => {
                return Err(format!(
                    "start exec failed since container {container} is paused or stopped"
                ));
            }
            code => {
                let answer = self.answer(reply).await.map_err(failed)?;
                return Err(with_status("start", container, code, &answer));
            }
        }
        let mut frames = Frames::default();
        loop {
            match reply.piece(self.deadline).await {
                Ok(Some(bytes)) => frames.read(&bytes, output).map_err(failed)?,
                // Docker may reset the connection at its end. The exit code is queried next.
                Ok(None) | Err(HttpError::Broken(_)) => return Ok(()),
                Err(error) => return Err(failed(error.to_string())),
            }
        }
    }

    async fn exit_code(&self, id: &str) -> Result<i32, String> {
        let container = self.container;
        let failed = |error| format!("inspect exec failed for container {container}: {error}");
        let path = format!("/exec/{id}/json");
        loop {
            let reply = self.call(Method::GET, &path, None).await.map_err(failed)?;
            let code = reply.status.as_u16();
            let answer = self.answer(reply).await.map_err(failed)?;
            match code {
                200 => {}
                404 => return Err(failed(format!("invalid exec id {id}"))),
                _ => return Err(with_status("inspect", container, code, &answer)),
            }
            let inspected: Inspected = serde_json::from_slice(&answer).map_err(|error| {
                format!("inspect exec response for container {container} cannot be parsed: {error}")
            })?;
            if !inspected.running {
                let code = inspected.exit_code;
                return code.ok_or_else(|| failed("there is no exit code".to_owned()));
            }
            sleep(PAUSE).await;
        }
    }

    /// One call on a new connection.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<serde_json::Value>,
    ) -> Result<Reply, String> {
        let stream = self.connect().await?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "docker");
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map_or_else(Body::default, |body| Body::from(body.to_string()));
        let request = request.body(body).map_err(|error| error.to_string())?;
        let reply = send_over(stream, request, self.deadline).await;
        reply.map_err(|error| error.to_string())
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, String> {
        let host = self.host;
        let shown = printed_url(host);
        let away = |error| format!("Docker cannot be reached at {shown}: {error}");
        if let Some(path) = host.strip_prefix("unix://") {
            let stream = UnixStream::connect(path).await.map_err(away)?;
            return Ok(Box::new(stream));
        }
        let address = host.strip_prefix("tcp://").filter(|address| {
            let port = address
                .rsplit_once(':')
                .map(|(_, port)| port.parse::<u16>());
            matches!(port, Some(Ok(1..))) && !address.contains('@')
        });
        let address = address.ok_or_else(|| {
            format!("DOCKER_HOST is {shown:?}: it must be unix:///PATH or tcp://HOST:PORT")
        })?;
        let addresses = self.dialer.names.addresses(address).await.map_err(away)?;
        let stream = TcpStream::connect(&*addresses).await.map_err(away)?;
        Ok(Box::new(stream))
    }

    async fn answer(&self, reply: Reply) -> Result<Vec<u8>, String> {
        let answer = reply.body(MAX_ANSWER, self.deadline).await;
        Ok(answer.map_err(|error| error.to_string())?.into())
    }
}

fn with_status(call: &str, container: &str, code: u16, answer: &[u8]) -> String {
    let answer = String::from_utf8_lossy(answer);
    format!("{call} exec failed for container {container} with status {code}: {answer}")
}

/// Length of a frame's header: number of the output, three zeros, and the length of the payload.
const HEAD: usize = 8;

/// Decodes the stream of both outputs, which arrives in chunks of any size.
#[derive(Default)]
struct Frames {
    head: Vec<u8>,
    /// Remaining bytes of the current frame.
    rest: usize,
}

impl Frames {
    fn read(&mut self, mut bytes: &[u8], output: &mut Output) -> Result<(), String> {
        while !bytes.is_empty() {
            let wanted = match self.rest {
                0 => HEAD - self.head.len(),
                rest => rest,
            };
            let (now, later) = bytes.split_at(wanted.min(bytes.len()));
            bytes = later;
            if self.rest > 0 {
                output.add(now);
                self.rest -= now.len();
                continue;
            }
            self.head.extend_from_slice(now);
            match *self.head {
                [0..=3, 0, 0, 0, a, b, c, d] => {
                    self.head.clear();
                    self.rest = u32::from_be_bytes([a, b, c, d]) as usize;
                }
                [_, _, _, _, _, _, _, _] => {
                    return Err("the output of the program is not in Docker's frames".to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
