//! The suite and the applications in its manifests, built with Go from the module in
//! `tests/kind/gateway-api` and cached as long as its sources and the compiler are unchanged. Only the Go
//! module proxy is accessed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::go;
use crate::kind::cache::Cache;
use crate::workspace::{self, Workspace};

/// The folder of the module.
const FOLDER: &str = "tests/kind/gateway-api";
/// The sources that determine the programs.
const SOURCES: [&str; 4] = ["go.mod", "go.sum", "conformance_test.go", "coredns/main.go"];
/// The packages of the applications behind gateways, and of those in the mesh, which take longest to build.
const BEHIND_GATEWAYS: [&str; 2] = [
    "./coredns",
    "sigs.k8s.io/gateway-api/conformance/echo-basic",
];
const IN_MESH: [&str; 2] = [
    "istio.io/istio/pkg/test/echo/cmd/client",
    "istio.io/istio/pkg/test/echo/cmd/server",
];
/// The flags of builds.
const SMALL: [&str; 3] = ["-trimpath", "-ldflags", "-s -w"];
/// The module with the resource definitions, and the one with the tests and their manifests.
const DEFINITIONS: &str = "sigs.k8s.io/gateway-api";
const TESTS: &str = "sigs.k8s.io/gateway-api/conformance";
/// The channels of resource definitions.
pub(super) const CHANNELS: [&str; 2] = ["experimental", "standard"];

/// The built suite.
pub(super) struct Suite {
    folder: PathBuf,
    /// Whether it has the applications in the mesh.
    pub(super) has_mesh: bool,
}

impl Suite {
    /// Builds what is missing. `has_mesh`: also the applications of the tests for the mesh.
    pub(super) fn get(
        workspace: &Workspace,
        cache: &Cache,
        has_mesh: bool,
    ) -> anyhow::Result<Self> {
        let module = workspace.root.join(FOLDER);
        let folder = cache.folder.join("gateway-api");
        let _lock = cache.lock("gateway-api")?;
        let sources = go::stamp(&module, &SOURCES, "run the other scenarios")?;
        let suite = Self { folder, has_mesh };
        let stamp = suite.folder.join("stamp");
        let is_built = |stamp: &Path| fs::read(stamp).is_ok_and(|found| found == sources);
        if !is_built(&stamp) {
            if suite.folder.exists() {
                fs::remove_dir_all(&suite.folder)?;
            }
            println!(
                "building the conformance suite of the Gateway API in {}: some minutes, once",
                suite.folder.display()
            );
            suite.build(&module)?;
            suite.copy_definitions(&module)?;
            let references = references(&folder_of(&module, TESTS)?)?;
            fs::write(suite.folder.join("references"), references.join("\n"))?;
            fs::write(stamp, &sources)?;
        }
        let stamp = suite.folder.join("stamp-of-mesh");
        if has_mesh && !is_built(&stamp) {
            println!("building its applications in the mesh: some minutes, once");
            suite.build_applications(&module, &IN_MESH)?;
            fs::write(stamp, sources)?;
        }
        Ok(suite)
    }

    /// The program with all tests.
    pub(super) fn program(&self) -> PathBuf {
        self.folder.join("suite")
    }

    /// A program of an application.
    pub(super) fn application(&self, name: &str) -> PathBuf {
        self.folder.join("applications").join(name)
    }

    /// The folder with the resource definitions of a channel.
    pub(super) fn definitions(&self, channel: &str) -> PathBuf {
        self.folder.join(channel)
    }

    /// The references of all images in the manifests.
    pub(super) fn references(&self) -> anyhow::Result<Vec<String>> {
        let text = fs::read_to_string(self.folder.join("references"))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn build(&self, module: &Path) -> anyhow::Result<()> {
        self.build_applications(module, &BEHIND_GATEWAYS)?;
        let mut tests = go::command(module);
        tests.args(["test", "-c", "-buildvcs=false"]).args(SMALL);
        workspace::run(tests.arg("-o").arg(self.program()).arg("."))
    }

    fn build_applications(&self, module: &Path, packages: &[&str]) -> anyhow::Result<()> {
        let applications = self.folder.join("applications");
        fs::create_dir_all(&applications)?;
        let mut build = go::command(module);
        build.args(["build", "-buildvcs=false"]).args(SMALL);
        workspace::run(build.arg("-o").arg(&applications).args(packages))
    }

    fn copy_definitions(&self, module: &Path) -> anyhow::Result<()> {
        let all = folder_of(module, DEFINITIONS)?.join("config/crd");
        for channel in CHANNELS {
            let folder = self.definitions(channel);
            fs::create_dir_all(&folder)?;
            for entry in fs::read_dir(all.join(channel))? {
                let name = entry?.file_name();
                // The others are for kustomize.
                if name.to_string_lossy().starts_with("gateway.networking.") {
                    let text = fs::read(all.join(channel).join(&name))?;
                    fs::write(folder.join(&name), text)?;
                }
            }
        }
        Ok(())
    }
}

/// The folder with the definitions of a channel in Go's cache, with other files.
pub(super) fn fetched_definitions(workspace: &Workspace, channel: &str) -> anyhow::Result<PathBuf> {
    let module = workspace.root.join(FOLDER);
    let mut download = go::command(&module);
    workspace::run(download.args(["mod", "download", DEFINITIONS]))
        .context("cannot fetch the definitions of the Gateway API")?;
    Ok(folder_of(&module, DEFINITIONS)?
        .join("config/crd")
        .join(channel))
}

/// The folder of a module in Go's cache, where a build has put it.
fn folder_of(module: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let mut list = go::command(module);
    let folder = workspace::output(list.args(["list", "-m", "-f", "{{.Dir}}", name]))?;
    let folder = folder.trim();
    ensure!(!folder.is_empty(), "go has no folder of the module {name}");
    Ok(folder.into())
}

/// The references of the images in the manifests of the suite, each once.
fn references(tests: &Path) -> anyhow::Result<Vec<String>> {
    let mut references = BTreeSet::new();
    for folder in ["base", "mesh", "tests"] {
        for entry in fs::read_dir(tests.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|is| is == "yaml") {
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                references.extend(images_in(&text).map(str::to_owned));
            }
        }
    }
    Ok(references.into_iter().collect())
}

/// The values of all fields `image` of a manifest.
fn images_in(manifest: &str) -> impl Iterator<Item = &str> {
    let fields = manifest.lines().map(str::trim_start);
    let fields = fields.map(|line| line.strip_prefix("- ").unwrap_or(line));
    fields.filter_map(|line| Some(line.strip_prefix("image:")?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_a_manifest() {
        let manifest = "spec:\n  containers:\n  - image: a/b:v1\n    name: b\n  - name: image\n    \
                        image: a/c:v2\n    imagePullPolicy: IfNotPresent\n";
        let found: Vec<_> = images_in(manifest).collect();
        assert_eq!(found, ["a/b:v1", "a/c:v2"]);
    }
}
