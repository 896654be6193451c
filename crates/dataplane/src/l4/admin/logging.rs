//! `/logging`: the level of the log. There is one logger, that of the sidecar.

use legate_runtime::logging::{Level, LogLevel, process_level};

use super::query::Query;
use super::{Admin, Page};

/// The only logger.
const LOGGER: &str = "legate-dataplane";

impl Admin {
    pub(super) fn logging(query: &Query) -> Result<Page, Page> {
        match process_level() {
            Some(level) => page(level, query),
            None => Err(Page::bad("this process has no log\n")),
        }
    }
}

/// Changes the level as `?level=L`, `?LOGGER=L` or `?paths=LOGGER:L` say, and shows it.
fn page(level: &LogLevel, query: &Query) -> Result<Page, Page> {
    let mut new = None;
    for (name, value) in query.pairs() {
        match name {
            "level" | LOGGER => new = Some(parse(value)?),
            "paths" => {
                for pair in value.split(',') {
                    let (logger, value) = pair.split_once(':').unwrap_or((pair, ""));
                    // `*` is each one.
                    if ![LOGGER, "*"].contains(&logger) {
                        return Err(unknown(logger));
                    }
                    new = Some(parse(value)?);
                }
            }
            _ => return Err(unknown(name)),
        }
    }
    if let Some(new) = new {
        level.set(new);
        tracing::info!(level = name(new), "the log level was changed");
    }
    let now = name(level.get());
    Ok(Page::ok(format!("active loggers:\n  {LOGGER}: {now}\n")))
}

fn unknown(logger: &str) -> Page {
    Page::bad(format!(
        "unknown logger {logger:?}: the built-in proxy has only {LOGGER}\n"
    ))
}

/// A level by Envoy's name, or by the name in settings of the sidecar.
fn parse(name: &str) -> Result<Level, Page> {
    let name = match name {
        "warning" => "warn",
        name => name,
    };
    name.parse().map_err(|_| {
        Page::bad(format!(
            "unknown level {name:?}: use trace, debug, info, warning or error\n"
        ))
    })
}

/// Envoy's name of a level.
fn name(level: Level) -> &'static str {
    match level {
        Level::Warn => "warning",
        level => level.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn call(level: &LogLevel, query: &str) -> (StatusCode, String) {
        let page = page(level, &Query::parse(query)).unwrap_or_else(|refusal| refusal);
        (page.status, page.body)
    }

    #[test]
    fn the_level_is_shown_and_changed_as_envoys() {
        let level = LogLevel::new(Level::Info);
        let shows = |name: &str| format!("active loggers:\n  legate-dataplane: {name}\n");
        for (query, expected) in [
            ("", "info"),
            ("level=debug", "debug"),
            ("legate-dataplane=warning", "warning"),
            ("paths=*:trace", "trace"),
            ("paths=legate-dataplane:error", "error"),
            ("", "error"),
        ] {
            let answer = call(&level, query);
            assert_eq!(answer, (StatusCode::OK, shows(expected)), "{query}");
        }
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let level = LogLevel::new(Level::Info);
        for query in [
            "level=off",
            "upstream=debug",
            "paths=legate-dataplane:debug,upstream:debug",
            "paths=legate-dataplane",
            "level=debug&upstream=debug",
        ] {
            assert_eq!(call(&level, query).0, StatusCode::BAD_REQUEST, "{query}");
            assert_eq!(level.get(), Level::Info, "{query}");
        }
    }
}
