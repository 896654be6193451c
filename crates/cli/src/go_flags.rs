//! Translates command lines from Go's flag syntax to clap's: one or two dashes, `-flag value` or
//! `-flag=value`, and no flags after the first argument.

use std::ffi::OsString;

use anyhow::{Context, bail};
use clap::{Arg, ArgAction, Command};

/// Translates a command line for clap. `commands` are those with Go's flags; other command lines are
/// not changed.
///
/// # Errors
///
/// Names a flag that is unknown, or lacks its value.
pub(crate) fn translated(
    line: Vec<OsString>,
    root: &Command,
    is_go: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<OsString>> {
    let first = line.get(1).and_then(|word| word.to_str());
    if !first.is_some_and(is_go) {
        return Ok(line);
    }
    let mut words = line.into_iter();
    let mut out: Vec<OsString> = words.next().into_iter().collect();
    let mut command = root;
    for word in words.by_ref() {
        let name = word.to_str().unwrap_or_default();
        match command.find_subcommand(name) {
            Some(found) => {
                command = found;
                out.push(command.get_name().into());
                if !command.has_subcommands() {
                    flags(command, words, &mut out)?;
                    return Ok(out);
                }
            }
            // Help or an unknown command; clap handles these.
            None => {
                out.push(match name {
                    "-h" | "-help" | "--help" => "--help".into(),
                    _ => word,
                });
                break;
            }
        }
    }
    out.extend(words);
    Ok(out)
}

/// Translates the words after a leaf command.
fn flags(
    command: &Command,
    mut words: impl Iterator<Item = OsString>,
    out: &mut Vec<OsString>,
) -> anyhow::Result<()> {
    while let Some(word) = words.next() {
        let flag = word.to_str().and_then(|text| {
            let flag = text.strip_prefix('-')?;
            let flag = flag.strip_prefix('-').unwrap_or(flag);
            Some((flag.to_owned(), text == "--"))
        });
        match flag {
            Some((_, true)) => {
                out.push(word);
                break;
            }
            Some((flag, _)) if !flag.is_empty() => {
                if flag == "h" || flag == "help" {
                    out.push("--help".into());
                    return Ok(());
                }
                out.extend(one(command, &flag, &mut words)?);
            }
            // The first argument, which may be a single dash.
            _ => {
                out.push("--".into());
                out.push(word);
                break;
            }
        }
    }
    out.extend(words);
    Ok(())
}

/// Translates one flag, given without dashes.
fn one(
    command: &Command,
    flag: &str,
    words: &mut impl Iterator<Item = OsString>,
) -> anyhow::Result<Option<OsString>> {
    let (name, value) = match flag.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (flag, None),
    };
    let named = |arg: &&Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().unwrap_or_default().contains(&name)
    };
    let Some(arg) = command.get_arguments().find(named) else {
        bail!(
            "flag provided but not defined: -{name}\nrun `{} -h` for a list of flags",
            command.get_bin_name().unwrap_or(command.get_name())
        );
    };
    let switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let range = arg.get_num_args();
    let optional = !switch && range.is_some_and(|range| range.min_values() == 0);
    if !switch && !optional {
        let value = match value {
            Some(value) => value.into(),
            None => words
                .next()
                .with_context(|| format!("flag needs an argument: -{name}"))?,
        };
        let mut text = OsString::from(format!("--{name}="));
        text.push(value);
        return Ok(Some(text));
    }
    let on = match value {
        None => true,
        Some(text) => boolean(text).with_context(|| {
            format!("invalid boolean value {text:?} for -{name}: it must be true or false")
        })?,
    };
    Ok(match (optional, on) {
        (true, _) => Some(format!("--{name}={on}").into()),
        (false, true) => Some(format!("--{name}").into()),
        (false, false) => None,
    })
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Command {
        let put = Command::new("put")
            .arg(Arg::new("cas").long("cas").action(ArgAction::SetTrue))
            .arg(Arg::new("flags").long("flags"))
            .arg(
                Arg::new("shell")
                    .long("shell")
                    .num_args(0..=1)
                    .require_equals(true),
            );
        Command::new("legate").subcommand(Command::new("kv").subcommand(put))
    }

    fn of(line: &str) -> Result<String, String> {
        let line = line.split(' ').map(OsString::from).collect();
        let line = translated(line, &root(), |name| name == "kv");
        let line = line.map_err(|error| error.to_string())?;
        let words: Vec<&str> = line.iter().map(|word| word.to_str().unwrap()).collect();
        Ok(words.join(" "))
    }

    #[test]
    fn flags_are_those_of_go() {
        for (line, expected) in [
            ("legate kv put -cas a b", "legate kv put --cas -- a b"),
            (
                "legate kv put -cas=true --flags -1 a -cas",
                "legate kv put --cas --flags=-1 -- a -cas",
            ),
            ("legate kv put -cas=f a -", "legate kv put -- a -"),
            ("legate kv put - -x", "legate kv put -- - -x"),
            (
                "legate kv put -shell=0 -flags=3 -- -x",
                "legate kv put --shell=false --flags=3 -- -x",
            ),
            ("legate kv put -shell x", "legate kv put --shell=true -- x"),
            ("legate kv put -h", "legate kv put --help"),
            ("legate kv -h", "legate kv --help"),
            ("legate proxy -A", "legate proxy -A"),
        ] {
            assert_eq!(of(line), Ok(expected.to_owned()), "{line}");
        }
    }

    #[test]
    fn errors_name_the_flag() {
        let wrong = |line: &str| of(line).unwrap_err();
        assert!(wrong("legate kv put -x").contains("flag provided but not defined: -x"));
        assert!(wrong("legate kv put -flags").contains("flag needs an argument: -flags"));
        assert!(wrong("legate kv put -cas=maybe").contains("-cas"));
    }
}
