//! The measurements of one server, and their tables.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

use legate_tests::program::Program;
use legate_tests::table::{Table, median};

use crate::catalog::{CONCERNED, ROUTED};

/// The measurements of one server. `None` if an event did not happen within its limit.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Connections and streams that ended before all proxies were configured.
    pub(crate) broken: Option<f64>,
    /// The error of the first of them.
    pub(crate) first_error: Option<String>,
    /// Milliseconds until the last connection was open.
    pub(crate) connected: Option<f64>,
    /// Configured proxies.
    pub(crate) configured: Option<f64>,
    /// Seconds until all were configured.
    pub(crate) configuring: Option<f64>,
    /// CPU seconds of the server during that time.
    pub(crate) configuring_work: Option<f64>,
    /// Memory in MiB when all were configured.
    pub(crate) resident: Option<f64>,
    /// Peak memory of the whole run in MiB.
    pub(crate) peak: Option<f64>,
    /// CPU usage without any change, in percent of a core.
    pub(crate) idle: Option<f64>,
    /// A change of an endpoint.
    pub(crate) flap: Option<Change>,
    /// A change of one service's intention.
    pub(crate) intention: Option<Change>,
    /// A change of one route of a router.
    pub(crate) router: Option<Change>,
    /// A change of a setting of all proxies.
    pub(crate) defaults: Option<Change>,
    /// CPU milliseconds per certificate.
    pub(crate) signature: Option<f64>,
    /// A root rotation.
    pub(crate) rotation: Option<Change>,
}

/// The cost of a change, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    /// Until the first proxy has it.
    first: f64,
    median: f64,
    /// Until 99 % of the proxies have it.
    most: f64,
    /// Until the last one has it, in the slowest round.
    last: f64,
    /// CPU time, the median of the rounds.
    work: f64,
}

impl Change {
    /// From the delays of all proxies in all rounds, and the CPU time of each round.
    pub(crate) fn new(mut delays: Vec<f64>, work: &[f64]) -> Self {
        delays.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let place = (delays.len() * percent / 100).min(delays.len() - 1);
            delays[place]
        };
        Self {
            first: at(0),
            median: at(50),
            most: at(99),
            last: at(100),
            work: median(work).unwrap_or_default(),
        }
    }
}

/// The value that this share of all, in percent, does not exceed.
pub(crate) fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() * percent / 100).min(sorted.len().checked_sub(1)?);
    Some(sorted[place])
}

/// Prints a table and the errors.
pub(crate) fn print(programs: &[Program], count: usize, columns: &[Figures]) {
    let title = format!("{count} proxies with 5 upstreams");
    let table = Table::new(&title, programs, 0);
    let row = |label: &str, decimals: usize, value: &dyn Fn(&Figures) -> Option<f64>| {
        let values: Vec<_> = columns.iter().map(value).collect();
        table.precise_row(label, &values, decimals);
    };
    row("proxies configured", 0, &|one| one.configured);
    row("connections that broke meanwhile", 0, &|one| one.broken);
    row("all connected, ms", 0, &|one| one.connected);
    row("all configured, s", 1, &|one| one.configuring);
    row("all configured, CPU s", 1, &|one| one.configuring_work);
    row("resident, MiB", 0, &|one| one.resident);
    row("resident, largest, MiB", 0, &|one| one.peak);
    row("CPU without a change, % of a core", 2, &|one| one.idle);
    let changed = |name: &str, change: fn(&Figures) -> Option<Change>| {
        let part = |label: &str, value: fn(Change) -> f64| {
            let label = format!("{name}: {label}");
            row(&label, 1, &|one| change(one).map(value));
        };
        part("first proxy, ms", |change| change.first);
        part("median proxy, ms", |change| change.median);
        part("99 % of them, ms", |change| change.most);
        part("last proxy, ms", |change| change.last);
        part("CPU ms", |change| change.work);
    };
    changed(&format!("endpoint of {CONCERNED} proxies"), |one| one.flap);
    changed(&format!("intention of {CONCERNED} proxies"), |one| {
        one.intention
    });
    changed(&format!("router of {ROUTED} proxies"), |one| one.router);
    changed("proxy-defaults", |one| one.defaults);
    changed("another root", |one| one.rotation);
    row("certificate signed, CPU ms", 2, &|one| one.signature);
    for (program, column) in programs.iter().zip(columns) {
        if let Some(error) = &column.first_error {
            println!(
                "\nThe first connection of {} that broke: {error}",
                program.name
            );
        }
    }
}
