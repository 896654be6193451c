//! A node of the real components in separate namespaces, like kind's container but without docker.
//!
//! `tests/kind/node/init` is its process 1. Outside of it there are a pair of network interfaces, a
//! control group, kernel settings and a folder in the cache; [`Node::down`] removes these even after a
//! killed run. A machine has at most one such node.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::cache::Cache;
use super::retry::retry;
use super::{certificates, cgroups, programs};
use crate::workspace::{self, Workspace};

/// The interface outside of the node; its peer is `eth0` inside.
const INTERFACE: &str = "legate-kind";
/// The address of this machine from the node and its pods.
const OUTSIDE: &str = "10.250.0.1/30";
/// The node's address.
const INSIDE: &str = "10.250.0.2";
/// The addresses of Services of type LoadBalancer, for whoever assigns them. kube-proxy accepts connections to
/// these in the node.
pub(super) const LOAD_BALANCERS: &str = "10.250.1.0/24";

/// The required tools: program and Debian package.
const TOOLS: [(&str, &str); 11] = [
    ("bridge", "containernetworking-plugins"),
    ("containerd", "containerd"),
    ("curl", "curl"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("mount", "mount"),
    ("openssl", "openssl"),
    ("runc", "runc"),
    ("setpriv", "util-linux"),
    ("sysctl", "procps"),
    ("unshare", "util-linux"),
];
/// Folders of these tools in addition to the search path.
const FOLDERS: [&str; 3] = ["/usr/lib/cni", "/usr/sbin", "/sbin"];

/// The lifetime of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// The kernel kills it when this process ends.
    WithThisProcess,
    /// Until it is stopped explicitly.
    UntilDown,
}

/// The node of this machine, running or not.
pub(super) struct Node {
    /// The folder with `init` and its files.
    files: PathBuf,
    state: PathBuf,
    /// The folder of Kubernetes' programs; `None` if the node is only to be stopped.
    programs: Option<PathBuf>,
}

impl Node {
    pub(super) fn new(workspace: &Workspace, cache: &Cache, programs: Option<PathBuf>) -> Self {
        Self {
            files: workspace.root.join(programs::FOLDER),
            state: cache.folder.join("state"),
            programs,
        }
    }

    /// The kubeconfig of clients outside.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// The folder of kubectl and helm.
    pub(super) fn programs(&self) -> Option<&Path> {
        self.programs.as_deref()
    }

    /// Starts it. Components become ready later: see [`Self::ready`].
    pub(super) fn up(&self, lifetime: Lifetime) -> anyhow::Result<()> {
        let programs = self.programs.as_deref().context("programs were built")?;
        check_tools()?;
        // Removes the remains of a killed run.
        self.down()?;
        fs::create_dir_all(&self.state)?;
        certificates::make(&self.state.join("certificates"), &self.kubeconfig())?;
        cgroups::save_settings(&self.state.join("settings"))?;
        cgroups::make()?;
        let parent = self.start(programs, lifetime)?;
        let init = retry(Duration::from_secs(10), "process 1 of the node", || {
            first_child(parent).with_context(|| self.log("node"))
        })?;
        fs::write(self.state.join("init.pid"), init.to_string())?;
        let namespace = init.to_string();
        let pair = ["link", "add", INTERFACE, "type", "veth", "peer", "name"];
        ip(&[&pair[..], &["eth0", "netns", &namespace]].concat())?;
        ip(&["address", "add", OUTSIDE, "dev", INTERFACE])?;
        ip(&["link", "set", INTERFACE, "up"])?;
        ip(&["route", "add", LOAD_BALANCERS, "via", INSIDE])
    }

    /// Creates the namespaces with process 1. Returns the id of its parent process, with which it ends.
    fn start(&self, programs: &Path, lifetime: Lifetime) -> anyhow::Result<u32> {
        let log = File::create(self.state.join("node.log"))?;
        let mut command = without_inherited_files("setsid");
        if lifetime == Lifetime::WithThisProcess {
            command.args(["setpriv", "--pdeathsig", "KILL"]);
        }
        command
            .args(["unshare", "--mount", "--net", "--pid", "--uts", "--ipc"])
            .args(["--fork", "--kill-child", "--mount-proc", "--"])
            .arg(self.files.join("init"))
            .arg(&self.state)
            .arg(programs)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn().context("cannot start bash")?;
        fs::write(self.state.join("pid"), child.id().to_string())?;
        Ok(child.id())
    }

