//! What Envoy knows to be wrong with what it was given: certificates that have expired, and clusters
//! without endpoints. The server can see neither: files of certificates and the addresses of host
//! names are read by Envoy alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use legate_envoy::admin::AdminClient;
use legate_model::timestamp;
use serde_json::Value;
use tokio::time::timeout;

/// How long the status waits for Envoy's answers.
const PATIENCE: Duration = Duration::from_secs(1);

/// The maximum number of names of each kind.
const NAMES: usize = 100;

/// The number of endpoints of each cluster, and how often they were looked up.
const CLUSTERS: &str =
    "/stats?filter=%5Ecluster%5C..*%5C.%28membership_total%7Cupdate_attempt%29%24";

/// What is wrong; `None` for what Envoy does not answer in time.
pub(super) struct Troubles {
    /// The expired certificates that Envoy presents, by their first name, with the time.
    pub(super) expired: Option<Vec<String>>,
    /// The clusters without endpoints: no instance is registered, or no host name resolves.
    pub(super) without_endpoints: Option<Vec<String>>,
}

impl Troubles {
    /// Asks the Envoy with this admin interface.
    pub(super) async fn of(admin: SocketAddr, now: SystemTime) -> Self {
        let admin = AdminClient::new(admin);
        let page = async |path| timeout(PATIENCE, admin.get(path)).await.ok()?.ok();
        let (certificates, clusters) = tokio::join!(page("/certs"), page(CLUSTERS));
        let certificates = certificates.and_then(|page| serde_json::from_slice(&page).ok());
        Self {
            expired: certificates.map(|page| expired(&page, now)),
            without_endpoints: clusters.map(|page| empty(&String::from_utf8_lossy(&page))),
        }
    }
}

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> + Clone {
    value[field].as_array().into_iter().flatten()
}

fn expired(certificates: &Value, now: SystemTime) -> Vec<String> {
    let presented =
        items(certificates, "certificates").filter_map(|one| items(one, "cert_chain").next());
    let expired = presented.filter_map(|one| {
        let at = one["expiration_time"].as_str()?;
        if timestamp::parse(at).ok()? >= now {
            return None;
        }
        let names = items(one, "subject_alt_names");
        let named = |kind: &str| names.clone().find_map(|name| name[kind].as_str());
        let name = named("uri").or_else(|| named("dns"));
        let name = name.or_else(|| one["path"].as_str()).unwrap_or_default();
        Some(format!("{name} at {at}"))
    });
    // A certificate is listed once for each use.
    let expired: BTreeSet<String> = expired.collect();
    expired.into_iter().take(NAMES).collect()
}

/// The clusters whose endpoints were looked up without finding one.
fn empty(stats: &str) -> Vec<String> {
    let mut looked_up = BTreeMap::<&str, [u64; 2]>::new();
    for (name, value) in stats.lines().filter_map(|line| line.rsplit_once(": ")) {
        let Some((cluster, stat)) = name
            .strip_prefix("cluster.")
            .and_then(|name| name.rsplit_once('.'))
        else {
            continue;
        };
        let at = usize::from(stat == "update_attempt");
        looked_up.entry(cluster).or_default()[at] = value.trim().parse().unwrap_or(1);
    }
    let empty = looked_up
        .into_iter()
        .filter(|(_, [endpoints, attempts])| *endpoints == 0 && *attempts > 0);
    let names = empty.map(|(name, _)| name.to_owned());
    names.take(NAMES).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expired_certificates_are_named_once() {
        let certificate = |name: Value, at: &str| {
            json!({"ca_cert": [], "cert_chain": [
                {"subject_alt_names": [name], "expiration_time": at},
                {"expiration_time": "2020-01-01T00:00:00Z"},
            ]})
        };
        let old = certificate(json!({"dns": "old.example"}), "2025-12-31T00:00:00Z");
        let page = json!({"certificates": [
            old, old,
            certificate(json!({"uri": "spiffe://x/svc/web"}), "2026-01-04T00:00:00Z"),
            {"ca_cert": [{}], "cert_chain": []},
        ]});
        let now = timestamp::parse("2026-01-01T00:00:00Z").unwrap();
        assert_eq!(expired(&page, now), ["old.example at 2025-12-31T00:00:00Z"]);
    }

    #[test]
    fn clusters_that_look_up_nothing_are_not_named() {
        let stats = "cluster.db.default.dc1.membership_total: 0\n\
                     cluster.db.default.dc1.update_attempt: 3\n\
                     cluster.api.membership_total: 2\n\
                     cluster.api.update_attempt: 1\n\
                     cluster.original-destination.membership_total: 0\n\
                     cluster.original-destination.update_attempt: 0\n";
        assert_eq!(empty(stats), ["db.default.dc1"]);
    }
}
