//! Parses the command line in the grammar of Go's `flag` package: one dash or two, `-x=v` or `-x
//! v`, booleans without a value; parsing stops at the first argument that is not a flag.

use std::ffi::{OsStr, OsString};

use super::table::{Kind, SETTINGS};
use super::types::SettingsError;
use super::values::{Source, Values};

/// Parses the arguments, without the program's name. Returns the arguments after the flags, which
/// are passed to Envoy.
pub(super) fn read(
    arguments: impl IntoIterator<Item = OsString>,
    values: &mut Values,
) -> Result<Vec<OsString>, SettingsError> {
    let mut arguments = (1..).zip(arguments);
    let mut rest = Vec::new();
    while let Some((position, argument)) = arguments.next() {
        let text = utf8(position, &argument, named(&argument))?;
        if text.len() < 2 || !text.starts_with('-') {
            rest.push(argument);
            break;
        }
        if text == "--" {
            break;
        }
        let name = text.strip_prefix("--").unwrap_or_else(|| &text[1..]);
        if name.is_empty() || name.starts_with(['-', '=']) {
            return Err(wrong(format!("bad flag syntax: {text}")));
        }
        let (name, attached) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (name, None),
        };
        let Some(setting) = SETTINGS.iter().find(|setting| setting.flag == name) else {
            return Err(match name {
                "h" | "help" => SettingsError::Help,
                _ => wrong(format!("flag provided but not defined: -{name}")),
            });
        };
        let next;
        let value = match (attached, setting.kind) {
            (Some(value), _) => value,
            (None, Kind::Bool) => "true",
            (None, _) => {
                next = arguments.next();
                let Some((position, argument)) = &next else {
                    return Err(wrong(format!("flag needs an argument: -{name}")));
                };
                utf8(*position, argument, Some(format!("-{name}")))?
            }
        };
        let put = values.put(setting.key, Source::Flag, value);
        put.map_err(|reason| match setting.kind {
            Kind::Bool => wrong(format!(
                "invalid boolean value {value:?} for -{name}: {reason}"
            )),
            _ => wrong(format!(
                "invalid value {value:?} for flag -{name}: {reason}"
            )),
        })?;
    }
    rest.extend(arguments.map(|(_, argument)| argument));
    Ok(rest)
}

fn wrong(message: String) -> SettingsError {
    SettingsError::Flag(message)
}

/// The argument as text. An argument that is not UTF-8 may be a secret, so the error shows only its
/// position and flag.
fn utf8(position: usize, argument: &OsStr, flag: Option<String>) -> Result<&str, SettingsError> {
    argument.to_str().ok_or_else(|| {
        let flag = flag.map(|flag| format!(" ({flag})")).unwrap_or_default();
        wrong(format!("argument {position}{flag} is not valid UTF-8"))
    })
}

