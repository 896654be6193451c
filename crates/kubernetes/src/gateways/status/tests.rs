//! Verdicts among what others have written.

use legate_gateway_api::types::ParentReference;
use legate_gateway_api::{Condition, GatewayVerdict, ParentVerdict, RouteVerdict};
use serde_json::{Value, json};

use super::{Verdict, Writer};

const WRITER: Writer<'static> = Writer {
    controller: "own",
    now: "2026-01-01T00:00:00Z",
};
const BEFORE: &str = "2025-01-01T00:00:00Z";

fn accepted(holds: bool) -> Condition {
    Condition {
        kind: "Accepted",
        holds,
        reason: "Accepted",
        message: String::new(),
    }
}

fn written(kind: &str, status: &str, generation: i64, at: &str) -> Value {
    json!({
        "type": kind, "status": status, "observedGeneration": generation,
        "lastTransitionTime": at, "reason": "Accepted", "message": "",
    })
}

fn route(parents: &[&str]) -> RouteVerdict {
    let parents = parents.iter().map(|name| ParentVerdict {
        parent: ParentReference {
            name: (*name).to_owned(),
            ..ParentReference::default()
        },
        conditions: vec![accepted(true)],
    });
    RouteVerdict {
        generation: 2,
        parents: parents.collect(),
    }
}

fn entry(controller: &str, parent: &str, at: &str) -> Value {
    json!({
        "parentRef": {"name": parent},
        "controllerName": controller,
        "conditions": [written("Accepted", "True", 2, at)],
    })
}

#[test]
fn entries_of_other_controllers_stay() {
    let other = json!({
        "parentRef": {"name": "a", "unknown": 1}, "controllerName": "other", "conditions": [],
    });
    let status = json!({"parents": [entry("own", "gone", BEFORE), other]});
    let verdict = route(&["a"]);
    let change = WRITER.change(&status, Verdict::Route(Some(&verdict)));
    let expected = json!({"parents": [other, entry("own", "a", WRITER.now)]});
    assert_eq!(change, Some(expected));
    let change = WRITER.change(&status, Verdict::Route(None));
    assert_eq!(change, Some(json!({"parents": [other]})));
    let status = json!({"parents": [other]});
    assert_eq!(WRITER.change(&status, Verdict::Route(None)), None);
    assert_eq!(WRITER.change(&Value::Null, Verdict::Route(None)), None);
}

#[test]
fn what_is_equal_is_not_written() {
    let status = json!({"parents": [entry("own", "a", BEFORE)]});
    let verdict = route(&["a"]);
    assert_eq!(WRITER.change(&status, Verdict::Route(Some(&verdict))), None);
}

#[test]
fn conditions_of_other_types_stay_and_times_change_with_the_status_only() {
    let foreign = written("example.com/Checked", "True", 1, BEFORE);
    let status = json!({
        "conditions": [
            foreign,
            written("Accepted", "True", 1, BEFORE),
            written("ResolvedRefs", "True", 1, BEFORE),
        ],
    });
    let mut verdict = GatewayVerdict {
        generation: 2,
        conditions: vec![accepted(true)],
        ..GatewayVerdict::default()
    };
    let change = WRITER.change(&status, Verdict::Gateway(&verdict));
    let kept = json!({"conditions": [foreign, written("Accepted", "True", 2, BEFORE)]});
    assert_eq!(change, Some(kept));
    verdict.conditions = vec![accepted(false)];
    let change = WRITER.change(&status, Verdict::Gateway(&verdict)).unwrap();
    assert_eq!(
        change["conditions"][1],
        written("Accepted", "False", 2, WRITER.now)
    );
}
