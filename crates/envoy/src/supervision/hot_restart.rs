//! Determines whether Envoy can be restarted hot on this machine, and why not; and manages the
//! shared memory region of parent and child as far as a supervisor must.

use std::collections::hash_map::RandomState;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::process::{Launch, hot_restart_option};

/// The C library's directory of named shared memory.
pub const SHARED_MEMORY: &str = "/dev/shm";
/// Default for the lifetime of a parent beyond the drain time.
const PARENT_MARGIN: Duration = Duration::from_secs(15);

/// Parameters of hot restarts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotRestart {
    /// The file to which Envoy writes the base id that it chooses at its first start, and that
    /// parent and child share.
    pub base_id: PathBuf,
    /// How long a parent lives after the takeover (`--parent-shutdown-time-s`), in whole seconds;
    /// at least the drain time.
    pub parent_shutdown: Duration,
    /// Directory of the shared memory.
    pub shared_memory: PathBuf,
}

impl HotRestart {
    /// Parameters with a base id that Envoy chooses, written to a file in shared memory so that no
    /// other directory has to be writable, and with parents that live 15 s longer than
    /// `drain_time`.
    pub fn new(drain_time: Duration) -> Self {
        let name = unique("legate-envoy") + ".base-id";
        Self {
            base_id: Path::new(SHARED_MEMORY).join(name),
            parent_shutdown: drain_time.saturating_add(PARENT_MARGIN),
            shared_memory: SHARED_MEMORY.into(),
        }
    }

    /// The base id that Envoy has chosen and written.
    pub(super) fn chosen_base_id(&self) -> Result<u32, String> {
        let path = &self.base_id;
        let read = fs::read_to_string(path).map_err(|error| error.to_string());
        let number = read.and_then(|text| text.trim().parse().map_err(|_| format!("{text:?}")));
        number.map_err(|reason| format!("Envoy's base id cannot be read from {path:?}: {reason}"))
    }

    pub(super) fn remove_base_id(&self) {
        let _ = fs::remove_file(&self.base_id);
    }
}

/// Obstacle if hot restart is disabled.
pub(super) const OFF: &str = "it is switched off";
/// Obstacle while the running Envoy cannot be taken over from.
pub(super) const RUNNING: &str = "the running Envoy was started without hot restart";

/// The reason why `launch` cannot be restarted hot on this machine, if there is one.
pub(super) fn obstacle(hot: Option<&HotRestart>, launch: &Launch) -> Option<String> {
    let Some(hot) = hot else {
        return Some(OFF.to_owned());
    };
    if let Some(argument) = hot_restart_option(&launch.extra_args) {
        return Some(format!("the Envoy argument {argument} was given"));
    }
    if let Some(listener) = udp_listener(&launch.bootstrap) {
        return Some(format!("the listener {listener:?} uses UDP"));
    }
    let (path, error) = (&hot.shared_memory, writable(&hot.shared_memory).err()?);
    Some(format!(
        "{path:?} cannot be written ({error}), and Envoy needs shared memory there"
    ))
}

/// A unique name. The process id is not sufficient: containers of a pod may share memory, and in
/// each of them it is 1.
fn unique(what: &str) -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{what}-{}-{random:016x}", std::process::id())
}

/// Writes as many bytes as Envoy does, because the file system may be full or have no size.
fn writable(folder: &Path) -> io::Result<()> {
    let probe = folder.join(unique("legate-probe"));
    let written = fs::write(&probe, [1; REGION_SIZE]);
    let _ = fs::remove_file(&probe);
    written
}

/// The name of the first UDP listener of the document.
fn udp_listener(bootstrap: &str) -> Option<String> {
    let document: Value = serde_json::from_str(bootstrap).ok()?;
    let listeners = document["static_resources"]["listeners"].as_array()?;
    let udp = listeners.iter().find(|listener| {
        listener.get("udp_listener_config").is_some()
            || listener["address"]["socket_address"]["protocol"] == "UDP"
    })?;
    Some(udp["name"].as_str().unwrap_or("without a name").to_owned())
}

/// Size of the region that a family shares, and offset of its flags, for hot restart version 11
/// (Envoy 1.13 and later). Size and version are verified before any change.
const REGION_SIZE: usize = 104;
const REGION_VERSION: u64 = 11;
const FLAGS_OFFSET: usize = 96;
/// Set while a child initialises. If the child dies before it has finished, the flag remains set
/// and every later child refuses to start.
const INITIALIZING: u8 = 1;

