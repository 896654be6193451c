//! The files that the process may open: every connection is one.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one and returns it. The soft limit is 1,024 on
/// most systems, for the sake of programs that use `select`; a server needs a file for every
/// connection.
///
/// # Errors
/// What the system says; the limit is as it was then.
pub fn raise_file_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// How many files the process may have open now.
///
/// # Errors
/// What the system says.
pub(crate) fn file_limit() -> io::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}
