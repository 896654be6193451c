//! The cost of a control plane, compared with Consul if available: memory, CPU time and delay with
//! thousands of connected sidecars. The servers are separate processes; the sidecars are clients in this
//! process that use delta xDS like Envoy.
//!
//! Both servers are measured in the same run, one after the other, with the same mesh and without rate
//! limits. The clients share the machine with the server, so delays include the clients' work; CPU time is
//! the server's alone. Prints tables and makes no assertions.
#![expect(clippy::print_stdout, reason = "prints its results as tables")]

mod authority;
mod catalog;
mod federation;
mod figures;
mod gateways;
mod measure;
mod peering;
mod protocol;
mod proxies;
mod relay;
mod servers;

use std::time::Duration;

use legate_testkit::envoy;
use legate_tests::program::Program;

/// The scope of the measurement.
struct Options {
    /// The numbers of connected proxies or exported services, one table for each; `None` for the usual ones.
    proxies: Option<Vec<usize>>,
    /// The deadline for the configuration of all proxies.
    limit: Duration,
    /// Instead of these proxies: all gateways, or the one of this name.
    gateways: Option<Option<String>>,
    /// Instead of these: proxies that use services of another datacenter.
    federation: bool,
    /// Instead of these: services that a peered cluster exports.
    peering: bool,
}

/// The usual numbers of proxies.
const PROXIES: [usize; 3] = [1_000, 2_000, 10_000];

fn main() {
    let mut options = Options {
        proxies: None,
        limit: Duration::from_secs(300),
        gateways: None,
        federation: false,
        peering: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--proxies" => {
                let counts = args.next().unwrap_or_default();
                let counts = counts.split(',').map(str::parse);
                options.proxies = Some(counts.collect::<Result<_, _>>().expect("numbers"));
            }
            "--limit" => {
                let seconds = args.next().and_then(|value| value.parse().ok());
                options.limit = Duration::from_secs(seconds.expect("a number of seconds"));
            }
            "--gateways" => options.gateways = Some(None),
            "--federation" => options.federation = true,
            "--peering" => options.peering = true,
            "--gateway" => options.gateways = Some(args.next()),
            // `cargo bench` adds arguments of its own.
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
    if let Some(only) = &options.gateways {
        return gateways::measure(&programs, only.as_deref()).await;
    }
    if options.federation {
        let counts = options.proxies.as_deref();
        let counts = counts.unwrap_or(&[federation::PROXIES]);
        return federation::measure(&programs, counts, options.limit).await;
    }
    if options.peering {
        let counts = options.proxies.as_deref();
        let counts = counts.unwrap_or(&[peering::SERVICES]);
        return peering::measure(&programs, counts, options.limit).await;
    }
    for count in options
        .proxies
        .as_deref()
        .unwrap_or(&PROXIES)
        .iter()
        .copied()
    {
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
