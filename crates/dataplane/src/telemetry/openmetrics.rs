//! Writes the lines of an OpenMetrics 1.0 page as those of the Prometheus text format 0.0.4, line by
//! line: some applications send OpenMetrics whatever they are asked for, and Envoy sends text only.
//!
//! The metadata of counters and infos gets the suffix that their samples have, timestamps are in
//! milliseconds, and exemplars and units are left out: text has none.

use super::merge::{Metadata, name_length};

/// Remembers what metadata said of the family that it is about.
#[derive(Debug, Default)]
pub(super) struct Converter {
    family: String,
    /// The family's name in text, once its type is known.
    name: Option<String>,
    /// A help that waits for the type.
    help: Option<String>,
}

impl Converter {
    /// The lines of text that a line becomes, without their ends; `None` when it is no sample.
    pub(super) fn convert(&mut self, line: &str) -> Option<Vec<String>> {
        if let Some(comment) = line.strip_prefix('#') {
            return Some(match Metadata::split(comment) {
                Some(said) => self.metadata(&said),
                None => self.waiting(),
            });
        }
        let mut lines = self.waiting();
        if !line.is_empty() {
            lines.push(sample(line)?);
        }
        Some(lines)
    }

    fn metadata(&mut self, said: &Metadata<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        if self.family != said.family {
            lines = self.waiting();
            self.family = said.family.to_owned();
            self.name = None;
        }
        match (said.word, &self.name) {
            ("HELP", name) => {
                let help = said.text.replace("\\\"", "\"");
                match name {
                    Some(name) => lines.push(format!("# HELP {name} {help}")),
                    None => self.help = Some(help),
                }
            }
            ("TYPE", _) => {
                let (suffix, kind) = match said.text {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "stateset" => ("", "gauge"),
                    "unknown" => ("", "untyped"),
                    // Text has no such type, and a family without one is untyped.
                    "gaugehistogram" => ("", ""),
                    other => ("", other),
                };
                let base = said.family.strip_suffix(suffix).unwrap_or(said.family);
                let name = self.name.insert(format!("{base}{suffix}"));
                if let Some(help) = self.help.take() {
                    lines.push(format!("# HELP {name} {help}"));
                }
                lines.push(format!("# TYPE {name} {kind}"));
            }
            _ => {}
        }
        lines
    }

    /// The help that waits: no type follows it.
    fn waiting(&mut self) -> Vec<String> {
        let help = self.help.take().into_iter();
        help.map(|help| format!("# HELP {} {help}", self.family))
            .collect()
    }
}

/// A sample without its exemplar, and with its time in milliseconds.
fn sample(line: &str) -> Option<String> {
    let name = name_length(line.as_bytes());
    let labels = match line[name..].starts_with('{') {
        true => labels_length(&line[name..])?,
        false => 0,
    };
    let (series, rest) = line.split_at(name + labels);
    let rest = rest.strip_prefix(' ')?;
    let rest = rest.split_once(" # ").map_or(rest, |(value, _)| value);
    let (value, time) = rest.split_once(' ').unwrap_or((rest, ""));
    if name == 0 || value.is_empty() || rest.ends_with(' ') {
        return None;
    }
    if time.is_empty() {
        return Some(format!("{series} {value}"));
    }
    let seconds = time.parse::<f64>().ok().filter(|time| time.is_finite())?;
    let milliseconds = (seconds * 1_000.0).clamp(-9e15, 9e15);
    Some(format!("{series} {value} {milliseconds:.0}"))
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
