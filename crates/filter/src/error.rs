//! Errors of filters: what is wrong, and at which byte.

/// A text that is no filter, or a filter that does not fit the type it is applied to. The texts
/// begin as Consul's do, where Consul has the error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The text does not follow the grammar.
    #[error("the filter {text:?} is wrong at byte {at}: {reason}")]
    Syntax {
        /// The filter; truncated if it is too long.
        text: String,
        /// The byte offset in the filter.
        at: usize,
        /// What was expected.
        reason: String,
    },
    /// The selector names no field.
    #[error("Selector {selector:?} is not valid (at byte {at}; known: {known})")]
    Selector {
        /// The selector up to the first part that is not a field.
        selector: String,
        /// The byte offset in the filter.
        at: usize,
        /// The fields that exist in its place.
        known: String,
    },
    /// The operator does not apply to the field.
    #[error(
        "Invalid match operator {operator:?} for selector {selector:?} (at byte {at}): {expected}"
    )]
    Operator {
        /// The operator, by Consul's name.
        operator: &'static str,
        /// The selector.
        selector: String,
        /// The byte offset in the filter.
        at: usize,
        /// The operators that the field has.
        expected: &'static str,
    },
    /// The value does not fit the type of the field.
    #[error(
        "Failed to coerce value {value:?} for selector {selector:?} (at byte {at}): it must be \
         {expected}"
    )]
    Value {
        /// The value.
        value: String,
        /// The selector.
        selector: String,
        /// The byte offset in the filter.
        at: usize,
        /// The values that the field can have.
        expected: &'static str,
    },
}

impl FilterError {
    /// The byte offset of the error in the filter.
    pub fn at(&self) -> usize {
        match self {
            FilterError::Syntax { at, .. }
            | FilterError::Selector { at, .. }
            | FilterError::Operator { at, .. }
            | FilterError::Value { at, .. } => *at,
        }
    }
}
