//! `legate` as people start it: the real program, real sockets.

mod agent;
mod proxies;
