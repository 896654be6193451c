//! Client for the HTTP API of a server, with the flags, environment variables and error texts of
//! Consul's command line. It uses one connection per request, follows no redirects and does not retry.

mod address;
mod client;
mod flags;

pub(crate) use self::client::{Api, Ask, encoded, encoded_path, index, refused};
pub(crate) use self::flags::{ApiFlags, ApiOptions, ServerApi, environment};
