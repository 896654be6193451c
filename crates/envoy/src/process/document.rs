//! How the bootstrap document reaches Envoy: as an argument, or, where the kernel would refuse an
//! argument of that size, as an anonymous file in memory. Never as a file on disk, so that a
//! read-only container works and nothing is left behind.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::launch::SpawnError;

/// Linux takes 128 KiB for one argument, its end marker included; this leaves room.
const ARGUMENT_LIMIT: usize = 120 * 1024;

/// The arguments with the document, and the file that they name. That has to be open in this process
/// until Envoy, which inherits it, has been started.
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
    // Envoy reads no configuration below /proc, but makes an exception for /dev/fd; a name without
    // an extension is read as JSON.
    let path = format!("/dev/fd/{}", file.as_raw_fd());
    Ok((vec!["--config-path".into(), path.into()], Some(file)))
}

/// Closed on exec everywhere but in Envoy.
fn in_memory(json: &str) -> io::Result<File> {
    let file = memfd_create("envoy-bootstrap", MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(json.as_bytes())?;
    Ok(file)
}
