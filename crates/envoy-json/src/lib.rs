//! Envoy's messages by name: their JSON form to bytes and back, and changes by the path of a field.
//!
//! Users write Envoy's own messages in settings of Consul: whole resources as JSON
//! (`envoy_listener_json` and the like), and fields of them by path (`builtin/property-override`).
//! What such a document may say is known at run time only, so messages are described by Envoy's
//! descriptors, those of the crate `envoy-types`, which are read when they are first needed.
//!
//! Pure: texts and bytes in, bytes out. Nothing here knows what a message is used for.

mod canonical;
mod json;
mod patch;
mod pool;

pub use canonical::canonical;
pub use json::{JsonError, decode, decode_any, encode};
pub use patch::{Change, Patch, PatchError};
pub use pool::message;
