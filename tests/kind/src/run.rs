//! Runs scenarios concurrently, and prints the result of each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::{anyhow, bail};

use crate::cluster::Cluster;
use crate::mesh;
use crate::namespace::Namespace;
use crate::scenarios;

/// A scenario, which runs in a namespace of its own.
pub(crate) struct Scenario {
    /// A sentence in words and `_`, with at most 63 letters, because it is the namespace's name.
    pub(crate) name: &'static str,
    /// Fails with the unexpected observation.
    pub(crate) run: fn(&Namespace) -> anyhow::Result<()>,
}

/// Requirements that not every machine meets.
pub(crate) enum Needs {
    Nothing,
    /// The control plane's components run as processes of this machine.
    OwnNode,
    /// A real Consul and the definitions of the Gateway API are available.
    Consul,
    /// The definitions of the Gateway API are available.
    GatewayApi,
}

impl Needs {
    /// Why scenarios with this requirement cannot run here.
    fn missing(&self, cluster: &Cluster) -> Option<&'static str> {
        match self {
            Self::OwnNode if cluster.node.is_none() => Some(
                "it needs programs of the control plane, which only a node of cargo xtask kind has",
            ),
            Self::Consul if cluster.consul.is_none() => Some("LEGATE_CONSUL names no consul"),
            Self::GatewayApi | Self::Consul if cluster.gateway_api.is_none() => {
                Some("--gateway-api names no definitions, which Go fetches for cargo xtask kind")
            }
            Self::Nothing | Self::OwnNode | Self::Consul | Self::GatewayApi => None,
        }
    }
}

/// A group of scenarios; groups run one after the other.
pub(crate) struct Group {
    /// The values of the chart that is installed before; `None` if the scenarios do not use it.
    pub(crate) mesh: Option<&'static [&'static str]>,
    /// If this is missing, the group is skipped and reported.
    pub(crate) needs: Needs,
    /// The maximum number of concurrent scenarios. Scenarios mostly wait; those that affect the whole
    /// cluster run alone.
    pub(crate) at_a_time: usize,
    pub(crate) scenarios: &'static [&'static [Scenario]],
}

/// Runs the scenarios whose name contains one of the filters.
pub(crate) fn all(cluster: &Cluster, filters: &[String]) -> anyhow::Result<()> {
    let chosen = |scenario: &&Scenario| {
        filters.is_empty() || filters.iter().any(|filter| scenario.name.contains(filter))
    };
    let mut failed = Vec::new();
    let mut count = 0;
    let mut installed = None;
    let mut left_out = Vec::new();
    for group in scenarios::GROUPS {
        let files = group.scenarios.iter().copied().flatten();
        let scenarios: Vec<&Scenario> = files.filter(chosen).collect();
        if scenarios.is_empty() {
            continue;
        }
        if let Some(reason) = group.needs.missing(cluster) {
            let lines = scenarios.iter().map(|scenario| {
                let line = format!("NOT RUN: {}: {reason}", scenario.name);
                println!("{line}");
                line
            });
            left_out.extend(lines);
            continue;
        }
        if matches!(group.needs, Needs::GatewayApi | Needs::Consul) {
            scenarios::define_gateway_api(cluster)?;
        }
        if group.mesh.is_some() && installed != group.mesh {
            let start = SystemTime::now();
            mesh::install(cluster, group.mesh.unwrap_or_default())?;
            println!("{:>6.1} s  the chart is installed", seconds_since(start));
            installed = group.mesh;
        }
        count += scenarios.len();
        failed.extend(side_by_side(cluster, group.at_a_time, &scenarios));
    }
    if count == 0 && left_out.is_empty() {
        bail!("no scenario has {} in its name", filters.join(" or "));
    }
    if !failed.is_empty() {
        bail!(
            "{} of {count} scenarios failed: {}",
            failed.len(),
            failed.join(", ")
        );
    }
    println!("{count} scenarios passed");
    // Skipped scenarios are reported together with the result.
    for line in left_out {
        println!("{line}");
    }
    Ok(())
}

/// Runs scenarios concurrently; returns the names of failed ones.
fn side_by_side(cluster: &Cluster, at_a_time: usize, scenarios: &[&Scenario]) -> Vec<&'static str> {
    let waiting = Mutex::new(scenarios.iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_a_time.min(scenarios.len()) {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no holder panics").next();
                    let Some(scenario) = next else { return };
                    if !one(cluster, scenario) {
                        let mut failed = failed.lock().expect("no holder panics");
                        failed.push(scenario.name);
                    }
                }
            });
        }
    });
    failed.into_inner().expect("no holder panics")
}

/// Runs a scenario; returns whether it passed.
fn one(cluster: &Cluster, scenario: &Scenario) -> bool {
    let start = SystemTime::now();
    let space = Namespace::create(cluster, &scenario.name.replace('_', "-"));
    let outcome = space.and_then(|space| {
        let run = AssertUnwindSafe(|| (scenario.run)(&space));
        let outcome = catch_unwind(run).unwrap_or_else(|_| Err(anyhow!("it panicked")));
        let outcome = outcome.map_err(|error| error.context(space.describe()));
        // The namespace of a failed scenario is kept for inspection.
        outcome.and_then(|()| space.delete())
    });
    let took = seconds_since(start);
    match &outcome {
        Ok(()) => println!("{took:>6.1} s  ok      {}", scenario.name),
        Err(error) => {
            // The error is printed last, where it is read first.
            let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
            println!(
                "{}\n{took:>6.1} s  FAILED  {}",
                chain.join("\n"),
                scenario.name
            );
        }
    }
    outcome.is_ok()
}

fn seconds_since(start: SystemTime) -> f64 {
    start.elapsed().unwrap_or_default().as_secs_f64()
}
