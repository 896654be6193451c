//! The format of recordings: requests, each with the response of a Consul.
//!
//! ```text
//! === PUT /v1/catalog/register?x=y
//! # what it demonstrates
//! X-Consul-Token: root
//! @keep NAME /ID
//!
//! the body
//! --- 200
//! Content-Type: application/json
//!
//! the body of the answer
//! ```
//!
//! `@keep NAME /POINTER` saves a value of the response, which `{NAME}` refers to from then on. `@masked /POINTER`
//! masks a value; `*` matches any element. `@unordered` sorts lists. `@eventually` repeats the request until the
//! response matches. `@differs PLACE REASON` is an intended difference: the place is `status`, a header, `body` or
//! a pointer into it; the reason is one of `http/reasons.md`, or a sentence. `{address}` is the address of the
//! agent.

use std::fmt::Write;
use std::path::Path;

const REASONS: &str = include_str!("../http/reasons.md");

/// A recording file.
pub(super) struct Recording {
    pub(super) name: String,
    /// The text before the first request.
    begin: String,
    pub(super) exchanges: Vec<Exchange>,
}

/// A request with its response.
pub(super) struct Exchange {
    pub(super) line: usize,
    /// The request as written in the file.
    text: String,
    /// Method and path as written in the file.
    pub(super) first: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
    pub(super) keep: Vec<(String, String)>,
    pub(super) masked: Vec<String>,
    pub(super) differs: Vec<String>,
    pub(super) unordered: bool,
    pub(super) eventually: bool,
    pub(super) answer: Option<Answer>,
}

/// The compared parts of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Names and values, in the order of `masks::HEADERS`.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Recording {
    pub(super) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("a recording");
        let name = path.file_name().expect("a name").to_string_lossy();
        let mut blocks: Vec<(usize, Vec<&str>)> = vec![(1, Vec::new())];
        for (i, line) in text.lines().enumerate() {
            if line.starts_with("=== ") {
                blocks.push((i + 1, Vec::new()));
            }
            blocks.last_mut().expect("there is one").1.push(line);
        }
        let begin = blocks.remove(0).1.join("\n");
        let exchanges = blocks
            .iter()
            .map(|(line, block)| Exchange::parse(&name, *line, block));
        Self {
            exchanges: exchanges.collect(),
            begin,
            name: name.into_owned(),
        }
    }

    pub(super) fn write(&self, path: &Path) {
        let mut text = self.begin.trim_end().to_owned();
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        for exchange in &self.exchanges {
            let answer = exchange.answer.as_ref().expect("it was asked");
            let _ = writeln!(text, "{}\n--- {}", exchange.text, answer.status);
            for (name, value) in &answer.headers {
                let _ = writeln!(text, "{name}: {value}");
            }
            if !answer.body.is_empty() {
                let _ = writeln!(text, "\n{}", answer.body);
            }
            text.push('\n');
        }
        std::fs::write(path, text).expect("it can be written");
    }
}

impl Exchange {
    fn parse(file: &str, line: usize, block: &[&str]) -> Self {
        let end = block.iter().position(|line| line.starts_with("--- "));
        let (request, answer) = block.split_at(end.unwrap_or(block.len()));
        let (head, body) = head_and_body(request);
        let first = head[0].trim_start_matches("=== ");
        let (method, path) = first
            .split_once(' ')
            .unwrap_or_else(|| panic!("{file}:{line}: {first}: no path"));
        let mut exchange = Self {
            line,
            text: request.join("\n").trim_end().to_owned(),
            first: first.to_owned(),
            method: method.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body,
            keep: Vec::new(),
            masked: Vec::new(),
            differs: Vec::new(),
            unordered: false,
            eventually: false,
            answer: (!answer.is_empty()).then(|| Answer::parse(answer)),
        };
        for header_line in head[1..].iter().filter(|line| !line.starts_with('#')) {
            if let Some(said) = header_line.strip_prefix('@') {
                let known = exchange.directive(said);
                assert!(known.is_some(), "{file}:{line}: {header_line}");
            } else {
                let header = header_line.split_once(": ");
                let (name, value) =
                    header.unwrap_or_else(|| panic!("{file}:{line}: {header_line}"));
                exchange.headers.push((name.to_owned(), value.to_owned()));
            }
        }
        exchange
    }

    fn directive(&mut self, said: &str) -> Option<()> {
        let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
        match word {
            "keep" => {
                let (name, pointer) = rest.split_once(' ')?;
                self.keep.push((name.to_owned(), pointer.to_owned()));
            }
            "masked" => self.masked.push(rest.to_owned()),
            "differs" => {
                let (place, reason) = rest.split_once(' ')?;
                let named = REASONS.contains(&format!("| {reason} |"));
                (named || reason.contains(' ')).then_some(())?;
                self.differs.push(place.to_owned());
            }
            "unordered" => self.unordered = true,
            "eventually" => self.eventually = true,
            _ => return None,
        }
        Some(())
    }
}

impl Answer {
    fn parse(lines: &[&str]) -> Self {
        let status = lines[0].trim_start_matches("--- ").trim();
        let (head, body) = head_and_body(&lines[1..]);
        let headers = head.iter().filter_map(|line| line.split_once(": "));
        Self {
            status: status.parse().expect("a status"),
            headers: headers
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            body,
        }
    }
}

/// The lines before the first empty one, and the text after it.
fn head_and_body<'a>(lines: &'a [&'a str]) -> (&'a [&'a str], String) {
    let end = lines.iter().position(|line| line.is_empty());
    let (head, body) = lines.split_at(end.unwrap_or(lines.len()));
    (head, body.join("\n").trim().to_owned())
}
