//! The format of recorded commands: the command line after `$`, standard output after `>`, standard error after
//! `!`, and the exit code after `=`.

use std::fmt::Write;
use std::path::PathBuf;

use super::Outcome;

/// A command line with its outcome.
pub(super) struct Recorded {
    pub(super) line: String,
    pub(super) outcome: Outcome,
}

fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("interop/commands");
    folder.join(name)
}

pub(super) fn read(name: &str) -> Vec<Recorded> {
    let text = std::fs::read_to_string(file(name)).expect("a recording");
    let mut all: Vec<Recorded> = Vec::new();
    for line in text.lines() {
        let (mark, rest) = line.split_at(line.len().min(1));
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        if mark == "$" {
            let line = rest.to_owned();
            let outcome = Outcome::default();
            all.push(Recorded { line, outcome });
            continue;
        }
        let Some(Recorded { outcome, .. }) = all.last_mut() else {
            continue;
        };
        match mark {
            ">" => outcome.out.push_str(&format!("{rest}\n")),
            "!" => outcome.error.push_str(&format!("{rest}\n")),
            "=" => outcome.code = rest.parse().ok(),
            _ => {}
        }
    }
    all
}

pub(super) fn write(name: &str, recording: &[Recorded]) {
    let mut text = String::new();
    for Recorded { line, outcome } in recording {
        let _ = writeln!(text, "$ {line}");
        for (mark, lines) in [('>', &outcome.out), ('!', &outcome.error)] {
            for line in lines.lines() {
                let _ = writeln!(text, "{}", format!("{mark} {line}").trim_end());
            }
        }
        if let Some(code) = outcome.code {
            let _ = writeln!(text, "= {code}");
        }
        text.push('\n');
    }
    std::fs::write(file(name), text).expect("it can be written");
}
