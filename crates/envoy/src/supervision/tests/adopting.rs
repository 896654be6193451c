//! Snapshots: their content, and adoption by a successor.

use std::path::Path;

use super::*;

pub(super) fn with_files(folder: &Path) -> Options {
    Options {
        pid_file: Some(folder.join("envoy.pid")),
        snapshot: Some(folder.join("snapshot.json")),
        ..options()
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_process_is_adopted_and_a_stopped_one_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (fake_one, record) = fake();
    let ended = supervise(
        fake_one,
        (1, None),
        with_files(folder.path()),
        async |handle| {
            sleep(2 * SECOND).await;
            assert_eq!(
                std::fs::read_to_string(folder.path().join("envoy.pid")).unwrap(),
                "100\n"
            );
            handle.release();
            handle.kill();
        },
    )
    .await;
    assert_eq!(ended.outcome, Outcome::Released);
    assert_eq!(record.all().last().unwrap(), "detach 100");

    // A successor with another configuration replaces it with a hot restart.
    let (fake_two, record) = fake();
    supervise(
        fake_two,
        (2, None),
        with_files(folder.path()),
        async |handle| {
            sleep(2 * SECOND).await;
            let report = handle.report();
            assert!(
                report.epochs[0].adopted && report.epochs[1].epoch == 1,
                "{report:?}"
            );
            handle.stop();
        },
    )
    .await;
    assert_eq!(
        record.all()[..4],
        ["adopted Some(7)", "check 2", "start 1 2", "serves 1"]
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Leaves a running process and its snapshot.
async fn release(folder: &Path) {
    let (fake, _) = fake();
    supervise(fake, (1, None), with_files(folder), async |handle| {
        sleep(2 * SECOND).await;
        handle.release();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stranger_is_not_adopted() {
    let folder = tempfile::tempdir().unwrap();
    release(folder.path()).await;
    let (mut fake_two, record) = fake();
    fake_two.adopts = false;
    supervise(
        fake_two,
        (1, None),
        with_files(folder.path()),
        async |handle| {
            sleep(2 * SECOND).await;
            handle.stop();
        },
    )
    .await;
    assert_eq!(record.all()[0], "start 0 1");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_cannot_be_replaced_affects_no_process() {
    let folder = tempfile::tempdir().unwrap();
    release(folder.path()).await;
    // Blocks the creation of the new file, even for root.
    std::fs::create_dir(folder.path().join("snapshot.json.new")).unwrap();
    let (fake, record) = fake();
    let (_handle, controls) = handle();
    let started = run(fake, (1, None), with_files(folder.path()), controls).await;
    let error = started.unwrap_err().to_string();
    assert!(error.contains("snapshot.json"), "{error}");
    let detached = format!("detach {}", std::process::id());
    assert_eq!(record.all(), ["adopted Some(7)", &detached]);
    assert!(folder.path().join("snapshot.json").exists());
}

#[tokio::test]
async fn supervision_that_cannot_start_reports_the_reason() {
    let bad = with_files(Path::new("/proc/no-such-folder"));
    let (fake_one, record) = fake();
    let (_handle, controls) = handle();
    let error = run(fake_one, (1, None), bad, controls).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("/proc/no-such-folder/snapshot.json"),
        "{error}"
    );
    assert_eq!(record.all().len(), 0, "nothing was started");
}
