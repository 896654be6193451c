//! The server behind every HTTP port of the dataplane (lifecycle, its own metrics, merged metrics), and
//! its limits.

use std::future::ready;
use std::time::Duration;

use axum::Router;
use hyper_util::service::TowerToHyperService;
use legate_runtime::http_server::{self, Limits};
use legate_runtime::{Spawner, file_limit};
use tokio::net::TcpListener;

/// Open files reserved for everything else: Envoy's start, connections to servers, the relay, DNS, and
/// fetching metrics.
const RESERVED_FILES: u64 = 128;

/// HTTP ports of one dataplane; they share the remaining files.
const PORTS: u64 = 3;

/// Connection limit of one port in a process that may open `files` files.
fn connections(files: u64) -> usize {
    let share = files.saturating_sub(RESERVED_FILES) / PORTS;
    usize::try_from(share).unwrap_or(usize::MAX).clamp(4, 100)
}

/// Serves `router` until the scope of `spawner` stops.
pub(crate) fn serve(name: &'static str, listener: TcpListener, router: Router, spawner: &Spawner) {
    let files = file_limit::current().unwrap_or(u64::MAX);
    let limits = Limits {
        connections: connections(files),
        head: Duration::from_secs(10),
        // A graceful start waits for as long as the settings allow.
        making: Duration::MAX,
        // A scraper may allow 120 s for the merged metrics.
        answer: Duration::from_secs(150),
    };
    let service = TowerToHyperService::new(router);
    let open = |stream| ready(Ok(stream));
    http_server::serve(name, listener, open, service, limits, spawner);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_make_few_connections() {
        for (files, expected) in [(0, 4), (64, 4), (256, 42), (1024, 100), (u64::MAX, 100)] {
            assert_eq!(connections(files), expected, "{files} files");
        }
    }
}
