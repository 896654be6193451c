//! The output of a template, with the origin of each part in the template.

use crate::error::Source;

/// The output of a template.
#[derive(Debug)]
pub struct Output<'a> {
    source: Source<'a>,
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    /// The offset of the part in the output.
    start: usize,
    /// The offset of its origin in the template.
    origin: usize,
    /// Whether it is literal text of the template, and not the value of an action.
    literal: bool,
}

impl<'a> Output<'a> {
    /// The empty output of the template `source`.
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

    /// Line (from 1) and byte column (from 0) in the template from which the output's byte at
    /// `offset` originates.
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
