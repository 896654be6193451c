//! Checks through the sidecar of their service: allocation of their ports. The sidecar has a listener
//! on each port, restricted to the check's path (`Expose.Checks` of its registration).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use legate_model::{CheckDefinition, CheckType, Tenancy};

use crate::machine::Known;

/// Ports for exposed checks; the lowest free port is used. Consul's `expose_min_port` and
/// `expose_max_port`.
const PORTS: RangeInclusive<u16> = 21_500..=21_755;

/// Addresses of the sidecars that expose the checks of their services, by the service's tenancy and
/// id. An empty address means this machine.
pub(crate) type Sidecars = BTreeMap<(Tenancy, String), String>;

/// The checks whose port changes, with the new port; 0 means none. Checks keep their ports. If all
/// ports are taken, a check has none and is sent directly to the service.
pub(crate) fn changes<'k>(checks: &'k [Known], sidecars: &Sidecars) -> Vec<(&'k Known, u16)> {
    let exposed = |known: &Known| {
        is_exposable(&known.check.definition) && sidecars.contains_key(&owner(known))
    };
    let (with, without): (Vec<&Known>, Vec<&Known>) = checks.iter().partition(|one| exposed(one));
    let mut taken: BTreeSet<u16> = with.iter().map(|known| known.exposed_port).collect();
    let mut changes = Vec::new();
    for known in with.iter().filter(|known| known.exposed_port == 0) {
        let Some(port) = PORTS.into_iter().find(|port| !taken.contains(port)) else {
            break;
        };
        taken.insert(port);
        changes.push((*known, port));
    }
    let stale = without.into_iter().filter(|known| known.exposed_port != 0);
    changes.extend(stale.map(|known| (known, 0)));
    changes
}

fn owner(known: &Known) -> (Tenancy, String) {
    (known.check.tenancy.clone(), known.service_id.clone())
}

/// Whether a sidecar can forward the check: not with TLS, and not without a port in the target.
fn is_exposable(check: &CheckType) -> bool {
    let definition = CheckDefinition {
        http: check.http.clone(),
        grpc: check.grpc.clone(),
        grpc_use_tls: check.grpc_use_tls,
        ..CheckDefinition::default()
    };
    definition.exposable_path().is_some()
}

/// The check to run: with an exposed port, its target is the sidecar instead of the service.
pub(crate) fn target(known: &Known, sidecars: &Sidecars) -> Arc<CheckType> {
    let definition = &known.check.definition;
    let (port, sidecar) = (known.exposed_port, sidecars.get(&owner(known)));
    let Some(sidecar) = sidecar.filter(|_| port != 0) else {
        return Arc::clone(definition);
    };
    let host = match sidecar.as_str() {
        "" => "127.0.0.1".to_owned(),
        v6 if v6.contains(':') => format!("[{v6}]"),
        own => own.to_owned(),
    };
    let mut check = CheckType::clone(definition);
    check.grpc = redirected(&check.grpc, &host, port);
    if let Some((scheme, rest)) = check.http.split_once("://") {
        let authority = rest.find(['/', '?', '#']).map_or(rest, |at| &rest[..at]);
        let user = authority.rfind('@').map_or("", |at| &authority[..=at]);
        check.http = format!("{scheme}://{user}{}", redirected(rest, &host, port));
    }
    Arc::new(check)
}

/// Replaces host and port of `host:port/path`.
fn redirected(target: &str, host: &str, port: u16) -> String {
    if target.is_empty() {
        return String::new();
    }
    let path = target.find(['/', '?']).map_or("", |at| &target[at..]);
    format!("{host}:{port}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use legate_model::CheckStatus;
    use legate_store::{AgentCheck, Source};

    fn known(id: &str, exposed_port: u16, definition: CheckType) -> Known {
        let definition = Arc::new(definition);
        Known {
            check: AgentCheck {
                tenancy: Tenancy::default(),
                check_id: id.to_owned(),
                definition: Arc::clone(&definition),
                source: Source::Api,
            },
            target: definition,
            service_id: "web".to_owned(),
            status: CheckStatus::Critical,
            output: String::new(),
            exposed_port,
        }
    }

    fn http(url: &str) -> CheckType {
        CheckType {
            http: url.to_owned(),
            ..CheckType::default()
        }
    }

    fn sidecars(address: &str) -> Sidecars {
        let web = (Tenancy::default(), "web".to_owned());
        Sidecars::from([(web, address.to_owned())])
    }

    #[test]
    fn checks_get_the_lowest_free_port_and_keep_it() {
        let tcp = CheckType {
            tcp: "a:1".to_owned(),
            ..CheckType::default()
        };
        let grpc_tls = CheckType {
            grpc: "a:1".to_owned(),
            grpc_use_tls: true,
            ..CheckType::default()
        };
        let checks = [
            known("a", 0, http("http://a:1/")),
            known("b", 21_500, http("http://b:1/")),
            known("c", 0, http("http://c:1/")),
            known("d", 0, tcp),
            // Checks that the sidecar cannot forward are sent to the service.
            known("e", 0, http("https://e:1/")),
            known("f", 0, http("http://f/")),
            known("g", 0, grpc_tls),
        ];
        let plan = |sidecars: &Sidecars| -> Vec<(String, u16)> {
            let changes = changes(&checks, sidecars).into_iter();
            changes
                .map(|(known, port)| (known.check.check_id.clone(), port))
                .collect()
        };
        let named = |id: &str, port| (id.to_owned(), port);
        assert_eq!(
            plan(&sidecars("")),
            [named("a", 21_501), named("c", 21_502)]
        );
        assert_eq!(plan(&Sidecars::new()), [named("b", 0)]);
        let many: Vec<Known> = (0..300)
            .map(|i| known(&i.to_string(), 0, http("http://x:1/")))
            .collect();
        assert_eq!(changes(&many, &sidecars("")).len(), 256);
    }

    #[test]
    fn exposed_checks_target_the_sidecar() {
        let target = |check: CheckType, address: &str| {
            target(&known("a", 21_500, check), &sidecars(address))
        };
        let asked = target(http("http://127.0.0.1:8181/debug?x=1"), "");
        assert_eq!(asked.http, "http://127.0.0.1:21500/debug?x=1");
        assert_eq!(
            target(http("https://a"), "10.0.0.1").http,
            "https://10.0.0.1:21500"
        );
        assert_eq!(
            target(http("http://user:a%40b@127.0.0.1:8181/x@y"), "").http,
            "http://user:a%40b@127.0.0.1:21500/x@y"
        );
        let grpc = CheckType {
            grpc: "localhost:9090/db".to_owned(),
            ..CheckType::default()
        };
        assert_eq!(target(grpc, "fd00::1").grpc, "[fd00::1]:21500/db");
        let direct = known("a", 0, http("http://127.0.0.1:1/"));
        assert_eq!(
            super::target(&direct, &sidecars("")).http,
            "http://127.0.0.1:1/"
        );
    }
}
