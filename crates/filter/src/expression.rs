//! The syntax tree of a filter, and its text form.

use std::fmt;

use crate::pattern::Pattern;

/// Conditions joined by `and`, `or` and `not`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tree<M> {
    /// All conditions hold; two or more.
    And(Vec<Tree<M>>),
    /// At least one condition holds; two or more.
    Or(Vec<Tree<M>>),
    /// The condition does not hold.
    Not(Box<Tree<M>>),
    /// A single condition.
    Match(M),
}

/// A parsed filter, not yet checked against the fields of a type.
pub type Expression = Tree<Match>;

/// A condition on one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// The field.
    pub selector: Selector,
    /// The question.
    pub operator: Operator,
    /// Whether the result is negated. If the selector passes a list, that differs from
    /// [`Tree::Not`]: `Checks.Status != passing` holds if at least one check is not passing.
    pub negated: bool,
}

/// The comparison, with its operand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operator {
    /// `==`
    Equal(String),
    /// `in` and `contains`: an item of a list, a key of a map, a part of a text.
    In(String),
    /// `matches`: a regular expression matches a part of the text.
    Matches(Pattern),
    /// `is empty`
    Empty,
}

/// The names of a field and its parents, outermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// At least one name.
    pub parts: Vec<String>,
    /// Byte offset in the text; 0 if the selector was not parsed from a text.
    pub at: usize,
}

impl<M> Tree<M> {
    /// The same tree with each condition converted.
    pub(crate) fn try_map<N, E>(
        &self,
        map: &mut impl FnMut(&M) -> Result<N, E>,
    ) -> Result<Tree<N>, E> {
        let mut all = |trees: &[Tree<M>]| -> Result<Vec<Tree<N>>, E> {
            trees.iter().map(|tree| tree.try_map(map)).collect()
        };
        Ok(match self {
            Tree::And(trees) => Tree::And(all(trees)?),
            Tree::Or(trees) => Tree::Or(all(trees)?),
            Tree::Not(tree) => Tree::Not(Box::new(tree.try_map(map)?)),
            Tree::Match(found) => Tree::Match(map(found)?),
        })
    }

    /// Evaluates the tree; `judge` evaluates a condition.
    pub(crate) fn holds(&self, judge: &impl Fn(&M) -> bool) -> bool {
        match self {
            Tree::And(trees) => trees.iter().all(|tree| tree.holds(judge)),
            Tree::Or(trees) => trees.iter().any(|tree| tree.holds(judge)),
            Tree::Not(tree) => !tree.holds(judge),
            Tree::Match(found) => judge(found),
        }
    }
}

impl Match {
    /// The operator as Consul's errors name it.
    pub(crate) fn operator_name(&self) -> &'static str {
        match (&self.operator, self.negated) {
            (Operator::Equal(_), false) => "Equal",
            (Operator::Equal(_), true) => "Not Equal",
            (Operator::In(_), false) => "In",
            (Operator::In(_), true) => "Not In",
            (Operator::Matches(_), false) => "Matches",
            (Operator::Matches(_), true) => "Not Matches",
            (Operator::Empty, false) => "Is Empty",
            (Operator::Empty, true) => "Is Not Empty",
        }
    }
}

/// Prints a text that parses to the same tree.
impl<M: fmt::Display> fmt::Display for Tree<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |f: &mut fmt::Formatter<'_>, trees: &[Tree<M>], word: &str| {
            for (i, tree) in trees.iter().enumerate() {
                if i > 0 {
                    write!(f, " {word} ")?;
                }
                match tree {
                    Tree::And(_) | Tree::Or(_) => write!(f, "({tree})")?,
                    Tree::Not(_) | Tree::Match(_) => tree.fmt(f)?,
                }
            }
            Ok(())
        };
        match self {
            Tree::And(trees) => joined(f, trees, "and"),
            Tree::Or(trees) => joined(f, trees, "or"),
            Tree::Not(tree) => match **tree {
                Tree::And(_) | Tree::Or(_) => write!(f, "not ({tree})"),
                Tree::Not(_) | Tree::Match(_) => write!(f, "not {tree}"),
            },
            Tree::Match(found) => found.fmt(f),
        }
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let selector = &self.selector;
        let not = if self.negated { "not " } else { "" };
        match &self.operator {
            Operator::Equal(value) => {
                let sign = if self.negated { "!=" } else { "==" };
                write!(f, "{selector} {sign} {}", Quoted(value))
            }
            Operator::In(value) => write!(f, "{} {not}in {selector}", Quoted(value)),
            Operator::Matches(pattern) => {
                write!(f, "{selector} {not}matches {}", Quoted(pattern.as_str()))
            }
            Operator::Empty => write!(f, "{selector} is {not}empty"),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.parts.iter().enumerate() {
            match (i, is_identifier(part)) {
                (0, _) => f.write_str(part)?,
                (_, true) => write!(f, ".{part}")?,
                (_, false) => write!(f, "[{}]", Quoted(part))?,
            }
        }
        Ok(())
    }
}

/// A string in the quotes that filters use.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quoted(text) = self;
        let special = |c: char| matches!(c, '"' | '\\') || c.is_control();
        if !text.contains(special) {
            return write!(f, "\"{text}\"");
        }
        if !text.contains('`') && !text.contains(char::is_control) {
            return write!(f, "`{text}`");
        }
        f.write_str("\"")?;
        for c in text.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

/// Whether a text can follow a dot in a selector.
pub(crate) fn is_identifier(text: &str) -> bool {
    let rest = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(rest)
}
