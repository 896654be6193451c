//! Decodes request bodies: unknown fields are refused, and fields without effect are reported.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::decode::{DecodeError, refuse_unknown, run};
use super::position::Position;
use crate::served;

/// A decoded request body.
#[derive(Debug, Clone, PartialEq)]
pub struct Request<T> {
    /// The value.
    pub value: T,
    /// Paths of fields that are stored but have no effect; see [`crate::served`].
    pub not_served: Vec<String>,
}

/// Decodes a request body and refuses unknown fields.
///
/// # Errors
///
/// [`DecodeError`] contains the problem and its position.
pub fn request<T: DeserializeOwned>(text: &[u8]) -> Result<Request<T>, DecodeError> {
    whole(
        serde_json::from_slice(text)?,
        Position::of_request(served::unserved),
    )
}

/// Decodes the output of [`crate::hcl::to_json`]. As in Consul, a single value is accepted for a
/// list, and a list with one object for an object. Unknown fields are refused.
///
/// # Errors
///
/// [`DecodeError`] contains the problem and its position.
pub fn from_hcl<T: DeserializeOwned>(value: Value) -> Result<Request<T>, DecodeError> {
    whole(value, Position::of_hcl(served::unserved))
}

fn whole<T: DeserializeOwned>(value: Value, place: Position) -> Result<Request<T>, DecodeError> {
    let (value, notes) = run(value, place)?;
    refuse_unknown(&notes)?;
    Ok(Request {
        value,
        not_served: notes.unserved,
    })
}
