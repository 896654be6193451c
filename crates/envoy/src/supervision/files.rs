//! Files that tell others, or a later supervisor, what runs: the pid file and the snapshot. Both
//! are replaced as a whole, readable by their owner alone, and written when their content changes
//! and at no other time. They hold neither configuration nor secrets, and mean nothing after the next
//! start of the machine, so that nobody waits until they are on the disk.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::process::Identity;

/// The form of the snapshot that is written and understood.
const VERSION: u32 = 1;
/// Largest snapshot that is read, in bytes; a real one has a few hundred.
const SIZE_LIMIT: u64 = 1024 * 1024;

/// A file cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the {0}; name a folder that this user can write")]
pub struct FileError(String);

/// What a supervisor leaves for its successor.
///
/// Fields that are not known are ignored: a later version may have written them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    version: u32,
    /// Whose processes these are; absent where nobody said.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// What parent and child of a hot restart share; absent when it is not possible.
    pub base_id: Option<u32>,
    /// The processes, the oldest epoch first.
    pub processes: Vec<Entry>,
}

/// A process of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Number of its epoch.
    pub epoch: u32,
    /// Digest of what it runs, see `Host::fingerprint`.
    pub fingerprint: String,
    /// Where it was in its life.
    pub stage: Stage,
    /// Which process it is.
    pub identity: Identity,
}

/// Where a process of a snapshot was in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It was not ready yet.
    Starting,
    /// It served.
    Serving,
    /// It was on its way to its end.
    Leaving,
}

impl Snapshot {
    /// A snapshot of these processes.
    pub fn new(owner: Option<Owner>, base_id: Option<u32>, processes: Vec<Entry>) -> Self {
        Self {
            version: VERSION,
            owner,
            base_id,
            processes,
        }
    }

    /// Reads the snapshot at `path`; nothing when there is none.
    ///
    /// One that makes no sense is moved aside to a name with `.corrupt` at its end, logged,
    /// and counts as none.
    ///
    /// # Errors
    /// When a file is there and cannot be read or moved.
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
            "the supervisor's snapshot makes no sense; nothing is adopted"
        );
        Ok(None)
    }
}

/// The proxy that Envoys work for.
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
    /// Where Envoy gets its configuration: an address, or the path of a socket.
    pub xds: String,
}

impl Owner {
    /// Whether both are the same proxy on the same node; it may have other ports by now, or be
    /// known by the other one of name and id.
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

/// A file that is replaced when its content changes; without a path there is none.
#[derive(Debug)]
pub(super) struct StateFile {
    what: &'static str,
    path: Option<PathBuf>,
    written: Option<Vec<u8>>,
    complained: bool,
}

impl StateFile {
    /// The file at `path`; `what` it is for people.
    pub(super) fn new(what: &'static str, path: Option<PathBuf>) -> Self {
        Self {
            what,
            path,
            written: None,
            complained: false,
        }
    }

    /// Whether there is one.
    pub(super) fn is_kept(&self) -> bool {
        self.path.is_some()
    }

    /// Makes `content` the file's content, unless it already is.
    pub(super) fn set(&mut self, content: Vec<u8>) -> Result<(), FileError> {
        if let Some(path) = &self.path
            && self.written.as_ref() != Some(&content)
        {
            let replaced = replace(path, &content);
            replaced.map_err(|source| error(self.what, "written", path, source))?;
            self.written = Some(content);
            self.complained = false;
        }
        Ok(())
    }

    /// Like [`StateFile::set`]; trouble is logged, once until it works again.
    pub(super) fn keep(&mut self, content: Vec<u8>) {
        if let Err(error) = self.set(content)
            && !std::mem::replace(&mut self.complained, true)
        {
            tracing::warn!(%error, "supervision goes on without it");
        }
    }

    /// Removes the file, if this supervisor wrote it.
    pub(super) fn remove(&mut self) {
        if let Some(path) = &self.path
            && self.written.take().is_some()
            && let Err(source) = fs::remove_file(path)
            && source.kind() != io::ErrorKind::NotFound
        {
            let error = error(self.what, "removed", path, source);
            tracing::warn!(%error, "a file is left behind");
        }
    }
}

fn error(what: &str, verb: &str, path: &Path, error: io::Error) -> FileError {
    FileError(format!("{what} {path:?} cannot be {verb}: {error}"))
}

/// No more than the limit, which cuts a larger one off.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(SIZE_LIMIT).read_to_end(&mut text)?;
    Ok(text)
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_added_extension("new");
    // One that a supervisor left which was ended while it wrote, or a link or a pipe of a stranger's:
    // what that leads to is not written.
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
    fn what_stands_in_place_of_the_new_file_is_not_written_to() {
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
    fn what_makes_no_sense_is_kept_aside() {
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
        // A file that this supervisor never wrote is none of its business.
        StateFile::new("pid file", Some("/proc/self/stat".into())).remove();
        let folder = tempfile::tempdir().unwrap();
        assert!(
            Snapshot::load(folder.path()).is_err(),
            "a folder is no snapshot"
        );
    }
}
