//! Selectors of binding rules: boolean expressions over the variables of a login.
//!
//! The part of Consul's filter language that selectors use: `==`, `!=`, `in`, `not in`, `contains`,
//! `not contains`, `matches`, `not matches`, `is empty`, `is not empty`, `and`, `or`, `not` and
//! parentheses. What a login lacks equals nothing, holds nothing, matches nothing and is empty.

mod parser;
mod pattern;

use self::parser::{Parser, Wrong, tokenise};
use self::pattern::Pattern;
use crate::acl::variables::Variables;

/// Longest selector, in bytes.
const MAX_LENGTH: usize = 8 * 1024;

/// A text that is not a selector, or uses a variable that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the selector {selector:?} is wrong at byte {at}: {reason}")]
pub struct SelectorError {
    selector: String,
    at: usize,
    reason: String,
}

/// A parsed selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    text: String,
    /// `None` matches everything.
    expression: Option<Expression>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Expression {
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Not(Box<Expression>),
    Equal {
        variable: Variable,
        value: String,
    },
    In {
        value: String,
        variable: Variable,
    },
    Matches {
        variable: Variable,
        pattern: Pattern,
    },
    Empty {
        variable: Variable,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Variable {
    name: String,
    at: usize,
}

impl Selector {
    /// Reads a selector; an empty one matches everything.
    ///
    /// # Errors
    ///
    /// [`SelectorError`] says where the text stops making sense and what was expected.
    pub fn parse(text: &str) -> Result<Selector, SelectorError> {
        let fail = |at, reason| SelectorError {
            selector: text.to_owned(),
            at,
            reason,
        };
        if text.len() > MAX_LENGTH {
            return Err(fail(
                MAX_LENGTH,
                format!("it is longer than {MAX_LENGTH} bytes"),
            ));
        }
        let tokens = tokenise(text).map_err(|Wrong(at, reason)| fail(at, reason))?;
        let mut parser = Parser::new(&tokens, text.len());
        let expression = if tokens.is_empty() {
            None
        } else {
            let expression = parser.or().map_err(|Wrong(at, reason)| fail(at, reason))?;
            if let Some((at, token)) = parser.rest().first() {
                return Err(fail(
                    *at,
                    format!("expected and, or or the end, not {token}"),
                ));
            }
            Some(expression)
        };
        Ok(Selector {
            text: text.to_owned(),
            expression,
        })
    }

    /// Whether every variable exists.
    ///
    /// # Errors
    ///
    /// [`SelectorError`] names the variable and those that exist.
    pub fn check(&self, known: &Variables) -> Result<(), SelectorError> {
        let fail = |variable: &Variable, wanted: &str| SelectorError {
            selector: self.text.clone(),
            at: variable.at,
            reason: format!(
                "{:?} is not a {wanted} here (known: {})",
                variable.name,
                known.names()
            ),
        };
        let mut rest: Vec<&Expression> = self.expression.iter().collect();
        while let Some(expression) = rest.pop() {
            match expression {
                Expression::And(a, b) | Expression::Or(a, b) => rest.extend([a.as_ref(), b]),
                Expression::Not(inner) => rest.push(inner),
                Expression::Equal { variable, .. } | Expression::Matches { variable, .. } => {
                    if !known.values.contains_key(&variable.name) {
                        return Err(fail(variable, "single value"));
                    }
                }
                Expression::In { variable, .. } | Expression::Empty { variable } => {
                    let name = &variable.name;
                    let exists = known.values.contains_key(name)
                        || known.lists.contains_key(name)
                        || known.is_group(name);
                    if !exists {
                        return Err(fail(variable, "variable"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a login's variables fit. A variable that is missing is empty.
    pub fn matches(&self, variables: &Variables) -> bool {
        self.expression
            .as_ref()
            .is_none_or(|expression| expression.holds(variables))
    }
}

impl Expression {
    fn holds(&self, variables: &Variables) -> bool {
        match self {
            Expression::And(a, b) => a.holds(variables) && b.holds(variables),
            Expression::Or(a, b) => a.holds(variables) || b.holds(variables),
            Expression::Not(inner) => !inner.holds(variables),
            Expression::Equal { variable, value } => {
                variables.value(&variable.name) == Some(value.as_str())
            }
            Expression::Matches { variable, pattern } => variables
                .value(&variable.name)
                .is_some_and(|text| pattern.is_match(text)),
            // In a list an item, in a text a part of it, in a group a name.
            Expression::In { value, variable } => {
                let name = &variable.name;
                if let Some(list) = variables.lists.get(name) {
                    list.contains(value)
                } else if let Some(text) = variables.value(name) {
                    text.contains(value.as_str())
                } else {
                    variables.has(&format!("{name}.{value}"))
                }
            }
            Expression::Empty { variable } => {
                let name = &variable.name;
                if let Some(list) = variables.lists.get(name) {
                    list.is_empty()
                } else if let Some(text) = variables.value(name) {
                    text.is_empty()
                } else {
                    variables.group(name).next().is_none()
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
