//! Envoys that outlive a killed supervisor, and their adoption by the next one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use legate_envoy::supervision::{EnvoyHost, Options, Policy, Report, handle, run};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::load::{self, Counts};
use crate::place::{HTTP, PATIENCE, Place, alone, hot, send, supervise, until};

const PLACE: &str = "LEGATE_TEST_PLACE";
const FOLDER: &str = "LEGATE_TEST_FOLDER";

fn adopting(folder: &Path) -> Options {
    Options {
        policy: Policy {
            hand_over: Duration::from_secs(10),
            ..Policy::default()
        },
        pid_file: Some(folder.join("envoy.pid")),
        snapshot: Some(folder.join("snapshot.json")),
        ..Options::default()
    }
}

/// Runs in a process of its own, which the other test kills.
#[tokio::test]
#[ignore = "only of use as the first supervisor in the other test"]
#[expect(
    clippy::disallowed_methods,
    reason = "the other test passes its folder this way"
)]
async fn first_supervisor() {
    let (Some(place), Some(folder)) = (std::env::var_os(PLACE), std::env::var_os(FOLDER)) else {
        return;
    };
    let place = place.into_string().unwrap();
    let (third, fourth) = place.split_once('.').unwrap();
    let place = Place {
        third: third.parse().unwrap(),
        fourth: fourth.parse().unwrap(),
    };
    let folder = PathBuf::from(folder);
    let host = EnvoyHost::new(
        place.admin(),
        Some(hot(&folder)),
        Some(folder.join("envoy.log")),
    );
    let (_handle, controls) = handle();
    drop(run(host, place.config(), adopting(&folder), controls).await);
}

/// A supervisor that was killed, and the process id of the Envoy that it left.
async fn orphan(place: Place, folder: &Path) -> u32 {
    let mut first = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "adoption::first_supervisor", "--ignored"])
        .env(PLACE, format!("{}.{}", place.third, place.fourth))
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let served = async {
        loop {
            let text = std::fs::read_to_string(folder.join("snapshot.json")).unwrap_or_default();
            let snapshot: Value = serde_json::from_str(&text).unwrap_or_default();
            let entry = &snapshot["processes"][0];
            if entry["stage"] == "serving" && snapshot["base_id"].is_u64() {
                break u32::try_from(entry["identity"]["pid"].as_u64().unwrap()).unwrap();
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let pid = timeout(PATIENCE, served)
        .await
        .expect("the first supervisor wrote its snapshot");
    first.kill().unwrap();
    first.wait().unwrap();
    pid
}

#[tokio::test]
async fn an_envoy_outlives_its_supervisor_and_is_adopted() {
    let (place, folder) = (Place::new(7), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let pid = orphan(place, folder).await;
    let counts = Counts::default();
    let host = EnvoyHost::new(
        place.admin(),
        Some(hot(folder)),
        Some(folder.join("envoy.log")),
    );
    supervise(host, place.config(), adopting(folder), async |supervisor| {
        let scenario = async {
            let report = until(&supervisor, Report::ready).await;
            assert!(
                report.epochs[0].adopted && report.epochs[0].pid == pid,
                "{report:?}"
            );
            assert_eq!(report.starts, 0);
            let written = std::fs::read_to_string(folder.join("envoy.pid")).unwrap();
            assert_eq!(written, format!("{pid}\n"));
            supervisor.restart().unwrap();
            let report = until(&supervisor, |report| alone(report, 1)).await;
            assert!(!report.epochs[0].adopted);
            assert_eq!(report.exits[0].pid, pid);
        };
        tokio::select! {
            () = scenario => {}
            () = load::http1(place.at(HTTP), &counts) => {}
        }
        supervisor.stop();
    })
    .await;
    assert!(counts.bad.borrow().is_empty(), "{:?}", counts.bad.borrow());
    assert!(counts.good.get() > 50);
    assert!(!folder.join("snapshot.json").exists() && !folder.join("envoy.pid").exists());
}

#[tokio::test]
async fn a_stranger_with_the_number_is_neither_adopted_nor_touched() {
    let (place, folder) = (Place::new(8), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let pid = orphan(place, folder).await;
    send(pid, Signal::SIGKILL);
    let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
    let path = folder.join("snapshot.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let reused = text.replace(
        &format!("\"pid\": {pid}"),
        &format!("\"pid\": {}", stranger.id()),
    );
    assert_ne!(text, reused);
    std::fs::write(&path, reused).unwrap();
    let host = EnvoyHost::new(
        place.admin(),
        Some(hot(folder)),
        Some(folder.join("envoy.log")),
    );
    supervise(host, place.config(), adopting(folder), async |supervisor| {
        let report = until(&supervisor, Report::ready).await;
        assert!(!report.epochs[0].adopted && report.starts == 1);
        supervisor.stop();
    })
    .await;
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger lives");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}
