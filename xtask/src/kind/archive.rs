//! Images and their layers in an archive of the format of `docker save`; shared layers are stored once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};

use super::layer::Layer;

/// The search path of the base image.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An archive that is being written.
pub(super) struct Archive {
    folder: PathBuf,
    manifest: Vec<Value>,
    /// The files of the archive, relative to the folder.
    files: Vec<String>,
}

/// A finished layer: its file name and digest.
pub(super) type Stored = (String, String);

impl Archive {
    /// An archive of files in a folder, which exists.
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_path_buf(),
            manifest: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Adds a layer that was created in the folder.
    pub(super) fn layer(&mut self, layer: Layer) -> anyhow::Result<Stored> {
        let name = layer.finish()?;
        let mut sum = Command::new("sha256sum");
        let output = sum.arg(self.folder.join(&name)).output();
        let output = output.context("cannot start sha256sum (Debian: coreutils)")?;
        let text = String::from_utf8(output.stdout)?;
        let digest = text.split_whitespace().next();
        let digest = digest.context("sha256sum prints a digest")?.to_owned();
        self.files.push(name.clone());
        Ok((name, digest))
    }

    /// Adds an image with these references. `name` is that of its file.
    pub(super) fn image(
        &mut self,
        name: &str,
        references: &[String],
        layers: &[&Stored],
        user: &str,
        entrypoint: &str,
    ) -> anyhow::Result<()> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let digests = layers.iter().map(|(_, digest)| format!("sha256:{digest}"));
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {"User": user, "Entrypoint": [entrypoint], "Env": [PATH]},
            "rootfs": {"type": "layers", "diff_ids": digests.collect::<Vec<_>>()},
        });
        let file = format!("{name}.json");
        fs::write(self.folder.join(&file), config.to_string())?;
        self.manifest.push(json!({
            "Config": file,
            "RepoTags": references,
            "Layers": layers.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        }));
        self.files.push(file);
        Ok(())
    }

    /// Completes the archive and returns its path.
    pub(super) fn finish(mut self) -> anyhow::Result<PathBuf> {
        let manifest = serde_json::to_string(&self.manifest)?;
        fs::write(self.folder.join("manifest.json"), manifest)?;
        self.files.push("manifest.json".to_owned());
        let path = self.folder.join("images.tar");
        let mut tar = tar::Builder::new(fs::File::create(&path)?);
        for name in &self.files {
            tar.append_path_with_name(self.folder.join(name), name)?;
        }
        tar.finish()?;
        Ok(path)
    }
}
