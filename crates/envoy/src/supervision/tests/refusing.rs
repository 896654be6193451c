//! First configurations that are invalid, on a paused clock.

use super::*;

const WORDS: &str = "no such field: 'admn'";

/// Processes fail after `life`, and the validation rejects the configuration `after` their first
/// failure.
async fn refused(life: Duration, after: Duration) -> (Record, Ended) {
    let (mut fake, record) = fake();
    fake.ready_after = 100 * SECOND;
    fake.validation = (after, Err(WORDS.to_owned()));
    let ended = supervise(fake, (1, Some(life)), options(), async |_| {}).await;
    (record, ended)
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_supervision_with_its_message() {
    let millis = Duration::from_millis;
    for (life, after, ended_at, starts) in [
        // The second process is started at once, and ends by itself.
        (millis(100), millis(90), 200, 2),
        (millis(100), millis(150), 300, 3),
        // The result comes during a wait.
        (millis(100), millis(1_000), 1_100, 3),
        (12 * SECOND, SECOND, 24_000, 2),
    ] {
        let (record, ended) = refused(life, after).await;
        assert_eq!(record.times("validate").len(), 1, "{life:?} {after:?}");
        assert_eq!(record.times("validate")[0], life.as_millis());
        assert_eq!(record.times("start").len(), starts, "{life:?} {after:?}");
        assert_eq!(record.1.elapsed(), millis(ended_at), "{life:?} {after:?}");
        assert_eq!(ended.outcome, Outcome::Spent);
        assert!(ended.refused);
        assert_eq!(ended.refusal.as_deref(), Some(WORDS));
        assert_eq!(ended.last.unwrap().reason, ExitReason::Code(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_that_takes_long_delays_no_restart() {
    let (mut fake, record) = fake();
    fake.validation = (29 * SECOND, Ok(()));
    let ended = supervise(fake, (1, Some(Duration::ZERO)), options(), async |_| {}).await;
    let starts = record.times("start");
    assert_eq!(starts[..7], [0, 0, 0, 2_000, 6_000, 14_000, 30_000]);
    assert_eq!(starts.len(), 11);
    assert_eq!(record.times("validate"), [0], "validated once");
    assert_eq!(ended.outcome, Outcome::Spent);
    assert!(!ended.refused);
    assert!(ended.refusal.unwrap().contains("exited with code 1"));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_serves_outweighs_the_check() {
    let (mut fake, record) = fake();
    fake.ready_after = 2 * SECOND;
    fake.validation = (SECOND, Err(WORDS.to_owned()));
    supervise(fake, (1, Some(SECOND)), options(), async |handle| {
        sleep(Duration::from_millis(1_500)).await;
        // This one works.
        handle.update((2, None)).unwrap();
        sleep(10 * SECOND).await;
        let report = handle.report();
        assert!(report.ready() && report.refusal.is_none(), "{report:?}");
        handle.kill();
    })
    .await;
    assert_eq!(record.times("validate 1"), [1_000]);
    assert_eq!(record.times("validate 2"), [0; 0]);
}
