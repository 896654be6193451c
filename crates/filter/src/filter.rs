//! Filters checked against the fields of a type.

use serde::Serialize;

use crate::FilterError;
use crate::condition::{Condition, Value};
use crate::evaluate;
use crate::expression::{Expression, Match, Operator, Tree};
use crate::fields::{Fields, Kind};

/// A filter whose selectors and values fit the type that it is applied to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    text: String,
    /// `None` matches every value.
    tree: Option<Tree<Condition>>,
}

impl Filter {
    /// Parses a filter for a type with these fields. An empty filter matches every value.
    ///
    /// # Errors
    ///
    /// [`FilterError`] has the byte offset and what was expected.
    pub fn parse(text: &str, fields: &(impl Fields + ?Sized)) -> Result<Filter, FilterError> {
        let expression = Expression::parse(text)?;
        let tree = expression
            .map(|expression| expression.try_map(&mut |found| condition(found, fields)))
            .transpose()?;
        Ok(Filter {
            text: text.to_owned(),
            tree,
        })
    }

    /// The text from which the filter was parsed.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the filter is empty and matches every value.
    pub fn is_empty(&self) -> bool {
        self.tree.is_none()
    }

    /// Whether the filter matches a value. A value that fails to serialize matches no condition.
    pub fn matches<T: Serialize + ?Sized>(&self, value: &T) -> bool {
        self.tree
            .as_ref()
            .is_none_or(|tree| tree.holds(&|condition| evaluate::holds(condition, value)))
    }
}

/// Resolves the selector of a condition, and checks its operator and value.
fn condition(found: &Match, fields: &(impl Fields + ?Sized)) -> Result<Condition, FilterError> {
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
            "it is a number or a boolean, which has only == and !=",
        ),
        (operator, Kind::Texts | Kind::Map) => (
            matches!(operator, Operator::In(_) | Operator::Empty),
            "it has many values: use in, contains or is empty",
        ),
        (operator, Kind::List) => (
            matches!(operator, Operator::Empty),
            "it is a list of records: select one of their fields, or use is empty",
        ),
        (_, Kind::Record) => (false, "it has fields: select one of them"),
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
    Ok(Condition::new(place, &found.operator, found.negated))
}
