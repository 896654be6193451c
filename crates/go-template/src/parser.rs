//! Parses tokens to nodes: the grammar of actions, the scopes of variables, and errors for
//! unsupported features. Nesting is bounded.

use crate::error::{Source, TemplateError, excerpt};
use crate::functions::Function;
use crate::lexer::{self, Kind, Token};
use crate::limits::{MAX_DEPTH, MAX_VARIABLES};
use crate::literal;
use crate::syntax::{Branch, Command, Node, Operand, OperandKind, Pipeline, Range};
use crate::value::Value;

/// The supported actions, for errors.
const SUPPORTED: &str = "supported are fields, variables, pipelines, functions, if, else, range, with, end and comments";

/// Parses a template.
///
/// # Errors
/// If it does not follow the grammar, or uses an unsupported feature.
pub(crate) fn parse(source: Source<'_>) -> Result<Vec<Node<'_>>, TemplateError> {
    let mut parser = Parser {
        source,
        tokens: lexer::tokens(source.text),
        at: 0,
        variables: vec!["$"],
        depth: 0,
    };
    let (nodes, stop) = parser.nodes()?;
    match stop {
        Stop::EndOfText => Ok(nodes),
        Stop::End(at) => Err(parser.error(at, "unexpected {{end}}")),
        Stop::Else(at) => Err(parser.error(at, "unexpected {{else}}")),
    }
}

struct Parser<'a> {
    source: Source<'a>,
    tokens: Vec<Token>,
    at: usize,
    /// The variables in scope, innermost last.
    variables: Vec<&'a str>,
    depth: usize,
}

/// The reason why a list of nodes ends. After `else` the rest of its action is not read yet.
enum Stop {
    EndOfText,
    End(usize),
    Else(usize),
}

/// The control structures with a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Control {
    If,
    With,
    Range,
}

impl Control {
    fn name(self) -> &'static str {
        match self {
            Control::If => "if",
            Control::With => "with",
            Control::Range => "range",
        }
    }
}

type Parsed<T> = Result<T, TemplateError>;

impl<'a> Parser<'a> {
    fn error(&self, at: usize, message: &str) -> TemplateError {
        self.source.error(at, message)
    }

    /// The next token. The last one ([`Kind::End`] or [`Kind::Invalid`]) repeats forever.
    fn peek(&self) -> &Token {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn skip_space(&mut self) {
        while self.peek().kind == Kind::Space {
            self.at += 1;
        }
    }

    fn text(&self, token: &Token) -> &'a str {
        &self.source.text[token.start..token.end]
    }

    fn unexpected<T>(&self, token: &Token, place: &str) -> Parsed<T> {
        let message = match &token.kind {
            Kind::Invalid(reason) => reason.clone(),
            Kind::End => format!("unexpected EOF in {place}"),
            _ => format!("unexpected {:?} in {place}", excerpt(self.text(token))),
        };
        Err(self.error(token.start, &message))
    }

    fn expect_close(&mut self, place: &str) -> Parsed<()> {
        self.skip_space();
        let token = self.next();
        match token.kind {
            Kind::Close => Ok(()),
            _ => self.unexpected(&token, place),
        }
    }

    fn deeper(&mut self, at: usize) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(at, &format!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(())
    }

    fn nodes(&mut self) -> Parsed<(Vec<Node<'a>>, Stop)> {
        let mut nodes = Vec::new();
        loop {
            let token = self.next();
            match token.kind {
                Kind::Text => nodes.push(Node::Text {
                    start: token.start,
                    text: self.text(&token),
                }),
                Kind::End => return Ok((nodes, Stop::EndOfText)),
                Kind::Open => {
                    self.skip_space();
                    match self.keyword() {
                        Some("end") => {
                            self.expect_close("end")?;
                            return Ok((nodes, Stop::End(token.start)));
                        }
                        Some("else") => return Ok((nodes, Stop::Else(token.start))),
                        keyword => nodes.push(self.action(keyword, token.start)?),
                    }
                }
                _ => return self.unexpected(&token, "input"),
            }
        }
    }

