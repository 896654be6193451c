//! The state of the proxy: `/ready` and `/server_info`.

use std::sync::atomic::Ordering;

use http::StatusCode;
use serde_json::{Value, json};

use super::{Admin, Page};

/// What `version` consists of in Envoy: commit, version, state of the sources, kind of build, TLS library. The third
/// part says which proxy it is.
const VERSION: &str = concat!(
    "legate/",
    env!("CARGO_PKG_VERSION"),
    "/legate-l4/RELEASE/rustls"
);

impl Admin {
    /// The state, with Envoy's names.
    fn state(&self) -> &'static str {
        let is_live = self.built_in.shared.live.load(Ordering::Relaxed);
        match is_live {
            _ if self.failed.load(Ordering::Relaxed) => "DRAINING",
            true => "LIVE",
            false => "PRE_INITIALIZING",
        }
    }

    pub(super) fn ready(&self) -> Page {
        let state = self.state();
        let status = match state {
            "LIVE" => StatusCode::OK,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Page::text(status, format!("{state}\n"))
    }

    pub(super) fn server_info(&self) -> Value {
        let uptime = format!("{}s", self.built_in.shared.now().as_secs());
        json!({
            "version": VERSION,
            "state": self.state(),
            "uptime_current_epoch": uptime,
            "uptime_all_epochs": uptime,
            "command_line_options": {
                "concurrency": self.built_in.threads,
                "drain_time": format!("{}s", self.drain_time.as_secs()),
                "mode": "Serve",
                "restart_epoch": 0,
            },
            "node": self.node,
        })
    }
}
