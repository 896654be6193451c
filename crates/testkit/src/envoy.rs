//! The real Envoy that scenarios run.
//!
//! In order: `LEGATE_ENVOY`, `envoy` on `PATH`, the Envoy fetched by `cargo xtask envoy`. A missing
//! Envoy fails the test instead of skipping it.

use std::path::{Path, PathBuf};

/// Path of the Envoy binary.
///
/// # Panics
///
/// If there is none, with the command that fetches one.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the environment selects the Envoy of tests"
)]
pub fn binary() -> PathBuf {
    let named = std::env::var_os("LEGATE_ENVOY")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = || {
        std::env::split_paths(&path)
            .map(|folder| folder.join("envoy"))
            .find(|file| file.is_file())
    };
    let fetched = || Some(target().join("envoy/envoy")).filter(|file| file.is_file());
    let found = named.or_else(on_path).or_else(fetched);
    match found {
        Some(file) if file.is_file() => file,
        Some(file) => panic!("LEGATE_ENVOY is {}, which is not a file", file.display()),
        None => panic!("no Envoy: run `cargo xtask envoy`, or set LEGATE_ENVOY to an Envoy binary"),
    }
}

/// Path of a binary of this workspace: in `LEGATE_BINARIES`, or in the folder of the running test.
///
/// # Panics
///
/// If it has not been built, with the command that builds it.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the environment selects the profile of benchmarks"
)]
pub fn workspace_binary(name: &str) -> PathBuf {
    let folder = std::env::var_os("LEGATE_BINARIES").map_or_else(profile_folder, PathBuf::from);
    let file = folder.join(name);
    assert!(
        file.is_file(),
        "{} is missing: run `cargo build -p {name}` or `cargo xtask test`",
        file.display()
    );
    file
}

/// `target/<profile>`: test executables are in its `deps`.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    test.parent()
        .and_then(Path::parent)
        .map(Path::to_path_buf)
        .unwrap_or_default()
}

/// Cargo's target directory, with the programs that `cargo xtask` fetches.
pub(crate) fn target() -> PathBuf {
    profile_folder()
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}
