//! Metrics that follow from what others know at the moment somebody looks: the session with the
//! servers, ages, certificates on disk. Nothing runs between two looks.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use legate_client::{Session, SessionSnapshot, Stage};
use legate_identity::CertificateInfo;
use legate_runtime::Clock;
use legate_runtime::metrics::proto::MetricFamily;
use tokio::time::Instant;

use super::PREFIX;
use super::families::{counter, gauge, gauges};

/// How long what a file said is believed.
const FILE_FRESH: Duration = Duration::from_secs(60);

/// Largest certificate file that is read, 1 MiB.
const FILE_LIMIT: u64 = 1024 * 1024;

/// What the relay writes when a response arrives; 0 is never.
const LAST_RESPONSE: &str = "xds_last_response_timestamp_seconds";

const STAGES: [Stage; 8] = [
    Stage::Finding,
    Stage::Dialing,
    Stage::LoggingIn,
    Stage::Checking,
    Stage::Connected,
    Stage::Waiting,
    Stage::Failed,
    Stage::Closed,
];

/// Whom to ask.
#[derive(Debug)]
pub(super) struct Observed {
    clock: Clock,
    sources: Mutex<Sources>,
}

#[derive(Debug, Default)]
struct Sources {
    session: Option<Session>,
    certificates: Vec<CertificateFile>,
}

#[derive(Debug)]
struct CertificateFile {
    name: &'static str,
    path: PathBuf,
    read: Option<(Instant, Option<SystemTime>)>,
}

impl Observed {
    pub(super) fn new(clock: Clock) -> Observed {
        Observed {
            clock,
            sources: Mutex::default(),
        }
    }

    pub(super) fn session(&self, session: Session) {
        self.sources().session = Some(session);
    }

    pub(super) fn certificate(&self, name: &'static str, path: PathBuf) {
        self.sources().certificates.push(CertificateFile {
            name,
            path,
            read: None,
        });
    }

    /// Adds what is known now to the families of the registry.
    pub(super) fn complete(&self, families: &mut Vec<MetricFamily>) {
        let last = value(families, LAST_RESPONSE);
        let age = last
            .filter(|last| *last > 0.0)
            .map(|last| (seconds(self.clock.now()) - last).max(0.0));
        families.push(gauge(
            "xds_last_response_age_seconds",
            "Seconds since a server last sent an xDS response.",
            age,
        ));
        let mut sources = self.sources();
        let snapshot = sources.session.as_ref().map(Session::snapshot);
        let own = snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.client_certificate_expires)
            .map(|at| ("consul-client", seconds(at)));
        let files = sources.certificates.iter_mut();
        let files = files.filter_map(|file| Some((file.name, seconds(file.expires()?))));
        families.push(gauges(
            "certificate_expiry_timestamp_seconds",
            "When a certificate of the dataplane expires, in seconds since 1970.",
            "certificate",
            own.into_iter().chain(files),
        ));
        if let Some(snapshot) = snapshot {
            families.extend(session_families(&snapshot));
        }
        families.sort_by(|a, b| a.name().cmp(b.name()));
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CertificateFile {
    fn expires(&mut self) -> Option<SystemTime> {
        match self.read {
            Some((at, expires)) if at.elapsed() < FILE_FRESH => expires,
            _ => {
                let expires = expiry(&self.path);
                self.read = Some((Instant::now(), expires));
                expires
            }
        }
    }
}

/// When the first certificate of a file expires; none when it cannot be read, which whoever uses
/// the file complains about.
fn expiry(path: &Path) -> Option<SystemTime> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(FILE_LIMIT).read_to_string(&mut text).ok()?;
    CertificateInfo::from_pem(&text)
        .ok()
        .map(|certificate| certificate.not_after)
}

