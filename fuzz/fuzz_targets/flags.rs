//! Flags and environment variables: every combination results in settings or an error, the same each time, and
//! neither contains the token.
//!
//! Input: variables as lines `NAME=value`, an empty line, then one argument per line.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use legate_dataplane::settings::{Environment, load};
use libfuzzer_sys::{Corpus, fuzz_target};

/// Inputs never contain this text, so it can only be shown because of this flag.
const TOKEN: &str = "the-token-nobody-may-see";

fuzz_target!(|input: &[u8]| -> Corpus {
    // Arguments can name files that are read. Excludes endless ones.
    let refused = ["/dev/", "/proc/", "/sys/", "nobody-may-see"];
    if refused.iter().any(|part| contains(input, part.as_bytes())) {
        return Corpus::Reject;
    }
    let mut lines = input.split(|byte| *byte == b'\n');
    let variables: Vec<(OsString, OsString)> = lines
        .by_ref()
        .take_while(|line| !line.is_empty())
        .map(|line| {
            let equals = line.iter().position(|byte| *byte == b'=');
            let (name, value) = line.split_at(equals.unwrap_or(line.len()));
            (text(name), text(value.get(1..).unwrap_or_default()))
        })
        .collect();
    let arguments = ["-static-token".into(), TOKEN.into()];
    let arguments: Vec<OsString> = arguments.into_iter().chain(lines.map(text)).collect();

    let once = outcome(&arguments, &variables);
    assert!(!once.contains(TOKEN), "a token is shown: {once}");
    assert_eq!(once, outcome(&arguments, &variables), "the outcome varies");
    Corpus::Keep
});

fn outcome(arguments: &[OsString], variables: &[(OsString, OsString)]) -> String {
    let environment = Environment::new(variables.iter().cloned());
    match load(arguments.iter().cloned(), environment) {
        Ok(invocation) => format!("{invocation:?}"),
        // Not `Debug`, which may contain a backtrace that differs between calls.
        Err(error) => format!("{error:#}"),
    }
}

fn text(bytes: &[u8]) -> OsString {
    std::ffi::OsStr::from_bytes(bytes).to_owned()
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
