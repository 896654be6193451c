//! The rules of TLSRoutes, TCPRoutes and UDPRoutes, which have no conditions.

use legate_routes::{Target, WeightedBackend, spread};

use super::backend::{Found, Site};
use super::route::RulePaths;
use crate::types::PlainRule;

/// Where the connections or datagrams of a route go. What cannot be served keeps its share and is
/// closed; without any backend, everything is.
pub(super) fn connections(
    site: &Site<'_>,
    (rules, paths): (&[PlainRule], RulePaths<'_>),
    found: &mut Found,
) -> Vec<WeightedBackend> {
    let mut shares = Vec::new();
    for (place, rule) in rules.iter().enumerate() {
        let unserved = paths.of_rule(place);
        let own = unserved.map(|path| format!("spec.{path} is not served"));
        // Connections have nothing that could select another rule.
        let further = || (place > 0).then(|| "rules after the first are not served".to_owned());
        let reason = site.route.unserved.clone().or(own).or_else(further);
        let backends = rule.backend_refs.iter().map(|written| {
            let target = site.target(&written.backend, found);
            let target = match reason {
                Some(_) => Target::Answer(site.unusable()),
                None => target,
            };
            (written.weight.unwrap_or(1), WeightedBackend::only(target))
        });
        let backends: Vec<_> = backends.collect();
        if place == 0 {
            shares = backends;
        }
        match reason {
            Some(reason) => found
                .findings
                .unserved
                .push(format!("rules[{place}]: {reason}")),
            None => found.findings.is_served = true,
        }
    }
    if rules.is_empty() {
        found.findings.unserved.extend(site.route.unserved.clone());
        found.findings.is_served = site.route.unserved.is_none();
    }
    spread(shares)
}
