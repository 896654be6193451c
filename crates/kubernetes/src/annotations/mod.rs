//! Everything that people write on pods under `consul.hashicorp.com/`, typed. Pure: no object is
//! looked up here.

/// What every key begins with.
pub const PREFIX: &str = "consul.hashicorp.com/";
