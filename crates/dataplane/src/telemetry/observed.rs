//! Metrics that follow from what others know at the moment somebody looks: the session with the
//! servers, ages, certificates on disk. Nothing runs between two looks.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use legate_client::{Session, SessionSnapshot, Stage};
use legate_identity::CertificateInfo;
use legate_runtime::Clock;
use tokio::time::Instant;

use super::PREFIX;
use super::families::{Family, Kind, Value};

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
pub(super) struct Observed {
    clock: Clock,
    sources: Mutex<Sources>,
}

#[derive(Default)]
struct Sources {
    session: Option<Session>,
    certificates: Vec<CertificateFile>,
}

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
    pub(super) fn complete(&self, families: &mut Vec<Family>) {
        let last = number(families, LAST_RESPONSE);
        let age = last
            .filter(|last| *last > 0.0)
            .map(|last| (seconds(self.clock.now()) - last).max(0.0));
        families.push(Family::gauge(
            "xds_last_response_age_seconds",
            "Seconds since a server last sent an xDS response.",
            age,
        ));
        let mut sources = self.sources();
        let snapshot = sources.session.as_ref().map(Session::snapshot);
        let mut expiry = Family::new(
            "certificate_expiry_timestamp_seconds",
            "When a certificate of the dataplane expires, in seconds since 1970.",
            Kind::Gauge,
        );
        if let Some(at) = snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.client_certificate_expires)
        {
            expiry.with(&[("certificate", "consul-client")], seconds(at));
        }
        for file in &mut sources.certificates {
            if let Some(at) = file.expires() {
                expiry.with(&[("certificate", file.name)], seconds(at));
            }
        }
        families.push(expiry);
        if let Some(snapshot) = snapshot {
            families.extend(session_families(&snapshot));
        }
        families.sort_by(|a, b| a.name.cmp(&b.name));
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

fn session_families(snapshot: &SessionSnapshot) -> Vec<Family> {
    let mut stage = Family::new(
        "session_state",
        "1 for what the session with the servers is doing, 0 for all else.",
        Kind::Gauge,
    );
    for other in STAGES {
        let value = if snapshot.stage == other { 1.0 } else { 0.0 };
        stage.with(&[("state", other.as_str())], value);
    }
    let mut connections = Family::new(
        "consul_connections_total",
        "Connections to servers.",
        Kind::Counter,
    );
    connections.with(
        &[],
        f64::from(u32::try_from(snapshot.generation).unwrap_or(u32::MAX)),
    );
    let age = |name: &str, help: &str, age: Option<Duration>| {
        Family::gauge(name, help, age.map(|age| age.as_secs_f64()))
    };
    vec![
        stage,
        connections,
        age(
            "session_state_age_seconds",
            "Seconds that the session has been in its state.",
            Some(snapshot.stage_age),
        ),
        age(
            "consul_last_message_age_seconds",
            "Seconds since the connected server last said something to the session itself.",
            snapshot.heard,
        ),
        age(
            "token_age_seconds",
            "Age of the token of the last login, in seconds.",
            snapshot.token_age,
        ),
        Family::gauge(
            "bearer_token_expiry_timestamp_seconds",
            "When the bearer token of the last login expires by its own claim, in seconds since 1970.",
            snapshot.bearer_expires.map(seconds),
        ),
    ]
}

/// The value of a family without labels.
fn number(families: &[Family], name: &str) -> Option<f64> {
    let is_it = |family: &&Family| {
        let rest = family.name.strip_prefix(PREFIX);
        rest.and_then(|rest| rest.strip_prefix('_')) == Some(name)
    };
    match families.iter().find(is_it)?.series.first()?.value {
        Value::Number(number) => Some(number),
        Value::Histogram { .. } => None,
    }
}

fn seconds(time: SystemTime) -> f64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Format;
    use crate::telemetry::render::render;

    #[tokio::test(start_paused = true)]
    async fn ages_count_from_the_last_response() {
        let observed = Observed::new(Clock::at(UNIX_EPOCH + Duration::from_secs(1_000)));
        tokio::time::advance(Duration::from_secs(30)).await;
        let page = |last| {
            let mut families = vec![Family::gauge(LAST_RESPONSE, "", Some(last))];
            observed.complete(&mut families);
            render(&families, Format::Text)
        };
        assert!(page(990.0).contains("xds_last_response_age_seconds 40\n"));
        assert!(!page(0.0).contains("\nconsul_dataplane_xds_last_response_age_seconds "));
        assert!(page(2_000.0).contains("xds_last_response_age_seconds 0\n"));
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
            render(&families, Format::Text)
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

    #[test]
    fn a_session_shows_its_state_and_its_token() {
        let snapshot = SessionSnapshot {
            stage: Stage::Connected,
            stage_age: Duration::from_secs(3),
            next_attempt: None,
            server: None,
            generation: 2,
            attempts: 1,
            heard: Some(Duration::from_millis(500)),
            last_error: None,
            accessor_id: None,
            token_age: Some(Duration::from_secs(60)),
            logins: 1,
            bearer_expires: Some(UNIX_EPOCH + Duration::from_secs(5)),
            client_certificate_expires: None,
            servers: Vec::new(),
        };
        let text = render(&session_families(&snapshot), Format::Text);
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
