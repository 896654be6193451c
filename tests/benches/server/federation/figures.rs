//! The tables.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

use legate_tests::program::Program;
use legate_tests::table::{Table, median};

use super::mesh::INSTANCES;

/// The measurements of the two servers of one vendor. `None` if something did not happen within its limit.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Connections and streams that ended before all proxies were configured.
    pub(super) broken: Option<f64>,
    /// The error of the first of them.
    pub(super) first_error: Option<String>,
    /// Configured proxies.
    pub(super) configured: Option<f64>,
    /// Seconds until all were configured.
    pub(super) configuring: Option<f64>,
    /// CPU seconds of each server during that time.
    pub(super) configuring_work: Option<[f64; 2]>,
    /// Bytes on the link for it.
    pub(super) configuring_bytes: Option<f64>,
    /// Memory of each server in MiB when all were configured.
    pub(super) resident: Option<[f64; 2]>,
    /// Peak memory of each server in MiB.
    pub(super) peak: Option<[f64; 2]>,
    /// Bytes on the link in a second without any change.
    pub(super) idle_bytes: Option<f64>,
    /// Milliseconds until the proxy has a change, of each change.
    pub(super) delays: Vec<f64>,
    /// Bytes on the link for each change.
    pub(super) change_bytes: Vec<f64>,
}

/// The value that this share of all, in percent, does not exceed.
fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() * percent / 100).min(sorted.len().checked_sub(1)?);
    Some(sorted[place])
}

/// Prints a table and the errors.
pub(super) fn print(programs: &[Program], count: usize, columns: &[Figures]) {
    let title = format!("{count} proxies, {count} services of dc2 with {INSTANCES} instances");
    let table = Table::new(&title, programs, 1);
    let row = |label: &str, decimals: usize, value: &dyn Fn(&Figures) -> Option<f64>| {
        let values: Vec<_> = columns.iter().map(value).collect();
        table.precise_row(label, &values, decimals);
    };
    let both = |label: &str, decimals: usize, value: fn(&Figures) -> Option<[f64; 2]>| {
        for (place, datacenter) in ["dc1", "dc2"].into_iter().enumerate() {
            row(&format!("{label}, {datacenter}"), decimals, &|one| {
                value(one).map(|values| values[place])
            });
        }
    };
    let kib = |bytes: Option<f64>| bytes.map(|bytes| bytes / 1024.0);
    row("proxies configured", 0, &|one| one.configured);
    row("connections that broke meanwhile", 0, &|one| one.broken);
    row("all configured, s", 2, &|one| one.configuring);
    both("all configured: CPU s", 2, |one| one.configuring_work);
    row("all configured: KiB on the link", 0, &|one| {
        kib(one.configuring_bytes)
    });
    both("resident, MiB", 0, |one| one.resident);
    both("resident, largest, MiB", 0, |one| one.peak);
    row("without a change: KiB/s on the link", 2, &|one| {
        kib(one.idle_bytes)
    });
    row("changes that arrived", 0, &|one| {
        Some(one.delays.len() as f64)
    });
    row("a change, ms, p50", 1, &|one| percentile(&one.delays, 50));
    row("a change, ms, p99", 1, &|one| percentile(&one.delays, 99));
    row("a change: KiB on the link, median", 1, &|one| {
        kib(median(&one.change_bytes))
    });
    for (program, column) in programs.iter().zip(columns) {
        if let Some(error) = &column.first_error {
            println!(
                "\nThe first connection of {} that broke: {error}",
                program.name
            );
        }
    }
}
