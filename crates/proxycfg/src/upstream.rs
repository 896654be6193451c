//! One upstream of a proxy, and what becomes of what is sent to it: the chain of a service or of a prepared
//! query, with the instances at its ends.

use std::sync::Arc;

use legate_model::{ServiceName, TrustDomain, Upstream, UpstreamType};
use legate_store::ReadTxn;

use crate::chain::{self, Callers, ResolvedChain};
use crate::merge;
use crate::prepared_query;
use crate::same::{self, Compare};

/// One upstream of a proxy.
#[derive(Clone, Debug)]
pub struct UpstreamSnapshot {
    /// The registration's upstream, its config filled up from `service-defaults`. Without a local
    /// port or socket where nobody registered it.
    pub upstream: Arc<Upstream>,
    /// What becomes of what is sent to it, shared by all who want nothing otherwise.
    pub resolved: Arc<ResolvedChain>,
}

impl UpstreamSnapshot {
    /// Whether the other one is registered in the same way, and what is sent to it becomes the same.
    pub(crate) fn is_same(&self, other: &Self, by: Compare) -> bool {
        same::shared(&self.upstream, &other.upstream) && by.same(&self.resolved, &other.resolved)
    }
}

/// What becomes of what is sent to an upstream. `local` is the datacenter whose catalog this is.
pub(crate) fn resolved(
    txn: &ReadTxn<'_>,
    upstream: &Upstream,
    local: &str,
    trust_domain: &TrustDomain,
) -> Arc<ResolvedChain> {
    let datacenter = match upstream.datacenter.as_str() {
        "" => local,
        other => other,
    };
    let own = txn.tenancy();
    let callers = Callers {
        partition: &own.partition,
        datacenter,
        local,
        trust_domain,
        overrides: merge::overrides(upstream),
    };
    let name = &upstream.destination_name;
    match upstream.destination_type {
        UpstreamType::Unset | UpstreamType::Service => {
            let service = ServiceName::new(&upstream.tenancy(own), name);
            chain::resolved(txn, &service, callers)
        }
        UpstreamType::PreparedQuery => prepared_query::resolved(txn, name, callers),
    }
}
