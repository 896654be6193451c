//! A real etcd with one or more members on loopback.
//!
//! The program is, in order: `LEGATE_ETCD`, `etcd` on `PATH`, the one fetched by `cargo xtask etcd`. If it is
//! missing the test fails. Members are killed when the [`Cluster`] is dropped, and also when the test process is
//! killed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::certs::CertFiles;
use crate::envoy::target;
use crate::network::free_port;

/// The timeout for starting the members, and for each request.
const LIMIT: Duration = Duration::from_secs(30);

/// Starts etcd with a process that kills it when the pipe from the test process closes. Both are in
/// one process group.
const DIES_WITH_THE_TEST: &str =
    r#"exec 3<&0; (cat <&3 >/dev/null; kill -9 $$) & exec "$0" "$@" 3<&- </dev/null"#;

/// Path of the etcd binary.
///
/// # Panics
///
/// If there is none, with the command that fetches one.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the environment selects the etcd of tests"
)]
pub fn binary() -> PathBuf {
    let named = std::env::var_os("LEGATE_ETCD")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = || {
        std::env::split_paths(&path)
            .map(|folder| folder.join("etcd"))
            .find(|file| file.is_file())
    };
    let fetched = || Some(target().join("etcd/etcd")).filter(|file| file.is_file());
    match named.or_else(on_path).or_else(fetched) {
        Some(file) if file.is_file() => file,
        Some(file) => panic!("LEGATE_ETCD is {}, which is not a file", file.display()),
        None => panic!("no etcd: run `cargo xtask etcd`, or set LEGATE_ETCD to an etcd binary"),
    }
}

/// An etcd cluster. On drop its members are killed and their files removed.
pub struct Cluster {
    /// The members in the order in which they were started; methods select a member by index.
    pub members: Vec<Member>,
    folder: TempDir,
    tls: bool,
    /// The token of requests if authentication is enabled.
    token: String,
}

/// One member.
pub struct Member {
    /// The address for clients.
    pub client: SocketAddr,
    command: Command,
    process: Option<Child>,
}

/// Certificates of the members, and the CA of clients' certificates.
pub struct ClusterTls {
    /// The members' server certificate, for 127.0.0.1.
    pub files: CertFiles,
    /// PEM file with the CA of clients' certificates.
    pub ca: PathBuf,
}

impl Cluster {
    /// Starts members and waits until they respond.
    ///
    /// # Panics
    ///
    /// If they do not start.
    pub async fn start(size: usize) -> Self {
        Self::start_with(size, None).await
    }

    /// The same with TLS for clients. In this case it does not wait until the members respond,
    /// which requires a client certificate.
    ///
    /// # Panics
    ///
    /// If they do not start.
    pub async fn start_with(size: usize, tls: Option<ClusterTls>) -> Self {
        let (program, folder) = (binary(), TempDir::new().expect("a temporary folder"));
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let peers: Vec<_> = (0..size).map(|_| local(free_port())).collect();
        let names = peers.iter().enumerate();
        let names = names.map(|(n, peer)| format!("m{n}=http://{peer}"));
        let names: Vec<_> = names.collect();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let members = peers.iter().enumerate().map(|(n, peer)| {
            let client = local(free_port());
            let mut command = Command::new("sh");
            command
                .args(["-c", DIES_WITH_THE_TEST])
                .arg(&program)
                .args(["--name", &format!("m{n}")])
                .args(["--log-level", "error"])
                .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
                .args(["--initial-cluster", &names.join(",")])
                .arg("--data-dir")
                .arg(folder.path().join(format!("m{n}")))
                .arg(format!("--listen-client-urls={scheme}://{client}"))
                .arg(format!("--advertise-client-urls={scheme}://{client}"))
                .arg(format!("--listen-peer-urls=http://{peer}"))
                .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if let Some(tls) = &tls {
                command
                    .arg("--client-cert-auth")
                    .arg("--trusted-ca-file")
                    .arg(&tls.ca)
                    .arg("--cert-file")
                    .arg(&tls.files.cert)
                    .arg("--key-file")
                    .arg(&tls.files.key);
            }
            Member {
                client,
                command,
                process: None,
            }
        });
        let mut cluster = Self {
            members: members.collect(),
            tls: tls.is_some(),
            token: String::new(),
            folder,
        };
        for n in 0..size {
            cluster.start_member(n);
        }
        // Servers share a key file, which etcd does not use.
        let key = "0123456789abcdef".repeat(4);
        std::fs::write(cluster.key_file(), key).expect("the key file can be written");
        if !cluster.tls {
            cluster.ready().await;
        }
        cluster
    }

