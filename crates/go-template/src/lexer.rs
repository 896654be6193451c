//! Splits a template into text and the tokens of actions. Trim markers (`{{-`, `-}}`) and comments
//! are handled here and not passed to the parser.

/// A token, with its byte range in the template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text outside of actions, trimmed.
    Text,
    /// `{{`
    Open,
    /// `}}`
    Close,
    /// White space within an action, which separates operands.
    Space,
    /// A keyword, a literal made of letters, or the name of a function.
    Word,
    /// `.`
    Dot,
    /// `.Name`
    Field,
    /// `$` or `$name`
    Variable,
    Number,
    /// `"text"`, including the quotes.
    Quoted,
    /// Text in backquotes, including these.
    Raw,
    Pipe,
    Comma,
    /// `:=`
    Declare,
    /// `=`
    Assign,
    LeftParenthesis,
    RightParenthesis,
    /// Any other character, which no grammar rule accepts.
    Other,
    /// The end of the template.
    End,
    /// An invalid token, with the reason. It is the last token.
    Invalid(String),
}

/// The tokens of `source`, the last of which is [`Kind::End`] or [`Kind::Invalid`].
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let mut lexer = Lexer {
        source,
        at: 0,
        tokens: Vec::new(),
    };
    match lexer.run() {
        Ok(()) => lexer.push(Kind::End, lexer.at),
        Err((start, reason)) => lexer.push(Kind::Invalid(reason), start),
    }
    lexer.tokens
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    tokens: Vec<Token>,
}

/// The offset of an invalid token, and the reason.
type Invalid = (usize, String);

