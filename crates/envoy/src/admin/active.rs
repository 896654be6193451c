//! Counts open client connections from Envoy's own lists. Pure; sends no requests.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::bootstrap::is_own;

/// Statistics of each listener and of each of its workers: connections, and those still in listener
/// filters.
pub(super) const STATS: &str =
    "/stats?filter=%5Elistener%5C..*downstream_%28pre_%29%3Fcx_active%24";
/// Names and addresses of the listeners.
pub(super) const LISTENERS: &str = "/listeners?format=json";

const CONNECTIONS: &str = ".downstream_cx_active";
const NOT_YET: &str = ".downstream_pre_cx_active";

/// The name of a listener in statistics, if it has no `stat_prefix`.
fn stat_name(listener: &Value) -> String {
    let address = &listener["local_address"];
    let (socket, pipe) = (&address["socket_address"], &address["pipe"]["path"]);
    let port = socket["port_value"].as_u64().unwrap_or(0);
    let address = match socket["address"].as_str() {
        Some(ip) if ip.contains(':') => format!("[{ip}]:{port}"),
        Some(ip) => format!("{ip}:{port}"),
        None => pipe.as_str().unwrap_or_else(|| name(listener)).to_owned(),
    };
    address.replace(':', "_")
}

fn name(listener: &Value) -> &str {
    listener["name"].as_str().unwrap_or_default()
}

/// The connections in `stats`, without those to the admin interface and to the listeners that the
/// dataplane adds for metrics and readiness.
///
/// `None` if there are fewer statistics than listeners: operators may exclude some, and a missing
/// value must not count as zero.
pub(super) fn count(listeners: &Value, stats: &str) -> Option<u64> {
    let listeners = listeners["listener_statuses"].as_array();
    let listeners = listeners.map(Vec::as_slice).unwrap_or_default();
    let expected: BTreeSet<String> = listeners.iter().map(stat_name).collect();
    let own = listeners.iter().filter(|listener| is_own(name(listener)));
    let own: BTreeSet<String> = own.map(stat_name).collect();
    let (mut seen, mut active) = (BTreeSet::new(), 0_u64);
    for (name, value) in stats.lines().filter_map(|line| line.rsplit_once(": ")) {
        let Some(name) = name.strip_prefix("listener.") else {
            continue;
        };
        let of = match name.strip_suffix(CONNECTIONS) {
            Some(of) => of,
            None => name.strip_suffix(NOT_YET)?,
        };
        if of == "admin" || is_part(of) {
            continue;
        }
        seen.insert(of);
        if !own.contains(of) {
            active = active.saturating_add(value.trim().parse().ok()?);
        }
    }
    (seen.len() >= expected.len()).then_some(active)
}

/// Whether the line is for a single worker of a listener.
fn is_part(of: &str) -> bool {
    let last = of.rsplit('.').next().unwrap_or_default();
    let number = last.strip_prefix("worker_");
    last == "main_thread" || number.is_some_and(|number| number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUSES: &str = r#"{"listener_statuses":[
        {"name":"public_listener:10.0.0.1:20000",
         "local_address":{"socket_address":{"address":"10.0.0.1","port_value":20000}}},
        {"name":"api:127.0.0.1:9191",
         "local_address":{"socket_address":{"address":"127.0.0.1","port_value":9191}}},
        {"name":"db","local_address":{"pipe":{"path":"/run/db:1.sock"}}},
        {"name":"envoy_ready_listener",
         "local_address":{"socket_address":{"address":"::1","port_value":19003}}}]}"#;

    const STATS: &str = "\
listener.10.0.0.1_20000.downstream_cx_active: 2
listener.10.0.0.1_20000.downstream_pre_cx_active: 1
listener.10.0.0.1_20000.worker_0.downstream_cx_active: 2
listener.10.0.0.1_20000.worker_11.downstream_cx_active: 0
listener./run/db_1.sock.downstream_cx_active: 4
listener.127.0.0.1_9191.downstream_cx_active: 0
listener.[__1]_19003.downstream_cx_active: 8
listener.[__1]_19003.downstream_pre_cx_active: 8
listener.admin.downstream_cx_active: 16
listener.admin.main_thread.downstream_cx_active: 16
";

    fn counted(listeners: &str, stats: &str) -> Option<u64> {
        count(&serde_json::from_str(listeners).unwrap(), stats)
    }

    #[test]
    fn only_connections_of_mesh_clients_count() {
        assert_eq!(counted(STATUSES, STATS), Some(2 + 1 + 4));
        assert_eq!(counted("{}", ""), Some(0), "no listener, no connection");
        // A draining listener is no longer listed, but still has connections.
        assert_eq!(
            counted("{}", "listener.x.downstream_cx_active: 3\n"),
            Some(3)
        );
    }

    #[test]
    fn missing_statistics_do_not_count_as_zero() {
        for left_out in ["listener.10.0.0.1_20000.", "listener.[__1]", "listener."] {
            let stats: String = STATS
                .lines()
                .filter(|line| !line.starts_with(left_out))
                .flat_map(|line| [line, "\n"])
                .collect();
            assert_eq!(counted(STATUSES, &stats), None, "{left_out}");
        }
        for line in [
            "listener.x.downstream_cx_active: many\n",
            "listener.x.downstream_cx_active_or_so: 1\n",
        ] {
            assert_eq!(counted("{}", line), None, "{line}");
        }
    }

    #[test]
    fn a_listener_with_a_prefix_of_its_own_counts() {
        let listeners = r#"{"listener_statuses":[{"name":"x","local_address":
            {"socket_address":{"address":"127.0.0.1","port_value":1}}}]}"#;
        let stats = "listener.worker_.downstream_cx_active: 5\n";
        assert_eq!(counted(listeners, stats), Some(5));
    }
}
