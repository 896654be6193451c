//! The images of the applications in the suite's manifests, under the references that the manifests have.
//! They contain only static programs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::bail;

use super::suite::Suite;
use crate::kind::archive::Archive;
use crate::kind::certificates;
use crate::kind::layer::Layer;

/// An image.
#[derive(Clone, Copy)]
struct Image {
    /// The last part of its references, before the tag.
    name: &'static str,
    /// The programs, of which the first is started: its name and place.
    programs: &'static [(&'static str, &'static str)],
    user: &'static str,
}

/// Users are those of the published images.
const IMAGES: [Image; 3] = [
    Image {
        name: "coredns",
        programs: &[("coredns", "/coredns")],
        // For port 53, with the one capability in the manifest.
        user: "0:0",
    },
    // The server, and the client that tests execute in the same container.
    Image {
        name: ADVANCED,
        programs: &[
            ("server", "/usr/local/bin/server"),
            ("client", "/usr/local/bin/client"),
        ],
        user: "1338:1338",
    },
    Image {
        name: "echo-basic",
        programs: &[("echo-basic", "/echo-basic")],
        user: "65532:65532",
    },
];
/// The image of the mesh, which also has a certificate.
const ADVANCED: &str = "echo-advanced";

/// Writes the archive, in a folder that is created again.
pub(super) fn archive(suite: &Suite, folder: &Path) -> anyhow::Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let all = suite.references()?;
    let mut archive = Archive::new(folder);
    let is_built = |image: &Image| suite.has_mesh || image.name != ADVANCED;
    for image in IMAGES.into_iter().filter(is_built) {
        let mut layer = Layer::create(folder, image.name)?;
        for (name, place) in image.programs {
            layer.file(&suite.application(name), place)?;
        }
        if image.name == ADVANCED {
            certificate(folder, &mut layer)?;
        }
        let layer = archive.layer(layer)?;
        let is_its = |reference: &&String| name_of(reference) == image.name;
        let references: Vec<String> = all.iter().filter(is_its).cloned().collect();
        let entrypoint = image.programs[0].1;
        archive.image(image.name, &references, &[&layer], image.user, entrypoint)?;
    }
    for reference in &all {
        if IMAGES.iter().all(|image| image.name != name_of(reference)) {
            bail!("the suite has an image that is not built here: {reference}");
        }
    }
    archive.finish()
}

/// Adds the certificate that the server is started with.
fn certificate(folder: &Path, layer: &mut Layer) -> anyhow::Result<()> {
    let names = "subjectAltName=DNS:echo";
    certificates::certificate(folder, "cert", "/CN=echo", &[names], false)?;
    for file in ["cert.crt", "cert.key"] {
        let made = folder.join(file);
        // The container's user reads it.
        fs::set_permissions(&made, Permissions::from_mode(0o644))?;
        layer.file(&made, &format!("/{file}"))?;
    }
    Ok(())
}

/// The name of an image without its registry, folder and tag.
fn name_of(reference: &str) -> &str {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    last.split([':', '@']).next().unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_references() {
        assert_eq!(name_of("registry.example/a/echo-basic:v1"), "echo-basic");
        assert_eq!(name_of("localhost:5000/coredns@sha256:1234"), "coredns");
        assert_eq!(name_of("coredns"), "coredns");
    }
}
