//! The supervisor of epochs with real Envoys: hot restarts under load, crashes, and invalid
//! configurations.

use std::cell::Cell;
use std::time::Duration;

use legate_envoy::supervision::{EnvoyHost, EpochState, HotRestart, Options, Outcome, Report};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::load::{self, Counts};
use crate::place::{
    ECHO, HTTP, Place, Supervisor, TCP, alone, config, hot, send, supervise, until,
};

async fn until_true(flag: &Cell<bool>) {
    while !flag.get() {
        sleep(Duration::from_millis(2)).await;
    }
}

async fn echo(place: Place) -> TcpListener {
    TcpListener::bind(place.at(ECHO)).await.unwrap()
}

/// Restarts, one after another. Each long connection has to live until its parent's deadline.
async fn restart_often(supervisor: &Supervisor, place: Place, times: u32) {
    until(supervisor, |report| alone(report, 0)).await;
    for epoch in 1..=times {
        let works = Cell::new(false);
        let long = load::long_tcp(place.at(TCP), &works);
        let restart = async {
            until_true(&works).await;
            supervisor.restart().unwrap();
            let taken = |report: &Report| {
                report
                    .epochs
                    .last()
                    .is_some_and(|newest| newest.epoch == epoch && newest.state.serves())
            };
            until(supervisor, taken).await;
            Instant::now()
        };
        let (ended, taken_over) = tokio::join!(long, restart);
        // Envoy's time starts slightly before the supervisor observes the takeover.
        let lived = ended.duration_since(taken_over);
        assert!(
            lived > Duration::from_millis(600),
            "epoch {epoch}: only {lived:?}"
        );
        until(supervisor, |report| alone(report, epoch)).await;
    }
}

#[tokio::test]
async fn fifty_hot_restarts_under_load_fail_no_request() {
    const RESTARTS: u32 = 50;
    let (place, folder) = (Place::new(1), tempfile::tempdir().unwrap());
    let host = EnvoyHost::new(place.admin(), Some(hot(folder.path())), None);
    let (h1, h2, tcp) = (Counts::default(), Counts::default(), Counts::default());
    let echo = echo(place).await;
    let ended = supervise(
        host,
        place.config(),
        Options::default(),
        async |supervisor| {
            until(&supervisor, Report::ready).await;
            tokio::select! {
                () = restart_often(&supervisor, place, RESTARTS) => {}
                () = load::http1(place.at(HTTP), &h1) => {}
                () = load::http1(place.at(HTTP), &h1) => {}
                () = load::http2(place.at(HTTP), &h2) => {}
                () = load::tcp(place.at(TCP), &tcp) => {}
                () = load::echo_server(&echo) => {}
            }
            assert_eq!(supervisor.report().starts, u64::from(RESTARTS) + 1);
            supervisor.stop();
        },
    );
    let ended = ended.await;
    assert_eq!(ended.outcome, Outcome::Stopped { forced: false });
    for (name, counts) in [("http/1.1", &h1), ("http/2", &h2), ("tcp", &tcp)] {
        let (good, bad) = (counts.good.get(), counts.bad.borrow());
        assert!(
            bad.is_empty(),
            "{name}: {} of {good} failed: {bad:?}",
            bad.len()
        );
        assert!(good > 1_000, "{name}: {good}");
        assert!(
            counts.connections.get() > u64::from(RESTARTS),
            "each epoch was used"
        );
    }
}

#[tokio::test]
async fn invalid_configurations_leave_the_running_epoch_alone() {
    let (place, folder) = (Place::new(2), tempfile::tempdir().unwrap());
    let host = EnvoyHost::new(place.admin(), Some(hot(folder.path())), None);
    let counts = Counts::default();
    supervise(host, place.config(), Options::default(), async |supervisor| {
        let pid = until(&supervisor, Report::ready).await.epochs[0].pid;
        let scenario = async {
            // Envoy rejects the document.
            supervisor.update(config(&json!({ "no_such_field": 1 }))).unwrap();
            let report = until(&supervisor, |report| report.refusal.is_some()).await;
            assert!(report.refusal.unwrap().contains("no_such_field"));
            assert_eq!(report.starts, 1);
            // The document is valid, but its address does not exist: the epoch dies during its
            // start.
            let mut document = place.document();
            document["static_resources"]["listeners"][1]["address"]["socket_address"]["address"] =
                "192.0.2.1".into();
            supervisor.update(config(&document)).unwrap();
            let report = until(&supervisor, |report| report.exits.len() > 1).await;
            assert!(report.exits.iter().all(|exit| exit.epoch == 1 && !exit.expected));
            assert_eq!(supervisor.report().current().unwrap().pid, pid);
            // Neither prevents a valid one from taking over.
            let mut document = place.document();
            document["node"]["id"] = "other".into();
            supervisor.update(config(&document)).unwrap();
            until(&supervisor, |report| alone(report, 1) && report.refusal.is_none()).await;
        };
        tokio::select! {
            () = scenario => {}
            () = load::http1(place.at(HTTP), &counts) => {}
        }
        supervisor.stop();
    })
    .await;
    assert!(counts.bad.borrow().is_empty(), "{:?}", counts.bad.borrow());
    assert!(counts.good.get() > 100);
}

