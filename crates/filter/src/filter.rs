//! A filter that fits the values that it is asked of.

use serde::Serialize;

use crate::FilterError;
use crate::evaluate;
use crate::expression::{Expression, Match, Operator, Tree};
use crate::fields::{Fields, Kind};
use crate::question::{Question, Value};

/// A filter whose selectors lead to fields and whose values are such as those can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    text: String,
    /// `None` fits everything.
    tree: Option<Tree<Question>>,
}

impl Filter {
    /// Reads a filter for values that have these fields; an empty one fits everything.
    ///
    /// # Errors
    ///
    /// [`FilterError`] says where the text is wrong and what was expected.
    pub fn parse(text: &str, fields: &(impl Fields + ?Sized)) -> Result<Filter, FilterError> {
        let expression = Expression::parse(text)?;
        let tree = expression
            .map(|expression| expression.try_map(&mut |found| question(found, fields)))
            .transpose()?;
        Ok(Filter {
            text: text.to_owned(),
            tree,
        })
    }

    /// The text that it was read from.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it fits everything.
    pub fn is_empty(&self) -> bool {
        self.tree.is_none()
    }

    /// Whether it fits a value. A value that cannot be serialised fits nothing that is asked about it.
    pub fn matches<T: Serialize + ?Sized>(&self, value: &T) -> bool {
        self.tree
            .as_ref()
            .is_none_or(|tree| tree.holds(&|question| evaluate::holds(question, value)))
    }
}

/// A condition together with the way to its field.
fn question(found: &Match, fields: &(impl Fields + ?Sized)) -> Result<Question, FilterError> {
    let selector = &found.selector;
    let at = selector.at;
    let place = fields.find(&selector.parts).map_err(|(good, known)| {
        let parts = selector.parts.iter().take(good + 1);
        FilterError::Selector {
            selector: parts.cloned().collect::<Vec<_>>().join("."),
            at,
            known,
        }
    })?;
    let kind = place.steps.last().map_or(Kind::Any, |step| step.kind);
    let (fits, expected) = match (&found.operator, kind) {
        (_, Kind::Any) | (Operator::In(_) | Operator::Matches(_), Kind::Text) => (true, ""),
        (operator, Kind::Text | Kind::Bool | Kind::Integer) => (
            matches!(operator, Operator::Equal(_))
                || matches!(operator, Operator::Empty) && kind == Kind::Text,
            "it is a number or a boolean, which only == and != can be asked of",
        ),
        (operator, Kind::Texts | Kind::Map) => (
            matches!(operator, Operator::In(_) | Operator::Empty),
            "it has many values: ask with in, contains or is empty",
        ),
        (operator, Kind::List) => (
            matches!(operator, Operator::Empty),
            "it is a list of records: ask for one of their fields, or with is empty",
        ),
        (_, Kind::Record) => (false, "it has fields: ask for one of them"),
    };
    if !fits {
        return Err(FilterError::Operator {
            operator: found.operator_name(),
            selector: selector.parts.join("."),
            at,
            expected,
        });
    }
    if let Operator::Equal(text) = &found.operator {
        let value = Value::new(text);
        let expected = match kind {
            Kind::Bool if value.boolean.is_none() => Some("true or false"),
            Kind::Integer if value.integer.is_none() => Some("a whole number"),
            _ => None,
        };
        if let Some(expected) = expected {
            return Err(FilterError::Value {
                value: text.clone(),
                selector: selector.parts.join("."),
                at,
                expected,
            });
        }
    }
    Ok(Question::new(place, &found.operator, found.negated))
}
