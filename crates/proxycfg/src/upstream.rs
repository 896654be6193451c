//! One upstream of a proxy with its resolved chain: that of a service or a prepared query, with the
//! instances of its targets.

use std::sync::Arc;

use legate_model::{ServiceName, TrustDomain, Upstream, UpstreamType};
use legate_store::ReadTxn;

use crate::chain::{self, Callers, ResolvedChain};
use crate::merge;
use crate::peers;
use crate::prepared_query;
use crate::same;
use crate::value::{Element, queried, values};

values! {
    /// One upstream of a proxy.
    #[derive(Clone, Debug)]
    pub struct UpstreamSnapshot {
        /// The registration's upstream, merged with `service-defaults`. An implicit upstream has no
        /// local port or socket.
        pub upstream: Arc<Upstream>,
        /// The resolved chain, shared by all callers without overrides.
        pub resolved: Arc<ResolvedChain>,
    }
}

queried! {
    ResolvedChain, |resolved| resolved.size();
}

impl Element for UpstreamSnapshot {
    fn is_counterpart(&self, earlier: &Self) -> bool {
        same::shared(&self.upstream, &earlier.upstream)
    }
}

/// The resolved chain of an upstream. `local` is the datacenter of this catalog.
pub(crate) fn resolved(
    txn: &ReadTxn<'_>,
    upstream: &Upstream,
    local: &str,
    trust_domain: &TrustDomain,
) -> Arc<ResolvedChain> {
    let datacenter = match upstream.datacenter.as_str() {
        "" => local.to_owned(),
        other => other.to_ascii_lowercase(),
    };
    let own = txn.tenancy();
    let callers = Callers {
        partition: &own.partition,
        datacenter: &datacenter,
        local,
        trust_domain,
        overrides: merge::overrides(upstream),
    };
    let name = &upstream.destination_name;
    match upstream.destination_type {
        UpstreamType::Unset | UpstreamType::Service => {
            let mut service = ServiceName::new(&upstream.tenancy(own), name);
            match upstream.destination_peer.as_str() {
                "" => chain::resolved(txn, &service, callers),
                peer => {
                    // As in Consul: a peering belongs to the partition of the proxy.
                    service.tenancy.partition = Arc::clone(&own.partition);
                    peers::resolved(txn, &service, peer, callers)
                }
            }
        }
        UpstreamType::PreparedQuery => prepared_query::resolved(txn, name, callers),
    }
}
