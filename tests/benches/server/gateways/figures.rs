//! The tables.

use legate_tests::program::Program;
use legate_tests::table::{Table, median};

use super::scenarios::Scenario;

/// The measurements of one server with one gateway. `None` if something did not happen within its limit.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Milliseconds until the gateway was configured.
    pub(super) configuring: Option<f64>,
    /// CPU milliseconds of the server during that time.
    pub(super) configuring_work: Option<f64>,
    /// Bytes that the gateway got during that time.
    pub(super) configuring_bytes: Option<f64>,
    /// Streams that the server ended during that time.
    pub(super) broken: Option<f64>,
    /// Memory in MiB when it was configured.
    pub(super) resident: Option<f64>,
    /// Peak memory of the whole run in MiB.
    pub(super) peak: Option<f64>,
    /// CPU usage without a gateway, in percent of a core.
    pub(super) idle: Option<f64>,
    /// The cost of each change, by its label.
    pub(super) changes: Vec<(&'static str, Cost)>,
}

/// The cost of a change, in each round.
#[derive(Debug, Default)]
pub(super) struct Cost {
    /// Milliseconds until the gateway has it.
    pub(super) delays: Vec<f64>,
    /// CPU milliseconds of the server.
    pub(super) work: Vec<f64>,
    /// Bytes that the gateway gets.
    pub(super) bytes: Vec<f64>,
}

/// Prints the table of a gateway.
pub(super) fn print(scenario: &Scenario, programs: &[Program], columns: &[Figures]) {
    let table = Table::new(&scenario.title, programs, 1);
    let row = |label: &str, decimals: usize, value: &dyn Fn(&Figures) -> Option<f64>| {
        let values: Vec<_> = columns.iter().map(value).collect();
        table.precise_row(label, &values, decimals);
    };
    row("configured, ms", 0, &|one| one.configuring);
    row("configured, CPU ms", 0, &|one| one.configuring_work);
    row("configured, KiB sent", 0, &|one| {
        one.configuring_bytes.map(|bytes| bytes / 1024.0)
    });
    row("streams that ended meanwhile", 0, &|one| one.broken);
    row("resident, MiB", 0, &|one| one.resident);
    row("resident, largest, MiB", 0, &|one| one.peak);
    row("CPU without a gateway, % of a core", 2, &|one| one.idle);
    for change in &scenario.changes {
        let name = change.label;
        let part = |label: &str, decimals: usize, values: fn(&Cost) -> &[f64], scale: f64| {
            row(&format!("changed {name}: {label}"), decimals, &|one| {
                let cost = one.changes.iter().find(|(label, _)| *label == name);
                cost.and_then(|(_, cost)| median(values(cost)))
                    .map(|value| value / scale)
            });
        };
        part("gateway has it, ms", 1, |cost| &cost.delays, 1.0);
        part("CPU ms", 2, |cost| &cost.work, 1.0);
        part("KiB sent", 1, |cost| &cost.bytes, 1024.0);
    }
}
