//! A template's errors, positioned as Go positions them: lines from 1, byte columns from 0.

/// What is wrong with a template, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template: {name}:{line}:{column}: {message}")]
pub struct TemplateError {
    name: String,
    line: usize,
    column: usize,
    message: String,
}

/// How much of an action a message repeats, in characters.
const EXCERPT: usize = 60;

/// Longest message, in characters. Templates hold names and texts of any length, which messages
/// repeat.
const MESSAGE: usize = 500;

/// A template's text, and what errors call it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    /// An error at byte `offset` of the text.
    pub(crate) fn error(self, offset: usize, message: &str) -> TemplateError {
        let (line, column) = self.position(offset);
        TemplateError {
            name: self.name.to_owned(),
            line,
            column,
            message: beginning(message.chars(), MESSAGE),
        }
    }

    /// An error at byte `offset` while the part of the text that `span` covers was executed.
    pub(crate) fn executing(
        self,
        offset: usize,
        span: (usize, usize),
        message: &str,
    ) -> TemplateError {
        let part = excerpt(&self.text[span.0..span.1]);
        let message = format!("executing {:?} at <{part}>: {message}", self.name);
        self.error(offset, &message)
    }

    /// Line and column of a byte offset, which lies on a character's boundary.
    pub(crate) fn position(self, offset: usize) -> (usize, usize) {
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
        (line, offset - line_start)
    }
}

/// The beginning of `text`, on one line.
pub(crate) fn excerpt(text: &str) -> String {
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
