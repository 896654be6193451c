//! State files for other programs and for a later supervisor: the pid file and the snapshot. Each is
//! replaced atomically, only when its content changes, and readable only by its owner. They contain
//! neither configuration nor secrets. They become meaningless at the next boot, so they are not
//! synced to disk.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::process::Identity;

/// Version of the snapshot format.
const VERSION: u32 = 1;
/// Maximum size of a snapshot in bytes; real ones have a few hundred.
const SIZE_LIMIT: u64 = 1024 * 1024;

/// A state file cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the {0}; name a folder that this user can write")]
pub struct FileError(String);

/// The state that a supervisor leaves for its successor.
///
/// Unknown fields are ignored, because a later version may have written them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    version: u32,
    /// The owner of the processes; `None` if unknown.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// The base id of the hot restart family; `None` if hot restart is not possible.
    pub base_id: Option<u32>,
    /// The processes, oldest epoch first.
    pub processes: Vec<Entry>,
}

/// A process of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its epoch.
    pub epoch: u32,
    /// Digest of its configuration, see `Host::fingerprint`.
    pub fingerprint: String,
    /// Its state.
    pub stage: Stage,
    /// Its identity.
    pub identity: Identity,
}

/// State of a process in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Not ready yet.
    Starting,
    /// Serving.
    Serving,
    /// About to end.
    Leaving,
}

impl Snapshot {
    /// Creates a snapshot of these processes.
    pub fn new(owner: Option<Owner>, base_id: Option<u32>, processes: Vec<Entry>) -> Self {
        Self {
            version: VERSION,
            owner,
            base_id,
            processes,
        }
    }

    /// Loads the snapshot at `path`; `None` if there is none.
    ///
    /// An invalid snapshot is logged, renamed with the extension `.corrupt`, and otherwise treated as
    /// missing.
    ///
    /// # Errors
    /// When a file exists but cannot be read or renamed.
    pub fn load(path: &Path) -> Result<Option<Self>, FileError> {
        let failed = |verb| move |source| error("snapshot", verb, path, source);
        let text = match read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read")(error)),
        };
        let wrong = match serde_json::from_slice::<Self>(&text) {
            Ok(snapshot) if snapshot.version == VERSION => return Ok(Some(snapshot)),
            Ok(snapshot) => format!("its version is {}, not {VERSION}", snapshot.version),
            Err(error) => error.to_string(),
        };
        let aside = path.with_added_extension("corrupt");
        fs::rename(path, &aside).map_err(failed("moved aside"))?;
        tracing::warn!(
            snapshot = %path.display(), kept = %aside.display(), reason = %wrong,
            "the supervisor's snapshot is invalid; nothing is adopted"
        );
        Ok(None)
    }
}

/// The proxy that Envoys belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its id.
    pub proxy: String,
    /// The name of its node; may be empty when the node has an id.
    pub node_name: String,
    /// The id of its node; may be empty.
    pub node_id: String,
    /// Envoy's admin interface.
    pub admin: SocketAddr,
    /// Address or socket path from which Envoy fetches its configuration.
    pub xds: String,
}

impl Owner {
    /// Whether both are the same proxy on the same node. Ports may differ, and a node may be known by
    /// its name in one and by its id in the other.
    pub fn same_proxy(&self, other: &Self) -> bool {
        let differs = |one: &str, other: &str| !one.is_empty() && !other.is_empty() && one != other;
        self.proxy == other.proxy
            && !differs(&self.node_name, &other.node_name)
            && !differs(&self.node_id, &other.node_id)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = match self.node_name.is_empty() {
            true => &self.node_id,
            false => &self.node_name,
        };
        write!(
            f,
            "the proxy {:?} on the node {node:?} (Envoy's admin interface at {}, its configuration \
             from {})",
            self.proxy, self.admin, self.xds
        )
    }
}

/// A file that is replaced when its content changes. Without a path it does nothing.
#[derive(Debug)]
pub(super) struct StateFile {
    what: &'static str,
    path: Option<PathBuf>,
    written: Option<Vec<u8>>,
    logged: bool,
}

impl StateFile {
    /// The file at `path`; `what` is its name in messages.
    pub(super) fn new(what: &'static str, path: Option<PathBuf>) -> Self {
        Self {
            what,
            path,
            written: None,
            logged: false,
        }
    }

    /// Whether there is a path.
    pub(super) fn is_kept(&self) -> bool {
        self.path.is_some()
    }

    /// Sets the content of the file; no-op if it is unchanged.
    pub(super) fn set(&mut self, content: Vec<u8>) -> Result<(), FileError> {
        if let Some(path) = &self.path
            && self.written.as_ref() != Some(&content)
        {
            let replaced = replace(path, &content);
            replaced.map_err(|source| error(self.what, "written", path, source))?;
            self.written = Some(content);
            self.logged = false;
        }
        Ok(())
    }

    /// Like [`StateFile::set`], but errors are logged once until a write succeeds.
    pub(super) fn keep(&mut self, content: Vec<u8>) {
        if let Err(error) = self.set(content)
            && !std::mem::replace(&mut self.logged, true)
        {
            tracing::warn!(%error, "supervision continues without it");
        }
    }

