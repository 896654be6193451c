//! Envoy's command line. What the user says after `--` wins over what the settings say, because
//! Envoy refuses an option that is given twice.

use std::ffi::{OsStr, OsString};

use super::document::Document;
use super::{Family, Launch, Restart, SpawnError};

const PLAIN_FORMAT: &str = "%Y-%m-%dT%T.%eZ%z [%l] envoy.%n(%t) %v";
const JSON_FORMAT: &str = r#"{"@timestamp":"%Y-%m-%dT%T.%fZ%z","@module":"envoy.%n","@level":"%l","@message":"%j","thread":%t}"#;

/// Options of a hot restart. Who gives one of them manages hot restarts alone.
const HOT_RESTART_OPTIONS: [&str; 7] = [
    "--disable-hot-restart",
    "--restart-epoch",
    "--base-id",
    "--use-dynamic-base-id",
    "--base-id-path",
    "--parent-shutdown-time-s",
    "--socket-path",
];

/// The arguments, the document first.
pub(super) fn arguments(
    launch: &Launch,
    restart: &Restart,
    document: &Document,
) -> Result<Vec<OsString>, SpawnError> {
    let extra = &launch.extra_args;
    check(extra, document)?;
    let mut arguments = document.arguments();
    let mut option = |names: &[&str], value: Option<&str>| {
        if !names
            .iter()
            .any(|name| extra.iter().any(|argument| is_option(argument, name)))
        {
            arguments.push(names[0].into());
            arguments.extend(value.map(OsString::from));
        }
    };
    let format = if launch.log.json {
        JSON_FORMAT
    } else {
        PLAIN_FORMAT
    };
    option(&["--log-format"], Some(format));
    option(&["--log-level", "-l"], Some(launch.log.level.as_str()));
    if *restart == Restart::Disabled {
        option(&["--disable-hot-restart"], None);
    }
    option(&["--concurrency"], Some(&launch.concurrency.to_string()));
    option(
        &["--drain-time-s"],
        Some(&launch.drain_time.as_secs().to_string()),
    );
    option(&["--drain-strategy"], Some(launch.drain_strategy.as_str()));
    if let Restart::Hot {
        epoch,
        family,
        parent_shutdown,
    } = restart
    {
        arguments.extend(["--restart-epoch".into(), epoch.to_string().into()]);
        match family {
            Family::Known(base_id) => {
                arguments.extend(["--base-id".into(), base_id.to_string().into()]);
            }
            Family::Chosen(file) => arguments.extend([
                "--use-dynamic-base-id".into(),
                "--base-id-path".into(),
                file.into(),
            ]),
        }
        let seconds = parent_shutdown.as_secs().to_string();
        arguments.extend(["--parent-shutdown-time-s".into(), seconds.into()]);
    }
    arguments.extend(extra.iter().cloned());
    Ok(arguments)
}

/// The first option of a hot restart among a user's arguments.
pub(crate) fn hot_restart_option(extra: &[OsString]) -> Option<&'static str> {
    HOT_RESTART_OPTIONS
        .into_iter()
        .find(|name| extra.iter().any(|argument| is_option(argument, name)))
}

fn check(extra: &[OsString], document: &Document) -> Result<(), SpawnError> {
    let given = |name: &str| extra.iter().any(|argument| is_option(argument, name));
    let reserved = |name: &str, because: &str| {
        SpawnError(format!(
            "the Envoy argument {name} cannot be combined with the generated bootstrap document{because}; \
             remove it from what follows --"
        ))
    };
    if given("--config-yaml") {
        return Err(reserved("--config-yaml", ""));
    }
    // Envoy lays an argument's document over a file's, but takes one of each only.
    if document.is_file()
        && let Some(name) = ["--config-path", "-c"].into_iter().find(|name| given(name))
    {
        return Err(reserved(
            name,
            ", which is too large for an argument and takes its place",
        ));
    }
    Ok(())
}

/// Whether `argument` gives the option `name`: Envoy also takes option and value as one element
/// with a space between.
fn is_option(argument: &OsStr, name: &str) -> bool {
    argument
        .to_str()
        .is_some_and(|argument| argument.split([' ', '=']).next() == Some(name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{DrainStrategy, EnvoyLog};
    use super::*;
    use legate_runtime::logging::Level;

    fn arguments_for(bootstrap: &str, extra: &[&str]) -> Result<Vec<String>, SpawnError> {
        arguments_as(&Restart::Disabled, bootstrap, extra)
    }

    fn arguments_as(
        restart: &Restart,
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
        let document = Document::new(&launch.bootstrap)?;
        let arguments = arguments(&launch, restart, &document)?;
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
    fn what_the_user_gives_replaces_what_settings_say() {
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
        let role = |epoch, family| Restart::Hot {
            epoch,
            family,
            parent_shutdown: Duration::from_secs(45),
        };
        let words = |restart| arguments_as(&restart, "{}", &[]).unwrap().join(" ");
        let first = words(role(0, Family::Chosen("/run/id".into())));
        assert!(
            first.ends_with(
                "--restart-epoch 0 --use-dynamic-base-id --base-id-path /run/id \
                 --parent-shutdown-time-s 45"
            ),
            "{first}"
        );
        let next = words(role(3, Family::Known(77)));
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
