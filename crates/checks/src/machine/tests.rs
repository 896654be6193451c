use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use legate_model::Tenancy;
use legate_store::Source;

use super::*;
use crate::settings::Scripts;
use CheckStatus::{Critical, Passing, Warning};

const SECOND: Duration = Duration::from_secs(1);

fn known(id: &str, definition: CheckType) -> Known {
    let definition = Arc::new(definition);
    Known {
        target: Arc::clone(&definition),
        exposed_port: 0,
        check: AgentCheck {
            tenancy: Tenancy::default(),
            check_id: id.to_owned(),
            definition,
            source: Source::Api,
        },
        service_id: "web".to_owned(),
        status: Critical,
        output: String::new(),
    }
}

fn tcp() -> CheckType {
    CheckType {
        tcp: "127.0.0.1:1".to_owned(),
        interval: 10 * SECOND,
        ..CheckType::default()
    }
}

fn ttl(seconds: u32) -> CheckType {
    CheckType {
        ttl: seconds * SECOND,
        ..CheckType::default()
    }
}

/// The started runs.
fn started(actions: &[Action]) -> Vec<Run> {
    let start = |action: &Action| match action {
        Action::Start { run, .. } => Some(*run),
        _ => None,
    };
    actions.iter().filter_map(start).collect()
}

fn stored(action: Option<Action>) -> Option<(CheckStatus, String)> {
    match action {
        Some(Action::Store { status, output, .. }) => Some((status, output)),
        _ => None,
    }
}

#[test]
fn a_probe_runs_immediately_and_then_at_its_interval() {
    let (mut machine, now) = (Machine::default(), Instant::now());
    machine.define(now, vec![known("a", tcp())]);
    assert_eq!(machine.deadline(), Some(now));
    let runs = started(&machine.tick(now));
    let [run] = runs.as_slice() else {
        panic!("{runs:?}")
    };
    // While it runs, nothing else is due.
    assert_eq!(machine.deadline(), None);
    assert!(machine.tick(now + 60 * SECOND).is_empty());
    let end = now + 60 * SECOND;
    let result = machine.finished(end, *run, Passing, "ok".to_owned());
    assert_eq!(stored(result), Some((Passing, "ok".to_owned())));
    assert_eq!(machine.deadline(), Some(end + 10 * SECOND));
    assert_eq!(started(&machine.tick(end + 10 * SECOND)).len(), 1);
    assert!(
        machine
            .finished(end, *run, Critical, String::new())
            .is_none(),
        "it is over"
    );
}

#[test]
fn intervals_have_a_lower_bound() {
    let (mut machine, now) = (Machine::default(), Instant::now());
    let fast = CheckType {
        interval: Duration::from_millis(1),
        ..tcp()
    };
    machine.define(now, vec![known("a", fast)]);
    let run = started(&machine.tick(now))[0];
    machine.finished(now, run, Passing, String::new());
    assert_eq!(machine.deadline(), Some(now + MIN_INTERVAL));
}

#[test]
fn a_short_ttl_does_not_cause_a_busy_loop() {
    let (mut machine, now) = (Machine::default(), Instant::now());
    let short = CheckType {
        ttl: Duration::from_nanos(1),
        ..CheckType::default()
    };
    machine.define(now, vec![known("a", short)]);
    machine.tick(now + SECOND);
    assert!(machine.deadline().is_none_or(|at| at >= now + 2 * SECOND));
}

#[test]
fn checks_of_two_namespaces_may_share_an_id() {
    let (mut machine, now) = (Machine::default(), Instant::now());
    let team = Tenancy::new(&"".parse().unwrap(), &"team".parse().unwrap());
    let mut all = [known("a", ttl(10)), known("a", ttl(10))];
    all[1].check.tenancy = team.clone();
    for known in &mut all {
        known.status = Passing;
    }
    machine.define(now, all.to_vec());
    assert!(machine.reported(now + 9 * SECOND, &team, "a"));
    let expired = machine.tick(now + 10 * SECOND);
    let of = |action: &Action| match action {
        Action::Store { check, .. } => check.tenancy.clone(),
        other => panic!("{other:?}"),
    };
    let expired: Vec<Tenancy> = expired.iter().map(of).collect();
    assert_eq!(expired, [Tenancy::default()]);
}

