//! How the bootstrap document reaches Envoy: as an argument, or, where the kernel would refuse an
//! argument of that size, as an anonymous file in memory. Never as a file on disk, so that a
//! read-only container works and nothing is left behind.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::SpawnError;

/// Linux takes 128 KiB for one argument, its end marker included; this leaves room.
const ARGUMENT_LIMIT: usize = 120 * 1024;

pub(super) enum Document {
    Argument(String),
    /// Open in this process until Envoy has been started; closed on exec everywhere but in Envoy.
    Memory(File),
}

impl Document {
    pub(super) fn new(json: &str) -> Result<Self, SpawnError> {
        if json.len() <= ARGUMENT_LIMIT {
            return Ok(Self::Argument(json.to_owned()));
        }
        let write = || {
            let file = memfd_create("envoy-bootstrap", MFdFlags::MFD_CLOEXEC)?;
            let mut file = File::from(file);
            file.write_all(json.as_bytes())?;
            Ok(Self::Memory(file))
        };
        write().map_err(|error: std::io::Error| {
            SpawnError(format!(
                "the bootstrap document has {} bytes, too many for an argument, and the memory file for it \
                 failed: {error}",
                json.len()
            ))
        })
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    pub(super) fn arguments(&self) -> Vec<OsString> {
        match self {
            Self::Argument(json) => vec!["--config-yaml".into(), json.into()],
            // Envoy reads no configuration below /proc, but makes an exception for /dev/fd; a
            // name without an extension is read as JSON.
            Self::Memory(file) => {
                let path = format!("/dev/fd/{}", file.as_raw_fd());
                vec!["--config-path".into(), path.into()]
            }
        }
    }

    /// What Envoy has to inherit.
    pub(super) fn inherited(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Argument(_) => None,
            Self::Memory(file) => Some(file.as_fd()),
        }
    }
}
