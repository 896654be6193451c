//! The limit on open files of this process. Every connection uses one.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit and returns it. Called once, by `main`. Most
/// systems have a soft limit of 1,024 for the sake of programs that use `select`, too low for
/// programs with many connections.
///
/// Child processes inherit the limit.
///
/// # Errors
/// The system's error; the limit is then unchanged.
pub fn raise() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// The current soft limit of open files.
///
/// # Errors
/// The system's error.
pub fn current() -> io::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}
