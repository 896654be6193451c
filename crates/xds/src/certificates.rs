//! The expiry of certificates that connected gateways present to their clients, read at each scrape,
//! because certificates expire without a change of anything.
//!
//! There is one series per gateway and metric, whatever the number of its certificates and
//! instances.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use legate_model::ServiceName;
use legate_proxycfg::ApiGateway;
use legate_runtime::metrics::{Collector, Error, IntGaugeVec, Opts, Registry, proto};
use prometheus::core::Desc;

use crate::status::{Proxies, ProxyStatus};

/// The certificates of one gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Certificates {
    /// When the first one of them expires.
    first: SystemTime,
    /// How many have expired.
    expired: usize,
}

impl Certificates {
    fn of(status: &ProxyStatus, now: SystemTime) -> Option<(ServiceName, Self)> {
        let (snapshot, _) = status.configuration.as_ref()?;
        let own = ApiGateway::of(snapshot)?;
        let known = own.served.certificates.iter();
        let times = known.filter_map(|one| (**one).as_ref()?.expires);
        let found = Self {
            first: times.clone().min()?,
            expired: times.filter(|time| *time < now).count(),
        };
        let tenancy = &status.proxy.tenancy;
        let name = ServiceName::new(tenancy, &snapshot.proxy.instance.service);
        Some((name, found))
    }
}

/// The metrics of these certificates.
#[derive(Debug)]
pub(crate) struct CertificateMetrics {
    proxies: Proxies,
    described: [IntGaugeVec; 2],
}

/// The expiry of the first certificate, and the number of expired ones, without values.
fn gauges() -> Result<[IntGaugeVec; 2], Error> {
    let gauges = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["gateway"]);
    Ok([
        gauges(
            "legate_gateway_certificate_expiry_timestamp_seconds",
            "When the first inline certificate of a connected API gateway expires, in seconds since 1970.",
        )?,
        gauges(
            "legate_gateway_certificates_expired",
            "Inline certificates of a connected API gateway that have expired.",
        )?,
    ])
}

impl CertificateMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &Registry, proxies: Proxies) -> Result<(), Error> {
        registry.register(Box::new(Self {
            proxies,
            described: gauges()?,
        }))
    }
}

/// The certificates of each gateway. Its instances have the same ones, except while some of them
/// wait for a change.
fn by_gateway(proxies: &Proxies) -> BTreeMap<String, Certificates> {
    let mut gateways = BTreeMap::<String, Certificates>::new();
    let now = proxies.now();
    proxies.visit(|status| {
        if let Some((name, found)) = Certificates::of(status, now) {
            let known = gateways.entry(name.to_string()).or_insert(found);
            known.first = known.first.min(found.first);
            known.expired = known.expired.max(found.expired);
        }
    });
    gateways
}

impl Collector for CertificateMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.described.iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        // Made for each scrape, so that former gateways are not among them.
        let Ok([first, expired]) = gauges() else {
            return Vec::new();
        };
        for (name, found) in by_gateway(&self.proxies) {
            let since = found.first.duration_since(UNIX_EPOCH).unwrap_or_default();
            let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
            first.with_label_values(&[&name]).set(seconds);
            let count = i64::try_from(found.expired).unwrap_or(i64::MAX);
            expired.with_label_values(&[&name]).set(count);
        }
        [first.collect(), expired.collect()].concat()
    }
}
