//! Serialization of empty values as in Consul.

use serde::{Serialize, Serializer};

/// Serialises an empty list as `null`, as Consul does for unset lists. Go clients distinguish the
/// two.
pub(crate) fn null_if_empty<T: Serialize, S: Serializer>(
    items: &Vec<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match items.is_empty() {
        true => serializer.serialize_none(),
        false => items.serialize(serializer),
    }
}

/// Whether a number is zero and therefore omitted.
pub(crate) fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}
