//! What the parser makes of a template. Byte ranges refer to the template's text.

use super::functions::Function;
use super::value::Value;

/// A part of a template.
#[derive(Debug)]
pub(super) enum Node<'a> {
    /// Text that is written as it is, without what was trimmed.
    Text { start: usize, text: &'a str },
    /// A pipeline whose value is written, unless it goes to a variable.
    Action(Pipeline<'a>),
    /// `if` or `with`.
    Branch(Branch<'a>),
    /// `range`.
    Range(Range<'a>),
}

/// `if` or `with`, each `else if` or `else with` being another arm.
#[derive(Debug)]
pub(super) struct Branch<'a> {
    /// Whether the value becomes the dot of its body, as in `with`.
    pub(super) sets_dot: bool,
    pub(super) arms: Vec<(Pipeline<'a>, Vec<Node<'a>>)>,
    pub(super) otherwise: Vec<Node<'a>>,
}

/// `range`.
#[derive(Debug)]
pub(super) struct Range<'a> {
    pub(super) pipeline: Pipeline<'a>,
    pub(super) body: Vec<Node<'a>>,
    /// What is executed when there is nothing to iterate over.
    pub(super) otherwise: Vec<Node<'a>>,
}

/// Commands, each of which takes the value of the one before as its last argument.
#[derive(Debug)]
pub(super) struct Pipeline<'a> {
    pub(super) span: (usize, usize),
    /// Where the value goes; two names in `range` only. Empty when it is used in place.
    pub(super) variables: Vec<&'a str>,
    /// Whether `variables` exist already, as in `$x = 1`.
    pub(super) assigns: bool,
    pub(super) commands: Vec<Command<'a>>,
}

/// An operand, or a function with its arguments.
#[derive(Debug)]
pub(super) struct Command<'a> {
    pub(super) span: (usize, usize),
    pub(super) first: Operand<'a>,
    pub(super) arguments: Vec<Operand<'a>>,
}

/// A value, or where it comes from.
#[derive(Debug)]
pub(super) struct Operand<'a> {
    /// Where errors point to.
    pub(super) at: usize,
    pub(super) span: (usize, usize),
    pub(super) kind: OperandKind<'a>,
}

#[derive(Debug)]
pub(super) enum OperandKind<'a> {
    Dot,
    Nil,
    Literal(Value),
    /// `.A.B`
    Field(Vec<&'a str>),
    /// `$x.A.B`; the name includes the dollar.
    Variable(&'a str, Vec<&'a str>),
    Function(Function),
    /// `(pipeline).A.B`
    Group(Box<Pipeline<'a>>, Vec<&'a str>),
}
