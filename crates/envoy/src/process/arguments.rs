//! Envoy's command line. User arguments after `--` take precedence over settings, because Envoy
//! rejects duplicate options.

use std::ffi::OsString;
use std::fs::File;

use super::document;
use super::launch::{HotRestartRole, Launch, SpawnError};

const PLAIN_FORMAT: &str = "%Y-%m-%dT%T.%eZ%z [%l] envoy.%n(%t) %v";
const JSON_FORMAT: &str = r#"{"@timestamp":"%Y-%m-%dT%T.%fZ%z","@module":"envoy.%n","@level":"%l","@message":"%j","thread":%t}"#;

/// Options of hot restart. A user who sets one of them manages hot restarts manually.
const HOT_RESTART_OPTIONS: [&str; 7] = [
    "--disable-hot-restart",
    "--restart-epoch",
    "--base-id",
    "--use-dynamic-base-id",
    "--base-id-path",
    "--parent-shutdown-time-s",
    "--socket-path",
];

/// The arguments, starting with the document, and the file that Envoy has to inherit for it.
pub(super) fn arguments(
    launch: &Launch,
    place: Option<&HotRestartRole>,
) -> Result<(Vec<OsString>, Option<File>), SpawnError> {
    let extra = &launch.extra_args;
    let (mut arguments, file) = document::arguments(&launch.bootstrap)?;
    check(extra, file.is_some())?;
    let mut option = |names: &[&str], value: Option<&str>| {
        if given(extra, names).is_none() {
            arguments.push(names[0].into());
            arguments.extend(value.map(OsString::from));
        }
    };
    let format = if launch.log.json {
        JSON_FORMAT
    } else {
        PLAIN_FORMAT
    };
    let drain_seconds = launch.drain_time.as_secs().to_string();
    option(&["--log-format"], Some(format));
    option(&["--log-level", "-l"], Some(launch.log.level.as_str()));
    if place.is_none() {
        option(&["--disable-hot-restart"], None);
    }
    option(&["--concurrency"], Some(&launch.concurrency.to_string()));
    option(&["--drain-time-s"], Some(&drain_seconds));
    option(&["--drain-strategy"], Some(launch.drain_strategy.as_str()));
    if let Some(place) = place {
        let number = |number: u64| OsString::from(number.to_string());
        arguments.extend(["--restart-epoch".into(), number(place.epoch.into())]);
        match place.base_id {
            Some(base_id) => arguments.extend(["--base-id".into(), number(base_id.into())]),
            None => arguments.extend([
                "--use-dynamic-base-id".into(),
                "--base-id-path".into(),
                place.base_id_file.clone().into(),
            ]),
        }
        let seconds = number(place.parent_shutdown.as_secs());
        arguments.extend(["--parent-shutdown-time-s".into(), seconds]);
    }
    arguments.extend(extra.iter().cloned());
    Ok((arguments, file))
}

/// The first hot restart option in the user's arguments.
pub(crate) fn hot_restart_option(extra: &[OsString]) -> Option<&'static str> {
    given(extra, &HOT_RESTART_OPTIONS)
}

fn check(extra: &[OsString], in_file: bool) -> Result<(), SpawnError> {
    let mut reserved = given(extra, &["--config-yaml"]).map(|name| (name, ""));
    // Envoy merges the argument's document into the file's, but accepts only one of each.
    if reserved.is_none() && in_file {
        let because = ", which is too large for an argument and uses that option";
        reserved = given(extra, &["--config-path", "-c"]).map(|name| (name, because));
    }
    match reserved {
        None => Ok(()),
        Some((name, because)) => Err(SpawnError(format!(
            "the Envoy argument {name} cannot be combined with the generated bootstrap document{because}; \
             remove it from what follows --"
        ))),
    }
}

