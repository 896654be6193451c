//! The tables.

use std::time::Duration;

use legate_tests::program::Program;
use legate_tests::table::{Table, median};

use super::mesh::INSTANCES;
use crate::figures::percentile;

/// The share of the services, in percent, whose import is measured in addition to that of all.
pub(super) const MOST: usize = 99;

/// The names of the clusters in tables, in the order of their servers.
const CLUSTERS: [&str; 2] = ["importing", "exporting"];

/// The measurements of the two servers of one vendor. `None` if something did not happen within its limit.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Imported services.
    pub(super) imported: Option<f64>,
    /// Until 99 % were imported.
    pub(super) most: Option<Cost>,
    /// Until all were imported.
    pub(super) all: Option<Cost>,
    /// Reading all of them once more as before, when nothing is imported.
    pub(super) reading: Option<Cost>,
    /// Memory of each server in MiB afterwards.
    pub(super) resident: Option<[f64; 2]>,
    /// The part of it that is not shared with other processes.
    pub(super) private: Option<[f64; 2]>,
    /// Peak memory of each server in MiB.
    pub(super) peak: Option<[f64; 2]>,
    /// Seconds without any change.
    pub(super) idle: Vec<Cost>,
    /// Milliseconds until the importing cluster has a change, of each change.
    pub(super) delays: Vec<f64>,
    /// Each change and a second more, without the CPU time of idle servers.
    pub(super) changes: Vec<Cost>,
}

/// What was used during a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    /// CPU milliseconds of each server.
    pub(super) work: [f64; 2],
    /// Bytes on the link.
    pub(super) bytes: f64,
}

impl Cost {
    /// Less the CPU time that the servers usually need in a second.
    pub(super) fn without(self, usual: [f64; 2]) -> Self {
        let own = |place: usize| (self.work[place] - usual[place] * self.seconds).max(0.0);
        Self {
            work: [own(0), own(1)],
            ..self
        }
    }
}

impl Figures {
    /// The median CPU milliseconds of each server in a second without any change. What they do every few seconds is
    /// not in it.
    pub(super) fn usual_work(&self) -> [f64; 2] {
        [0, 1].map(|place| {
            let work = self.idle.iter().map(|second| second.work[place]);
            median(&work.collect::<Vec<_>>()).unwrap_or_default()
        })
    }

    /// The mean of a value in a second without any change.
    fn idle(&self, value: impl Fn(&Cost) -> f64) -> Option<f64> {
        let seconds: f64 = self.idle.iter().map(|second| second.seconds).sum();
        let sum: f64 = self.idle.iter().map(value).sum();
        (seconds > 0.0).then(|| sum / seconds)
    }
}

/// Prints a table.
pub(super) fn print(programs: &[Program], (count, limit): (usize, Duration), columns: &[Figures]) {
    let title = format!("{count} exported services with {INSTANCES} instances");
    let rows = Rows {
        table: Table::new(&title, programs, 1),
        columns,
    };
    let within = format!("services imported within {} s", limit.as_secs());
    rows.one(&within, 0, |one| one.imported);
    rows.one(&format!("{MOST} % imported, s"), 2, |one| {
        one.most.map(|cost| cost.seconds)
    });
    rows.one("all imported, s", 2, |one| one.all.map(|cost| cost.seconds));
    rows.both("all imported: CPU s", 2, |one| {
        one.all.map(|cost| cost.work.map(|work| work / 1e3))
    });
    rows.one("all imported: KiB on the link", 0, |one| {
        one.all.map(|cost| cost.bytes / 1024.0)
    });
    rows.one("reading all once more, s", 2, |one| {
        one.reading.map(|cost| cost.seconds)
    });
    rows.one("reading all once more: CPU s", 2, |one| {
        one.reading.map(|cost| cost.work[0] / 1e3)
    });
    rows.both("resident, MiB", 0, |one| one.resident);
    rows.both("private, MiB", 0, |one| one.private);
    rows.both("resident, largest, MiB", 0, |one| one.peak);
    rows.both("without a change: CPU, % of a core", 2, |one| {
        let percent = |place: usize| one.idle(|second| second.work[place] / 10.0);
        Some([percent(0)?, percent(1)?])
    });
    rows.one("without a change: KiB/s on the link", 2, |one| {
        one.idle(|second| second.bytes / 1024.0)
    });
    rows.changes();
}

struct Rows<'a> {
    table: Table<'a>,
    columns: &'a [Figures],
}

impl Rows<'_> {
    fn one(&self, label: &str, decimals: usize, value: impl Fn(&Figures) -> Option<f64>) {
        let values: Vec<_> = self.columns.iter().map(value).collect();
        self.table.precise_row(label, &values, decimals);
    }

    fn both(&self, label: &str, decimals: usize, value: impl Fn(&Figures) -> Option<[f64; 2]>) {
        for (place, cluster) in CLUSTERS.into_iter().enumerate() {
            self.one(&format!("{label}, {cluster}"), decimals, |one| {
                value(one).map(|values| values[place])
            });
        }
    }

    /// The changed instances.
    fn changes(&self) {
        let of_changes = |figures: &Figures, value: &dyn Fn(&Cost) -> f64| {
            let values: Vec<_> = figures.changes.iter().map(value).collect();
            median(&values)
        };
        self.one("changes that arrived", 0, |one| {
            Some(one.delays.len() as f64)
        });
        for percent in [50, 99] {
            self.one(&format!("a change, ms, p{percent}"), 1, |one| {
                percentile(&one.delays, percent)
            });
        }
        self.both("a change: CPU ms, median", 1, |one| {
            let work = |place: usize| of_changes(one, &|cost| cost.work[place]);
            Some([work(0)?, work(1)?])
        });
        self.one("a change: KiB on the link, median", 1, |one| {
            of_changes(one, &|cost| cost.bytes / 1024.0)
        });
    }
}
