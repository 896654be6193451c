//! Makes access logs of their trees.

use std::path::PathBuf;

use super::problem::Problem;
use super::tree::Node;
use super::{json, parts};
use crate::access_log::{AccessLog, Flag, Format, Sink};

/// Makes an access log.
pub(super) fn access_log(node: &Node<'_>) -> Result<AccessLog, Problem> {
    let flags = node.child("filter", |filter| {
        let flags = filter.child("response_flag_filter", |filter| {
            let flags = filter.texts("flags");
            let flags = flags.map(|name| {
                Flag::named(name).ok_or_else(|| {
                    Problem::invalid(format!("no response flag is named {name:?}")).within("flags")
                })
            });
            let mut flags = flags.collect::<Result<Vec<Flag>, Problem>>()?;
            // No flag in the filter means all of them.
            if flags.is_empty() {
                flags = Flag::ALL.to_vec();
            }
            Ok(flags)
        })?;
        flags.ok_or_else(|| Problem::invalid("a filter is required"))
    })?;
    let made = node.child("typed_config", |config| {
        let sink = match config.message_name().rsplit('.').next() {
            Some("StdoutAccessLog") => Sink::Stdout,
            Some("StderrAccessLog") => Sink::Stderr,
            _ => Sink::File(PathBuf::from(&*parts::required(config, "path")?)),
        };
        let format = config.child("log_format", format)?;
        Ok((sink, format.unwrap_or_default()))
    })?;
    let (sink, format) = made
        .ok_or_else(|| Problem::invalid("a configuration is necessary").within("typed_config"))?;
    Ok(AccessLog {
        sink,
        format,
        flags,
    })
}

fn format(node: &Node<'_>) -> Result<Format, Problem> {
    let omit_empty = node.flag("omit_empty_values");
    let unknown = |error: crate::access_log::Unknown| Problem::needs_envoy(error.to_string());
    if let Some(fields) = node.node("json_format") {
        let fields = json::of(fields);
        return Format::json(&fields, omit_empty)
            .map_err(|error| unknown(error).within("json_format"));
    }
    let inline = node.child("text_format_source", parts::data)?;
    let text = match &inline {
        Some(text) => text,
        None => node.text("text_format"),
    };
    if text.is_empty() {
        return Err(Problem::invalid("a format is required"));
    }
    Format::text(text, omit_empty).map_err(unknown)
}