fn session_families(snapshot: &SessionSnapshot) -> Vec<MetricFamily> {
    let state = |stage: Stage| (stage.as_str(), f64::from(u8::from(stage == snapshot.stage)));
    let connections = u32::try_from(snapshot.generation).unwrap_or(u32::MAX);
    let age = |name: &str, help: &str, since: Option<Instant>| {
        gauge(name, help, since.map(|at| at.elapsed().as_secs_f64()))
    };
    vec![
        gauges(
            "session_state",
            "1 for what the session with the servers is doing, 0 for all else.",
            "state",
            STAGES.map(state),
        ),
        counter(
            "consul_connections_total",
            "Connections to servers.",
            connections.into(),
        ),
        age(
            "session_state_age_seconds",
            "Seconds that the session has been in its state.",
            snapshot.stage_since,
        ),
        age(
            "consul_last_message_age_seconds",
            "Seconds since the connected server last said something to the session itself.",
            snapshot.heard,
        ),
        age(
            "token_age_seconds",
            "Age of the token of the last login, in seconds.",
            snapshot.token_since,
        ),
        gauge(
            "bearer_token_expiry_timestamp_seconds",
            "When the bearer token of the last login expires by its own claim, in seconds since 1970.",
            snapshot.bearer_expires.map(seconds),
        ),
    ]
}

/// The value of a gauge without labels.
fn value(families: &[MetricFamily], name: &str) -> Option<f64> {
    let name = format!("{PREFIX}_{name}");
    let family = families.iter().find(|family| family.name() == name)?;
    Some(family.get_metric().first()?.get_gauge().get_value())
}

fn seconds(time: SystemTime) -> f64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Format;
    use crate::telemetry::families::page;

    #[tokio::test(start_paused = true)]
    async fn ages_count_from_the_last_response() {
        let observed = Observed::new(Clock::at(UNIX_EPOCH + Duration::from_secs(1_000)));
        tokio::time::advance(Duration::from_secs(30)).await;
        let shown = |last| {
            let mut families = vec![gauge(LAST_RESPONSE, "", Some(last))];
            observed.complete(&mut families);
            page(&families, Format::Text)
        };
        assert!(shown(990.0).contains("xds_last_response_age_seconds 40\n"));
        assert!(!shown(0.0).contains("\nconsul_dataplane_xds_last_response_age_seconds "));
        assert!(shown(2_000.0).contains("xds_last_response_age_seconds 0\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn certificate_files_are_read_again_after_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cert.pem");
        let observed = Observed::new(Clock::system());
        observed.certificate("prometheus", path.clone());
        let shown = || {
            let mut families = Vec::new();
            observed.complete(&mut families);
            page(&families, Format::Text)
        };
        assert!(!shown().contains("certificate=\"prometheus\""));
        let ca = legate_testkit::certs::TestCa::new();
        std::fs::copy(ca.server(&["localhost"]).cert, &path).unwrap();
        assert!(
            !shown().contains("certificate=\"prometheus\""),
            "it was looked at a moment ago"
        );
        tokio::time::advance(FILE_FRESH).await;
        let text = shown();
        let line = text
            .lines()
            .find(|line| line.contains("certificate=\"prometheus\""));
        let value: f64 = line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(value > seconds(SystemTime::now()), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_shows_its_state_and_its_token() {
        let now = Instant::now();
        let snapshot = SessionSnapshot {
            stage: Stage::Connected,
            stage_since: Some(now - Duration::from_secs(3)),
            generation: 2,
            heard: Some(now - Duration::from_millis(500)),
            token_since: Some(now - Duration::from_secs(60)),
            bearer_expires: Some(UNIX_EPOCH + Duration::from_secs(5)),
            ..SessionSnapshot::default()
        };
        let text = page(&session_families(&snapshot), Format::Text);
        for line in [
            "session_state{state=\"connected\"} 1",
            "session_state{state=\"waiting\"} 0",
            "consul_connections_total 2",
            "consul_last_message_age_seconds 0.5",
            "token_age_seconds 60",
            "bearer_token_expiry_timestamp_seconds 5",
        ] {
            assert!(
                text.contains(&format!("consul_dataplane_{line}\n")),
                "{line}\n{text}"
            );
        }
    }
}
