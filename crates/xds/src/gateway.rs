//! What the proxies of gateways of Kubernetes clusters make of their configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_proxycfg::{ApiGateway, Generations, Snapshot};
use legate_resources::{LEAF, ROOTS, ResourceSet, gateway_port};

use crate::session::Session;

/// Maximum size of a reason, in bytes.
const MAX_REASON: usize = 512;

/// What a proxy of a gateway has made of its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayOutcome {
    /// The generations that the last configuration was made from which the proxy has acknowledged
    /// completely; `None` if there was none on its stream.
    pub acknowledged: Option<Arc<Generations>>,
    /// What the proxy does not serve as it was written, by port, with the reasons: `443`, `53/udp`,
    /// or empty for what is not of one port.
    pub rejected: BTreeMap<String, String>,
}

/// What is known after the last event of a stream; `None` if that is no more than before. A stream
/// says nothing while responses are unanswered.
pub(crate) fn outcome(
    (snapshot, resources): (&Snapshot, &ResourceSet),
    session: &Session,
    before: Option<&GatewayOutcome>,
) -> Option<GatewayOutcome> {
    let generations = ApiGateway::of(snapshot)?.generations.as_ref()?;
    if session.is_waiting() {
        return None;
    }
    let rejected = rejected(resources, session);
    let acknowledged = before.and_then(|before| before.acknowledged.as_ref());
    let outcome = if !rejected.is_empty() {
        GatewayOutcome {
            acknowledged: acknowledged.cloned(),
            rejected,
        }
    } else if acknowledged == Some(generations) && before.is_some_and(|b| b.rejected.is_empty()) {
        return None;
    } else if session.has_all(|secret| ![LEAF, ROOTS].contains(&secret)) {
        GatewayOutcome {
            acknowledged: Some(Arc::clone(generations)),
            rejected,
        }
    } else {
        return None;
    };
    (before != Some(&outcome)).then_some(outcome)
}

/// The resources that the proxy rejects, and those that cannot be made for it.
fn rejected(resources: &ResourceSet, session: &Session) -> BTreeMap<String, String> {
    let refused = session
        .rejections()
        .map(|(kind, name, reason)| (kind.url(), &**name, reason.to_string()));
    let failed = resources.failures().iter().map(|failure| {
        let name = failure.resource.as_str();
        (failure.type_url(), name, failure.reason.to_string())
    });
    let mut rejected = BTreeMap::new();
    for (type_url, name, mut reason) in refused.chain(failed) {
        let port = gateway_port(type_url, name).unwrap_or_default();
        rejected.entry(port).or_insert_with(|| {
            reason.truncate(reason.floor_char_boundary(MAX_REASON));
            reason
        });
    }
    rejected
}
