//! What is wrong with a filter, and where.

/// A text that is not a filter, or not one for the values that it is meant for. The texts begin as
/// those of Consul, where that has some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// It does not follow the grammar.
    #[error("the filter {text:?} is wrong at byte {at}: {reason}")]
    Syntax {
        /// The filter, or its beginning when it is too long.
        text: String,
        /// Where, in bytes from the beginning.
        at: usize,
        /// What was expected.
        reason: String,
    },
    /// A selector names no field.
    #[error("Selector {selector:?} is not valid (at byte {at}; known: {known})")]
    Selector {
        /// The part of the selector that leads nowhere, from its beginning.
        selector: String,
        /// Where, in bytes from the beginning.
        at: usize,
        /// What can stand there.
        known: String,
    },
    /// A field cannot be asked this.
    #[error(
        "Invalid match operator {operator:?} for selector {selector:?} (at byte {at}): {expected}"
    )]
    Operator {
        /// The operator, as Consul names it.
        operator: &'static str,
        /// The selector.
        selector: String,
        /// Where, in bytes from the beginning.
        at: usize,
        /// What the field can be asked.
        expected: &'static str,
    },
    /// A value is none that the field can have.
    #[error(
        "Failed to coerce value {value:?} for selector {selector:?} (at byte {at}): it must be \
         {expected}"
    )]
    Value {
        /// The value.
        value: String,
        /// The selector.
        selector: String,
        /// Where, in bytes from the beginning.
        at: usize,
        /// What it must be.
        expected: &'static str,
    },
}

impl FilterError {
    /// Where it is, in bytes from the beginning of the filter.
    pub fn at(&self) -> usize {
        match self {
            FilterError::Syntax { at, .. }
            | FilterError::Selector { at, .. }
            | FilterError::Operator { at, .. }
            | FilterError::Value { at, .. } => *at,
        }
    }
}
