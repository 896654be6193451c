//! Properties: all config entries that a server accepts become resources, and Envoy accepts those.

use legate_resources::Generator;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;

use crate::golden_cases::documents::Documents;
use crate::golden_cases::envoy::Envoy;
use crate::golden_cases::written;
use crate::strategies::entries;

/// The number of generated cases, unless `PROPTEST_CASES` is set.
const SETS: u32 = 2_000;
/// The number of cases that a real Envoy validates.
const SAMPLE: usize = 30;

/// Writes the entries one after the other as a server would. Returns the accepted ones.
fn accepted(all: &[Value]) -> Vec<Value> {
    let mut accepted = Vec::new();
    for entry in all {
        accepted.push(entry.clone());
        if !Documents::of_entries(accepted.clone()).are_accepted() {
            accepted.pop();
        }
    }
    accepted
}

/// The resources of the proxy, or the failures.
fn resources(accepted: Vec<Value>) -> Result<Value, String> {
    let snapshot = Documents::of_entries(accepted).snapshot();
    let set = Generator::new().generate(&snapshot.map_err(|error| error.0)?, None);
    match set.failures() {
        [] => Ok(written::document(&set)),
        failures => Err(format!("{failures:?}")),
    }
}

fn config() -> Config {
    let default = Config::default();
    let cases = match default.cases {
        256 => SETS,
        said => said,
    };
    Config { cases, ..default }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn accepted_entries_become_resources(all in entries()) {
        let accepted = accepted(&all);
        let made = resources(accepted.clone());
        prop_assert!(made.is_ok(), "{made:?}: {}", Value::from(accepted));
    }
}

#[test]
fn envoy_accepts_the_resources_of_accepted_entries() {
    let mut runner = TestRunner::default();
    let sets = (0..SAMPLE).map(|at| {
        let all = entries().new_tree(&mut runner).unwrap().current();
        let accepted = accepted(&all);
        let made = resources(accepted.clone()).unwrap();
        (accepted, (format!("set-{at}"), made))
    });
    let (documents, made): (Vec<_>, Vec<_>) = sets.unzip();
    let refused = Envoy::new().refusals(&made);
    for reason in &refused {
        let (name, _) = reason.split_once(':').unwrap();
        let at = made.iter().position(|(one, _)| one == name).unwrap();
        eprintln!("{reason}\n{}\n", Value::from(documents[at].clone()));
    }
    assert!(
        refused.is_empty(),
        "{} of {SAMPLE} are refused",
        refused.len()
    );
}
