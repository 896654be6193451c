//! Writes the lines of an OpenMetrics 1.0 page as those of the Prometheus text format 0.0.4, line by
//! line: some applications send OpenMetrics whatever they are asked for, and Envoy sends text only.
//!
//! The metadata of counters and infos gets the suffix that their samples have, timestamps are in
//! milliseconds, and exemplars and units are left out: text has none.

use crate::metadata::{Metadata, name_length};

/// Collects the metadata of a family, whose name in text depends on its type.
#[derive(Debug, Default)]
pub(crate) struct Converter {
    family: String,
    help: Option<String>,
    kind: String,
}

impl Converter {
    /// The lines of text that are complete with this line; `None` when it is no sample.
    pub(crate) fn convert(&mut self, line: &str) -> Option<String> {
        let Some(comment) = line.strip_prefix('#') else {
            let mut text = self.metadata();
            if !line.is_empty() {
                sample(line, &mut text)?;
            }
            return Some(text);
        };
        let Some(said) = Metadata::split(comment) else {
            return Some(self.metadata());
        };
        let mut before = String::new();
        if said.family != self.family {
            before = self.metadata();
            self.family = said.family.to_owned();
        }
        match said.word {
            "HELP" => self.help = Some(said.text.replace("\\\"", "\"")),
            "TYPE" => self.kind = said.text.to_owned(),
            _ => {}
        }
        Some(before)
    }

    /// What was collected, which is nothing for most samples.
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
            // Text has no such type, and a family without one is untyped.
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

/// Writes a sample without its exemplar, and with its time in milliseconds.
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

/// How long the labels at the beginning are, with their braces.
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
