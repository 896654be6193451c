//! Metrics that are computed per scrape: the session with the servers, ages, expiry of certificates on disk,
//! and series that have not changed for long. Nothing runs between scrapes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use legate_client::{Session, SessionSnapshot, Stage};
use legate_identity::CertificateInfo;
use legate_runtime::Clock;
use legate_runtime::metrics::proto::MetricFamily;
use tokio::time::Instant;

use super::families::{PREFIX, family, gauge};

/// How long the expiry read from a file is cached.
const FILE_FRESH: Duration = Duration::from_secs(60);

/// Maximum size of a certificate file, 1 MiB.
const FILE_LIMIT: u64 = 1024 * 1024;

/// The family, without prefix, whose labelled series appear with an event.
pub(super) const EVENTS: &str = "connection_errors";

/// The gauge that the relay sets when a response arrives; 0 means never.
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

/// The sources of the metrics.
#[derive(Debug)]
pub(super) struct Observed {
    clock: Clock,
    pub(super) session: Option<Session>,
    certificates: Vec<CertificateFile>,
    /// How long the series of events are kept after their last change.
    pub(super) retention: Duration,
    /// Values and times of the last change of these series, by label value. Bounded by the registry. Changes are
    /// detected per scrape.
    events: BTreeMap<String, (f64, Instant)>,
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
            session: None,
            certificates: Vec::new(),
            // The default of `-telemetry-prom-retention-time`.
            retention: Duration::from_secs(60),
            events: BTreeMap::new(),
        }
    }

    pub(super) fn certificate(&mut self, name: &'static str, path: PathBuf) {
        self.certificates.push(CertificateFile {
            name,
            path,
            read: None,
        });
    }

    /// Removes the series of events that have not changed for longer than the retention. All others are kept for
    /// the life of the process, as in Consul's dataplane.
    fn retain(&mut self, families: &mut [MetricFamily]) {
        let now = Instant::now();
        let name = format!("{PREFIX}_{EVENTS}");
        let Some(family) = families.iter_mut().find(|family| family.name() == name) else {
            return;
        };
        family.mut_metric().retain(|metric| {
            let Some(label) = metric.get_label().first() else {
                return true;
            };
            let value = metric.get_counter().get_value();
            let known = self.events.entry(label.value().to_owned());
            let known = known.or_insert((value, now));
            if known.0 < value {
                *known = (value, now);
            }
            now.duration_since(known.1) < self.retention
        });
    }

    /// Adds the computed metrics to the families of the registry, and removes expired series.
    pub(super) fn complete(&mut self, families: &mut Vec<MetricFamily>) {
        self.retain(families);
        let last = value(families, LAST_RESPONSE);
        let age = last
            .filter(|last| *last > 0.0)
            .map(|last| (seconds(self.clock.now()) - last).max(0.0));
        families.push(gauge(
            "xds_last_response_age_seconds",
            "Seconds since a server last sent an xDS response.",
            age,
        ));
        let snapshot = self.session.as_ref().map(Session::snapshot);
        let own = snapshot.as_ref();
        let own = own.and_then(|snapshot| snapshot.client_certificate_expires);
        let own = own.map(|at| ("consul-client", seconds(at)));
        let files = self.certificates.iter_mut();
        let files = files.filter_map(|file| Some((file.name, seconds(file.expires()?))));
        families.push(family(
            "certificate_expiry_timestamp_seconds",
            "When a certificate of the dataplane expires, in seconds since 1970.",
            "certificate",
            own.into_iter().chain(files),
        ));
        families.extend(snapshot.iter().flat_map(session_families));
    }
}

impl CertificateFile {
    fn expires(&mut self) -> Option<SystemTime> {
        if self.read.is_none_or(|(at, _)| at.elapsed() >= FILE_FRESH) {
            self.read = Some((Instant::now(), expiry(&self.path)));
        }
        self.read?.1
    }
}

/// The expiry of the first certificate in a file; `None` if it cannot be read, which the users of the file
/// report.
fn expiry(path: &Path) -> Option<SystemTime> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(FILE_LIMIT).read_to_string(&mut text).ok()?;
    CertificateInfo::from_pem(&text)
        .ok()
        .map(|certificate| certificate.not_after)
}

fn session_families(snapshot: &SessionSnapshot) -> [MetricFamily; 6] {
    let state = |stage: Stage| (stage.as_str(), f64::from(u8::from(stage == snapshot.stage)));
    let age = |since: Option<Instant>| since.map(|at| at.elapsed().as_secs_f64());
    [
        family(
            "session_state",
            "1 for what the session with the servers is doing, 0 for all else.",
            "state",
            STAGES.map(state),
        ),
        family(
            "consul_connections_total",
            "Connections to servers.",
            "",
            [("", snapshot.generation as f64)],
        ),
        gauge(
            "session_state_age_seconds",
            "Seconds that the session has been in its state.",
            age(snapshot.stage_since),
        ),
        gauge(
            "consul_last_message_age_seconds",
            "Seconds since the connected server last said something to the session itself.",
            age(snapshot.heard),
        ),
        gauge(
            "token_age_seconds",
            "Age of the token of the last login, in seconds.",
            age(snapshot.token_since),
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
    use legate_metrics_page::Format;
    use legate_runtime::metrics::{IntCounterVec, Opts, Registry};

    use super::*;
    use crate::telemetry::families::{gather, page};

    #[tokio::test(start_paused = true)]
    async fn ages_count_from_the_last_response() {
        let mut observed = Observed::new(Clock::at(UNIX_EPOCH + Duration::from_secs(1_000)));
        tokio::time::advance(Duration::from_secs(30)).await;
        let mut shown = |last| {
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
        let mut observed = Observed::new(Clock::system());
        observed.certificate("prometheus", path.clone());
        let mut shown = || {
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

    #[tokio::test(start_paused = true)]
    async fn series_of_events_leave_when_nothing_happens_and_come_back() {
        let registry = Registry::new();
        let counter = |name: &str, label| {
            let options = Opts::new(name, "x").namespace(PREFIX);
            let counter = IntCounterVec::new(options, &[label]).unwrap();
            registry.register(Box::new(counter.clone())).unwrap();
            counter
        };
        let errors = counter(EVENTS, "error_code");
        errors.with_label_values(&[""]).inc();
        errors.with_label_values(&["Unavailable"]).inc();
        let queries = counter("dns_queries_total", "outcome");
        queries.with_label_values(&["answered"]);
        let mut observed = Observed::new(Clock::system());
        observed.retention = Duration::from_secs(30);
        let mut shown = || {
            let mut families = gather(&registry);
            observed.retain(&mut families);
            assert_eq!(families[1].get_metric().len(), 1);
            families[0].get_metric().len()
        };
        assert_eq!(shown(), 2);
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(shown(), 2);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(shown(), 1, "the sum of all stays");
        errors.with_label_values(&["Unavailable"]).inc();
        assert_eq!(shown(), 2);
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(shown(), 2);
    }
}
