//! What is given to commands: arguments that may name a file or standard input, pairs of key and value, and
//! the number of arguments. Sizes are limited; nothing is written.

use std::convert::Infallible;
use std::io::Read;

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};

/// The largest input that is read, in bytes.
const LIMIT: u64 = 64 << 20;

/// Text of an argument: `@FILE`, `-` for standard input, or the argument itself.
///
/// # Errors
///
/// When the file or standard input cannot be read.
pub(crate) fn text_or_file(argument: &str) -> anyhow::Result<String> {
    String::from_utf8(bytes_or_file(argument)?).context("it is not UTF-8")
}

/// As [`text_or_file`], for any bytes.
///
/// # Errors
///
/// As there.
pub(crate) fn bytes_or_file(argument: &str) -> anyhow::Result<Vec<u8>> {
    match argument.strip_prefix('@') {
        Some(path) => file(path),
        None if argument == "-" => stdin(),
        None => Ok(argument.as_bytes().to_vec()),
    }
}

/// Text of a file, or of standard input for `-`.
///
/// # Errors
///
/// When it cannot be read.
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

/// Text of a file.
///
/// # Errors
///
/// When it cannot be read.
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

/// Why the system refused, in the words of Go.
pub(crate) fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// The only argument, empty where there is none.
///
/// # Errors
///
/// When there are more.
pub(crate) fn at_most_one(arguments: &[String]) -> anyhow::Result<&str> {
    match arguments {
        [] => Ok(""),
        [one] => Ok(one),
        more => bail!("Too many arguments (expected 1, got {})", more.len()),
    }
}

/// # Errors
///
/// When there is an argument.
pub(crate) fn none(arguments: &[String]) -> anyhow::Result<()> {
    ensure!(
        arguments.is_empty(),
        "Too many arguments (expected 0, got {})",
        arguments.len()
    );
    Ok(())
}

/// `KEY=VALUE`.
///
/// # Errors
///
/// When there is no `=`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("missing \"=\" value in argument: {text}")),
    }
}

/// Pairs as a JSON object; the last one of a key counts.
pub(crate) fn object(pairs: &[(String, String)]) -> Value {
    let of = |(key, value): &(String, String)| (key.clone(), Value::from(value.as_str()));
    Value::Object(pairs.iter().map(of).collect::<Map<_, _>>())
}

/// A duration as Go writes it, such as `90s` or `1h30m`.
///
/// # Errors
///
/// When it is none, or negative.
pub(crate) fn duration(text: &str) -> Result<std::time::Duration, String> {
    legate_model::duration::parse(text).map_err(|error| error.to_string())
}

/// A secret, so that it is not printed.
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
