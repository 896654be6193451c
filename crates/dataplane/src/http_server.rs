//! The server behind every port at which the dataplane answers HTTP (lifecycle, its own metrics, merged
//! metrics), and how much each of them takes.

use std::future::ready;
use std::time::Duration;

use axum::Router;
use hyper_util::service::TowerToHyperService;
use legate_runtime::http_server::{self, Limits};
use legate_runtime::{Spawner, file_limit};
use tokio::net::TcpListener;

/// Files that these servers leave to all others: Envoy's start, the servers' connections, the
/// relay, DNS, and what scrapes read.
const RESERVED_FILES: u64 = 128;

/// HTTP ports of one dataplane, which share the files that are left.
const PORTS: u64 = 3;

/// Connections of one port where the process may open that many files.
fn connections(files: u64) -> usize {
    let share = files.saturating_sub(RESERVED_FILES) / PORTS;
    usize::try_from(share).unwrap_or(usize::MAX).clamp(4, 100)
}

/// Answers with `router` until the scope of `spawner` stops.
pub(crate) fn serve(name: &'static str, listener: TcpListener, router: Router, spawner: &Spawner) {
    let files = file_limit::current().unwrap_or(u64::MAX);
    let limits = Limits {
        connections: connections(files),
        head: Duration::from_secs(10),
        // Whoever starts waits for as long as the settings say.
        making: Duration::MAX,
        // Whoever asks for the merged metrics may give them 120 s.
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