    /// Removes the file if this supervisor has written it.
    pub(super) fn remove(&mut self) {
        if let Some(path) = &self.path
            && self.written.take().is_some()
            && let Err(source) = fs::remove_file(path)
            && source.kind() != io::ErrorKind::NotFound
        {
            let error = error(self.what, "removed", path, source);
            tracing::warn!(%error, "a file could not be removed");
        }
    }
}

fn error(what: &str, verb: &str, path: &Path, error: io::Error) -> FileError {
    FileError(format!("{what} {path:?} cannot be {verb}: {error}"))
}

/// Reads the file up to the size limit.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(SIZE_LIMIT).read_to_end(&mut text)?;
    Ok(text)
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_added_extension("new");
    // Removes the remains of an interrupted write, or a link or pipe created by someone else, whose
    // target must not be written.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&new)?.write_all(content)?;
        fs::rename(&new, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn owner() -> Owner {
        Owner {
            proxy: "web-proxy".to_owned(),
            node_name: "n1".to_owned(),
            node_id: String::new(),
            admin: "127.0.0.1:19000".parse().unwrap(),
            xds: "127.0.0.1:20000".to_owned(),
        }
    }

    #[test]
    fn a_proxy_is_known_by_its_id_and_its_node() {
        let one = owner();
        let moved = Owner {
            node_id: "6b0c".to_owned(),
            node_name: String::new(),
            xds: "/run/xds.sock".to_owned(),
            ..owner()
        };
        assert!(one.same_proxy(&moved), "the node's id is not known of one");
        let elsewhere = Owner {
            node_name: "n2".to_owned(),
            ..owner()
        };
        let other = Owner {
            proxy: "api-proxy".to_owned(),
            ..owner()
        };
        assert!(!one.same_proxy(&elsewhere) && !one.same_proxy(&other));
        let text = one.to_string();
        for word in ["web-proxy", "n1", "127.0.0.1:19000", "127.0.0.1:20000"] {
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn snapshots_of_earlier_and_later_versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot.json");
        let mut content = serde_json::to_value(snapshot()).unwrap();
        content["of a later version"] = 1.into();
        content["processes"][0]["too"] = 2.into();
        fs::write(&path, content.to_string()).unwrap();
        assert_eq!(Snapshot::load(&path).unwrap(), Some(snapshot()));
        content.as_object_mut().unwrap().remove("owner");
        fs::write(&path, content.to_string()).unwrap();
        assert_eq!(Snapshot::load(&path).unwrap().unwrap().owner, None);
    }

    fn snapshot() -> Snapshot {
        let identity = Identity::of(std::process::id()).unwrap();
        let entry = Entry {
            epoch: 3,
            fingerprint: "ab".to_owned(),
            stage: Stage::Serving,
            identity,
        };
        Snapshot::new(Some(owner()), Some(7), vec![entry])
    }

    #[test]
    fn a_snapshot_is_private_whole_and_written_only_when_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot.json");
        let mut file = StateFile::new("snapshot", Some(path.clone()));
        let content = serde_json::to_vec(&snapshot()).unwrap();
        file.set(content.clone()).unwrap();
        let first = fs::metadata(&path).unwrap();
        assert_eq!(first.permissions().mode() & 0o777, 0o600);
        file.set(content).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), first.ino());
        assert_eq!(Snapshot::load(&path).unwrap(), Some(snapshot()));
        file.set(b"{}".to_vec()).unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), first.ino());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        file.remove();
        assert_eq!(Snapshot::load(&path).unwrap(), None);
    }

    #[test]
    fn an_existing_temporary_file_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("envoy.pid");
        let stranger = folder.path().join("stranger");
        fs::write(&stranger, "untouched").unwrap();
        std::os::unix::fs::symlink(&stranger, folder.path().join("envoy.pid.new")).unwrap();
        let mut file = StateFile::new("pid file", Some(path.clone()));
        file.set(b"7\n".to_vec()).unwrap();
        assert_eq!(fs::read_to_string(&stranger).unwrap(), "untouched");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_to_string(&path).unwrap(), "7\n");
    }

    #[test]
    fn invalid_snapshots_are_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot.json");
        let whole = serde_json::to_string(&snapshot()).unwrap();
        for content in [
            "",
            "{}",
            "\u{0}\u{1}garbage",
            &whole[..whole.len() / 2],
            &whole.replace("\"version\":1", "\"version\":2"),
            &" ".repeat(2 * 1024 * 1024),
        ] {
            fs::write(&path, content).unwrap();
            assert_eq!(Snapshot::load(&path).unwrap(), None, "{content:.40}");
            assert!(!path.exists());
            let aside = folder.path().join("snapshot.json.corrupt");
            assert_eq!(fs::read_to_string(aside).unwrap(), content);
        }
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let path = Path::new("/proc/no-such-folder/snapshot.json");
        let error = StateFile::new("snapshot", Some(path.into()))
            .set(Vec::new())
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("snapshot") && text.contains("/proc/no-such-folder"),
            "{text}"
        );
        // A file that this supervisor has not written is not removed.
        StateFile::new("pid file", Some("/proc/self/stat".into())).remove();
        let folder = tempfile::tempdir().unwrap();
        assert!(
            Snapshot::load(folder.path()).is_err(),
            "a folder is no snapshot"
        );
    }
}
