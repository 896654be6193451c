//! A template's output, which remembers where in the template each part of it came from.

/// What a template wrote.
#[derive(Debug, Default)]
pub(in crate::bootstrap) struct Output {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    /// Where the part starts in the output.
    start: usize,
    /// Where in the template it comes from.
    source: usize,
    /// Whether it is text of the template, byte by byte, and not the value of an action.
    literal: bool,
}

impl Output {
    pub(super) fn push(&mut self, text: &str, source: usize, literal: bool) {
        if !text.is_empty() {
            self.parts.push(Part {
                start: self.text.len(),
                source,
                literal,
            });
            self.text.push_str(text);
        }
    }

    /// The whole output.
    pub(in crate::bootstrap) fn text(&self) -> &str {
        &self.text
    }

    /// Line (from 1) and byte column (from 0) in `template`, from which this output was made, of
    /// the part that wrote the byte at `offset`.
    pub(in crate::bootstrap) fn origin(&self, template: &str, offset: usize) -> (usize, usize) {
        let next = self.parts.partition_point(|part| part.start <= offset);
        let Some(part) = next.checked_sub(1).and_then(|last| self.parts.get(last)) else {
            return (1, 0);
        };
        let within = if part.literal { offset - part.start } else { 0 };
        let mut source = (part.source + within).min(template.len());
        while !template.is_char_boundary(source) {
            source -= 1;
        }
        super::error::position(template, source)
    }
}
