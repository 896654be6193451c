//! `legate dev` leaves nothing behind, however it ends.

use std::fs::{self, File};
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use legate_testkit::envoy;
use legate_testkit::state::Backend;
use legate_tests::wait::{LIMIT, eventually_within};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::process::alive;

/// A run with its own directory for temporary files.
struct Dev {
    child: Child,
    pid: Pid,
    temporary: TempDir,
    /// Its output, in another directory, so that the first can become empty.
    output: TempDir,
}

fn command(temporary: &Path, output: &Path) -> Command {
    let printed = File::create(output.join("output")).expect("a file can be made");
    // It has no etcd backend.
    let data_dir = match Backend::from_env() {
        Backend::File => Some(format!("--data-dir={}", output.join("data").display())),
        Backend::Memory | Backend::Etcd => None,
    };
    // SIGHUP may be ignored in the test environment, which processes inherit.
    let mut command = Command::new("/usr/bin/env");
    command
        .arg("--default-signal=HUP")
        .arg(envoy::workspace_binary("legate"));
    command
        .args(["dev", "--http-port=0", "--grpc-tls-port=0", "--dns-port=0"])
        .args(data_dir)
        .env_clear()
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .stdout(printed.try_clone().expect("a file can be shared"))
        .stderr(printed)
        // Like a shell's job.
        .process_group(0)
        .kill_on_drop(true);
    command
}

impl Dev {
    /// Starts it and waits until the mesh is running.
    async fn start() -> Self {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let output = tempfile::tempdir().expect("a temporary folder");
        let mut command = command(temporary.path(), output.path());
        command.arg("--envoy").arg(envoy::binary());
        let child = command.spawn().expect("legate can be started");
        let pid = Pid::from_raw(child.id().expect("it runs").cast_signed());
        let dev = Self {
            child,
            pid,
            temporary,
            output,
        };
        eventually_within(
            LIMIT * 2,
            "the mesh runs",
            || async { dev.printed() },
            |printed| printed.contains("The mesh is running"),
        )
        .await;
        dev
    }

    fn printed(&self) -> String {
        fs::read_to_string(self.output.path().join("output")).unwrap_or_default()
    }

    /// Its two sidecars and their Envoys.
    fn descendants(&self) -> Vec<Pid> {
        let sidecars = children(self.pid);
        let envoys = sidecars.iter().flat_map(|sidecar| children(*sidecar));
        let all: Vec<Pid> = envoys.chain(sidecars.iter().copied()).collect();
        assert_eq!((sidecars.len(), all.len()), (2, 4), "{}", self.printed());
        all
    }

    async fn exit(&mut self) -> ExitStatus {
        match timeout(LIMIT, self.child.wait()).await {
            Ok(status) => status.expect("it can be waited for"),
            Err(_) => panic!("it does not end:\n{}", self.printed()),
        }
    }

    /// The names of remaining files in its directory for temporary files.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.temporary.path()).expect("it can be read");
        let names = entries.map(|entry| entry.expect("it can be read").file_name());
        names.map(|name| name.to_string_lossy().into()).collect()
    }
}

/// The child processes of all threads of a process.
fn children(pid: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let files = threads.map(|thread| thread.expect("a thread").path().join("children"));
    let children: String = files
        .map(|file| fs::read_to_string(file).unwrap_or_default())
        .collect();
    let numbers = children.split_whitespace().map(str::parse);
    numbers
        .map(|number| Pid::from_raw(number.expect("a number")))
        .collect()
}

/// Waits until none of them is alive.
async fn gone(processes: &[Pid]) {
    let living = || async {
        let living = processes.iter().filter(|pid| alive(**pid));
        living.copied().collect::<Vec<_>>()
    };
    eventually_within(LIMIT, "no process is left", living, Vec::is_empty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_terminal_ends_everything() {
    let mut dev = Dev::start().await;
    let descendants = dev.descendants();
    for pid in &descendants {
        let group = getpgid(Some(*pid)).expect("it runs");
        assert_ne!(group, dev.pid, "signals of the terminal reach {pid}");
    }
    let printed = dev.printed();
    let logs = printed.lines().filter_map(|line| {
        let log = line.trim().strip_prefix("log ")?;
        Some(log.trim())
    });
    let logs: Vec<&str> = logs.collect();
    assert_eq!(logs.len(), 2, "{printed}");
    assert!(logs.iter().all(|log| Path::new(log).is_file()), "{logs:?}");

    killpg(dev.pid, Signal::SIGHUP).expect("it runs");
    let status = dev.exit().await;
    assert_eq!(status.code(), Some(0), "{}", dev.printed());
    gone(&descendants).await;
    assert_eq!(dev.left(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_ends_everything() {
    let mut dev = Dev::start().await;
    let descendants = dev.descendants();
    killpg(dev.pid, Signal::SIGINT).expect("it runs");
    let status = dev.exit().await;
    assert_eq!(status.code(), Some(0), "{}", dev.printed());
    gone(&descendants).await;
    assert_eq!(dev.left(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_run_ends_its_processes_and_the_next_run_removes_its_folder() {
    let mut dev = Dev::start().await;
    let descendants = dev.descendants();
    kill(dev.pid, Signal::SIGKILL).expect("it runs");
    dev.exit().await;
    gone(&descendants).await;

    let mut next = command(dev.temporary.path(), dev.output.path());
    next.arg("--once").arg("--envoy").arg(envoy::binary());
    let status = timeout(LIMIT * 3, next.status()).await.expect("it ends");
    let status = status.expect("legate can be started");
    assert!(status.success(), "{}", dev.printed());
    assert_eq!(dev.left(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_envoy_is_reported_with_the_option() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (empty, output) = (folder.path().join("empty"), folder.path());
    fs::create_dir(&empty).expect("a folder can be made");
    let cases = [
        // An empty variable counts as unset.
        ("", "no program called envoy on PATH"),
        ("/nope/envoy", "Envoy /nope/envoy cannot be used"),
    ];
    for (variable, expected) in cases {
        let mut command = command(&empty, output);
        command.env("PATH", &empty).env("LEGATE_ENVOY", variable);
        let status = timeout(LIMIT, command.status()).await.expect("it ends");
        assert_eq!(status.expect("legate can be started").code(), Some(1));
        let printed = fs::read_to_string(output.join("output")).expect("it printed");
        assert!(
            printed.contains(expected) && printed.contains("--envoy"),
            "{printed}"
        );
    }
}