/// Times from killing Envoy to the next successful request, for several repetitions.
async fn recoveries(hot: Option<HotRestart>, place: Place) -> Vec<Duration> {
    let host = EnvoyHost::new(place.admin(), hot, None);
    let mut taken = Vec::new();
    supervise(host, place.config(), Options::default(), async |supervisor| {
        until(&supervisor, Report::ready).await;
        for kills in 1..=3 {
            let pid = supervisor.report().epochs[0].pid;
            let killed = Instant::now();
            send(pid, Signal::SIGKILL);
            until(&supervisor, |report| report.exits.len() == kills).await;
            let counts = Counts::default();
            let answered = async {
                while counts.good.get() == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! { () = load::http1(place.at(HTTP), &counts) => {}, () = answered => {} }
            taken.push(killed.elapsed());
            let report = until(&supervisor, |report| alone(report, 0)).await;
            let exit = report.exits.back().unwrap();
            assert!(!exit.expected && exit.reason.to_string().starts_with("killed by SIGKILL"));
        }
        supervisor.stop();
    })
    .await;
    taken
}

#[tokio::test]
async fn a_killed_envoy_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    for (place, hot) in [
        (Place::new(3), Some(hot(folder.path()))),
        (Place::new(4), None),
    ] {
        for taken in recoveries(hot, place).await {
            assert!(taken < Duration::from_secs(10), "{taken:?}");
        }
    }
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_hand_over_is_survived() {
    let (place, folder) = (Place::new(5), tempfile::tempdir().unwrap());
    let echo = echo(place).await;
    let slow = HotRestart {
        parent_shutdown: Duration::from_secs(30),
        ..hot(folder.path())
    };
    let host = EnvoyHost::new(place.admin(), Some(slow), None);
    supervise(
        host,
        place.config(),
        Options::default(),
        async |supervisor| {
            until(&supervisor, Report::ready).await;
            let scenario = async {
                let works = Cell::new(false);
                let mut long = std::pin::pin!(load::long_tcp(place.at(TCP), &works));
                let crash = async {
                    until_true(&works).await;
                    supervisor.restart().unwrap();
                    let handed = |report: &Report| {
                        report.epochs.len() == 2 && report.epochs[1].state.serves()
                    };
                    let child = until(&supervisor, handed).await.epochs[1].pid;
                    send(child, Signal::SIGKILL);
                    let again = |report: &Report| handed(report) && report.epochs[1].pid != child;
                    let report = until(&supervisor, again).await;
                    assert_eq!(report.epochs[1].epoch, 1, "the number is used again");
                    assert_eq!(report.epochs[0].state, EpochState::Draining);
                };
                tokio::select! {
                    () = crash => {}
                    _ = &mut long => panic!("the parent's connection was cut"),
                }
            };
            tokio::select! { () = scenario => {}, () = load::echo_server(&echo) => {} }
            supervisor.stop();
        },
    )
    .await;
}

#[tokio::test]
async fn without_shared_memory_a_restart_is_cold_with_a_reason() {
    let (place, folder) = (Place::new(6), tempfile::tempdir().unwrap());
    let nowhere = HotRestart {
        shared_memory: "/no/shared/memory".into(),
        ..hot(folder.path())
    };
    let host = EnvoyHost::new(place.admin(), Some(nowhere), None);
    supervise(
        host,
        place.config(),
        Options::default(),
        async |supervisor| {
            let before = until(&supervisor, |report| alone(report, 0)).await;
            assert!(before.obstacle.unwrap().contains("/no/shared/memory"));
            supervisor.restart().unwrap();
            let pid = before.epochs[0].pid;
            let after = |report: &Report| alone(report, 0) && report.epochs[0].pid != pid;
            let report = until(&supervisor, after).await;
            assert!(report.exits[0].expected && report.exits[0].reason.success());
            supervisor.stop();
        },
    )
    .await;
}
