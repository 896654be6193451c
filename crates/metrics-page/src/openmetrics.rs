//! Converts an OpenMetrics 1.0 page to the Prometheus text format 0.0.4, line by line: some applications send
//! OpenMetrics whatever the request accepts, and Envoy sends only text.
//!
//! Metadata of counters and infos gets the suffix of their samples, timestamps are converted to milliseconds, and
//! exemplars and units are dropped, because the text format has none.

use crate::metadata::{Metadata, name_length};

/// Collects the metadata of a family, whose name in the text format depends on its type.
#[derive(Debug, Default)]
pub(crate) struct Converter {
    family: String,
    help: Option<String>,
    kind: String,
}

impl Converter {
    /// The lines of text that this line completes; `None` if it is not a sample.
    pub(crate) fn convert(&mut self, line: &str) -> Option<String> {
        let Some(comment) = line.strip_prefix('#') else {
            let mut text = self.metadata();
            if !line.is_empty() {
                sample(line, &mut text)?;
            }
            return Some(text);
        };
        let Some(metadata) = Metadata::split(comment) else {
            return Some(self.metadata());
        };
        let mut before = String::new();
        if metadata.family != self.family {
            before = self.metadata();
            self.family = metadata.family.to_owned();
        }
        match metadata.word {
            "HELP" => self.help = Some(metadata.text.replace("\\\"", "\"")),
            "TYPE" => self.kind = metadata.text.to_owned(),
            _ => {}
        }
        Some(before)
    }

    /// Takes the collected metadata, if any.
    fn metadata(&mut self) -> String {
        let mut text = String::new();
        if self.help.is_none() && self.kind.is_empty() {
            return text;
        }
        let kind = std::mem::take(&mut self.kind);
        let (suffix, kind) = match &*kind {
            "counter" => ("_total", "counter"),
            "info" => ("_info", "gauge"),
            "stateset" => ("", "gauge"),
            "unknown" => ("", "untyped"),
            // The text format has no such type; families without a type are untyped.
            "gaugehistogram" => ("", ""),
            other => ("", other),
        };
        let base = self.family.strip_suffix(suffix).unwrap_or(&self.family);
        if let Some(help) = self.help.take() {
            text += &format!("# HELP {base}{suffix} {help}\n");
        }
        if !kind.is_empty() {
            text += &format!("# TYPE {base}{suffix} {kind}\n");
        }
        text
    }
}

/// Writes a sample without its exemplar, and with its timestamp in milliseconds.
fn sample(line: &str, text: &mut String) -> Option<()> {
    let name = name_length(line.as_bytes());
    let labels = match line[name..].starts_with('{') {
        true => labels_length(&line[name..])?,
        false => 0,
    };
    let rest = line[name + labels..].strip_prefix(' ')?;
    let rest = rest.split_once(" # ").map_or(rest, |(value, _)| value);
    let (value, time) = rest.split_once(' ').unwrap_or((rest, ""));
    if name == 0 || value.is_empty() || rest.ends_with(' ') {
        return None;
    }
    text.push_str(&line[..name + labels + 1 + value.len()]);
    if !time.is_empty() {
        let seconds = time.parse::<f64>().ok().filter(|time| time.is_finite())?;
        let milliseconds = (seconds * 1_000.0).clamp(-9e15, 9e15);
        text.push_str(&format!(" {milliseconds:.0}"));
    }
    Some(())
}

/// Length of the labels at the beginning, including their braces.
fn labels_length(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    let end = text.find(|character| {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            '}' => return !quoted,
            _ => {}
        }
        false
    });
    end.map(|end| end + 1)
}
