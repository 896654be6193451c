//! The configuration of an Envoy process: equality, differences, and a fingerprint. Starts nothing.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::process::{EnvoyLog, Launch};

/// Version of the format of [`EnvoyConfig::fingerprint`]. Earlier formats had no version.
const FINGERPRINT: u32 = 1;

/// Maximum number of bytes of a file that are hashed; certificates are far smaller.
const FILE_LIMIT: u64 = 1024 * 1024;

/// The configuration of an Envoy process: how it is started, its program file, and the content of
/// the files that it reads only at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvoyConfig {
    /// How Envoy is started.
    pub launch: Launch,
    pub(super) program: Option<Program>,
    files: Vec<(PathBuf, Option<[u8; 32]>)>,
    /// Whether it may only be applied by a hot restart.
    pub(super) hot_only: bool,
}

/// Identifies a program file, so that a replacement is detected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) device: u64,
    pub(super) inode: u64,
    size: u64,
    modified: Option<SystemTime>,
}

impl EnvoyConfig {
    /// Captures the current program file: a configuration that is created after the file was
    /// replaced is not equal.
    pub fn new(launch: Launch) -> Self {
        let program = fs::metadata(&launch.executable).ok().map(|file| Program {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: file.modified().ok(),
        });
        Self {
            launch,
            program,
            files: Vec::new(),
            hot_only: false,
        }
    }

    /// Prevents a cold restart of the running process.
    #[must_use]
    pub fn hot_only(mut self) -> Self {
        self.hot_only = true;
        self
    }

    /// Adds files that Envoy reads only at its start. If their content differs, configurations are
    /// not equal.
    #[must_use]
    pub fn reading(mut self, files: impl IntoIterator<Item = PathBuf>) -> Self {
        let files = files.into_iter().map(|path| {
            let digest = digest(&path).ok();
            (path, digest)
        });
        self.files = files.collect();
        self
    }

    /// A digest by which a later supervisor, possibly of another version, recognises the
    /// configuration of a running process. It consists of the parts listed here, in this format.
    /// Any change of them must increment [`FINGERPRINT`], and causes every Envoy that was started
    /// by an older version to be replaced on adoption.
    ///
    /// `hot_only` is not part of it, because it does not affect the running process.
    pub(super) fn fingerprint(&self) -> String {
        let Self {
            launch,
            program,
            files,
            hot_only: _,
        } = self;
        // Destructured by name, so that a new field is not forgotten.
        let Launch {
            executable,
            bootstrap,
            log: EnvoyLog { level, json },
            concurrency,
            drain_time,
            drain_strategy,
            extra_args,
        } = launch;
        let mut hasher = Sha256::new();
        // Includes lengths, so that no two configurations produce the same bytes.
        let mut part = |name: &str, value: &[u8]| {
            for bytes in [name.as_bytes(), value] {
                hasher.update((bytes.len() as u64).to_be_bytes());
                hasher.update(bytes);
            }
        };
        part("executable", executable.as_os_str().as_bytes());
        part("bootstrap", bootstrap.as_bytes());
        part("log level", level.as_str().as_bytes());
        part("log json", &[u8::from(*json)]);
        part("concurrency", &concurrency.to_be_bytes());
        part("drain time", &drain_time.as_secs().to_be_bytes());
        part("drain strategy", drain_strategy.as_str().as_bytes());
        for argument in extra_args {
            part("argument", argument.as_bytes());
        }
        if let Some(program) = program {
            let modified = program.modified.unwrap_or(UNIX_EPOCH);
            let modified = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            part("device", &program.device.to_be_bytes());
            part("inode", &program.inode.to_be_bytes());
            part("size", &program.size.to_be_bytes());
            part("modified", &modified.as_nanos().to_be_bytes());
        }
        for (path, digest) in files {
            part("file", path.as_os_str().as_bytes());
            part("content", digest.as_ref().map_or(&[], |digest| digest));
        }
        let digest = hasher.finalize();
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{FINGERPRINT}:{digest}")
    }

    /// Describes the differences from another configuration, for humans; empty if there are none.
    pub fn difference(&self, other: &Self) -> String {
        let mut parts = Vec::new();
        if self.launch.bootstrap != other.launch.bootstrap {
            parts.push("the bootstrap document".to_owned());
        }
        if self.program != other.program || self.launch.executable != other.launch.executable {
            parts.push(format!("the program {}", other.launch.executable.display()));
        }
        let changed = other.files.iter().filter(|file| !self.files.contains(file));
        parts.extend(changed.map(|(path, _)| format!("the file {}", path.display())));
        if parts.is_empty() && self != other {
            parts.push("the arguments".to_owned());
        }
        parts.join(", ")
    }
}

fn digest(path: &Path) -> io::Result<[u8; 32]> {
    let (mut content, file) = (Vec::new(), File::open(path)?);
    file.take(FILE_LIMIT).read_to_end(&mut content)?;
    Ok(Sha256::digest(&content).into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::process::DrainStrategy;
    use legate_runtime::logging::Level;

    fn config() -> EnvoyConfig {
        EnvoyConfig {
            launch: Launch {
                executable: "/usr/bin/envoy".into(),
                bootstrap: r#"{"node":{"id":"web"}}"#.to_owned(),
                log: EnvoyLog {
                    level: Level::Info,
                    json: false,
                },
                concurrency: 2,
                drain_time: Duration::from_secs(30),
                drain_strategy: DrainStrategy::Immediate,
                extra_args: vec!["-l".into(), "debug".into()],
            },
            program: Some(Program {
                device: 1,
                inode: 2,
                size: 3,
                modified: Some(UNIX_EPOCH + Duration::from_nanos(4)),
            }),
            files: vec![
                ("/etc/cert.pem".into(), Some([5; 32])),
                ("/no".into(), None),
            ],
            hot_only: false,
        }
    }

    /// A later version must produce the same value, or it replaces every Envoy that it adopts.
    #[test]
    fn a_fingerprint_is_the_same_in_every_version() {
        let expected = "1:0499ec75fb5a586cc10f9bf7ad04c73e26e0271a39d4dbf95b64eca0f99ec3d9";
        assert_eq!(config().fingerprint(), expected);
        assert_eq!(config().hot_only().fingerprint(), expected);
    }

    #[test]
    fn whatever_makes_another_envoy_makes_another_fingerprint() {
        let changes: [fn(&mut EnvoyConfig); 13] = [
            |it| it.launch.executable = "/opt/envoy".into(),
            |it| it.launch.bootstrap.push(' '),
            |it| it.launch.log.level = Level::Debug,
            |it| it.launch.log.json = true,
            |it| it.launch.concurrency = 3,
            |it| it.launch.drain_time = Duration::from_secs(31),
            |it| it.launch.drain_strategy = DrainStrategy::Gradual,
            |it| it.launch.extra_args = vec!["-ldebug".into()],
            |it| it.program = None,
            |it| it.program.as_mut().unwrap().inode = 9,
            |it| it.program.as_mut().unwrap().modified = None,
            |it| it.files[0].1 = Some([6; 32]),
            |it| drop(it.files.pop()),
        ];
        let mut seen = vec![config().fingerprint()];
        for change in changes {
            let mut other = config();
            change(&mut other);
            seen.push(other.fingerprint());
        }
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }
}
