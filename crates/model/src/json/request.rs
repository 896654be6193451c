//! The bodies of requests: fields that the target does not have are refused, and those without
//! effect reported.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::decode::{DecodeError, refuse_unknown, run};
use super::place::Place;
use crate::served;

/// A request's body.
#[derive(Debug, Clone, PartialEq)]
pub struct Request<T> {
    /// What was sent.
    pub value: T,
    /// The paths of fields that are kept and have no effect here; see [`crate::served`].
    pub not_served: Vec<String>,
}

/// Decodes the body of a request: unknown fields are refused.
///
/// # Errors
///
/// [`DecodeError`] says what is wrong and where.
pub fn request<T: DeserializeOwned>(text: &[u8]) -> Result<Request<T>, DecodeError> {
    whole(
        serde_json::from_slice(text)?,
        Place::of_request(served::unserved),
    )
}

/// Decodes what [`crate::hcl::to_json`] has made of a text: where a list is wanted one value stands
/// for a list of it, and where an object is wanted a list of one object stands for it, as in Consul.
/// Unknown fields are refused.
///
/// # Errors
///
/// [`DecodeError`] says what is wrong and where.
pub fn from_hcl<T: DeserializeOwned>(value: Value) -> Result<Request<T>, DecodeError> {
    whole(value, Place::of_hcl(served::unserved))
}

fn whole<T: DeserializeOwned>(value: Value, place: Place) -> Result<Request<T>, DecodeError> {
    let (value, met) = run(value, place)?;
    refuse_unknown(&met)?;
    Ok(Request {
        value,
        not_served: met.unserved,
    })
}
