//! How many files this process may open. The soft limit that processes get is there for programs
//! of old that cannot use more; a proxy needs one for each connection.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one. To be called once, by `main`.
///
/// Envoy inherits it, which is meant: it opens far more files than this process, can use all of
/// them, and the Envoys of today raise their own limit in the same way.
///
/// # Errors
/// When the operating system refuses.
pub fn raise() -> nix::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}
