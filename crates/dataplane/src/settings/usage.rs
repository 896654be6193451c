//! The usage text, derived from the table.

use std::fmt::Write;

use super::table::{Kind, SETTINGS, Setting};

/// The usage text for `-h` and for invalid flags, in the layout of Go's `flag` package.
pub fn usage() -> String {
    let mut settings: Vec<&Setting> = SETTINGS.iter().collect();
    settings.sort_by_key(|setting| setting.flag);
    let mut text = String::from("Usage:\n");
    for setting in settings {
        let kind = match setting.kind {
            Kind::Text | Kind::Secret => " string",
            Kind::Int => " int",
            Kind::Bool => "",
            Kind::Duration => " duration",
            Kind::Pairs => " key=value",
        };
        let _ = write!(
            text,
            "  -{}{kind}\n    \t{}.{}",
            setting.flag,
            setting.doc,
            variables(setting)
        );
        match (setting.kind, setting.default) {
            (_, None) | (Kind::Bool, Some("false")) | (Kind::Int, Some("0")) => {}
            (Kind::Text | Kind::Secret, Some(default)) => {
                let _ = write!(text, " (default {default:?})");
            }
            (_, Some(default)) => {
                let _ = write!(text, " (default {default})");
            }
        }
        text.push('\n');
    }
    text
}

fn variables(setting: &Setting) -> String {
    match (setting.env, setting.kind) {
        (None, _) => String::new(),
        (Some(name), Kind::Pairs) => format!(" Environment variables: {name}1 to {name}9."),
        (Some(name), _) => format!(" Environment variable: {name}."),
    }
}
