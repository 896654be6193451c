//! The tables.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

use std::time::Duration;

use legate_tests::program::Program;
use legate_tests::table::{Table, median};

use super::mesh::INSTANCES;
use crate::figures::percentile;

/// The number of proxies that are printed because something was missing.
const SHOWN: usize = 10;

/// The measurements of the two servers of one vendor. `None` if something did not happen within its limit.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Connections and streams that ended before all proxies were configured.
    pub(super) broken: Option<f64>,
    /// The error of the first of them.
    pub(super) first_error: Option<String>,
    /// Configured proxies.
    pub(super) configured: Option<f64>,
    /// The others, with the largest number of healthy endpoints that each had, if it had all else.
    pub(super) lacking: Vec<(usize, Option<usize>)>,
    /// Until 99 % were configured.
    pub(super) most: Option<Cost>,
    /// Until all were configured.
    pub(super) all: Option<Cost>,
    /// Memory of each server in MiB when all were configured, or at the deadline.
    pub(super) resident: Option<[f64; 2]>,
    /// Peak memory of each server in MiB.
    pub(super) peak: Option<[f64; 2]>,
    /// Bytes on the link in a second without any change.
    pub(super) idle_bytes: Option<f64>,
    /// Changes that were made.
    pub(super) changes: usize,
    /// Milliseconds until the proxy has a change, of each change that arrived.
    pub(super) delays: Vec<f64>,
    /// Bytes on the link for each of these changes.
    pub(super) change_bytes: Vec<f64>,
}

/// What it took to configure proxies, from the moment at which they connected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    /// CPU seconds of each server.
    pub(super) work: [f64; 2],
    /// Bytes on the link.
    pub(super) bytes: f64,
}

/// Prints a table and the errors.
pub(super) fn print(programs: &[Program], (count, limit): (usize, Duration), columns: &[Figures]) {
    let title = format!("{count} proxies, {count} services of dc2 with {INSTANCES} instances");
    let table = Table::new(&title, programs, 1);
    let row = |label: &str, decimals: usize, value: &dyn Fn(&Figures) -> Option<f64>| {
        let values: Vec<_> = columns.iter().map(value).collect();
        table.precise_row(label, &values, decimals);
    };
    let both = |label: &str, decimals: usize, value: &dyn Fn(&Figures) -> Option<[f64; 2]>| {
        for (place, datacenter) in ["dc1", "dc2"].into_iter().enumerate() {
            row(&format!("{label}, {datacenter}"), decimals, &|one| {
                value(one).map(|values| values[place])
            });
        }
    };
    let kib = |bytes: Option<f64>| bytes.map(|bytes| bytes / 1024.0);
    let within = format!("proxies configured within {} s", limit.as_secs());
    row(&within, 0, &|one| one.configured);
    row("connections that broke meanwhile", 0, &|one| one.broken);
    type Share = fn(&Figures) -> Option<Cost>;
    let shares: [(_, Share); 2] = [("99 %", |one| one.most), ("all", |one| one.all)];
    for (share, cost) in shares {
        row(&format!("{share} configured, s"), 2, &|one| {
            cost(one).map(|cost| cost.seconds)
        });
        both(&format!("{share} configured: CPU s"), 2, &|one| {
            cost(one).map(|cost| cost.work)
        });
        row(&format!("{share} configured: KiB on the link"), 0, &|one| {
            kib(cost(one).map(|cost| cost.bytes))
        });
    }
    both("resident, MiB", 0, &|one| one.resident);
    both("resident, largest, MiB", 0, &|one| one.peak);
    row("without a change: KiB/s on the link", 2, &|one| {
        kib(one.idle_bytes)
    });
    row("changes made", 0, &|one| Some(one.changes as f64));
    row("changes that arrived", 0, &|one| {
        Some(one.delays.len() as f64)
    });
    row("a change, ms, p50", 1, &|one| percentile(&one.delays, 50));
    row("a change, ms, p99", 1, &|one| percentile(&one.delays, 99));
    row("a change: KiB on the link, median", 1, &|one| {
        kib(median(&one.change_bytes))
    });
    for (program, column) in programs.iter().zip(columns) {
        for (caller, endpoints) in column.lacking.iter().take(SHOWN) {
            let has = match endpoints {
                Some(healthy) => format!("had at most {healthy} healthy endpoints"),
                None => "lacked other resources".to_owned(),
            };
            println!("\nProxy {caller} of {} {has}.", program.name);
        }
        if let Some(error) = &column.first_error {
            println!(
                "\nThe first connection of {} that broke: {error}",
                program.name
            );
        }
    }
}
