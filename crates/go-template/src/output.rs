//! A template's output, which remembers where in the template each part of it came from.

use crate::error::Source;

/// What a template wrote.
#[derive(Debug)]
pub struct Output<'a> {
    source: Source<'a>,
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    /// Where the part starts in the output.
    start: usize,
    /// Where in the template it comes from.
    origin: usize,
    /// Whether it is text of the template, byte by byte, and not the value of an action.
    literal: bool,
}

impl<'a> Output<'a> {
    /// Nothing yet, of the template `source`.
    pub(crate) fn new(source: Source<'a>) -> Self {
        Self {
            source,
            text: String::new(),
            parts: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, text: &str, origin: usize, literal: bool) {
        if !text.is_empty() {
            self.parts.push(Part {
                start: self.text.len(),
                origin,
                literal,
            });
            self.text.push_str(text);
        }
    }

    /// The whole output.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Line (from 1) and byte column (from 0) in the template of what wrote the byte at `offset`.
    pub fn origin(&self, offset: usize) -> (usize, usize) {
        let next = self.parts.partition_point(|part| part.start <= offset);
        let Some(part) = next.checked_sub(1).and_then(|last| self.parts.get(last)) else {
            return (1, 0);
        };
        let within = if part.literal { offset - part.start } else { 0 };
        let mut origin = (part.origin + within).min(self.source.text.len());
        while !self.source.text.is_char_boundary(origin) {
            origin -= 1;
        }
        self.source.position(origin)
    }
}
