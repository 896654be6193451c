//! The listeners that are served: `/listeners`.

use std::fmt::Write as _;

use legate_l4::model::Address;
use serde_json::{Value, json};

use super::query::{Format, Query};
use super::{Admin, Page};

/// An address as Envoy's JSON.
pub(super) fn address(address: &Address) -> Value {
    let socket =
        |ip: String, port: u16| json!({ "socket_address": { "address": ip, "port_value": port } });
    match address {
        Address::Socket(address) => socket(address.ip().to_string(), address.port()),
        Address::Dns(name, port) => socket(name.to_string(), *port),
        Address::Pipe { path, .. } => json!({ "pipe": { "path": path.to_string_lossy() } }),
    }
}

impl Admin {
    pub(super) fn listeners(&self, query: &Query) -> Result<Page, Page> {
        let formats = [("text", Format::Text), ("json", Format::Json)];
        let format = query.format("/listeners", &formats)?;
        let serving = self.built_in.shared.serving();
        let all = serving.listeners.values().map(|listener| &listener.spec);
        if format == Format::Json {
            let all = all.map(|listener| {
                json!({ "name": &*listener.name, "local_address": address(&listener.address) })
            });
            let all: Vec<Value> = all.collect();
            return Ok(Page::json(&json!({ "listener_statuses": all })));
        }
        let mut text = String::new();
        for listener in all {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}::{}", listener.name, listener.address);
        }
        Ok(Page::ok(text))
    }
}
