//! Passes the bootstrap document to Envoy: as an argument, or as an anonymous memory file if it is
//! too large for one. Never as a file on disk, so that it works in a read-only container and leaves
//! nothing behind.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::launch::SpawnError;

/// Linux limits an argument to 128 KiB including its terminator; this leaves a margin.
const ARGUMENT_LIMIT: usize = 120 * 1024;

/// The arguments for the document, and the file that they refer to. It must be kept open in this
/// process until Envoy, which inherits it, has been started.
pub(super) fn arguments(json: &str) -> Result<(Vec<OsString>, Option<File>), SpawnError> {
    if json.len() <= ARGUMENT_LIMIT {
        return Ok((vec!["--config-yaml".into(), json.into()], None));
    }
    let file = in_memory(json).map_err(|error| {
        SpawnError(format!(
            "the bootstrap document has {} bytes, too many for an argument, and the memory file for it \
             failed: {error}",
            json.len()
        ))
    })?;
    // Envoy reads no configuration below /proc, with the exception of /dev/fd. A file without
    // extension is parsed as JSON.
    let path = format!("/dev/fd/{}", file.as_raw_fd());
    Ok((vec!["--config-path".into(), path.into()], Some(file)))
}

/// Creates the memory file. It is closed on exec except in Envoy.
fn in_memory(json: &str) -> io::Result<File> {
    let file = memfd_create("envoy-bootstrap", MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(json.as_bytes())?;
    Ok(file)
}