/// The `-name` part of `-name=value`.
fn named(argument: &OsStr) -> Option<String> {
    let text = argument.to_string_lossy();
    let (name, _) = text.split_once('=')?;
    name.starts_with('-').then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::super::table::Item;
    use super::*;

    #[derive(Debug)]
    struct CommandLine {
        values: Values,
        rest: Vec<OsString>,
    }

    fn parse(arguments: Vec<OsString>) -> Result<CommandLine, SettingsError> {
        let mut values = Values::default();
        let rest = read(arguments, &mut values)?;
        Ok(CommandLine { values, rest })
    }

    fn line(arguments: &[&str]) -> Result<CommandLine, SettingsError> {
        parse(arguments.iter().map(OsString::from).collect())
    }

    fn message(arguments: &[&str]) -> String {
        line(arguments).unwrap_err().to_string()
    }

    #[test]
    fn all_spellings_of_a_flag() {
        for arguments in [
            &["-grpc-port", "8503"][..],
            &["--grpc-port", "8503"],
            &["-grpc-port=8503"],
            &["--grpc-port=8503"],
            &["-grpc-port", "1", "-grpc-port", "+8503"],
        ] {
            assert_eq!(
                line(arguments).unwrap().values.int(Item::GrpcPort),
                8503,
                "{arguments:?}"
            );
        }
        let values = line(&["-addresses", "-x", "-static-token=a=b"])
            .unwrap()
            .values;
        assert_eq!(values.text(Item::Addresses), "-x");
        assert_eq!(values.text(Item::StaticToken), "a=b");
        assert!(
            line(&["-addresses", ""])
                .unwrap()
                .values
                .given(Item::Addresses)
        );
    }

    #[test]
    fn booleans_take_no_separate_value() {
        assert!(line(&["-log-json"]).unwrap().values.bool(Item::LogJson));
        assert!(!line(&["-log-json=F"]).unwrap().values.bool(Item::LogJson));
        let line = line(&["-log-json", "false", "-addresses", "x"]).unwrap();
        assert!(line.values.bool(Item::LogJson));
        assert!(!line.values.given(Item::Addresses));
        assert_eq!(line.rest, ["false", "-addresses", "x"]);
    }

    #[test]
    fn flags_end_at_the_first_other_argument() {
        assert_eq!(
            line(&["-tls-disabled", "--", "--concurrency", "4"])
                .unwrap()
                .rest,
            ["--concurrency", "4"]
        );
        assert_eq!(line(&["-", "-x"]).unwrap().rest, ["-", "-x"]);
        assert_eq!(
            line(&["envoy", "-log-json"]).unwrap().rest,
            ["envoy", "-log-json"]
        );
        assert_eq!(line(&["", "-log-json"]).unwrap().rest, ["", "-log-json"]);
        assert_eq!(line(&["--"]).unwrap().rest, [""; 0]);
        let odd = || OsString::from_vec(vec![b'a', 0xff]);
        assert_eq!(parse(vec!["--".into(), odd()]).unwrap().rest, [odd()]);
        for (arguments, expected) in [
            (vec![odd()], "argument 1 is not valid UTF-8"),
            (
                vec!["-static-token".into(), odd()],
                "argument 2 (-static-token) is not valid UTF-8",
            ),
            (
                vec![OsString::from_vec(b"-static-token=hush\xff".to_vec())],
                "argument 1 (-static-token) is not valid UTF-8",
            ),
        ] {
            assert_eq!(parse(arguments).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn errors_read_like_the_originals() {
        for (arguments, expected) in [
            (&["---x"][..], "bad flag syntax: ---x"),
            (&["-=x"], "bad flag syntax: -=x"),
            (&["--=x"], "bad flag syntax: --=x"),
            (&["-nope=1"], "flag provided but not defined: -nope"),
            (
                &["-Addresses", "x"],
                "flag provided but not defined: -Addresses",
            ),
            (&["-addresses"], "flag needs an argument: -addresses"),
            (&["-h"], "flag: help requested"),
            (&["--help"], "flag: help requested"),
            (
                &["-grpc-port", "abc"],
                "invalid value \"abc\" for flag -grpc-port: strconv.Atoi: parsing \"abc\": invalid syntax",
            ),
            (
                &["-log-json=maybe"],
                "invalid boolean value \"maybe\" for -log-json: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            (
                &["-telemetry-prom-retention-time", "5"],
                "invalid value \"5\" for flag -telemetry-prom-retention-time: time: missing unit in duration \"5\"",
            ),
            (
                &["-login-meta", "foo"],
                "invalid value \"foo\" for flag -login-meta: Missing \"=\" value in argument: foo",
            ),
        ] {
            assert_eq!(message(arguments), expected);
        }
    }

    #[test]
    fn pairs_accumulate() {
        let values = line(&[
            "-login-meta",
            "a=1",
            "-login-meta=b=x=y",
            "-login-meta",
            "a=2",
        ])
        .unwrap()
        .values;
        let pairs = values.pairs(Item::LoginMeta);
        assert_eq!(
            (pairs["a"].as_str(), pairs["b"].as_str(), pairs.len()),
            ("2", "x=y", 2)
        );
    }

    proptest! {
        #[test]
        fn no_command_line_breaks_the_parser(
            arguments in prop::collection::vec(
                prop_oneof![any::<String>(), Just("--".to_owned()), "-{1,3}[a-z-]{0,12}=?[a-z0-9]{0,3}"],
                0..6,
            ),
        ) {
            let _ = parse(arguments.iter().map(OsString::from).collect());
        }
    }
}
