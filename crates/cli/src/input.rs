//! Reads command input: arguments that may refer to a file or standard input, key/value pairs, and argument
//! counts. Sizes are limited; nothing is written.

use std::convert::Infallible;
use std::io::Read;

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};

/// The maximum size of an input, in bytes.
const LIMIT: u64 = 64 << 20;

/// Resolves an argument: `@FILE`, `-` for standard input, or the text itself.
///
/// # Errors
///
/// If the file or standard input cannot be read.
pub(crate) fn text_or_file(argument: &str) -> anyhow::Result<String> {
    String::from_utf8(bytes_or_file(argument)?).context("it is not UTF-8")
}

/// Like [`text_or_file`], for arbitrary bytes.
///
/// # Errors
///
/// As [`text_or_file`].
pub(crate) fn bytes_or_file(argument: &str) -> anyhow::Result<Vec<u8>> {
    match argument.strip_prefix('@') {
        Some(path) => file(path),
        None if argument == "-" => stdin(),
        None => Ok(argument.as_bytes().to_vec()),
    }
}

/// Reads text from a file, or from standard input for `-`.
///
/// # Errors
///
/// If it cannot be read.
pub(crate) fn file_or_stdin(path: &str) -> anyhow::Result<String> {
    ensure!(
        !path.is_empty(),
        "Failed to load data: must specify a file path or '-' for stdin"
    );
    let bytes = match path {
        "-" => stdin()?,
        path => file(path)?,
    };
    String::from_utf8(bytes).with_context(|| format!("{path} is not UTF-8"))
}

/// Reads text from a file.
///
/// # Errors
///
/// If it cannot be read.
pub(crate) fn file_text(path: &str) -> anyhow::Result<String> {
    String::from_utf8(opened(path)?).with_context(|| format!("{path} is not UTF-8"))
}

fn opened(path: &str) -> anyhow::Result<Vec<u8>> {
    let opened = std::fs::File::open(path).and_then(|file| limited(file, path));
    opened.map_err(|error| anyhow::anyhow!("open {path}: {}", reason(&error)))
}

fn file(path: &str) -> anyhow::Result<Vec<u8>> {
    opened(path).context("Failed to read file")
}

fn stdin() -> anyhow::Result<Vec<u8>> {
    limited(std::io::stdin(), "standard input").context("Failed to read stdin")
}

fn limited(source: impl Read, name: &str) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT {
        let text = format!("{name} is larger than {LIMIT} bytes");
        return Err(std::io::Error::other(text));
    }
    Ok(bytes)
}

/// The system's error in Go's words.
pub(crate) fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// The only argument; empty if there is none.
///
/// # Errors
///
/// If there are more.
pub(crate) fn at_most_one(arguments: &[String]) -> anyhow::Result<&str> {
    match arguments {
        [] => Ok(""),
        [one] => Ok(one),
        more => bail!("Too many arguments (expected 1, got {})", more.len()),
    }
}

/// # Errors
///
/// If there is an argument.
pub(crate) fn none(arguments: &[String]) -> anyhow::Result<()> {
    ensure!(
        arguments.is_empty(),
        "Too many arguments (expected 0, got {})",
        arguments.len()
    );
    Ok(())
}

/// Parses `KEY=VALUE`.
///
/// # Errors
///
/// If there is no `=`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("missing \"=\" value in argument: {text}")),
    }
}

/// Converts pairs to a JSON object; the last value of a key wins.
pub(crate) fn object(pairs: &[(String, String)]) -> Value {
    let of = |(key, value): &(String, String)| (key.clone(), Value::from(value.as_str()));
    Value::Object(pairs.iter().map(of).collect::<Map<_, _>>())
}

/// Parses a duration in Go's syntax, such as `90s` or `1h30m`.
///
/// # Errors
///
/// If it is invalid or negative.
pub(crate) fn duration(text: &str) -> Result<std::time::Duration, String> {
    legate_model::duration::parse(text).map_err(|error| error.to_string())
}

/// Parses a secret, which is never printed.
///
/// # Errors
///
/// Never.
pub(crate) fn secret(text: &str) -> Result<legate_model::Secret, Infallible> {
    Ok(legate_model::Secret::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_files_or_are_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        std::fs::write(&path, "content").unwrap();
        let at = format!("@{}", path.display());
        assert_eq!(text_or_file(&at).unwrap(), "content");
        assert_eq!(text_or_file("-5").unwrap(), "-5");
        assert_eq!(text_or_file("").unwrap(), "");
        let missing = format!("{:#}", text_or_file("@/nowhere/x").unwrap_err());
        assert!(missing.contains("no such file or directory"), "{missing}");
    }

    #[test]
    fn pairs_have_an_equals_sign() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(pair("a").is_err());
    }
}
