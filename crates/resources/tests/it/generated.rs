//! Properties: all config entries that a server accepts become resources, and Envoy accepts those. What a
//! gateway has after one more entry depends on the entries alone, not on what it had before.

use legate_proxycfg::Snapshot;
use legate_resources::{Failure, Generator, ResourceSet};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;

use crate::gateway_strategies::gateways;
use crate::golden_cases::documents::Documents;
use crate::golden_cases::envoy::Envoy;
use crate::golden_cases::written;
use crate::strategies::entries;

/// The number of generated cases, unless `PROPTEST_CASES` is set.
const SETS: u32 = 2_000;
/// Of those of gateways, each of which is several steps.
const SETS_OF_GATEWAYS: u32 = 500;
/// The number of cases that a real Envoy validates.
const SAMPLE: usize = 30;

/// Writes the entries one after the other as a server would. Returns the accepted ones.
fn accepted(all: &[Value]) -> Vec<Value> {
    let steps = Documents::of_entries(all.to_vec()).steps();
    steps.unwrap().0
}

/// The resources of the proxy, or the failures.
fn resources(documents: &Documents) -> Result<Value, String> {
    let snapshot = documents.snapshot();
    let set = Generator::new().generate(&snapshot.map_err(|error| error.0)?, None);
    match set.failures() {
        [] => Ok(written::document(&set)),
        failures => Err(format!("{failures:?}")),
    }
}

fn config(sets: u32) -> Config {
    let default = Config::default();
    let cases = match default.cases {
        256 => sets,
        said => said,
    };
    Config { cases, ..default }
}

proptest! {
    #![proptest_config(config(SETS))]

    #[test]
    fn accepted_entries_become_resources(all in entries()) {
        let accepted = accepted(&all);
        let made = resources(&Documents::of_entries(accepted.clone()));
        prop_assert!(made.is_ok(), "{made:?}: {}", Value::from(accepted));
    }

}

proptest! {
    #![proptest_config(config(SETS_OF_GATEWAYS))]

    #[test]
    fn gateways_follow_accepted_entries((kind, all) in gateways()) {
        let steps = Documents::of_gateway(kind, all.clone()).steps();
        let all = Value::from(all);
        prop_assert!(steps.is_ok(), "{kind}: {:?}: {all}", steps.err());
        let generator = Generator::new();
        let mut last: Option<(Snapshot, ResourceSet)> = None;
        for snapshot in steps.unwrap().1 {
            let previous = last.as_ref().map(|(snapshot, set)| (snapshot, set));
            let set = generator.generate(&snapshot, previous);
            let anew = Generator::new().generate(&snapshot, None);
            prop_assert_eq!(written::document(&set), written::document(&anew), "{}: {}", kind, all);
            // Such listeners stay closed, and say so.
            let is_expected = |failure: &Failure| failure.reason.to_string().contains("SDS");
            let failures = set.failures().iter().filter(|one| !is_expected(one));
            prop_assert_eq!(failures.count(), 0, "{}: {:?}: {}", kind, set.failures(), all);
            last = Some((snapshot, set));
        }
    }
}

/// Fails if a real Envoy refuses the resources of these documents.
fn check(all: &[Documents]) {
    let named = all.iter().enumerate();
    let made: Vec<_> = named
        .map(|(at, documents)| (format!("set-{at}"), resources(documents).unwrap()))
        .collect();
    let refused = Envoy::new().refusals(&made);
    let reasons: Vec<_> = refused
        .iter()
        .map(|reason| {
            let (name, _) = reason.split_once(':').unwrap();
            let at = made.iter().position(|(one, _)| one == name).unwrap();
            format!("{reason}\n{}", Value::from(all[at].entries.clone()))
        })
        .collect();
    let count = (reasons.len(), all.len());
    assert!(
        reasons.is_empty(),
        "{} of {} are refused:\n{}",
        count.0,
        count.1,
        reasons.join("\n\n")
    );
}

#[test]
fn envoy_accepts_the_resources_of_accepted_entries() {
    let mut runner = TestRunner::default();
    let sets = (0..SAMPLE).map(|_| {
        let all = entries().new_tree(&mut runner).unwrap().current();
        Documents::of_entries(accepted(&all))
    });
    check(&sets.collect::<Vec<_>>());
}

#[test]
fn envoy_accepts_the_resources_of_gateways() {
    let mut runner = TestRunner::default();
    let sets = (0..SAMPLE).map(|_| {
        let (kind, all) = gateways().new_tree(&mut runner).unwrap().current();
        let (accepted, _) = Documents::of_gateway(kind, all).steps().unwrap();
        Documents::of_gateway(kind, accepted)
    });
    check(&sets.collect::<Vec<_>>());
}
