//! The commands of `README.md` on a machine that has only what `README.md` names.
//!
//! The machine is a Debian of the minimal variant in a folder, made by debootstrap from the archive that this machine
//! uses, with the packages of `README.md` and this machine's rustup. The commands run there as an ordinary user, with
//! a copy of the checkout, no target directory, no home and none of this machine's settings except those of package
//! clients. The result is used by later stages of CI: the checkout and cargo's home have the same paths in there, so
//! that cargo takes the programs as built here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::left_out;
use crate::test::timed;
use crate::workspace::{self, Workspace, run};

/// The commands. With `--once` the demo ends after its verification.
const COMMANDS: [&[&str]; 2] = [
    &["cargo", "xtask", "demo", "--once"],
    &["cargo", "xtask", "test"],
];

/// The beginning of the packages in `README.md`.
const INSTALL: &str = "`apt-get install ";

/// Variables that configure package clients: their names, or the beginnings of them.
const NETWORK: [&str; 12] = [
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTR",
    "CARGO_SOURCE_",
    "PIP_",
    "SSL_CERT_",
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
];
/// Variables with an effect on cargo's output, which have to be as in later stages.
const BUILD: [&str; 4] = ["CARGO_INCREMENTAL", "CARGO_TERM_COLOR", "RUSTFLAGS", "CI"];

/// The output of the commands that is used later.
const OUTPUT: &str = "debug";
/// Fetched programs.
const FETCHED: [&str; 2] = ["envoy", "etcd"];

/// The records of the tests that were left out by [`run_commands`].
pub(crate) fn left_out(workspace: &Workspace) -> PathBuf {
    workspace.target.join("left-out-on-a-fresh-machine.jsonl")
}

/// Runs the commands, and makes their output that of this machine.
pub(crate) fn run_commands(workspace: &Workspace) -> anyhow::Result<()> {
    let machine = Machine::make(workspace)?;
    let mut times = Vec::new();
    for command in COMMANDS {
        println!("\n-- {}, on a machine with nothing else", command.join(" "));
        let (outcome, took) = timed(|| machine.run(workspace, command));
        times.push(format!(
            "{}: {:.1} s",
            command.join(" "),
            took.as_secs_f64()
        ));
        outcome.with_context(|| times.join("; "))?;
    }
    println!("\n{}", times.join("\n"));
    machine.take_output(workspace)
}

/// The machine.
struct Machine {
    /// Its root file system.
    root: PathBuf,
    /// The copy of the checkout.
    checkout: PathBuf,
    /// The target directory of that.
    target: PathBuf,
    cargo_home: PathBuf,
    rustup_home: PathBuf,
}

impl Machine {
    /// Makes it from scratch.
    fn make(workspace: &Workspace) -> anyhow::Result<Self> {
        let folder = workspace.target.join("machine");
        let home = workspace::variable("HOME").context("HOME is not set")?;
        let home_of = |variable: &str, name: &str| {
            workspace::variable(variable).map_or_else(|| Path::new(&home).join(name), PathBuf::from)
        };
        let machine = Self {
            root: folder.join("root"),
            checkout: folder.join("checkout"),
            target: folder.join("target"),
            cargo_home: home_of("CARGO_HOME", ".cargo"),
            rustup_home: home_of("RUSTUP_HOME", ".rustup"),
        };
        ensure!(
            machine.cargo_home.join("bin/rustup").exists(),
            "there is no rustup in {}, which the commands of README.md need",
            machine.cargo_home.display()
        );
        if folder.exists() {
            remove(&folder)?;
        }
        fs::create_dir_all(&machine.target)?;
        let packages = packages(&fs::read_to_string(workspace.root.join("README.md"))?)?;
        let (made, took) = timed(|| machine.bootstrap(&packages));
        made?;
        println!(
            "a machine with {}: {:.1} s",
            packages.join(", "),
            took.as_secs_f64()
        );
        machine.copy_checkout(workspace)?;
        Ok(machine)
    }

    /// A minimal Debian of this machine's release: programs that are built there run here.
    fn bootstrap(&self, packages: &[String]) -> anyhow::Result<()> {
        let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
        let suite = codename(&release).context("/etc/os-release has no VERSION_CODENAME")?;
        // In a mount namespace of its own, so that nothing stays mounted after a failure.
        let mut debootstrap = Command::new("unshare");
        debootstrap
            .args(["--mount", "--propagation=private", "debootstrap"])
            .arg("--variant=minbase")
            .arg(format!("--include={}", packages.join(",")))
            .arg(&suite)
            .arg(&self.root)
            .args(archive(&suite))
            .stdout(Stdio::null());
        run(&mut debootstrap).with_context(|| {
            format!(
                "cannot make a machine with {}: this takes root, debootstrap (Debian: apt-get install debootstrap) \
                 and the archive of {suite}; see {}",
                packages.join(", "),
                self.root.join("debootstrap/debootstrap.log").display()
            )
        })
    }

