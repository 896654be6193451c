//! Dynamic access to Envoy's messages: conversion between JSON and bytes, and changes of a field by
//! path.
//!
//! Users write Envoy's messages in Consul's settings: whole resources as JSON
//! (`envoy_listener_json` and the like), and single fields by path (`builtin/property-override`).
//! Their types are only known at run time, so messages are described by Envoy's descriptors from
//! the crate `envoy-types`, which are loaded on first use.
//!
//! Pure: texts and bytes in, bytes out. Independent of the purpose of a message.

mod canonical;
mod json;
mod patch;
mod pool;

pub use canonical::canonical;
pub use json::{JsonError, decode, decode_any, encode};
pub use patch::{Change, Patch, PatchError};
pub use pool::message;
