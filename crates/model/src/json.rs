//! JSON that people and Consul's clients write, decoded.
//!
//! Keys may be in any case and with or without underscores (`ServiceName`, `service_name`,
//! `servicename`); `null` means that the field is absent; unknown fields are ignored or all of them
//! are reported; errors say where in the document they are. Keys of maps are data and are kept.

pub(crate) mod decode;
mod place;
mod request;
pub(crate) mod shown;

pub use decode::{DecodeError, UnknownFields, from_slice, from_value, same_key};
pub use request::{Request, from_hcl, request};
