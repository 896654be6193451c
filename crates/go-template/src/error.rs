//! Errors of templates, with positions in Go's format: lines from 1, byte columns from 0.

/// An error in a template, with its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template: {name}:{line}:{column}: {message}")]
pub struct TemplateError {
    name: String,
    line: usize,
    column: usize,
    message: String,
}

/// The maximum number of characters of an action quoted in a message.
const EXCERPT: usize = 60;

/// The maximum number of characters of a message, because templates contain names and texts of any
/// length.
const MESSAGE: usize = 500;

/// A template's text, with its name for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    /// An error at the byte offset `offset`.
    pub(crate) fn error(self, offset: usize, message: &str) -> TemplateError {
        let (line, column) = self.position(offset);
        TemplateError {
            name: self.name.to_owned(),
            line,
            column,
            message: beginning(message.chars(), MESSAGE),
        }
    }

    /// An error at the byte offset `offset` during the execution of the part of the text in `span`.
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

    /// Line and column of a byte offset, which must be a character boundary.
    pub(crate) fn position(self, offset: usize) -> (usize, usize) {
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
        (line, offset - line_start)
    }
}

/// The beginning of `text` on one line.
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
