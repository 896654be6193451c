//! The paths of the lifecycle server: each has one meaning.

use super::invalid::Invalid;
use super::table::Item;
use crate::lifecycle;

/// The lifecycle server answers every path in one way only.
pub(super) fn check(shutdown: &str, startup: &str) -> Result<(), Invalid> {
    if shutdown == startup {
        return Err(Invalid::SamePaths(shutdown.to_owned()));
    }
    if lifecycle::matches(shutdown, startup) || lifecycle::matches(startup, shutdown) {
        return Err(Invalid::OverlappingPaths {
            shutdown: shutdown.to_owned(),
            startup: startup.to_owned(),
        });
    }
    for (key, value) in [
        (Item::GracefulShutdownPath, shutdown),
        (Item::GracefulStartupPath, startup),
    ] {
        let taken = lifecycle::PATHS.iter();
        if let Some(path) = taken.copied().find(|path| lifecycle::matches(value, path)) {
            return Err(Invalid::PathTaken {
                flag: key.setting().flag,
                value: value.to_owned(),
                path,
            });
        }
    }
    Ok(())
}
