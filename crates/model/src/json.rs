//! Decodes JSON from users and Consul's clients.
//!
//! Keys may be in any case and with or without underscores (`ServiceName`, `service_name`,
//! `servicename`). `null` means that the field is absent. Unknown fields are either ignored or all
//! reported. Errors contain the position in the document. Keys of maps are data and are retained
//! verbatim.

pub(crate) mod decode;
pub(crate) mod nesting;
mod position;
mod request;
pub(crate) mod shown;

pub use decode::{DecodeError, UnknownFields, from_slice, from_value, same_key};
pub use nesting::{MAX_NESTING, is_too_deep};
pub use request::{Request, from_hcl, request};