    /// Loads images into it.
    pub(super) fn load(&self, archive: &Path) -> anyhow::Result<()> {
        let archive = File::open(archive)?;
        retry(Duration::from_secs(30), "containerd", || {
            self.check_runs()?;
            run_quietly(self.inside(&["ctr", "version"])?)
        })?;
        let import = ["ctr", "--namespace", "k8s.io", "images", "import", "-"];
        let mut import = self.inside(&import)?;
        import.stdin(archive);
        run_quietly(import)
    }

    /// Waits until pods can be scheduled and DNS works.
    pub(super) fn ready(&self, workspace: &Workspace) -> anyhow::Result<()> {
        let limit = Duration::from_secs(120);
        let base = workspace.root.join(programs::FOLDER).join("cluster.yaml");
        let base = base.display().to_string();
        let volumes = self.state.join("volumes.json");
        fs::write(&volumes, volumes_for_claims().to_string())?;
        let volumes = volumes.display().to_string();
        for arguments in [
            &["apply", "--filename", &base, "--filename", &volumes][..],
            &[
                "wait",
                "--for=condition=Ready",
                "--timeout=60s",
                "node/node",
            ],
            &[
                "rollout",
                "status",
                "--timeout=60s",
                "--namespace=kube-system",
                "deployment/coredns",
            ],
        ] {
            retry(limit, &format!("kubectl {}", arguments.join(" ")), || {
                self.check_runs()?;
                let mut kubectl = self.kubectl()?;
                kubectl.args(arguments);
                run_quietly(kubectl)
            })
            .with_context(|| self.log("log/restarts"))?;
        }
        Ok(())
    }

    /// Whether it is running.
    pub(super) fn runs(&self) -> bool {
        self.parent().is_some()
    }

    /// Stops it and removes everything that exists of it.
    pub(super) fn down(&self) -> anyhow::Result<()> {
        if let Some(parent) = self.parent() {
            let init = fs::read_to_string(self.state.join("init.pid")).unwrap_or_default();
            // With this process the kernel kills process 1, and with that everything in the node.
            let parent = parent.to_string();
            run_quietly(command("kill", &["-KILL", &parent]))?;
            retry(Duration::from_secs(20), "the end of the node", || {
                let init = Path::new("/proc").join(init.trim()).join("stat");
                let ended = init.parent() == Some(Path::new("/proc")) || !alive(&init);
                ensure!(ended, "process 1 is still there");
                Ok(())
            })?;
        }
        if Path::new("/sys/class/net").join(INTERFACE).exists() {
            // The kernel removes it together with its peer, shortly after the node.
            let _ = run_quietly(command("ip", &["link", "delete", INTERFACE]));
        }
        cgroups::remove()?;
        cgroups::restore_settings(&self.state.join("settings"))?;
        match fs::remove_dir_all(&self.state) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.state.display()))
            }
            _ => Ok(()),
        }
    }

    /// The parent of process 1, if it exists and is ours.
    fn parent(&self) -> Option<u32> {
        let pid = fs::read_to_string(self.state.join("pid")).ok()?;
        let line = fs::read(Path::new("/proc").join(&pid).join("cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let state = self.state.as_os_str().as_encoded_bytes();
        words.contains(&state).then(|| pid.parse().ok())?
    }

    fn check_runs(&self) -> anyhow::Result<()> {
        ensure!(self.runs(), "the node has ended: {}", self.log("node"));
        Ok(())
    }

    /// The id of its process 1 on this machine.
    pub(super) fn init(&self) -> anyhow::Result<String> {
        fs::read_to_string(self.state.join("init.pid"))
            .context("there is no node: start one with cargo xtask kind up")
    }

    /// A command inside the node.
    fn inside(&self, words: &[&str]) -> anyhow::Result<Command> {
        let init = self.init()?;
        let mut inside = command("nsenter", &["--target", &init]);
        inside.args(["--mount", "--net", "--pid", "--uts", "--ipc", "--"]);
        inside.args(words);
        Ok(inside)
    }

    fn kubectl(&self) -> anyhow::Result<Command> {
        let programs = self.programs.as_deref().context("programs were built")?;
        let mut kubectl = Command::new(programs.join("kubectl"));
        kubectl.env("KUBECONFIG", self.kubeconfig());
        Ok(kubectl)
    }

    /// The last lines of a log of the node.
    fn log(&self, name: &str) -> String {
        let path = self.state.join(format!("{name}.log"));
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(20)..];
        format!("{}:\n{}", path.display(), last.join("\n"))
    }
}

