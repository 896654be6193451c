//! Finds the Envoy binary. Only examines files; the caller supplies `$PATH`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// Why no Envoy binary was found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The configured path is not a usable program.
    #[error("-envoy-executable-path {path:?} cannot be used: {reason}")]
    Named {
        /// The configured path.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// `$PATH` contains no program called `envoy`.
    #[error(
        "no program called envoy in $PATH ({searched}); install Envoy or name it with -envoy-executable-path"
    )]
    NotFound {
        /// The value of `$PATH`, to show what was searched.
        searched: String,
    },
}

/// The Envoy binary: `explicit` verbatim if set, else the first executable `envoy` in the folders
/// of `path_var`.
///
/// # Errors
/// When the configured path is not an executable file, or no folder contains one.
pub fn find_executable(
    explicit: Option<&Path>,
    path_var: Option<&OsStr>,
) -> Result<PathBuf, FindError> {
    let unusable = |path: &Path, reason: String| FindError::Named {
        path: path.to_path_buf(),
        reason,
    };
    // A bare name is looked up like any command, so that `-envoy-executable-path envoy-1.38` works.
    let name = match explicit {
        Some(path) if path.components().count() > 1 || path.is_absolute() => {
            let found = executable(path).map(|()| path.to_path_buf());
            return found.map_err(|reason| unusable(path, reason));
        }
        Some(name) => name,
        None => Path::new("envoy"),
    };
    let folders = path_var.map(std::env::split_paths).into_iter().flatten();
    let mut candidates = folders.map(|folder| folder.join(name));
    let found = candidates.find(|candidate| executable(candidate).is_ok());
    found.ok_or_else(|| match explicit {
        Some(path) => unusable(path, "no folder of $PATH contains it".to_owned()),
        None => FindError::NotFound {
            searched: path_var.unwrap_or_default().to_string_lossy().into_owned(),
        },
    })
}

fn executable(path: &Path) -> Result<(), String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("not a file".to_owned());
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err("not executable".to_owned());
    }
    runnable(path).map_err(str::to_owned)
}

/// A program that is known to run on this machine.
const OWN: &str = "/proc/self/exe";
/// Magic number of ELF files.
const ELF: &[u8] = b"\x7fELF";
/// Length of an ELF header up to the machine type, in bytes.
const HEADER: u64 = 20;

fn header(path: &Path) -> Option<Vec<u8>> {
    let mut header = Vec::new();
    let file = File::open(path).ok()?;
    file.take(HEADER).read_to_end(&mut header).ok()?;
    Some(header)
}

/// Word size and byte order, and the machine type.
fn kind(header: &[u8]) -> [Option<&[u8]>; 2] {
    [header.get(4..6), header.get(18..20)]
}

/// Checks the file format. This has to happen here, because the C library would pass an unknown
/// format to a shell.
fn runnable(path: &Path) -> Result<(), &'static str> {
    // A program can be executable without being readable.
    let Some(file) = header(path) else {
        return Ok(());
    };
    if file.starts_with(b"#!") {
        return Ok(());
    }
    if !file.starts_with(ELF) {
        return Err("not a program");
    }
    match header(Path::new(OWN)) {
        Some(own) if own.starts_with(ELF) && kind(&own) != kind(&file) => {
            Err("a program for another kind of machine")
        }
        _ => Ok(()),
    }
}

/// Rejects files that are not programs for this machine, with the kernel's error for them.
pub(crate) fn reject_foreign(path: &Path) -> io::Result<()> {
    // Bare names are looked up elsewhere. Opening a special file might block.
    let is_file = path.components().count() > 1 && path.is_file();
    match is_file && runnable(path).is_err() {
        true => Err(Errno::ENOEXEC.into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(folder: &Path, name: &str, mode: u32) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn the_first_executable_of_the_path_wins() {
        let (empty, plain, good) = (
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
        );
        program(plain.path(), "envoy", 0o644);
        let wanted = program(good.path(), "envoy", 0o755);
        let path = std::env::join_paths([empty.path(), plain.path(), good.path()]).unwrap();
        assert_eq!(find_executable(None, Some(&path)).unwrap(), wanted);
    }

    #[test]
    fn a_configured_file_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let plain = program(folder.path(), "plain", 0o644);
        let error = find_executable(Some(&plain), None).unwrap_err().to_string();
        assert!(
            error.contains("-envoy-executable-path") && error.contains("not executable"),
            "{error}"
        );
        let error = find_executable(Some(folder.path()), None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("not a file"), "{error}");
        let error = find_executable(Some(Path::new("/nope/envoy")), None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn files_that_are_not_programs_for_this_machine_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(folder.path(), "envoy", 0o755);
        let refusal = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            find_executable(Some(&path), None).map_err(|error| error.to_string())
        };
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(refusal(&own).is_ok());
        let mut other = own[..64].to_vec();
        other[18] ^= 0x55;
        assert!(
            refusal(&other)
                .unwrap_err()
                .contains("another kind of machine")
        );
        for content in [&b""[..], b"envoy", b"\x7fEL"] {
            assert!(refusal(content).unwrap_err().contains("not a program"));
        }
    }

    #[test]
    fn a_bare_name_is_searched_and_nothing_found_names_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = program(folder.path(), "envoy-2", 0o755);
        let path = folder.path().as_os_str();
        assert_eq!(
            find_executable(Some(Path::new("envoy-2")), Some(path)).unwrap(),
            wanted
        );
        assert!(find_executable(Some(Path::new("envoy-3")), Some(path)).is_err());
        let error = find_executable(None, Some(path)).unwrap_err().to_string();
        assert!(error.contains(&*path.to_string_lossy()), "{error}");
    }
}
