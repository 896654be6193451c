//! Configuration files: every file results in settings or an error, the same each time, and neither contains
//! its token. The input is the file.
#![no_main]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use legate_dataplane::settings::{Environment, load};
use libfuzzer_sys::{Corpus, fuzz_target};
use tempfile::TempDir;

/// Prefix of values that must not be shown. No output of the program contains it otherwise.
const SECRET: &str = "s3cr3t-";

/// The folder of the process's only file. It is removed with the process's temporary files.
static FOLDER: OnceLock<TempDir> = OnceLock::new();

fuzz_target!(|input: &[u8]| -> Corpus {
    // Settings can name files that are read. Excludes endless ones, however their paths are escaped.
    let folders = ["dev", "proc", "sys", "\\u"];
    if folders.iter().any(|part| contains(input, part.as_bytes())) {
        return Corpus::Reject;
    }
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder can be made"));
    let path = folder.path().join("config.json");
    fs::write(&path, input).expect("the file can be written");

    let once = outcome(&path);
    if let Some(token) = token(input) {
        assert!(!once.contains(&token), "a token is shown: {once}");
    }
    assert_eq!(once, outcome(&path), "the outcome varies");
    Corpus::Keep
});

/// The result of loading the file with the minimal settings of a sidecar.
fn outcome(path: &Path) -> String {
    let arguments: [OsString; 6] = [
        "-addresses".into(),
        "10.0.0.1".into(),
        "-proxy-id".into(),
        "web".into(),
        "-config-file".into(),
        PathBuf::from(path).into(),
    ];
    match load(arguments, Environment::new([])) {
        Ok(invocation) => format!("{invocation:?}"),
        // Not `Debug`, which may contain a backtrace that differs between calls.
        Err(error) => format!("{error:#}"),
    }
}

/// The token in the file, if its text occurs only once.
fn token(input: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(input).ok()?;
    let file: serde_json::Value = serde_json::from_str(text).ok()?;
    let token = file.pointer("/consul/credentials/static/token")?.as_str()?;
    let marked = token.starts_with(SECRET) && text.matches(SECRET).count() == 1;
    marked.then(|| token.to_owned())
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