#[test]
fn a_ttl_check_without_reports_becomes_critical() {
    let (mut machine, now) = (Machine::default(), Instant::now());
    let passing = Known {
        status: Passing,
        output: "fine".to_owned(),
        ..known("a", ttl(10))
    };
    machine.define(now, vec![passing]);
    assert!(machine.reported(now + 9 * SECOND, &Tenancy::default(), "A"));
    assert!(machine.tick(now + 18 * SECOND).is_empty());
    let expired = machine.tick(now + 19 * SECOND);
    let [
        Action::Store {
            status: Critical,
            output,
            ..
        },
    ] = expired.as_slice()
    else {
        panic!("{expired:?}")
    };
    assert!(
        output.contains("TTL expired") && output.contains("fine"),
        "{output}"
    );
    // There is only one action.
    assert!(machine.tick(now + 60 * SECOND).is_empty());
    machine.define(now, vec![known("b", tcp())]);
    assert!(
        !machine.reported(now, &Tenancy::default(), "b"),
        "it is run, nobody reports for it"
    );
    assert!(
        !machine.reported(now, &Tenancy::default(), "a"),
        "it is gone"
    );
}

#[test]
fn an_instance_that_is_critical_for_too_long_is_removed() {
    let removing = CheckType {
        deregister_critical_service_after: 90 * SECOND,
        ..ttl(10)
    };
    let (mut machine, now) = (Machine::default(), Instant::now());
    let define = |machine: &mut Machine, at, status| {
        let known = Known {
            status,
            ..known("a", removing.clone())
        };
        machine.define(at, vec![known]);
    };
    define(&mut machine, now, Critical);
    // It was healthy in between, so the time restarts.
    define(&mut machine, now + 60 * SECOND, Passing);
    define(&mut machine, now + 70 * SECOND, Critical);
    machine.reported(now + 155 * SECOND, &Tenancy::default(), "a");
    assert!(machine.tick(now + 159 * SECOND).is_empty());
    let removal = Action::Deregister {
        tenancy: Tenancy::default(),
        service_id: "web".to_owned(),
        check_id: "a".to_owned(),
    };
    assert_eq!(
        machine.tick(now + 160 * SECOND),
        std::slice::from_ref(&removal)
    );
    assert!(
        machine.tick(now + 161 * SECOND).is_empty(),
        "it is asked for once"
    );
    let not_stored = std::slice::from_ref(&removal);
    machine.not_stored(now + 162 * SECOND, not_stored);
    assert_eq!(machine.tick(now + 162 * SECOND), [removal]);
}

#[test]
fn an_expiry_that_was_not_stored_is_retried_immediately() {
    let (mut machine, now) = (Machine::default(), Instant::now());
    let passing = Known {
        status: Passing,
        ..known("a", ttl(3600))
    };
    machine.define(now, vec![passing.clone()]);
    let later = now + 3600 * SECOND;
    let expiry = machine.tick(later);
    assert_eq!(expiry.len(), 1);
    machine.not_stored(later + SECOND, &expiry);
    // In the store it is still passing.
    machine.define(later + SECOND, vec![passing.clone()]);
    assert_eq!(machine.tick(later + SECOND), expiry);
    // A report in between takes effect.
    machine.not_stored(later + 2 * SECOND, &expiry);
    machine.define(later + 2 * SECOND, vec![passing]);
    assert!(machine.reported(later + 2 * SECOND, &Tenancy::default(), "a"));
    assert_eq!(machine.tick(later + 2 * SECOND), []);
}

#[test]
fn aliases_of_each_other_change_with_a_delay() {
    let (mut machine, now) = (Machine::default(), Instant::now());
    let alias = CheckType {
        alias_service: "web".to_owned(),
        ..CheckType::default()
    };
    machine.define(now, vec![known("a", alias)]);
    let mut aliased = |at, status| {
        let action = machine.aliased(
            at,
            &(Tenancy::default(), "a".to_owned()),
            status,
            String::new(),
        );
        let due = machine.aliases_are_due(now + SECOND);
        (
            stored(action).map(|(status, _)| status),
            machine.deadline(),
            due,
        )
    };
    // The first change takes effect immediately, the next one after a second.
    assert_eq!(aliased(now, Passing), (Some(Passing), None, false));
    let early = now + SECOND / 2;
    assert_eq!(aliased(early, Critical), (None, Some(now + SECOND), true));
    assert_eq!(aliased(early, Passing), (None, None, false));
    aliased(early, Critical);
    assert_eq!(
        aliased(now + SECOND, Critical),
        (Some(Critical), None, false)
    );
}

#[test]
fn services_are_never_deregistered_within_a_minute() {
    let (mut machine, now) = (Machine::default(), Instant::now());
    let hasty = CheckType {
        deregister_critical_service_after: SECOND,
        ..tcp()
    };
    machine.define(now, vec![known("a", hasty)]);
    started(&machine.tick(now));
    assert_eq!(machine.deadline(), Some(now + MIN_REMOVAL));
}

