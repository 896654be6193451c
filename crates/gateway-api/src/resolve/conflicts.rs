//! Conflicts between listeners of one port.

use super::listener::ListenerPlan;
use crate::condition::Problem;
use crate::kind::Protocol;

const HOSTNAME: &str = "HostnameConflict";
const PROTOCOL: &str = "ProtocolConflict";

/// Finds the conflicts between the listeners of a gateway and its ListenerSets. Of two objects, the
/// listeners of the one that precedes keep their place; within an object there is no winner.
pub(super) fn find(plans: &mut [ListenerPlan<'_>]) {
    let mut lost = vec![None; plans.len()];
    // The plans are in the order of their owners. Those that have lost to an earlier owner bar none.
    for (at, one) in plans.iter().enumerate() {
        let mut earlier = (0..at).filter(|other| plans[*other].owner < one.owner);
        lost[at] = earlier.find_map(|other| match lost[other] {
            None => between(&plans[other], one),
            Some(_) => None,
        });
    }
    let conflicts = plans.iter().enumerate().map(|(at, one)| {
        let others = plans.iter().zip(&lost).enumerate();
        let mut own = others.filter(|(other, (plan, lost))| {
            *other != at && plan.owner == one.owner && lost.is_none()
        });
        lost[at].or_else(|| own.find_map(|(_, (other, _))| between(other, one)))
    });
    let conflicts: Vec<_> = conflicts.collect();
    for (plan, conflict) in plans.iter_mut().zip(conflicts) {
        let port = plan.spec.port;
        plan.conflict = conflict.map(|reason| {
            let what = if reason == HOSTNAME {
                "host"
            } else {
                "protocol"
            };
            // Nothing is said about the other one, which may be of another namespace.
            let message = format!("another listener on port {port} has a conflicting {what}");
            Problem::new(reason, message)
        });
    }
}

fn between(a: &ListenerPlan<'_>, b: &ListenerPlan<'_>) -> Option<&'static str> {
    let (first, second) = a.protocol.zip(b.protocol)?;
    let is_udp = |protocol| protocol == Protocol::Udp;
    if a.spec.port != b.spec.port || is_udp(first) != is_udp(second) {
        return None;
    }
    let are_alike = first == second || (first.is_secure() && second.is_secure());
    if !are_alike {
        return Some(PROTOCOL);
    }
    let by_host = matches!(first, Protocol::Http) || first.is_secure();
    (!by_host || a.host == b.host).then_some(HOSTNAME)
}
