//! Questions to the HTTP API of a server, wherever it is: with the flags, the variables and the texts of
//! errors that Consul's command line has. One connection a request; it follows no redirect and repeats
//! nothing.

mod address;
mod client;
mod flags;

pub(crate) use self::client::{Api, Ask, encoded, encoded_path, index, refused};
pub(crate) use self::flags::{ApiFlags, ServerApi, environment};
