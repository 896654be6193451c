//! Tables of the measurements.

use std::time::Duration;

/// The program that ratios refer to.
pub(crate) const CONSUL: &str = "consul";

/// The throughput and latency of requests.
pub(crate) struct Taken {
    per_second: f64,
    /// The median latency in milliseconds.
    median: f64,
    percentile_99: f64,
}

impl Taken {
    /// From the latencies of all requests, and their total duration.
    pub(crate) fn of(mut times: Vec<Duration>, took: Duration) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let time = times.get(times.len() * percent / 100);
            time.copied().unwrap_or_default().as_secs_f64() * 1e3
        };
        Self {
            per_second: times.len() as f64 / took.as_secs_f64(),
            median: at(50),
            percentile_99: at(99),
        }
    }

    /// The row of a table.
    pub(crate) fn row(&self) -> Vec<Option<f64>> {
        [self.per_second, self.median, self.percentile_99]
            .map(Some)
            .to_vec()
    }
}

/// The recovery after a kill.
pub(crate) struct Recovery {
    /// The time until the last written row was returned, and until all rows were read; `None`
    /// without persistence.
    pub(crate) times: Option<(Duration, Duration)>,
    /// Disk usage in KiB.
    pub(crate) disk: f64,
    /// Resident memory of the server and of its etcd in KiB.
    pub(crate) before: (f64, Option<f64>),
    pub(crate) after: Option<(f64, Option<f64>)>,
}

/// Prints one table per number of writers.
pub(crate) fn print_writes(writers: &[usize], written: &[(String, Vec<Taken>)]) {
    for (n, writers) in writers.iter().enumerate() {
        let s = if *writers == 1 { "" } else { "s" };
        let rows = written
            .iter()
            .map(|(name, all)| (name.as_str(), all[n].row()));
        let title = format!("{writers} writer{s}");
        let columns = [
            ("writes per second", 0),
            ("median, ms", 2),
            ("99th percentile, ms", 2),
        ];
        print(&title, &columns, &rows.collect::<Vec<_>>());
    }
}

/// Prints one table for time, and one for memory and disk.
pub(crate) fn print_recovery(rows: usize, recovered: &[(String, Recovery)]) {
    let times = recovered.iter().filter_map(|(name, recovery)| {
        let (last, all) = recovery.times?;
        let seconds = vec![Some(last.as_secs_f64()), Some(all.as_secs_f64())];
        Some((name.as_str(), seconds))
    });
    let title = format!("{rows} rows, killed and started again");
    let columns = [
        ("answers with the last row, s", 2),
        ("all rows were read, s", 2),
    ];
    print(&title, &columns, &times.collect::<Vec<_>>());

    let mib = |kib: f64| Some(kib / 1024.0);
    let used = recovered.iter().map(|(name, recovery)| {
        let after = recovery.after;
        let used = vec![
            recovery.times.and_then(|_| mib(recovery.disk)),
            mib(recovery.before.0),
            after.and_then(|(server, _)| mib(server)),
            recovery.before.1.and_then(mib),
        ];
        (name.as_str(), used)
    });
    let title = format!("{rows} rows, MiB");
    let columns = [
        ("on disk", 0),
        ("resident", 0),
        ("resident after the new start", 0),
        ("resident, etcd", 0),
    ];
    print(&title, &columns, &used.collect::<Vec<_>>());
}

/// Each column is followed by its ratio to Consul, if measured.
pub(crate) fn print(title: &str, columns: &[(&str, usize)], rows: &[(&str, Vec<Option<f64>>)]) {
    let of = |n: usize| {
        let consul = rows.iter().find(|(name, _)| *name == CONSUL)?;
        consul.1[n].filter(|value| *value > 0.0)
    };
    let mut head = format!("\n| {title} |");
    let mut line = "|---|".to_owned();
    for (n, (column, _)) in columns.iter().enumerate() {
        head += &format!(" {column} |");
        line += "---:|";
        if of(n).is_some() {
            head += " ratio |";
            line += "---:|";
        }
    }
    println!("{head}\n{line}");
    for (name, values) in rows {
        let mut text = format!("| {name} |");
        for (n, value) in values.iter().enumerate() {
            let decimals = columns[n].1;
            let cell = |value: Option<f64>, decimals: usize| match value {
                Some(value) => format!(" {value:.decimals$} |"),
                None => " - |".to_owned(),
            };
            text += &cell(*value, decimals);
            if let Some(consul) = of(n) {
                text += &cell(value.map(|value| value / consul), 2);
            }
        }
        println!("{text}");
    }
}
