//! The syntax tree of a template. Byte ranges refer to the template's text.

use crate::functions::Function;
use crate::value::Value;

/// A part of a template.
#[derive(Debug)]
pub(crate) enum Node<'a> {
    /// Literal text, trimmed.
    Text { start: usize, text: &'a str },
    /// A pipeline whose value is written, unless it is assigned to a variable.
    Action(Pipeline<'a>),
    /// `if` or `with`.
    Branch(Branch<'a>),
    /// `range`.
    Range(Range<'a>),
}

/// `if` or `with`; each `else if` or `else with` is an additional arm.
#[derive(Debug)]
pub(crate) struct Branch<'a> {
    /// Whether the value becomes the dot of its body, as in `with`.
    pub(crate) sets_dot: bool,
    pub(crate) arms: Vec<(Pipeline<'a>, Vec<Node<'a>>)>,
    pub(crate) otherwise: Vec<Node<'a>>,
}

/// `range`.
#[derive(Debug)]
pub(crate) struct Range<'a> {
    pub(crate) pipeline: Pipeline<'a>,
    pub(crate) body: Vec<Node<'a>>,
    /// The nodes executed if there is nothing to iterate over.
    pub(crate) otherwise: Vec<Node<'a>>,
}

/// Commands; each gets the value of the previous one as its last argument.
#[derive(Debug)]
pub(crate) struct Pipeline<'a> {
    pub(crate) span: (usize, usize),
    /// The variables to which the value is assigned; two in `range` only. Empty if the value is
    /// used directly.
    pub(crate) variables: Vec<&'a str>,
    /// Whether `variables` exist already, as in `$x = 1`.
    pub(crate) assigns: bool,
    pub(crate) commands: Vec<Command<'a>>,
}

/// An operand, or a function with its arguments.
#[derive(Debug)]
pub(crate) struct Command<'a> {
    pub(crate) span: (usize, usize),
    pub(crate) first: Operand<'a>,
    pub(crate) arguments: Vec<Operand<'a>>,
}

/// A value, or its source.
#[derive(Debug)]
pub(crate) struct Operand<'a> {
    /// The position for errors.
    pub(crate) at: usize,
    pub(crate) span: (usize, usize),
    pub(crate) kind: OperandKind<'a>,
}

#[derive(Debug)]
pub(crate) enum OperandKind<'a> {
    Dot,
    Nil,
    Literal(Value),
    /// `.A.B`
    Field(Vec<&'a str>),
    /// `$x.A.B`; the name includes the dollar.
    Variable(&'a str, Vec<&'a str>),
    Function(&'static Function),
    /// `(pipeline).A.B`
    Group(Box<Pipeline<'a>>, Vec<&'a str>),
}
