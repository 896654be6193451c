//! Runs scenarios side by side, and shows what became of each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::{anyhow, bail};

use crate::cluster::Cluster;
use crate::namespace::Namespace;
use crate::scenarios;

/// How many run at a time. They wait most of their time.
const AT_A_TIME: usize = 3;

/// What is to be shown, in a namespace of its own.
pub(crate) struct Scenario {
    /// A sentence in words and `_`.
    pub(crate) name: &'static str,
    /// Fails with what was seen instead.
    pub(crate) run: fn(&Namespace) -> anyhow::Result<()>,
}

/// Scenarios of one group may run side by side; groups run one after the other.
pub(crate) type Group = &'static [Scenario];

/// Runs those whose name has one of the filters in it.
pub(crate) fn all(cluster: &Cluster, filters: &[String]) -> anyhow::Result<()> {
    let chosen = |scenario: &&Scenario| {
        filters.is_empty() || filters.iter().any(|filter| scenario.name.contains(filter))
    };
    let mut failed = Vec::new();
    let mut count = 0;
    for group in scenarios::GROUPS {
        let group: Vec<&Scenario> = group.iter().filter(chosen).collect();
        count += group.len();
        failed.extend(side_by_side(cluster, &group));
    }
    if count == 0 {
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
    Ok(())
}

/// The names of those that failed.
fn side_by_side(cluster: &Cluster, group: &[&Scenario]) -> Vec<&'static str> {
    let waiting = Mutex::new(group.iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME.min(group.len()) {
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

/// Whether it passed.
fn one(cluster: &Cluster, scenario: &Scenario) -> bool {
    let start = SystemTime::now();
    let space = Namespace::create(cluster, &scenario.name.replace('_', "-"));
    let outcome = space.and_then(|space| {
        let run = AssertUnwindSafe(|| (scenario.run)(&space));
        let outcome = catch_unwind(run).unwrap_or_else(|_| Err(anyhow!("it panicked")));
        let outcome = outcome.map_err(|error| error.context(space.describe()));
        // What failed stays as it is, for whoever keeps the cluster.
        outcome.and_then(|()| space.delete())
    });
    let took = start.elapsed().unwrap_or_default().as_secs_f64();
    match &outcome {
        Ok(()) => println!("{took:>6.1} s  ok      {}", scenario.name),
        Err(error) => {
            // What was wrong is read last, so it stands last.
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
