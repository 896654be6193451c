//! The cost of a sidecar, compared with `consul-dataplane` if available: memory, time from exec to ready
//! by stage, the health probe, the relay's work, large metrics pages, the loss of an Envoy, and attacks
//! by clients.
//!
//! Programs are measured in the same run, alternating. Prints tables and makes no assertions.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

mod hostile;
mod metrics;
mod relay;
mod restart;
mod start;

use legate_testkit::envoy;

use legate_tests::program::Program;

/// The scope of the measurement.
struct Options {
    /// The number of starts of each sidecar.
    starts: u32,
    /// The number of runs of each health probe.
    probes: u32,
    /// The number of updates for each relay, in thousands.
    updates: u32,
    /// The number of times an Envoy is killed.
    kills: u32,
    /// The only part to run; all if `None`.
    only: Option<String>,
}

impl Options {
    fn wants(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }
}

fn main() {
    let mut options = Options {
        starts: 10,
        probes: 50,
        updates: 5,
        kills: 30,
        only: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let place = match arg.as_str() {
            "--starts" => &mut options.starts,
            "--probes" => &mut options.probes,
            "--updates" => &mut options.updates,
            "--kills" => &mut options.kills,
            "--only" => {
                options.only = args.next();
                continue;
            }
            _ => continue,
        };
        let value = args.next().and_then(|value| value.parse().ok());
        *place = value.filter(|value| *value > 0).unwrap_or(*place);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure(&options));
}

async fn measure(options: &Options) {
    let mut programs = vec![Program {
        name: "legate-dataplane",
        path: envoy::workspace_binary("legate-dataplane"),
    }];
    match Program::find("consul-dataplane", "LEGATE_CONSUL_DATAPLANE") {
        Some(original) => programs.push(original),
        None => println!(
            "\nNo consul-dataplane was at hand: put one on PATH or name it in \
             LEGATE_CONSUL_DATAPLANE to see its figures next to these."
        ),
    }
    if options.wants("start") {
        start::measure(&programs, options).await;
    }
    if options.wants("relay") {
        relay::measure(&programs, options).await;
    }
    if options.wants("metrics") {
        metrics::measure(&programs).await;
    }
    if options.wants("restart") {
        restart::measure(options).await;
    }
    if options.wants("hostile") {
        hostile::measure(&programs).await;
    }
}
