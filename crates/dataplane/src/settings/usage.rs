//! Usage text and reference, both derived from the table.

use std::fmt::Write;

use super::go::quote;
use super::table::{Kind, SETTINGS, Setting};

/// The text that `-h` and errors in flags show, in the layout of Go's `flag` package.
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
                let _ = write!(text, " (default {})", quote(default));
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

/// Every setting as a row of a Markdown table, in the order of the declarations.
pub fn reference() -> String {
    let mut text = String::from(
        "| Flag | Environment variable | Config file key | Type | Default | Meaning |\n|---|---|---|---|---|---|\n",
    );
    let code = |value: Option<&str>| value.map_or("–".to_owned(), |value| format!("`{value}`"));
    for setting in SETTINGS {
        let kind = match setting.kind {
            Kind::Text => "text",
            Kind::Secret => "secret",
            Kind::Int => "integer",
            Kind::Bool => "boolean",
            Kind::Duration => "duration",
            Kind::Pairs => "`key=value`, repeatable",
        };
        let env = match (setting.env, setting.kind) {
            (Some(name), Kind::Pairs) => format!("`{name}1` … `{name}9`"),
            (name, _) => code(name),
        };
        let _ = writeln!(
            text,
            "| `-{}` | {env} | {} | {kind} | {} | {} |",
            setting.flag,
            code(setting.file),
            code(setting.default),
            setting.doc
        );
    }
    text
}
