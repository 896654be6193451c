//! The images of a cluster, built without docker: the layout of the Dockerfile with the programs built by
//! cargo for tests, in an archive of the format of `docker save`.
//!
//! Instead of the base image they have this machine's C library, which the programs were built with.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::archive::Archive;
use super::layer::Layer;
use crate::envoy;
use crate::images::{self, DATAPLANE, IMAGES, Image, USER, program};
use crate::workspace::{Workspace, run};

/// The tag of every image in scenarios; not `latest`, which Kubernetes would pull. The images of this
/// repository also have the tag of the chart's default values, for users of the documentation.
const TAG: &str = "test";
/// The applications of the scenarios.
const APPLICATION: &str = "mesh-app";
/// The CA bundle, in the place of base images.
const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Writes the archive: the images of this repository, the applications of the scenarios and, for a node,
/// the images of its own components. `built` is cargo's output folder.
pub(super) fn archive(
    workspace: &Workspace,
    node: Option<&Path>,
    built: &Path,
) -> anyhow::Result<PathBuf> {
    let folder = workspace.target.join("kind");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let programs_folder = folder.join("programs");
    fs::create_dir_all(&programs_folder)?;
    let envoy = envoy::get(workspace)?;
    let mut programs = BTreeMap::new();
    for name in IMAGES
        .map(|image| image.name)
        .into_iter()
        .chain([APPLICATION])
    {
        programs.insert(
            name,
            images::stripped(workspace, &built.join(name), &programs_folder)?,
        );
    }
    let version = workspace.manifest["workspace"]["package"]["version"].as_str();
    let version = version.context("the workspace has a version")?;
    let mut archive = Archive::new(&folder);
    let base = base(&folder, programs.values().chain([&envoy]))?;
    let base = archive.layer(base)?;
    for image in IMAGES {
        let own = own(workspace, &folder, &image, &programs[image.name], &envoy)?;
        let own = archive.layer(own)?;
        let references = [
            for_tests(image.name),
            // Kubernetes' canonical form of a name without a registry.
            format!("docker.io/library/{}:{version}", image.name),
        ];
        let (name, entrypoint) = (image.name, program(image.name));
        archive.image(name, &references, &[&base, &own], USER, &entrypoint)?;
    }
    let mut layer = Layer::create(&folder, APPLICATION)?;
    layer.file(&programs[APPLICATION], &program(APPLICATION))?;
    let own = archive.layer(layer)?;
    let (references, entrypoint) = ([for_tests(APPLICATION)], program(APPLICATION));
    archive.image(APPLICATION, &references, &[&base, &own], USER, &entrypoint)?;
    for (name, user) in [("pause", "65535:65535"), ("coredns", "0:0")] {
        if let Some(node) = node {
            let mut layer = Layer::create(&folder, name)?;
            layer.file(&node.join(name), &format!("/{name}"))?;
            let own = archive.layer(layer)?;
            let (references, entrypoint) = ([for_tests(name)], format!("/{name}"));
            archive.image(name, &references, &[&own], user, &entrypoint)?;
        }
    }
    archive.finish()
}

/// The reference of an image in scenarios.
fn for_tests(name: &str) -> String {
    format!("localhost/{name}:{TAG}")
}

/// The layer of an image of this repository on top of the base.
fn own(
    workspace: &Workspace,
    folder: &Path,
    image: &Image,
    built: &Path,
    envoy: &Path,
) -> anyhow::Result<Layer> {
    let mut layer = Layer::create(folder, image.name)?;
    let Some(script) = image.layout else {
        layer.file(built, &program(image.name))?;
        return Ok(layer);
    };
    let root = folder.join("roots").join(image.name);
    let mut layout = Command::new(workspace.root.join(script));
    layout.arg(built);
    if image.name == DATAPLANE.name {
        layout.arg(envoy);
    }
    run(layout.arg(&root)).context(
        "this requires root, setcap, nft and iptables (Debian: libcap2-bin nftables iptables)",
    )?;
    layer.folder(&root)?;
    Ok(layer)
}

/// The libraries and files that the programs need from the base image.
fn base<'a>(folder: &Path, programs: impl Iterator<Item = &'a PathBuf>) -> anyhow::Result<Layer> {
    let mut base = Layer::create(folder, "base")?;
    base.empty_folder("/tmp", 0o1777)?;
    let mut libraries = BTreeSet::new();
    for program in programs {
        libraries.extend(libraries_of(program)?);
    }
    for library in libraries {
        base.file(Path::new(&library), &library)?;
    }
    base.file(Path::new(CA_BUNDLE), CA_BUNDLE)
        .context("Debian: ca-certificates")?;
    Ok(base)
}

/// The shared libraries of a program, including the loader.
fn libraries_of(program: &Path) -> anyhow::Result<Vec<String>> {
    let output = Command::new("ldd").arg(program).output();
    let output = output.context("cannot start ldd (Debian: libc-bin)")?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(
        !text.contains("not found"),
        "{}:\n{text}",
        program.display()
    );
    let paths = text
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'));
    Ok(paths.map(str::to_owned).collect())
}