/// The first of the options that is in the user's arguments. Envoy also accepts option and value as
/// one argument separated by a space.
fn given<'a>(extra: &[OsString], names: &[&'a str]) -> Option<&'a str> {
    let gives = |argument: &OsString, name: &str| {
        let argument = argument.to_str().unwrap_or_default();
        argument.split([' ', '=']).next() == Some(name)
    };
    let is_given = |name: &&str| extra.iter().any(|argument| gives(argument, name));
    names.iter().copied().find(is_given)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::launch::{DrainStrategy, EnvoyLog};
    use super::*;
    use legate_runtime::logging::Level;

    fn arguments_for(bootstrap: &str, extra: &[&str]) -> Result<Vec<String>, SpawnError> {
        arguments_as(None, bootstrap, extra)
    }

    fn arguments_as(
        place: Option<&HotRestartRole>,
        bootstrap: &str,
        extra: &[&str],
    ) -> Result<Vec<String>, SpawnError> {
        let launch = Launch {
            executable: "envoy".into(),
            bootstrap: bootstrap.to_owned(),
            log: EnvoyLog {
                level: Level::Info,
                json: false,
            },
            concurrency: 2,
            drain_time: Duration::from_secs(30),
            drain_strategy: DrainStrategy::Immediate,
            extra_args: extra.iter().map(OsString::from).collect(),
        };
        let (arguments, _) = arguments(&launch, place)?;
        Ok(arguments
            .into_iter()
            .map(|argument| argument.into_string().unwrap())
            .collect())
    }

    #[test]
    fn settings_become_options() {
        let expected = [
            "--config-yaml",
            "{}",
            "--log-format",
            PLAIN_FORMAT,
            "--log-level",
            "info",
            "--disable-hot-restart",
            "--concurrency",
            "2",
            "--drain-time-s",
            "30",
            "--drain-strategy",
            "immediate",
        ];
        assert_eq!(arguments_for("{}", &[]).unwrap(), expected);
    }

    #[test]
    fn user_arguments_replace_settings() {
        for (extra, dropped) in [
            (&["--concurrency", "4"][..], "2"),
            (&["--concurrency 4"], "2"),
            (&["--drain-time-s", "5"], "30"),
            (&["--drain-strategy", "gradual"], "immediate"),
            (&["--log-level", "debug"], "info"),
            (&["-l", "debug"], "info"),
            (&["--log-format", "%v"], PLAIN_FORMAT),
        ] {
            let arguments = arguments_for("{}", extra).unwrap();
            assert!(
                arguments.ends_with(
                    &extra
                        .iter()
                        .map(|&text| text.to_owned())
                        .collect::<Vec<_>>()
                )
            );
            assert!(!arguments.contains(&dropped.to_owned()), "{arguments:?}");
        }
        let arguments = arguments_for("{}", &["--disable-hot-restart", "--base-id", "3"]).unwrap();
        assert_eq!(
            arguments
                .iter()
                .filter(|argument| *argument == "--disable-hot-restart")
                .count(),
            1
        );
    }

    #[test]
    fn a_place_in_a_hot_restart_becomes_options() {
        let role = |epoch, base_id| HotRestartRole {
            epoch,
            base_id,
            base_id_file: "/run/id".into(),
            parent_shutdown: Duration::from_secs(45),
        };
        let words = |place| arguments_as(Some(&place), "{}", &[]).unwrap().join(" ");
        let first = words(role(0, None));
        assert!(
            first.ends_with(
                "--restart-epoch 0 --use-dynamic-base-id --base-id-path /run/id \
                 --parent-shutdown-time-s 45"
            ),
            "{first}"
        );
        let next = words(role(3, Some(77)));
        assert!(next.contains("--restart-epoch 3 --base-id 77 "), "{next}");
        assert!(!first.contains("--disable-hot-restart") && !next.contains("dynamic"));
        let extra = ["-l", "debug", "--base-id 4"].map(OsString::from);
        assert_eq!(hot_restart_option(&extra), Some("--base-id"));
        assert_eq!(hot_restart_option(&extra[..2]), None);
    }

    #[test]
    fn arguments_that_break_the_document_are_refused_by_name() {
        let error = arguments_for("{}", &["--config-yaml", "{}"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("--config-yaml"), "{error}");
        assert!(arguments_for("{}", &["-c", "base.yaml"]).is_ok());
        let large = format!("{{\"node\":{{\"id\":\"{}\"}}}}", "x".repeat(200_000));
        let error = arguments_for(&large, &["-c", "base.yaml"])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("-c") && error.contains("too large"),
            "{error}"
        );
    }
}
