//! How many files this process may open: every connection is one.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one and returns it. To be called once, by
/// `main`. The soft limit is 1,024 on most systems, for the sake of programs that use `select`;
/// what runs here needs a file for every connection.
///
/// Processes that are started later inherit it.
///
/// # Errors
/// What the system says; the limit is as it was then.
pub fn raise() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// How many files the process may have open now: the soft limit.
///
/// # Errors
/// What the system says.
pub fn current() -> io::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}
