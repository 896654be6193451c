//! Custom resources as config entries.
//!
//! A resource in, a config entry out: [`spec`] reads it, [`kinds`] says which entry it is. It never writes the `spec` of a resource, and never
//! removes an entry that somebody else made.

pub mod crds;
pub mod kinds;
pub mod spec;
pub mod status;