/// The file of a family's shared region.
pub(super) fn region(shared_memory: &Path, base_id: u32) -> PathBuf {
    shared_memory.join(format!("envoy_shared_memory_{}", u64::from(base_id) * 10))
}

/// Clears the flag of a child that died during its initialisation. Call it only while no child of
/// the family is initialising. Returns whether the flag was set.
///
/// # Errors
/// When the region cannot be read or written, or has an unknown layout.
pub(super) fn clear_flag(region: &Path) -> io::Result<bool> {
    let mut file = OpenOptions::new().read(true).write(true).open(region)?;
    let mut content = Vec::new();
    (&mut file)
        .take(REGION_SIZE as u64 + 1)
        .read_to_end(&mut content)?;
    let known = content.len() == REGION_SIZE
        && content[..8] == (REGION_SIZE as u64).to_ne_bytes()
        && content[8..16] == REGION_VERSION.to_ne_bytes();
    if !known {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "unknown layout"));
    }
    if content[FLAGS_OFFSET] & INITIALIZING == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::Start(FLAGS_OFFSET as u64))?;
    file.write_all(&[content[FLAGS_OFFSET] & !INITIALIZING])?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::process::{DrainStrategy, EnvoyLog};
    use legate_runtime::logging::Level;

    fn launch(bootstrap: &str, extra: &[&str]) -> Launch {
        Launch {
            executable: "envoy".into(),
            bootstrap: bootstrap.to_owned(),
            log: EnvoyLog {
                level: Level::Info,
                json: false,
            },
            concurrency: 1,
            drain_time: Duration::from_secs(1),
            drain_strategy: DrainStrategy::Immediate,
            extra_args: extra.iter().map(OsString::from).collect(),
        }
    }

    #[test]
    fn obstacles_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let here = HotRestart {
            shared_memory: folder.path().into(),
            ..HotRestart::new(Duration::from_secs(30))
        };
        let plain = launch("{}", &[]);
        assert_eq!(obstacle(Some(&here), &plain), None);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            0,
            "no trace of the probe"
        );
        assert_eq!(obstacle(None, &plain).as_deref(), Some(OFF));
        let said = |hot: &HotRestart, launch: &Launch| obstacle(Some(hot), launch).unwrap();
        assert!(said(&here, &launch("{}", &["--base-id 3"])).contains("--base-id"));
        let nowhere = HotRestart {
            shared_memory: "/no/such/folder".into(),
            ..here.clone()
        };
        assert!(said(&nowhere, &plain).contains("/no/such/folder"));
        for listener in [
            r#"{"name":"dns","udp_listener_config":{}}"#,
            r#"{"name":"dns","address":{"socket_address":{"protocol":"UDP"}}}"#,
        ] {
            let document = format!(r#"{{"static_resources":{{"listeners":[{listener}]}}}}"#);
            assert!(said(&here, &launch(&document, &[])).contains("\"dns\" uses UDP"));
        }
    }

    #[test]
    fn containers_that_share_memory_have_files_of_their_own() {
        let names = [(); 2].map(|()| HotRestart::new(Duration::ZERO).base_id);
        assert_ne!(names[0], names[1], "though the process is the same");
    }

    #[test]
    fn only_the_flag_of_a_dead_child_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let path = region(folder.path(), 77);
        assert!(path.ends_with("envoy_shared_memory_770"));
        let mut content = vec![7_u8; REGION_SIZE];
        content[..8].copy_from_slice(&(REGION_SIZE as u64).to_ne_bytes());
        content[8..16].copy_from_slice(&REGION_VERSION.to_ne_bytes());
        fs::write(&path, &content).unwrap();
        assert!(clear_flag(&path).unwrap());
        assert!(!clear_flag(&path).unwrap());
        content[FLAGS_OFFSET] = 6;
        assert_eq!(fs::read(&path).unwrap(), content);
        content[8] = 12;
        fs::write(&path, &content).unwrap();
        assert!(clear_flag(&path).is_err());
        fs::write(&path, &content[..50]).unwrap();
        assert!(clear_flag(&path).is_err());
    }
}
