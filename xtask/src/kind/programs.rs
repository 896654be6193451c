//! The programs of a cluster, built with Go from the module in `tests/kind/node` and kept in the cache
//! for as long as its sources and the compiler are the same. Nothing but the Go module proxy is asked.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::cache::Cache;
use crate::workspace::{self, Workspace};

/// Where the module is, and what else belongs to the node.
pub(super) const FOLDER: &str = "tests/kind/node";
/// What decides about the programs.
const SOURCES: [&str; 5] = [
    "go.mod",
    "go.sum",
    "main.go",
    "coredns/main.go",
    "pause/main.go",
];
/// The packages, and the program that has all the names below.
const PACKAGES: [&str; 4] = [".", "./coredns", "./pause", "helm.sh/helm/v3/cmd/helm"];
const ALL_IN_ONE: &str = "node";
const NAMES: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
];

/// The folder with the programs, which are built unless they are there.
pub(super) fn get(workspace: &Workspace, cache: &Cache) -> anyhow::Result<PathBuf> {
    let module = workspace.root.join(FOLDER);
    let programs = cache.folder.join("programs");
    let stamp = programs.join("stamp");
    // CI builds in the background, and comes here again for the result.
    let _lock = cache.lock("programs")?;
    let sources = sources(&module)?;
    if fs::read(&stamp).is_ok_and(|found| found == sources) {
        return Ok(programs);
    }
    if programs.exists() {
        fs::remove_dir_all(&programs)?;
    }
    fs::create_dir_all(&programs)?;
    println!(
        "building the programs of a cluster in {}: some ten minutes, once",
        programs.display()
    );
    build(&module, &programs)?;
    for name in NAMES {
        symlink(ALL_IN_ONE, programs.join(name))?;
    }
    fs::write(stamp, sources)?;
    Ok(programs)
}

/// The compiler's version and every source, one after the other.
fn sources(module: &Path) -> anyhow::Result<Vec<u8>> {
    let version = go(module).arg("version").output().context(
        "cannot start go, which builds the cluster's programs: install Go 1.26 (https://go.dev/dl), \
         or name a cluster in KUBECONFIG",
    )?;
    let mut all = version.stdout;
    for name in SOURCES {
        let path = module.join(name);
        all.extend(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    Ok(all)
}

fn build(module: &Path, programs: &Path) -> anyhow::Result<()> {
    let mut list = go(module);
    list.args(["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"]);
    let version = list.output().context("cannot start go")?;
    let version = String::from_utf8(version.stdout)?;
    // Programs of a release know their version from the linker; clients decide by it.
    let version = version.trim();
    let minor = version.split('.').nth(1).unwrap_or_default();
    let variables = [
        ("gitVersion", version),
        ("gitMajor", "1"),
        ("gitMinor", minor),
    ];
    let mut flags = "-s -w".to_owned();
    for (name, value) in variables {
        flags += &format!(" -X k8s.io/component-base/version.{name}={value}");
    }
    let mut build = go(module);
    build.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &flags]);
    workspace::run(build.arg("-o").arg(programs).args(PACKAGES))
}

/// Go where it is usually installed, also when nobody has put that on `PATH`. Programs without the C
/// library run in images that have none.
fn go(module: &Path) -> Command {
    let installed = Path::new("/usr/local/go/bin/go");
    let on_path = workspace::variable("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("go").is_file()));
    let mut command = if on_path || !installed.is_file() {
        Command::new("go")
    } else {
        Command::new(installed)
    };
    command.current_dir(module).env("CGO_ENABLED", "0");
    command
}
