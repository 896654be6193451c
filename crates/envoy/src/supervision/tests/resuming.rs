//! Adoption of processes that were left in an intermediate state.

use std::fs;
use std::path::Path;

use super::adopting::with_files;
use super::*;

fn entry(epoch: u32, stage: Stage) -> Entry {
    Entry {
        epoch,
        fingerprint: format!("{:?}", (1, None::<Duration>)),
        stage,
        identity: Identity {
            pid: 100 + epoch,
            ..Identity::of(std::process::id()).unwrap()
        },
    }
}

/// A folder with a snapshot of these processes.
fn left(processes: &[(u32, Stage)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let entries = processes.iter().map(|&(epoch, stage)| entry(epoch, stage));
    let snapshot = Snapshot::new(None, Some(7), entries.collect());
    let text = serde_json::to_vec(&snapshot).unwrap();
    fs::write(folder.path().join("snapshot.json"), text).unwrap();
    folder
}

fn snapshot(folder: &Path) -> Vec<(u32, Stage)> {
    let snapshot = Snapshot::load(&folder.join("snapshot.json")).unwrap();
    let processes = snapshot.unwrap().processes.into_iter();
    processes.map(|entry| (entry.epoch, entry.stage)).collect()
}

/// The epochs of a successor, and its calls so far.
async fn succeeded(folder: &Path, serving: Option<u32>) -> (Vec<(u32, EpochState)>, Vec<String>) {
    let (mut fake, record) = fake();
    fake.serving = serving;
    let mut found = Vec::new();
    supervise(fake, (1, None), with_files(folder), async |handle| {
        sleep(SECOND).await;
        let epochs = handle.report().epochs;
        found = epochs.iter().map(|one| (one.epoch, one.state)).collect();
        handle.release();
    })
    .await;
    (found, record.all())
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_went_on_without_supervisor_is_seen() {
    use EpochState::{Draining, Serving};
    let folder = left(&[(0, Stage::Serving), (1, Stage::Starting)]);
    let (epochs, done) = succeeded(folder.path(), Some(1)).await;
    assert_eq!(epochs, [(0, Draining), (1, Serving)]);
    assert!(
        !done.iter().any(|what| what.starts_with("start")),
        "{done:?}"
    );
    // It became ready before that was recorded.
    let folder = left(&[(0, Stage::Starting)]);
    let (epochs, done) = succeeded(folder.path(), Some(0)).await;
    assert_eq!(epochs, [(0, Serving)]);
    assert!(
        !done.iter().any(|what| what.starts_with("start")),
        "{done:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_process_that_never_became_ready_is_not_adopted() {
    for answering in [None, Some(0)] {
        let folder = left(&[(0, Stage::Serving), (1, Stage::Starting)]);
        let (epochs, _) = succeeded(folder.path(), answering).await;
        assert_eq!(epochs, [(0, EpochState::Serving)], "{answering:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_has_every_process_as_soon_as_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (mut fake, _) = fake();
    fake.ready_after = Duration::from_millis(50);
    let soon = Duration::from_millis(10);
    supervise(fake, (1, None), with_files(folder.path()), async |handle| {
        sleep(soon).await;
        assert_eq!(snapshot(folder.path()), [(0, Stage::Starting)]);
        sleep(6 * soon).await;
        assert_eq!(snapshot(folder.path()), [(0, Stage::Serving)]);
        handle.restart().unwrap();
        sleep(soon).await;
        let both = [(0, Stage::Serving), (1, Stage::Starting)];
        assert_eq!(snapshot(folder.path()), both);
        sleep(6 * soon).await;
        let both = [(0, Stage::Leaving), (1, Stage::Serving)];
        assert_eq!(snapshot(folder.path()), both);
        handle.release();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn there_is_no_pid_file_while_nothing_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (fake, _) = fake();
    let pid_file = folder.path().join("envoy.pid");
    let life = Some(2 * SECOND);
    supervise(fake, (1, life), with_files(folder.path()), async |handle| {
        sleep(SECOND).await;
        assert_eq!(fs::read_to_string(&pid_file).unwrap(), "100\n");
        // Three starts at once, then a wait of two seconds.
        sleep(6 * SECOND).await;
        assert!(handle.report().epochs.is_empty() && !pid_file.exists());
        sleep(2 * SECOND).await;
        assert_eq!(fs::read_to_string(&pid_file).unwrap(), "100\n");
        handle.stop();
    })
    .await;
    assert!(!pid_file.exists());
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_the_start_ends_leftovers_and_starts_nothing() {
    let folder = left(&[(3, Stage::Serving)]);
    for expected in [&["adopted Some(7)", "quit", "term 103", "clean 3"][..], &[]] {
        let (fake, record) = fake();
        let (handle, controls) = handle();
        handle.stop();
        // Another configuration than the running one.
        let ended = run(fake, (2, None), with_files(folder.path()), controls).await;
        assert_eq!(ended.unwrap().outcome, Outcome::Stopped { forced: false });
        assert_eq!(record.all(), expected);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_configuration_and_a_restart_are_one_replacement() {
    let (fake, record) = fake();
    supervise(fake, (1, None), options(), async |handle| {
        sleep(SECOND).await;
        handle.update((2, None)).unwrap();
        handle.restart().unwrap();
        sleep(SECOND).await;
        handle.stop();
    })
    .await;
    assert_eq!(record.times("check").len(), 1);
    assert_eq!(record.times("start").len(), 2);
}
