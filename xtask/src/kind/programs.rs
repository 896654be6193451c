//! The programs of a cluster, built with Go from the module in `tests/kind/node` and cached as long as
//! its sources and the compiler are unchanged. Only the Go module proxy is accessed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::cache::Cache;
use crate::go;
use crate::workspace::{self, Workspace};

/// The folder of the module and of the node's other files.
pub(super) const FOLDER: &str = "tests/kind/node";
/// The sources that determine the programs.
const SOURCES: [&str; 5] = [
    "go.mod",
    "go.sum",
    "main.go",
    "coredns/main.go",
    "pause/main.go",
];
/// The packages, and the multi-call program that has all the names below.
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

/// The folder with the programs, which are built if necessary.
pub(super) fn get(workspace: &Workspace, cache: &Cache) -> anyhow::Result<PathBuf> {
    let module = workspace.root.join(FOLDER);
    let programs = cache.folder.join("programs");
    let stamp = programs.join("stamp");
    // CI builds in the background, and gets the result here later.
    let _lock = cache.lock("programs")?;
    let sources = go::stamp(&module, &SOURCES, "set KUBECONFIG to a cluster")?;
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

fn build(module: &Path, programs: &Path) -> anyhow::Result<()> {
    let mut list = go::command(module);
    list.args(["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"]);
    let version = list.output().context("cannot start go")?;
    let version = String::from_utf8(version.stdout)?;
    // The linker sets the version of a release's programs, which clients check.
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
    let mut build = go::command(module);
    build.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &flags]);
    workspace::run(build.arg("-o").arg(programs).args(PACKAGES))
}
