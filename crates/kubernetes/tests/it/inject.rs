//! Tests of the injection: pods in, patches out.

mod api_server;
mod golden;
mod refusals;
mod support;
mod webhook;
