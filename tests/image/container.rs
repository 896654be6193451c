//! A container like that of a sidecar on Kubernetes, created with util-linux: separate process and
//! mount namespaces, a read-only root, a user without a name, no capabilities, and no privilege
//! escalation. The network is shared, as within a pod. Nothing is writable, except shared memory if
//! a scenario needs it.
//!
//! Not simulated: system call filters (seccomp) and memory limits.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use legate_tests::wait::LIMIT;
use legate_tests::{client, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::root;

/// `sh -c RUN sh ROOT SHARED-MEMORY HOST-PATH CONTAINER-PATH … -- COMMAND …`: mounts, then executes
/// the command. The mounts are visible in this process and its children only.
const RUN: &str = r#"
root=$1
shared=$2
shift 2
mount --bind "$root" "$root"
for device in null zero full random urandom; do
    mount --bind "/dev/$device" "$root/dev/$device"
done
if [ "$shared" = true ]; then
    mount -t tmpfs -o mode=1777,size=64m,nosuid,nodev,noexec shm "$root/dev/shm"
fi
while [ "$1" != -- ]; do
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
    shift 2
done
shift
mount -o remount,bind,ro "$root"
exec "$@"
"#;

/// The capabilities for creating the container. The bounding set is emptied first, so these have to
/// be inherited; without root the programs of the image cannot use them.
const NEEDED: &str = "-all,+sys_admin,+sys_chroot,+sys_ptrace,+setuid,+setgid";

/// The search path of the base image, which also covers the tools outside.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The configuration of a container.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Its user and group.
    pub(crate) user: u32,
    /// Program and arguments. The program is found on the search path.
    pub(crate) command: Vec<String>,
    /// The environment.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Files and folders from outside, each with its mount point.
    pub(crate) mounts: Vec<(PathBuf, &'static str)>,
    /// Whether there is shared memory at `/dev/shm`, as in most container runtimes.
    pub(crate) shared_memory: bool,
    /// Adds `NET_BIND_SERVICE`, as for gateways with ports below 1024. It has no effect unless the
    /// program's file requests it.
    pub(crate) low_ports: bool,
    /// Whether programs may gain the capabilities of their files (`allowPrivilegeEscalation`).
    pub(crate) escalation: bool,
    /// The address of the sidecar's readiness.
    pub(crate) lifecycle: SocketAddr,
}

/// A running container. Dropping it kills all its processes.
pub(crate) struct Container {
    spec: Spec,
    /// The process that created it and waits for its process 1.
    runtime: Child,
    /// The id of its process 1 outside of the container.
    init: Pid,
    /// Its process namespace.
    namespace: PathBuf,
    log: PathBuf,
}

impl Container {
    /// Starts the container; its output is written to `log`.
    pub(crate) async fn start(spec: Spec, log: PathBuf) -> Self {
        let output = File::create(&log).expect("the log can be written");
        let errors = output.try_clone().expect("a file can be shared");
        let user = spec.user.to_string();
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--propagation=private",
                "--",
                "sh",
                "-euc",
                RUN,
                "sh",
            ])
            .arg(root::image())
            .arg(spec.shared_memory.to_string());
        for (from, to) in &spec.mounts {
            command.arg(from).arg(to);
        }
        command
            .arg("--")
            .args(restricted(&spec))
            .args(["unshare", "--pid", "--fork", "--mount-proc", "--root"])
            .arg(root::image())
            .args(["--setgid", &user, "--setuid", &user, "--"])
            .args(&spec.command);
        let mut runtime = command
            .env_clear()
            .env("PATH", PATH)
            .envs(spec.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .expect("unshare (Debian: util-linux) can be started");
        let outer = Pid::from_raw(runtime.id().expect("it runs").cast_signed());
        let (ended, init) = eventually(
            "a container has a process 1",
            || {
                let ended = !matches!(runtime.try_wait(), Ok(None));
                let init = children(outer).into_iter().find(|pid| is_init(*pid));
                async move { (ended, init) }
            },
            |(ended, init)| *ended || init.is_some(),
        )
        .await;
        let init = init.filter(|_| !ended);
        let init = init.unwrap_or_else(|| panic!("no container: {}", read(&log)));
        let namespace = fs::read_link(format!("/proc/{init}/ns/pid")).expect("it has one");
        Self {
            spec,
            runtime,
            init,
            namespace,
            log,
        }
    }

    /// Starts the container and waits until the sidecar is ready.
    pub(crate) async fn ready(spec: Spec, log: PathBuf) -> Self {
        let mut container = Self::start(spec, log).await;
        container.gets_ready().await;
        container
    }

    /// Waits until the sidecar is ready.
    pub(crate) async fn gets_ready(&mut self) {
        let lifecycle = self.spec.lifecycle;
        let (dead, _) = eventually(
            "a container gets ready",
            || {
                let dead = !matches!(self.runtime.try_wait(), Ok(None));
                async move {
                    let answer = client::get(lifecycle, "/readyz").await;
                    (dead, answer.map_err(|error| error.to_string()))
                }
            },
            |(dead, answer)| *dead || matches!(answer, Ok((status, _)) if status.is_success()),
        )
        .await;
        assert!(!dead, "the container ended:\n{}", self.log());
    }

    /// The id of its process 1 outside of the container.
    pub(crate) fn init(&self) -> Pid {
        self.init
    }

    /// The Envoy below process 1.
    pub(crate) fn envoy(&self) -> Pid {
        let children = self.children();
        // The kernel truncates names to 15 bytes.
        let envoy = children.iter().find(|(_, name)| name.contains("envo"));
        envoy.expect("there is an Envoy").0
    }

    /// The children of process 1 with their names.
    pub(crate) fn children(&self) -> Vec<(Pid, String)> {
        let children = children(self.init).into_iter();
        children
            .map(|pid| (pid, read(Path::new(&format!("/proc/{pid}/comm")))))
            .collect()
    }

    /// All processes in the container.
    pub(crate) fn processes(&self) -> Vec<PathBuf> {
        let all = fs::read_dir("/proc").expect("processes can be listed");
        let all = all.flatten().map(|entry| entry.path());
        all.filter(|process| {
            fs::read_link(process.join("ns/pid")).is_ok_and(|its| its == self.namespace)
        })
        .collect()
    }

    /// A line of the kernel's status of a process, without its name.
    pub(crate) fn fact(process: Pid, name: &str) -> String {
        let status = read(Path::new(&format!("/proc/{process}/status")));
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.expect("the kernel tells it")
            .trim_start_matches(':')
            .trim()
            .to_owned()
    }

    /// Runs another command in the container, like a startup probe; returns exit status and output.
    pub(crate) async fn exec(&self, command: &[&str]) -> (ExitStatus, String) {
        let user = self.spec.user.to_string();
        let mut words = restricted(&self.spec).into_iter();
        let mut nsenter = Command::new(words.next().expect("there is a program"));
        nsenter
            .args(words)
            .args(["nsenter", "--target", &self.init.to_string()])
            .args(["--mount", "--pid", "--root", "--wd=/"])
            .args(["--setgid", &user, "--setuid", &user, "--"])
            .args(command)
            .env_clear()
            .env("PATH", PATH)
            .envs(self.spec.variables.iter().cloned())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let done = timeout(LIMIT, nsenter.output()).await;
        let done = done
            .expect("it ends")
            .expect("setpriv (Debian: util-linux) can be started");
        let said = [done.stdout, done.stderr].concat();
        (done.status, String::from_utf8_lossy(&said).into_owned())
    }

    /// Stops process 1 gracefully, like Kubernetes; returns its exit status.
    pub(crate) async fn stop(&mut self) -> ExitStatus {
        kill(self.init, Signal::SIGTERM).expect("process 1 runs");
        match timeout(LIMIT, self.runtime.wait()).await {
            Ok(status) => status.expect("it can be waited for"),
            Err(_) => panic!("process 1 does not end:\n{}", self.log()),
        }
    }

    /// The output so far.
    pub(crate) fn log(&self) -> String {
        read(&self.log)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // With process 1 the kernel kills everything in the container. Its id cannot be reused while
        // its parent is running.
        if matches!(self.runtime.try_wait(), Ok(None)) {
            let _ = kill(self.init, Signal::SIGKILL);
        }
    }
}

/// The command that drops all capabilities that the container must not have. Inheritable ones are
/// set first, because nothing can be added with an empty bounding set.
fn restricted(spec: &Spec) -> Vec<String> {
    let low_ports = if spec.low_ports {
        ",+net_bind_service"
    } else {
        ""
    };
    let mut words = vec![
        "setpriv".to_owned(),
        format!("--inh-caps={NEEDED}"),
        "setpriv".to_owned(),
        format!("--bounding-set=-all{low_ports}"),
    ];
    if !spec.escalation {
        words.push("--no-new-privs".to_owned());
    }
    words
}

/// Whether it is process 1 of a child namespace.
fn is_init(process: Pid) -> bool {
    let status = read(Path::new(&format!("/proc/{process}/status")));
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| {
        let mut numbers = numbers.split_whitespace();
        numbers.next_back() == Some("1") && numbers.next().is_some()
    })
}

fn children(process: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter();
    let lists = threads
        .flatten()
        .flatten()
        .map(|thread| read(&thread.path().join("children")));
    let lists: String = lists.collect();
    let pids = lists.split_whitespace();
    pids.filter_map(|pid| pid.parse().ok().map(Pid::from_raw))
        .collect()
}

/// Reads a file of a process; empty if the process has exited.
fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}