    /// Waits until every member has a leader.
    async fn ready(&mut self) {
        let end = Instant::now() + LIMIT;
        for n in 0..self.members.len() {
            while self.try_post(n, "kv/range", r#"{"key":"AA=="}"#).is_none() {
                let process = self.members[n].process.as_mut().expect("it was started");
                let ended = process.try_wait().expect("its state can be asked for");
                assert!(ended.is_none(), "etcd has ended: {ended:?}");
                assert!(Instant::now() < end, "etcd does not start");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Restarts a killed member with its data.
    ///
    /// # Panics
    ///
    /// If there is no shell to start it.
    pub fn start_member(&mut self, n: usize) {
        let member = &mut self.members[n];
        member.process = Some(member.command.spawn().expect("a shell starts"));
    }

    /// Kills a member (SIGKILL).
    ///
    /// # Panics
    ///
    /// If it is not running.
    pub fn kill(&mut self, n: usize) {
        let process = self.members[n].process.take().expect("it runs");
        end(process);
    }

    /// Sends a signal to a member: SIGSTOP makes it hang, SIGCONT resumes it.
    ///
    /// # Panics
    ///
    /// If it is not running.
    pub fn signal(&self, n: usize, signal: Signal) {
        let process = self.members[n].process.as_ref().expect("it runs");
        kill(pid(process), signal).expect("it can be signalled");
    }

    /// A file with a key for the secrets of the servers that share this etcd.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.folder.path().join("key")
    }

    /// The members' URLs for clients: `http://host:port` or `https://host:port`.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let scheme = if self.tls { "https" } else { "http" };
        let members = self.members.iter();
        members
            .map(|member| format!("{scheme}://{}", member.client))
            .collect()
    }

    /// Sends a request to a member's JSON API, like an operator with `etcdctl`.
    ///
    /// # Panics
    ///
    /// On an error status.
    pub fn post(&self, n: usize, path: &str, body: &str) -> String {
        let answer = self.try_post(n, path, body);
        answer.unwrap_or_else(|| panic!("{path} {body} is refused"))
    }

    fn try_post(&self, n: usize, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.members[n].client).ok()?;
        stream.set_read_timeout(Some(LIMIT)).ok()?;
        let length = body.len();
        let token = match &*self.token {
            "" => String::new(),
            token => format!("authorization: {token}\r\n"),
        };
        let request = format!(
            "POST /v3/{path} HTTP/1.1\r\nhost: etcd\r\nconnection: close\r\n\
             {token}content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    }

    /// Authenticates later requests as a user.
    ///
    /// # Panics
    ///
    /// If the password is wrong.
    pub fn log_in(&mut self, name: &str, password: &str) {
        let body = format!(r#"{{"name":"{name}","password":"{password}"}}"#);
        let answer = self.post(0, "auth/authenticate", &body);
        text_of(&answer, "token").clone_into(&mut self.token);
    }

    /// Compacts all revisions except the latest.
    ///
    /// # Panics
    ///
    /// If the member refuses.
    pub fn compact(&self, n: usize) {
        let answer = self.post(n, "kv/range", r#"{"key":"AA=="}"#);
        let revision = text_of(&answer, "revision");
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        self.post(n, "kv/compaction", &body);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let members = self.members.iter_mut();
        members
            .filter_map(|member| member.process.take())
            .for_each(end);
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("endpoints", &self.endpoints())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

/// Kills a member and its watchdog, and waits until the member has exited.
fn end(mut process: Child) {
    // Until the process has been waited for, its id is not reused.
    let _ = killpg(pid(&process), Signal::SIGKILL);
    drop(process.wait());
}

fn pid(process: &Child) -> Pid {
    Pid::from_raw(process.id().try_into().expect("a process number"))
}

/// The text of a field of a response.
fn text_of<'a>(answer: &'a str, field: &str) -> &'a str {
    let rest = answer.split(&format!("\"{field}\":\"")).nth(1);
    let text = rest.and_then(|rest| rest.split('"').next());
    text.unwrap_or_else(|| panic!("no {field} in {answer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn members_end_with_the_process_that_started_them() {
        let mut cluster = Cluster::start(1).await;
        let process = cluster.members[0].process.as_mut().unwrap();
        // The kernel closes the pipe when the process is killed.
        drop(process.stdin.take());
        let end = Instant::now() + LIMIT;
        while process.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "etcd is still running");
            sleep(Duration::from_millis(10)).await;
        }
    }
}
