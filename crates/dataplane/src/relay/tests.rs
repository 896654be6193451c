//! The relay's core against a model of a server and of Envoy.

mod by_name;
mod chaos;
mod envoy;
mod mesh;
mod other_client;
mod scenarios;
mod server;
