//! The rules of TLSRoutes, TCPRoutes and UDPRoutes, which have no conditions.

use legate_routes::{Target, WeightedBackend, spread};

use super::backend::{Collected, RouteContext};
use super::route::RulePaths;
use crate::types::PlainRule;

/// Where the connections or datagrams of a route go. What cannot be served keeps its share and is
/// closed; without any backend, everything is.
pub(super) fn connections(
    context: &RouteContext<'_>,
    (rules, paths): (&[PlainRule], RulePaths<'_>),
    collected: &mut Collected,
) -> Vec<WeightedBackend> {
    let mut shares = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let unserved = paths.of_rule(index);
        let own = unserved.map(|path| format!("spec.{path} is not served"));
        // Connections have nothing that could select another rule.
        let further = || (index > 0).then(|| "rules after the first are not served".to_owned());
        let reason = context.route.unserved.clone().or(own).or_else(further);
        let backends = rule.backend_refs.iter().map(|written| {
            let target = context.target(&written.backend, collected);
            let target = match reason {
                Some(_) => Target::Answer(context.unusable()),
                None => target,
            };
            (written.weight.unwrap_or(1), WeightedBackend::only(target))
        });
        let backends: Vec<_> = backends.collect();
        if index == 0 {
            shares = backends;
        }
        match reason {
            Some(reason) => collected
                .report
                .unserved
                .push(format!("rules[{index}]: {reason}")),
            None => collected.report.is_served = true,
        }
    }
    if rules.is_empty() {
        collected
            .report
            .unserved
            .extend(context.route.unserved.clone());
        collected.report.is_served = context.route.unserved.is_none();
    }
    spread(shares)
}