    /// Copies what git knows or would add, with its modification times, by which cargo detects changes.
    fn copy_checkout(&self, workspace: &Workspace) -> anyhow::Result<()> {
        fs::create_dir_all(&self.checkout)?;
        let copy = "git ls-files -z --cached --others --exclude-standard | \
                    tar --create --null --ignore-failed-read --files-from=- | \
                    tar --extract --directory \"$1\"";
        let mut shell = Command::new("sh");
        shell
            .args(["-euc", copy, "sh"])
            .arg(&self.checkout)
            .current_dir(&workspace.root);
        run(&mut shell).context("cannot copy the checkout")
    }

    /// Runs a command in the checkout.
    fn run(&self, workspace: &Workspace, command: &[&str]) -> anyhow::Result<()> {
        let own = ["PATH", "HOME"].map(|name| Some((name, workspace::variable(name)?)));
        let mut enter = Command::new("setpriv");
        enter
            .args([
                "--pdeathsig",
                "KILL",
                "unshare",
                "--mount",
                "--pid",
                "--fork",
            ])
            .args(["--kill-child", "--propagation=private"])
            .arg(workspace.root.join(".ci/machine"))
            .arg(&self.root)
            .arg(&workspace.root)
            .args([&self.checkout, &self.target])
            .args([&self.cargo_home, &self.rustup_home])
            .args(command)
            .env_clear()
            .envs(kept(workspace::variables()))
            // Those of the script; the command has others.
            .envs(own.into_iter().flatten())
            .stdin(Stdio::null());
        run(&mut enter)
    }

    /// Moves the output to this machine's target directory and removes the rest.
    fn take_output(&self, workspace: &Workspace) -> anyhow::Result<()> {
        let built = workspace.target.join(OUTPUT);
        if built.exists() {
            remove(&built)?;
        }
        // It belongs to the user in there, whose number another user may have here.
        let mut own = Command::new("chown");
        run(own
            .args(["--recursive", "--no-dereference", "0:0"])
            .arg(&self.target))?;
        fs::rename(self.target.join(OUTPUT), built)?;
        for name in FETCHED {
            let (from, to) = (self.target.join(name), workspace.target.join(name));
            if from.exists() && !to.exists() {
                fs::rename(from, to)?;
            }
        }
        fs::rename(self.target.join(left_out::FILE), left_out(workspace))?;
        remove(&workspace.target.join("machine"))
    }
}

/// The words after `apt-get install` in the README.
fn packages(readme: &str) -> anyhow::Result<Vec<String>> {
    let named = readme.split_once(INSTALL);
    let named = named.and_then(|(_, rest)| rest.split_once('`'));
    let (named, _) = named.with_context(|| format!("README.md has no {INSTALL}…`"))?;
    Ok(named.split_whitespace().map(str::to_owned).collect())
}

/// The name of the release in the text of `/etc/os-release`.
fn codename(text: &str) -> Option<String> {
    let mut lines = text.lines();
    let name = lines.find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(name.trim_matches('"').to_owned())
}

/// The archive from which this machine's apt takes the release; debootstrap has a default.
fn archive(suite: &str) -> Option<String> {
    let mut sources = Command::new("apt-get");
    sources.args(["indextargets", "--format", "$(CODENAME) $(SITE)"]);
    let output = workspace::output(&mut sources).ok()?;
    let mut lines = output.lines();
    lines.find_map(|line| Some(line.strip_prefix(suite)?.strip_prefix(' ')?.to_owned()))
}

/// The variables that the commands get. They may have secrets, so they are no arguments, which errors show.
fn kept(all: Vec<(String, String)>) -> Vec<(String, String)> {
    let is_kept = |name: &str| {
        let upper = name.to_uppercase();
        BUILD.contains(&name) || NETWORK.iter().any(|start| upper.starts_with(start))
    };
    all.into_iter().filter(|(name, _)| is_kept(name)).collect()
}

/// Removes a folder, but nothing that is mounted there.
fn remove(folder: &Path) -> anyhow::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let inside = |line: &&str| {
        let place = line.split_whitespace().nth(1);
        place.is_some_and(|place| Path::new(place).starts_with(folder))
    };
    if let Some(line) = mounts.lines().find(inside) {
        bail!(
            "{} has a mount, which must be removed first: {line}",
            folder.display()
        );
    }
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_names_the_packages() {
        let packages = packages(include_str!("../../README.md")).unwrap();
        assert_eq!(packages, ["python3-pip", "gcc", "libc6-dev", "make"]);
    }

    #[test]
    fn only_settings_of_package_clients_and_of_the_build_are_kept() {
        let all = [
            ("https_proxy", "http://proxy"),
            ("PIP_INDEX_URL", "https://index"),
            ("CARGO_INCREMENTAL", "0"),
            ("CARGO_MANIFEST_DIR", "/xtask"),
            ("RUSTUP_TOOLCHAIN", "other"),
            ("PATH", "/opt/bin"),
            ("LEGATE_CONSUL", "/bin/consul"),
        ];
        let all = all.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let kept = kept(all.to_vec());
        let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["https_proxy", "PIP_INDEX_URL", "CARGO_INCREMENTAL"]);
    }

    #[test]
    fn a_release_has_a_name() {
        let text = "ID=debian\nVERSION_CODENAME=bookworm\n";
        assert_eq!(codename(text).as_deref(), Some("bookworm"));
        assert_eq!(codename("ID=arch\n"), None);
    }
}