    /// Consumes the keyword at the beginning of the action, if there is one.
    fn keyword(&mut self) -> Option<&'a str> {
        let token = self.peek();
        let word = (token.kind == Kind::Word).then(|| self.text(token))?;
        let keyword = matches!(
            word,
            "block"
                | "break"
                | "continue"
                | "define"
                | "else"
                | "end"
                | "if"
                | "range"
                | "template"
                | "with"
        );
        keyword.then(|| {
            self.at += 1;
            word
        })
    }

    fn action(&mut self, keyword: Option<&str>, open: usize) -> Parsed<Node<'a>> {
        match keyword {
            Some("if") => self.branch(Control::If, open),
            Some("with") => self.branch(Control::With, open),
            Some("range") => self.range(open),
            Some(other) => {
                let message = format!("{{{{{other}}}}} is not supported; {SUPPORTED}");
                Err(self.error(open, &message))
            }
            None => self.pipeline("command", &Kind::Close).map(Node::Action),
        }
    }

    fn branch(&mut self, control: Control, open: usize) -> Parsed<Node<'a>> {
        self.deeper(open)?;
        let scope = self.variables.len();
        let mut branch = Branch {
            sets_dot: control == Control::With,
            arms: Vec::new(),
            otherwise: Vec::new(),
        };
        loop {
            let pipeline = self.pipeline(control.name(), &Kind::Close)?;
            let (body, stop) = self.body()?;
            branch.arms.push((pipeline, body));
            let Stop::Else(at) = stop else {
                self.closed(&stop, control, open)?;
                break;
            };
            self.skip_space();
            match self.keyword() {
                Some(word) if word == control.name() => {}
                Some(word) => {
                    let message = format!("unexpected <{word}> in {{{{else}}}}");
                    return Err(self.error(at, &message));
                }
                None => {
                    branch.otherwise = self.otherwise(control, open)?;
                    break;
                }
            }
        }
        self.variables.truncate(scope);
        self.depth -= 1;
        Ok(Node::Branch(branch))
    }

    fn range(&mut self, open: usize) -> Parsed<Node<'a>> {
        self.deeper(open)?;
        let scope = self.variables.len();
        let pipeline = self.pipeline("range", &Kind::Close)?;
        let (body, stop) = self.body()?;
        let otherwise = match stop {
            Stop::Else(_) => self.otherwise(Control::Range, open)?,
            stop => {
                self.closed(&stop, Control::Range, open)?;
                Vec::new()
            }
        };
        self.variables.truncate(scope);
        self.depth -= 1;
        Ok(Node::Range(Range {
            pipeline,
            body,
            otherwise,
        }))
    }

    /// Parses nodes up to a stop, with a scope for their variables.
    fn body(&mut self) -> Parsed<(Vec<Node<'a>>, Stop)> {
        let scope = self.variables.len();
        let body = self.nodes()?;
        self.variables.truncate(scope);
        Ok(body)
    }

    /// Parses the nodes from a plain `else` to the `end`.
    fn otherwise(&mut self, control: Control, open: usize) -> Parsed<Vec<Node<'a>>> {
        self.expect_close("else")?;
        let (nodes, stop) = self.body()?;
        self.closed(&stop, control, open)?;
        Ok(nodes)
    }

    fn closed(&self, stop: &Stop, control: Control, open: usize) -> Parsed<()> {
        match stop {
            Stop::End(_) => Ok(()),
            Stop::Else(at) => Err(self.error(*at, "expected end; found {{else}}")),
            Stop::EndOfText => {
                let line = self.source.position(open).0;
                let message = format!(
                    "unexpected EOF; the {{{{{}}}}} in line {line} has no {{{{end}}}}",
                    control.name()
                );
                Err(self.error(self.source.text.len(), &message))
            }
        }
    }

    /// Parses commands up to `close` and consumes it.
    fn pipeline(&mut self, place: &str, close: &Kind) -> Parsed<Pipeline<'a>> {
        self.skip_space();
        let start = self.peek().start;
        let (variables, assigns) = self.variables(place)?;
        let mut commands = Vec::new();
        let mut end = start;
        loop {
            self.skip_space();
            if self.peek().kind == *close {
                let token = self.next();
                if commands.is_empty() {
                    let message = format!("missing value for {place}");
                    return Err(self.error(token.start, &message));
                }
                break;
            }
            let command = self.command(commands.len(), place, close)?;
            end = command.span.1;
            commands.push(command);
        }
        Ok(Pipeline {
            span: (start, end),
            variables,
            assigns,
            commands,
        })
    }

    /// Parses `$x :=`, `$x =`, and in `range` also `$i, $x :=`. The caller checks whether an
    /// assigned variable exists.
    fn variables(&mut self, place: &str) -> Parsed<(Vec<&'a str>, bool)> {
        let start = self.at;
        let mut names = Vec::new();
        while self.peek().kind == Kind::Variable {
            let variable = self.next();
            names.push(self.text(&variable));
            self.skip_space();
            let token = self.next();
            match token.kind {
                Kind::Comma if place == "range" && names.len() == 1 => {
                    self.skip_space();
                    if self.peek().kind != Kind::Variable {
                        let message = "range can only initialize variables";
                        return Err(self.error(token.start, message));
                    }
                }
                Kind::Comma => {
                    let message = format!("too many declarations in {place}");
                    return Err(self.error(token.start, &message));
                }
                Kind::Declare | Kind::Assign => {
                    self.declare(&names, token.start)?;
                    return Ok((names, token.kind == Kind::Assign));
                }
                _ => break,
            }
        }
        if names.len() > 1 {
            let message = "range can only initialize variables";
            return Err(self.error(self.tokens[start].start, message));
        }
        self.at = start;
        Ok((Vec::new(), false))
    }

    /// Adds variables to the scope.
    fn declare(&mut self, names: &[&'a str], at: usize) -> Parsed<()> {
        for name in names {
            if !self.variables.contains(name) {
                self.variables.push(name);
            }
        }
        match self.variables.len() <= MAX_VARIABLES {
            true => Ok(()),
            false => Err(self.error(at, &format!("over {MAX_VARIABLES} variables in scope"))),
        }
    }

    fn check_variable(&self, name: &str, at: usize) -> Parsed<()> {
        match self.variables.contains(&name) {
            true => Ok(()),
            false => Err(self.error(at, &format!("undefined variable {name:?}"))),
        }
    }

    /// Parses operands up to a pipe, which is consumed, or to `close`, which is not.
    fn command(&mut self, before: usize, place: &str, close: &Kind) -> Parsed<Command<'a>> {
        let first = self.operand(place)?;
        let non_executable = matches!(
            first.kind,
            OperandKind::Dot | OperandKind::Nil | OperandKind::Literal(_)
        );
        if before > 0 && non_executable {
            let message = format!("non executable command in pipeline stage {}", before + 1);
            return Err(self.error(first.at, &message));
        }
        let mut arguments: Vec<Operand<'a>> = Vec::new();
        loop {
            let token = self.peek().clone();
            match token.kind {
                Kind::Space => {
                    self.skip_space();
                    let next = &self.peek().kind;
                    if *next != Kind::Pipe && next != close {
                        arguments.push(self.operand("operand")?);
                    }
                }
                // Go accepts a pipe with nothing after it.
                Kind::Pipe => {
                    self.at += 1;
                    break;
                }
                ref kind if kind == close => break,
                _ => return self.unexpected(&token, "operand"),
            }
        }
        let end = arguments.last().map_or(first.span.1, |last| last.span.1);
        Ok(Command {
            span: (first.span.0, end),
            first,
            arguments,
        })
    }

    fn operand(&mut self, place: &str) -> Parsed<Operand<'a>> {
        let token = self.next();
        let text = self.text(&token);
        let (source, start) = (self.source, token.start);
        let error = |message: String| source.error(start, &message);
        let mut kind = match token.kind {
            Kind::Dot => OperandKind::Dot,
            Kind::Field => OperandKind::Field(vec![&text[1..]]),
            Kind::Variable => {
                self.check_variable(text, token.start)?;
                OperandKind::Variable(text, Vec::new())
            }
            Kind::Number => OperandKind::Literal(literal::number(text).map_err(error)?),
            Kind::Raw => {
                let inner = text[1..text.len() - 1].replace('\r', "");
                OperandKind::Literal(Value::from(inner))
            }
            Kind::Quoted => {
                let inner = literal::unquote(&text[1..text.len() - 1]).map_err(error)?;
                OperandKind::Literal(Value::from(inner))
            }
            Kind::Word => match text {
                "true" | "false" => OperandKind::Literal(Value::Bool(text == "true")),
                "nil" => OperandKind::Nil,
                name => OperandKind::Function(Function::find(name).map_err(error)?),
            },
            Kind::LeftParenthesis => {
                self.deeper(token.start)?;
                let inner = self.pipeline("parenthesized pipeline", &Kind::RightParenthesis)?;
                self.depth -= 1;
                OperandKind::Group(Box::new(inner), Vec::new())
            }
            _ => return self.unexpected(&token, place),
        };
        let mut at = token.start;
        let mut end = self.tokens[self.at - 1].end;
        if self.peek().kind == Kind::Field {
            at = self.peek().start;
            end = self.path(&mut kind, text)?;
        }
        Ok(Operand {
            at,
            span: (token.start, end),
            kind,
        })
    }

    /// Parses the fields directly after an operand. Returns the offset of their end.
    fn path(&mut self, kind: &mut OperandKind<'a>, text: &str) -> Parsed<usize> {
        let at = self.peek().start;
        let path = match kind {
            OperandKind::Field(path)
            | OperandKind::Variable(_, path)
            | OperandKind::Group(_, path) => path,
            _ => {
                let term = excerpt(text);
                return Err(self.error(at, &format!("unexpected . after term {term:?}")));
            }
        };
        let mut end = at;
        while self.peek().kind == Kind::Field {
            let token = self.next();
            path.push(&self.text(&token)[1..]);
            end = token.end;
        }
        Ok(end)
    }
}