/// A volume for each folder that `init` creates; each can be claimed once.
fn volumes_for_claims() -> Value {
    let on_the_node = json!({
        "key": "kubernetes.io/hostname",
        "operator": "In",
        "values": ["node"],
    });
    let volume = |number: u32| {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": format!("volume-{number}")},
            "spec": {
                "storageClassName": "standard",
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": format!("/run/node/state/volumes/{number}")},
                "nodeAffinity": {
                    "required": {"nodeSelectorTerms": [{"matchExpressions": [on_the_node]}]},
                },
            },
        })
    };
    let volumes: Vec<Value> = (0..8).map(volume).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": volumes})
}

/// Reports all missing tools at once.
fn check_tools() -> anyhow::Result<()> {
    let path = workspace::variable("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    let folders: Vec<PathBuf> = folders.collect();
    let is_there = |name: &str| folders.iter().any(|folder| folder.join(name).is_file());
    let missing = TOOLS.iter().filter(|(name, _)| !is_there(name));
    let packages: BTreeSet<&str> = missing.map(|(_, package)| *package).collect();
    let packages: Vec<&str> = packages.into_iter().collect();
    ensure!(
        packages.is_empty(),
        "a node needs what is not installed: apt-get install {}; or set KUBECONFIG to a cluster",
        packages.join(" ")
    );
    Ok(())
}

/// A zombie process counts as ended.
fn alive(stat: &Path) -> bool {
    let text = fs::read_to_string(stat).unwrap_or_default();
    let state = text.rsplit(") ").next().unwrap_or_default();
    !text.is_empty() && !state.starts_with('Z')
}

fn first_child(process: u32) -> anyhow::Result<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(path).context("the node has ended")?;
    let first = children.split_whitespace().next();
    first
        .and_then(|pid| pid.parse().ok())
        .context("it has no child yet")
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    workspace::run(&mut command("ip", words))
}

fn command(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words);
    command
}

/// A command without inherited files except standard input and output. A node outlives its starter, whose
/// files would keep locks held.
fn without_inherited_files(program: &str) -> Command {
    let close = "for file in /proc/self/fd/*; do file=${file##*/}; \
                 [ \"$file\" -le 2 ] || eval \"exec $file>&-\"; done; exec \"$@\"";
    command("bash", &["-c", close, "bash", program])
}

/// Shows the output only on failure.
fn run_quietly(mut command: Command) -> anyhow::Result<()> {
    let program = command.get_program().display().to_string();
    let done = command
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "{program}: {}: {}",
        done.status,
        said.trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files that `ls` has open below a shell with a file of its own.
    fn open_files(list: &Command) -> String {
        let mut shell = command("bash", &["-c", "exec 9>/dev/null 12>&9; \"$@\"", "bash"]);
        shell.arg(list.get_program()).args(list.get_args());
        let done = shell.args(["/proc/self/fd"]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    #[test]
    fn a_node_keeps_no_file_of_its_caller() {
        let kept = open_files(&command("ls", &[]));
        let kept: Vec<&str> = kept.split_whitespace().collect();
        assert!(kept.contains(&"9") && kept.contains(&"12"), "{kept:?}");
        let kept = open_files(&without_inherited_files("ls"));
        let kept: Vec<&str> = kept.split_whitespace().collect();
        // The last one is the listed folder.
        assert_eq!(kept, ["0", "1", "2", "3"]);
    }
}
