//! The terminating gateway: the services outside the mesh that it represents, each with its own
//! certificate and callers.

use std::sync::{Arc, LazyLock};

use legate_ca::{Leaf, LeafHolder, LeafId};
use legate_model::{LinkedService, ServiceInstance, ServiceName};
use legate_store::Kept;

use super::Reading;
use super::kept_list::KeptList;
use crate::error::WatchError;
use crate::external::{self, External};
use crate::gateways::{self, GatewayService, Link};
use crate::same::Compare;
use crate::snapshot::ProxyId;
use crate::value::{Element, Shared, queried, values};

values! {
    /// What only a terminating gateway has.
    #[derive(Clone, Debug)]
    pub struct TerminatingGateway {
        /// The services that it represents, ordered by name. Those of which the catalog knows
        /// nothing are left out, and those added later until they have a certificate.
        pub services: Vec<Represented>,
        /// The services that it does not represent, because its token has no right to their
        /// certificates.
        pub withheld: Arc<Vec<ServiceName>>,
    }

    /// A service that a terminating gateway represents.
    #[derive(Clone, Debug)]
    pub struct Represented {
        /// The service's certificate and key.
        pub leaf: Arc<Leaf>,
        /// How the gateway connects to the service.
        pub link: Arc<LinkedService>,
        /// The service, the same for all gateways.
        pub service: Arc<External>,
    }
}

queried! {
    External, |one| one.size();
    Vec<ServiceName>, |_| 0;
}

impl Shared for LinkedService {
    fn is_same(a: &Arc<Self>, b: &Arc<Self>, _: Compare) -> bool {
        a == b
    }
}

impl Element for Represented {
    fn is_counterpart(&self, earlier: &Self) -> bool {
        self.service.name == earlier.service.name
    }
}

/// One `Arc` for all gateways, because snapshots of one store are compared by address.
static NONE: LazyLock<Arc<Vec<ServiceName>>> = LazyLock::new(Arc::default);

impl TerminatingGateway {
    /// The gateway without the services that it may not represent; `None` if it may represent all.
    #[must_use]
    pub fn restricted(&self, may: impl Fn(&ServiceName) -> bool) -> Option<Self> {
        let of = |one: &Represented| one.service.name.clone();
        let (permitted, withheld): (Vec<_>, Vec<_>) =
            self.services.iter().partition(|one| may(&one.service.name));
        (!withheld.is_empty()).then(|| Self {
            services: permitted.into_iter().cloned().collect(),
            withheld: Arc::new(withheld.into_iter().map(of).collect()),
        })
    }

    pub(crate) fn has_same_services(&self, other: &Self) -> bool {
        let names = |gateway: &Self| {
            let services = gateway.services.iter();
            services
                .map(|one| one.service.name.clone())
                .collect::<Vec<_>>()
        };
        names(self) == names(other)
    }
}

/// Every registration can be served.
pub(super) fn check(_: &ProxyId, _: &ServiceInstance) -> Result<(), WatchError> {
    Ok(())
}

/// Values cached from one snapshot of a gateway to the next.
#[derive(Debug, Default)]
pub(super) struct Parts {
    services: Kept<Arc<Vec<GatewayService>>>,
    external: KeptList<GatewayService, Arc<Option<Arc<External>>>>,
    /// Whether all services have had their certificates once.
    was_complete: bool,
}

/// The values of a gateway, `None` until each service has a certificate. From then on, until something
/// changes that every proxy has, a certificate that is not issued only affects an added service.
pub(super) fn snapshot(
    read: &mut Reading<'_, '_>,
    parts: &mut Parts,
) -> Option<TerminatingGateway> {
    let name = &read.proxy.instance.service;
    let listed = read.kept(&mut parts.services, |txn| gateways::services(txn, name));
    let (mut services, mut is_complete) = (Vec::new(), true);
    let external = parts.external.values(&listed, |one| &one.service);
    for (one, kept) in std::iter::zip(&*listed, external) {
        // A gateway of another kind may have the name of this one.
        let Link::Terminating(link) = &one.link else {
            continue;
        };
        let (datacenter, trust_domain) = (&*read.config.datacenter, &read.proxy.trust_domain);
        let service = read.kept(kept, |txn| {
            external::service(txn, &one.service, datacenter, trust_domain)
        });
        let Some(service) = &*service else {
            continue;
        };
        let leaf = LeafId {
            holder: LeafHolder::Service(one.service.clone()),
            dns_names: Arc::default(),
        };
        // All are asked for, so that they are issued at the same time.
        let Some(leaf) = read.leaves.current(&leaf) else {
            is_complete = false;
            continue;
        };
        services.push(Represented {
            leaf,
            link: Arc::clone(link),
            service: Arc::clone(service),
        });
    }
    parts.was_complete |= is_complete;
    parts.was_complete.then(|| TerminatingGateway {
        services,
        withheld: Arc::clone(&NONE),
    })
}

#[cfg(test)]
mod tests;
