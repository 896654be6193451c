//! Files that are not writable or invalid, and programs that are not a suitable Envoy, with real
//! processes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use legate_envoy::process::{Identity, Launch};
use legate_envoy::supervision::{
    Ended, EnvoyConfig, EnvoyHost, Options, Outcome, Report, Snapshot, handle, run,
};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Duration, sleep};
use tracing::field::{Field, Visit};
use tracing::span;

use crate::place::{ADMIN, Place, alone, hot, send, supervise, until};

/// The log of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Log {
    /// The warnings that contain these words.
    fn warnings(&self, words: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        let chosen = lines
            .iter()
            .filter(|line| line.starts_with("WARN") && line.contains(words));
        chosen.cloned().collect()
    }
}

fn capture() -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let guard = tracing::subscriber::set_default(log.clone());
    (log, guard)
}

fn with_files(pid_file: PathBuf, snapshot: PathBuf) -> Options {
    Options {
        pid_file: Some(pid_file),
        snapshot: Some(snapshot),
        ..Options::default()
    }
}

fn serving(snapshot: &Path) -> bool {
    let text = fs::read_to_string(snapshot).unwrap_or_default();
    text.contains("\"serving\"")
}

async fn until_gone(pid: u32) {
    while Identity::of(pid).is_some() {
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_unwritable_pid_file_is_logged_once_and_envoy_runs() {
    let (place, folder) = (Place::new(13), tempfile::tempdir().unwrap());
    let (log, _guard) = capture();
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").unwrap();
    let pid_file = blocked.join("envoy.pid");
    let snapshot = folder.path().join("snapshot.json");
    let host = EnvoyHost::new(place.admin(), None, None);
    let options = with_files(pid_file.clone(), snapshot.clone());
    supervise(host, place.config(), options, async |supervisor| {
        until(&supervisor, Report::ready).await;
        supervisor.restart().unwrap();
        until(&supervisor, |report| report.starts == 2 && report.ready()).await;
        while !serving(&snapshot) {
            sleep(Duration::from_millis(5)).await;
        }
        supervisor.stop();
    })
    .await;
    let warnings = log.warnings("pid file");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains(pid_file.to_str().unwrap()),
        "{warnings:?}"
    );
}

/// Leaves a serving Envoy and its snapshot.
async fn release(place: Place, folder: &Path) -> u32 {
    let snapshot = folder.join("snapshot.json");
    let host = EnvoyHost::new(
        place.admin(),
        Some(hot(folder)),
        Some(folder.join("envoy.log")),
    );
    let options = with_files(folder.join("envoy.pid"), snapshot.clone());
    let mut pid = 0;
    let ended = supervise(host, place.config(), options, async |supervisor| {
        pid = until(&supervisor, Report::ready).await.epochs[0].pid;
        while !serving(&snapshot) {
            sleep(Duration::from_millis(5)).await;
        }
        supervisor.release();
    })
    .await;
    assert_eq!(ended.outcome, Outcome::Released);
    pid
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_written_is_an_error_and_the_envoy_that_runs_serves_on() {
    let (place, folder) = (Place::new(14), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let snapshot = folder.join("snapshot.json");
    // Blocks the creation of the new file, even for root.
    let blocked = folder.join("snapshot.json.new");
    fs::create_dir(&blocked).unwrap();
    let begin = async || {
        let host = EnvoyHost::new(
            place.admin(),
            Some(hot(folder)),
            Some(folder.join("envoy.log")),
        );
        let (supervisor, controls) = handle();
        let options = with_files(folder.join("envoy.pid"), snapshot.clone());
        let error = run(host, place.config(), options, controls).await;
        assert_eq!(supervisor.report().starts, 0);
        error.unwrap_err().to_string()
    };
    let error = begin().await;
    assert!(error.contains(snapshot.to_str().unwrap()), "{error}");
    assert!(place.admin().server_info().await.is_err(), "nothing runs");

    fs::remove_dir(&blocked).unwrap();
    let pid = release(place, folder).await;
    fs::create_dir(&blocked).unwrap();
    begin().await;
    assert!(place.admin().server_info().await.unwrap().live());
    fs::remove_dir(&blocked).unwrap();
    let host = EnvoyHost::new(
        place.admin(),
        Some(hot(folder)),
        Some(folder.join("envoy.log")),
    );
    let options = with_files(folder.join("envoy.pid"), snapshot.clone());
    supervise(host, place.config(), options, async |supervisor| {
        let report = until(&supervisor, Report::ready).await;
        assert!(report.epochs[0].adopted && report.epochs[0].pid == pid);
        supervisor.stop();
    })
    .await;
}

#[tokio::test]
async fn an_invalid_snapshot_is_moved_aside_and_envoy_is_started() {
    let (place, folder) = (Place::new(15), tempfile::tempdir().unwrap());
    let (log, _guard) = capture();
    let folder = folder.path();
    let snapshot = folder.join("snapshot.json");
    let aside = folder.join("snapshot.json.corrupt");
    let pid = release(place, folder).await;
    send(pid, Signal::SIGKILL);
    until_gone(pid).await;
    let whole = fs::read(&snapshot).unwrap();
    let truncated = &whole[..whole.len() / 2];
    for (times, content) in [truncated, b"\0\x01 not JSON".as_slice()]
        .into_iter()
        .enumerate()
    {
        fs::write(&snapshot, content).unwrap();
        let host = EnvoyHost::new(
            place.admin(),
            Some(hot(folder)),
            Some(folder.join("envoy.log")),
        );
        let options = with_files(folder.join("envoy.pid"), snapshot.clone());
        supervise(host, place.config(), options, async |supervisor| {
            let report = until(&supervisor, |report| alone(report, 0)).await;
            assert!(!report.epochs[0].adopted && report.starts == 1);
            assert_eq!(fs::read(&aside).unwrap(), content);
            while !serving(&snapshot) {
                sleep(Duration::from_millis(5)).await;
            }
            let written = Snapshot::load(&snapshot).unwrap().unwrap();
            assert_eq!(written.processes[0].identity.pid, report.epochs[0].pid);
            supervisor.stop();
        })
        .await;
        let warnings = log.warnings("snapshot is invalid");
        assert_eq!(warnings.len(), times + 1);
        assert!(
            warnings[times].contains(aside.to_str().unwrap()),
            "{warnings:?}"
        );
    }
}

fn program(folder: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

/// A configuration for the place with this program as Envoy.
fn running(place: Place, executable: PathBuf) -> EnvoyConfig {
    EnvoyConfig::new(Launch {
        executable,
        ..place.config().launch
    })
}

/// The unrequested end of supervision. The clock has to be paused, because the waits are long.
async fn fails(place: Place, executable: PathBuf, log: Option<PathBuf>) -> Ended {
    let host = EnvoyHost::new(place.admin(), None, log);
    let (_supervisor, controls) = handle();
    let config = running(place, executable);
    let ended = run(host, config, Options::default(), controls).await;
    ended.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_program_that_cannot_run_here_is_named_with_advice() {
    let (place, folder) = (Place::new(16), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let mut foreign = fs::read("/proc/self/exe").unwrap();
    foreign.truncate(4096);
    // The machine type in an ELF header.
    foreign[18] ^= 0x55;
    let programs = [
        (folder.join("missing"), "No such file"),
        (
            program(folder, "plain", b"#!/bin/sh\nexit 0\n", 0o644),
            "has to be executable",
        ),
        (
            program(folder, "foreign", &foreign, 0o755),
            "not a program for this machine",
        ),
        (
            program(folder, "text", b"exit 0\n", 0o755),
            "not a program for this machine",
        ),
    ];
    for (path, words) in programs {
        for log in [None, Some(folder.join("envoy.log"))] {
            let ended = fails(place, path.clone(), log).await;
            assert_eq!(ended.outcome, Outcome::Spent);
            assert_eq!((ended.last, ended.refused), (None, false));
            let refusal = ended.refusal.unwrap();
            for words in [words, path.to_str().unwrap(), "-envoy-executable-path"] {
                assert!(refusal.contains(words), "{refusal}");
            }
        }
    }
}

/// Envoy with another hot restart version.
fn wrapper(folder: &Path, name: &str, says: &str) -> PathBuf {
    let envoy = legate_testkit::envoy::binary();
    let case = format!("case \"$*\" in *--hot-restart-version*) {says};; esac");
    let script = format!("#!/bin/sh\n{case}\nexec {} \"$@\"\n", envoy.display());
    program(folder, name, script.as_bytes(), 0o755)
}

#[tokio::test]
async fn another_program_takes_over_if_its_hot_restart_version_is_the_same() {
    let (place, folder) = (Place::new(17), tempfile::tempdir().unwrap());
    let same = wrapper(folder.path(), "same", ":");
    let other = wrapper(folder.path(), "other", "echo 99.7; exit");
    let host = EnvoyHost::new(place.admin(), Some(hot(folder.path())), None);
    let options = Options::default();
    supervise(host, place.config(), options, async |supervisor| {
        until(&supervisor, |report| alone(report, 0)).await;
        supervisor.update(running(place, same)).unwrap();
        let report = until(&supervisor, |report| alone(report, 1)).await;
        assert_eq!((report.starts, report.obstacle), (2, None));

        supervisor.update(running(place, other)).unwrap();
        let report = until(&supervisor, |report| report.obstacle.is_some()).await;
        let obstacle = report.obstacle.unwrap();
        let expected = ["99.7", "the running one's 11."];
        assert!(
            expected.iter().all(|words| obstacle.contains(words)),
            "{obstacle}"
        );
        // A cold restart: no process is running, so the epoch number starts again.
        let report = until(&supervisor, |report| alone(report, 0)).await;
        assert_eq!(report.starts, 3);
        supervisor.stop();
    })
    .await;
}

/// Responds to every request like an Envoy of that version, forever.
async fn says_version(listener: &TcpListener, version: &str) {
    let info =
        json!({ "state": "LIVE", "version": format!("abc/{version}/Clean/RELEASE/BoringSSL") });
    let info = info.to_string();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{info}",
        info.len()
    );
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

#[tokio::test]
async fn an_untested_version_is_warned_of_and_runs() {
    let (place, folder) = (Place::new(18), tempfile::tempdir().unwrap());
    let (log, _guard) = capture();
    let listener = TcpListener::bind(place.at(ADMIN)).await.unwrap();
    let script = b"#!/bin/sh\ncase \"$*\" in *'--mode validate') exit 0;; esac\nexec sleep 600\n";
    let script = program(folder.path(), "envoy", script, 0o755);
    let host = EnvoyHost::new(place.admin(), None, None);
    let config = running(place, script);
    supervise(host, config, Options::default(), async |supervisor| {
        let scenario = async {
            until(&supervisor, Report::ready).await;
            supervisor.restart().unwrap();
            until(&supervisor, |report| report.starts == 2 && report.ready()).await;
            supervisor.kill();
        };
        tokio::select! { () = scenario => {}, () = says_version(&listener, "1.12.0") => {} }
    })
    .await;
    let warnings = log.warnings("outside the tested range");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("Envoy 1.12.0"), "{warnings:?}");
}
