//! What a control plane costs, compared with Consul where one is at hand: memory, processor time and delay
//! with thousands of sidecars connected. The servers are real processes; the sidecars are clients in
//! this process that speak delta xDS as an Envoy does, without an Envoy.
//!
//! Both servers are measured in the same run, one after the other, with the same mesh and without
//! limits of rate. The clients share the machine with the server, so that delays hold their work
//! too; processor time is the server's alone. Prints tables; passes no judgement.
#![expect(clippy::print_stdout, reason = "its result is the tables it prints")]

mod authority;
mod catalog;
mod figures;
mod measure;
mod protocol;
mod proxies;
mod servers;

use std::time::Duration;

use legate_testkit::envoy;
use legate_tests::program::Program;

/// How much is measured.
struct Options {
    /// How many proxies are connected, one table each.
    proxies: Vec<usize>,
    /// How long all proxies may take until they are configured.
    limit: Duration,
}

fn main() {
    let mut options = Options {
        proxies: vec![1_000, 2_000, 10_000],
        limit: Duration::from_secs(300),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--proxies" => {
                let counts = args.next().unwrap_or_default();
                let counts = counts.split(',').map(str::parse);
                options.proxies = counts.collect::<Result<_, _>>().expect("numbers");
            }
            "--limit" => {
                let seconds = args.next().and_then(|value| value.parse().ok());
                options.limit = Duration::from_secs(seconds.expect("a number of seconds"));
            }
            // `cargo bench` adds its own.
            _ => {}
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure(&options));
}

async fn measure(options: &Options) {
    let files = legate_runtime::file_limit::raise().expect("the limit of open files is known");
    let mut programs = vec![Program {
        name: "legate-server",
        path: envoy::workspace_binary("legate-server"),
    }];
    match Program::find("consul", "LEGATE_CONSUL") {
        Some(consul) => programs.push(consul),
        None => println!(
            "\nNo Consul was at hand: put one on PATH or name it in LEGATE_CONSUL to see its figures \
             next to these."
        ),
    }
    for count in options.proxies.iter().copied() {
        assert!(
            count >= catalog::ROUTED && (count as u64) < files.saturating_sub(256),
            "{count} proxies: from {} to the limit of open files, which is {files}",
            catalog::ROUTED
        );
        let mut columns = Vec::new();
        for (place, program) in programs.iter().enumerate() {
            columns.push(measure::server(program, place, count, options.limit).await);
        }
        figures::print(&programs, count, &columns);
    }
}
