//! A template's errors, positioned as Go positions them: lines from 1, byte columns from 0.

/// What is wrong with a bootstrap template, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template: bootstrap:{line}:{column}: {message}")]
pub struct TemplateError {
    line: usize,
    column: usize,
    message: String,
}

/// How much of an action a message repeats, in characters.
const EXCERPT: usize = 60;

/// Longest message, in characters. Templates hold names and texts of any length, which messages
/// repeat.
const MESSAGE: usize = 500;

impl TemplateError {
    /// An error at byte `offset` of `source`.
    pub(super) fn new(source: &str, offset: usize, message: &str) -> Self {
        let (line, column) = position(source, offset);
        Self {
            line,
            column,
            message: beginning(message.chars(), MESSAGE),
        }
    }

    /// An error while the part of `source` that `span` covers was executed.
    pub(super) fn executing(
        source: &str,
        offset: usize,
        span: (usize, usize),
        message: &str,
    ) -> Self {
        let part = excerpt(&source[span.0..span.1]);
        let message = format!("executing \"bootstrap\" at <{part}>: {message}");
        Self::new(source, offset, &message)
    }
}

/// Line and column of a byte offset, which lies on a character's boundary.
pub(super) fn position(source: &str, offset: usize) -> (usize, usize) {
    let before = &source[..offset];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
    (line, offset - line_start)
}

/// The beginning of `text`, on one line.
pub(super) fn excerpt(text: &str) -> String {
    let characters = text.chars().map(|character| match character {
        '\n' | '\r' | '\t' => ' ',
        other => other,
    });
    beginning(characters, EXCERPT)
}

fn beginning(mut characters: impl Iterator<Item = char>, length: usize) -> String {
    let mut start: String = characters.by_ref().take(length).collect();
    if characters.next().is_some() {
        start.push_str("...");
    }
    start
}
