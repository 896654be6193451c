//! `legate` as people start it: the real program, real sockets.
#![allow(clippy::unwrap_used, reason = "a test ends with what went wrong")]

mod agent;
mod proxies;
