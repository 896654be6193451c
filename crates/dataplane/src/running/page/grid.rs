//! Lines of text in columns. Knows nothing of what the text says.

use std::fmt::Write;

const INDENT: &str = "  ";
const BETWEEN: &str = "  ";

/// Text that is written from top to bottom.
#[derive(Default)]
pub(super) struct Page(String);

impl Page {
    pub(super) fn line(&mut self, line: impl AsRef<str>) {
        self.0.push_str(line.as_ref().trim_end());
        self.0.push('\n');
    }

    pub(super) fn gap(&mut self) {
        self.0.push('\n');
    }

    /// Begins a section.
    pub(super) fn title(&mut self, title: &str) {
        self.gap();
        self.line(title);
    }

    /// Names and texts, one line each.
    pub(super) fn entries(&mut self, entries: impl IntoIterator<Item = (String, String)>) {
        let rows = entries.into_iter().map(|(name, text)| vec![name, text]);
        // Texts are read, not compared: numbers among them stay at the left.
        self.rows(&aligned(&rows.collect::<Vec<_>>(), |_| false));
    }

    pub(super) fn rows(&mut self, rows: &[String]) {
        for row in rows {
            self.line(format!("{INDENT}{row}"));
        }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// Rows as lines, each column as wide as its widest cell, numbers at the right.
pub(super) fn columns(rows: &[Vec<String>]) -> Vec<String> {
    aligned(rows, |column| {
        let cells = rows.iter().skip(1).filter_map(|row| row.get(column));
        let mut cells = cells.filter(|cell| !cell.is_empty()).peekable();
        cells.peek().is_some() && cells.all(|cell| cell.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

fn aligned(rows: &[Vec<String>], is_right: impl Fn(usize) -> bool) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let shape: Vec<_> = (0..count)
        .map(|column| (width(column), is_right(column)))
        .collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (cell, (width, right)) in row.iter().zip(&shape) {
            if !line.is_empty() {
                line.push_str(BETWEEN);
            }
            let _ = match right {
                true => write!(line, "{cell:>width$}"),
                false => write!(line, "{cell:<width$}"),
            };
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
