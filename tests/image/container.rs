//! A container as Kubernetes makes one for a sidecar, made by util-linux: process and mount
//! namespaces of its own, a root that cannot be written to, a user that nobody knows, no
//! capabilities, and no way to get any. The network is shared, as it is within a pod. Nothing can be
//! written to, but shared memory where a scenario wants it.
//!
//! What is not here: a filter for system calls (seccomp) and limits of memory.

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

/// `sh -c RUN sh ROOT SHARED-MEMORY HOST-PATH CONTAINER-PATH … -- COMMAND …`: mounts, then the
/// command. All of it is seen by this process and those below it only.
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

/// What becoming a container takes. The bounding set is emptied before, so that these have to be
/// inherited; without root, the programs of the image can make nothing of that.
const NEEDED: &str = "-all,+sys_admin,+sys_chroot,+sys_ptrace,+setuid,+setgid";

/// The search path of the base image, which also finds the tools outside.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How a container is started.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Its user and group.
    pub(crate) user: u32,
    /// Program and arguments. The program is looked for on the search path.
    pub(crate) command: Vec<String>,
    /// The environment.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Files and folders from outside, each with its place.
    pub(crate) mounts: Vec<(PathBuf, &'static str)>,
    /// There is shared memory at `/dev/shm`, which most runtimes give to every container.
    pub(crate) shared_memory: bool,
    /// `NET_BIND_SERVICE` is added, as gateways with ports below 1024 get it. It does nothing
    /// before a program's file asks for it.
    pub(crate) low_ports: bool,
    /// Programs may get what their files ask for (`allowPrivilegeEscalation`).
    pub(crate) escalation: bool,
    /// Where the sidecar says that it is ready.
    pub(crate) lifecycle: SocketAddr,
}

/// A running container. Dropping it kills everything in it.
pub(crate) struct Container {
    spec: Spec,
    /// What made it and waits for its process 1.
    runtime: Child,
    /// Its process 1, as the system outside calls it.
    init: Pid,
    /// Its process namespace.
    namespace: PathBuf,
    log: PathBuf,
}

impl Container {
    /// Starts it; its output goes to `log`.
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

    /// Starts it and waits until the sidecar says that it is ready.
    pub(crate) async fn ready(spec: Spec, log: PathBuf) -> Self {
        let mut container = Self::start(spec, log).await;
        container.gets_ready().await;
        container
    }

    /// Waits until the sidecar says that it is ready.
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

    /// Its process 1, as the system outside calls it.
    pub(crate) fn init(&self) -> Pid {
        self.init
    }

    /// The Envoy below process 1.
    pub(crate) fn envoy(&self) -> Pid {
        let children = self.children();
        // The kernel keeps 15 bytes of a name.
        let envoy = children.iter().find(|(_, name)| name.contains("envo"));
        envoy.expect("there is an Envoy").0
    }

    /// Children of process 1 with their names.
    pub(crate) fn children(&self) -> Vec<(Pid, String)> {
        let children = children(self.init).into_iter();
        children
            .map(|pid| (pid, read(Path::new(&format!("/proc/{pid}/comm")))))
            .collect()
    }

    /// Every process in it.
    pub(crate) fn processes(&self) -> Vec<PathBuf> {
        let all = fs::read_dir("/proc").expect("processes can be listed");
        let all = all.flatten().map(|entry| entry.path());
        all.filter(|process| {
            fs::read_link(process.join("ns/pid")).is_ok_and(|its| its == self.namespace)
        })
        .collect()
    }

    /// One line of what the kernel tells of a process, without its name.
    pub(crate) fn fact(process: Pid, name: &str) -> String {
        let status = read(Path::new(&format!("/proc/{process}/status")));
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.expect("the kernel tells it")
            .trim_start_matches(':')
            .trim()
            .to_owned()
    }

    /// Runs another command in it, as a startup probe is run; its exit status and output.
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

    /// Ends process 1 gracefully, as Kubernetes does; its exit status.
    pub(crate) async fn stop(&mut self) -> ExitStatus {
        kill(self.init, Signal::SIGTERM).expect("process 1 runs");
        match timeout(LIMIT, self.runtime.wait()).await {
            Ok(status) => status.expect("it can be waited for"),
            Err(_) => panic!("process 1 does not end:\n{}", self.log()),
        }
    }

    /// Everything that was written to its outputs.
    pub(crate) fn log(&self) -> String {
        read(&self.log)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // With process 1 the kernel ends everything in the container. While what made it runs, its
        // number is not another's.
        if matches!(self.runtime.try_wait(), Ok(None)) {
            let _ = kill(self.init, Signal::SIGKILL);
        }
    }
}

/// The command that takes all rights away that the container is not to have. What is inherited
/// has to be said first: from an emptied bounding set nothing can be.
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

/// Fails unless namespaces can be made, with what is missing.
pub(crate) fn check_permissions() {
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "true"]);
    let done = command
        .output()
        .expect("unshare (Debian: util-linux) can be started");
    assert!(
        done.status.success(),
        "scenarios of the image make mount and process namespaces, which takes root with CAP_SYS_ADMIN: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// Whether it is process 1 of a namespace below ours.
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

/// A file of a process may be gone with it.
fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}
