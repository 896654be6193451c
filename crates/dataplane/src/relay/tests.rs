//! The relay's core against a model of a server and of Envoy.

mod chaos;
mod envoy;
mod mesh;
mod named;
mod scenarios;
mod server;
mod stranger;