impl Lexer<'_> {
    fn run(&mut self) -> Result<(), Invalid> {
        while let Some(distance) = self.rest().find("{{") {
            let open = self.at + distance;
            let trims = has_left_trim(&self.source[open + 2..]);
            let text = &self.source[self.at..open];
            let kept = if trims { trim_end(text) } else { text };
            self.text(kept.len());
            self.at = open + if trims { 4 } else { 2 };
            if self.rest().starts_with("/*") {
                self.comment()?;
            } else {
                self.push(Kind::Open, open);
                self.action(open)?;
            }
        }
        self.text(self.rest().len());
        Ok(())
    }

    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    fn text(&mut self, length: usize) {
        if length > 0 {
            let start = self.at;
            self.at += length;
            self.push(Kind::Text, start);
        }
    }

    /// Adds the token from `start` to the current position.
    fn push(&mut self, kind: Kind, start: usize) {
        self.tokens.push(Token {
            kind,
            start,
            end: self.at,
        });
    }

    fn comment(&mut self) -> Result<(), Invalid> {
        let start = self.at;
        let Some(length) = self.rest()[2..].find("*/") else {
            return Err((start, "unclosed comment".to_owned()));
        };
        self.at += 2 + length + 2;
        if self.close() {
            Ok(())
        } else {
            Err((start, "comment ends before closing delimiter".to_owned()))
        }
    }

    /// Whether an action ends here, and whether it trims the following text.
    fn closing(&self) -> Option<bool> {
        let rest = self.rest();
        match rest.as_bytes() {
            [b'}', b'}', ..] => Some(false),
            [b' ' | b'\t' | b'\r' | b'\n', b'-', b'}', b'}', ..] => Some(true),
            _ => None,
        }
    }

    /// Consumes the end of an action, if it is here.
    fn close(&mut self) -> bool {
        let Some(trims) = self.closing() else {
            return false;
        };
        self.at += if trims { 4 } else { 2 };
        if trims {
            self.at += self.rest().len() - self.rest().trim_start_matches(is_space).len();
        }
        true
    }

    fn action(&mut self, open: usize) -> Result<(), Invalid> {
        let mut parentheses = 0_usize;
        loop {
            let start = self.at;
            if self.closing().is_some() {
                if parentheses > 0 {
                    return Err((start, "unclosed left paren".to_owned()));
                }
                self.close();
                self.push(Kind::Close, start);
                return Ok(());
            }
            let Some(first) = self.rest().chars().next() else {
                return Err((open, "unclosed action".to_owned()));
            };
            let kind = match first {
                '(' => {
                    parentheses += 1;
                    self.single(Kind::LeftParenthesis)
                }
                ')' => {
                    parentheses = parentheses
                        .checked_sub(1)
                        .ok_or_else(|| (start, "unexpected right paren".to_owned()))?;
                    self.single(Kind::RightParenthesis)
                }
                other => self.token(other).map_err(|reason| (start, reason))?,
            };
            self.push(kind, start);
        }
    }

    /// Reads a token that starts with `first`.
    fn token(&mut self, first: char) -> Result<Kind, String> {
        match first {
            space if is_space(space) => {
                while self.closing().is_none() && self.rest().starts_with(is_space) {
                    self.at += 1;
                }
                Ok(Kind::Space)
            }
            '|' => Ok(self.single(Kind::Pipe)),
            ',' => Ok(self.single(Kind::Comma)),
            '=' => Ok(self.single(Kind::Assign)),
            ':' if self.rest().starts_with(":=") => {
                self.at += 2;
                Ok(Kind::Declare)
            }
            ':' => Err("expected :=".to_owned()),
            '"' => self.quoted(),
            '`' => self.raw(),
            '\'' => {
                Err("character constants are not supported; write a text in \"quotes\"".to_owned())
            }
            '$' => {
                self.at += 1;
                self.name()?;
                Ok(Kind::Variable)
            }
            '.' if !self.rest()[1..].starts_with(|next: char| next.is_ascii_digit()) => {
                self.at += 1;
                let named = self.name()?;
                Ok(if named { Kind::Field } else { Kind::Dot })
            }
            '.' | '+' | '-' | '0'..='9' => {
                self.number();
                Ok(Kind::Number)
            }
            letter if is_alphanumeric(letter) => {
                self.name()?;
                Ok(Kind::Word)
            }
            other if other.is_ascii_graphic() => Ok(self.single(Kind::Other)),
            other => Err(format!(
                "unrecognized character in action: {}",
                named(other)
            )),
        }
    }

    fn single(&mut self, kind: Kind) -> Kind {
        self.at += 1;
        kind
    }

    /// Reads letters, digits and underscores, and returns whether there were any.
    fn name(&mut self) -> Result<bool, String> {
        let rest = self.rest();
        let length = rest
            .find(|character| !is_alphanumeric(character))
            .unwrap_or(rest.len());
        self.at += length;
        let next = self.rest().chars().next();
        let ends = next.is_none_or(|next| is_space(next) || ".,|:()".contains(next))
            || self.rest().starts_with("}}");
        match next {
            Some(next) if !ends => Err(format!("bad character {}", named(next))),
            _ => Ok(length > 0),
        }
    }

    /// Reads the characters of a number; the parser validates it.
    fn number(&mut self) {
        let bytes = self.rest().as_bytes();
        // An optional sign and a prefix. The check looks no further, so that the cost of a row of
        // signs is linear.
        let unsigned = match bytes {
            [b'+' | b'-', unsigned @ ..] => unsigned,
            unsigned => unsigned,
        };
        let hexadecimal = matches!(unsigned, [b'0', b'x' | b'X', ..]);
        let mut length = 1;
        while let Some(byte) = bytes.get(length) {
            let signs_exponent = matches!(byte, b'+' | b'-')
                && !hexadecimal
                && matches!(bytes[length - 1], b'e' | b'E');
            if !(byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_') || signs_exponent) {
                break;
            }
            length += 1;
        }
        self.at += length;
    }

    fn quoted(&mut self) -> Result<Kind, String> {
        let mut escaped = false;
        for (offset, character) in self.rest().char_indices().skip(1) {
            match character {
                '\n' => break,
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => {
                    self.at += offset + 1;
                    return Ok(Kind::Quoted);
                }
                _ => {}
            }
        }
        Err("unterminated quoted string".to_owned())
    }

    fn raw(&mut self) -> Result<Kind, String> {
        match self.rest()[1..].find('`') {
            Some(length) => {
                self.at += length + 2;
                Ok(Kind::Raw)
            }
            None => Err("unterminated raw quoted string".to_owned()),
        }
    }
}

fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n')
}

fn is_alphanumeric(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

fn has_left_trim(after: &str) -> bool {
    matches!(after.as_bytes(), [b'-', b' ' | b'\t' | b'\r' | b'\n', ..])
}

fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

fn named(character: char) -> String {
    format!("U+{:04X} {character:?}", u32::from(character))
}
