//! Which values are shown in the way that Consul does, and which are left out.

use serde::{Serialize, Serializer};

/// Writes an empty list as `null`, as Consul shows lists that nobody gave: clients in Go tell the two
/// apart.
pub(crate) fn null_if_empty<T: Serialize, S: Serializer>(
    items: &Vec<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match items.is_empty() {
        true => serializer.serialize_none(),
        false => items.serialize(serializer),
    }
}

/// Whether a number is left out.
pub(crate) fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}