#[test]
fn a_new_output_of_the_same_status_is_written_periodically() {
    let (mut machine, now) = (Machine::default(), Instant::now());
    machine.define(now, vec![known("a", tcp())]);
    let mut at = now;
    let mut result = |output: &str| {
        let run = started(&machine.tick(at))[0];
        let action = machine.finished(at, run, Critical, output.to_owned());
        at += 150 * SECOND;
        stored(action).map(|(_, output)| output)
    };
    assert_eq!(result("0").as_deref(), Some("0"), "it had none");
    assert_eq!(result("1"), None);
    assert_eq!(result("2").as_deref(), Some("2"), "five minutes later");
    assert_eq!(result("2"), None);
}

#[test]
fn unchanged_definitions_continue_and_changed_ones_restart() {
    let (mut machine, now) = (Machine::default(), Instant::now());
    machine.define(now, vec![known("a", tcp())]);
    let run = started(&machine.tick(now))[0];
    assert!(machine.define(now, vec![known("a", tcp())]).is_empty());
    let other = CheckType {
        tcp: "127.0.0.1:2".to_owned(),
        ..tcp()
    };
    let actions = machine.define(now, vec![known("a", other)]);
    assert_eq!(actions, [Action::Cancel { run }]);
    assert!(machine.finished(now, run, Passing, String::new()).is_none());
    assert_eq!(started(&machine.tick(now)).len(), 1);
    assert_eq!(machine.define(now, Vec::new()).len(), 1);
    assert_eq!(machine.deadline(), None);
}

#[derive(Debug, Clone)]
enum Step {
    Define(Vec<(u8, u8)>),
    Finish(usize, CheckStatus),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let status = prop_oneof![Just(Passing), Just(Warning), Just(Critical)];
    let step = prop_oneof![
        prop::collection::vec((0..120_u8, 0..3_u8), 0..120).prop_map(Step::Define),
        (0..200_usize, status).prop_map(|(which, status)| Step::Finish(which, status)),
        (0..30_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// For any sequence of events: the number of runs is bounded, no run is lost or started twice,
    /// and there is always a deadline for the next action.
    #[test]
    fn runs_are_bounded_and_accounted_for(steps in steps()) {
        let mut machine = Machine::default();
        let mut now = Instant::now();
        let mut open = BTreeSet::new();
        for step in steps {
            let mut actions = Vec::new();
            match step {
                Step::Define(checks) => {
                    let all: BTreeMap<u8, u8> = checks.into_iter().collect();
                    let all = all.into_iter().map(|(id, variant)| {
                        let seconds = u64::from(variant) + 1;
                        let definition =
                            CheckType { interval: Duration::from_secs(seconds), ..tcp() };
                        known(&id.to_string(), definition)
                    });
                    actions = machine.define(now, all.collect());
                }
                Step::Finish(which, status) => {
                    let run = open.iter().nth(which).copied();
                    if let Some(run) = run {
                        open.remove(&run);
                        actions.extend(machine.finished(now, run, status, String::new()));
                    }
                }
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            actions.extend(machine.tick(now));
            for action in actions {
                match action {
                    Action::Start { run, .. } => prop_assert!(open.insert(run)),
                    Action::Cancel { run } => prop_assert!(open.remove(&run)),
                    _ => {}
                }
            }
            prop_assert!(open.len() <= MAX_RUNNING);
            prop_assert_eq!(open.len(), machine.running);
            let waiting = machine.checks.len() > open.len();
            prop_assert_eq!(machine.deadline().is_some(), waiting && open.len() < MAX_RUNNING);
            if let Some(at) = machine.deadline() {
                prop_assert!(at > now, "what is due is started");
            }
        }
    }
}

#[test]
fn programs_run_only_if_the_settings_permit_it() {
    let now = Instant::now();
    let script = CheckType {
        script_args: vec!["true".to_owned()],
        interval: 10 * SECOND,
        ..CheckType::default()
    };
    let docker = CheckType {
        docker_container_id: "web".to_owned(),
        ..script.clone()
    };
    for (scripts, of_api, of_files) in [
        (Scripts::Off, false, false),
        (Scripts::OfFiles, false, true),
        (Scripts::All, true, true),
    ] {
        for (source, runs) in [(Source::Api, of_api), (Source::Files, of_files)] {
            let mut machine = Machine::new(Settings {
                scripts,
                ..Settings::default()
            });
            let mut known = [known("a", script.clone()), known("b", docker.clone())];
            known.iter_mut().for_each(|one| one.check.source = source);
            machine.define(now, known.to_vec());
            let started = started(&machine.tick(now)).len();
            assert_eq!(started, 2 * usize::from(runs), "{scripts:?} {source:?}");
            // A check that is never run retains its status.
            assert_eq!(machine.deadline(), None);
        }
    }
}
