//! What many proxies read alike. Each is computed once for all of them, and stays the same `Arc`
//! until it says something else to a proxy.

use std::ops::Deref;
use std::sync::Arc;

use legate_intentions::{Action, Reach};
use legate_model::{
    CaRoots, CheckServiceNode, ConfigEntry, ConfigKind, Intention, Mesh, Opaque, Protocol,
    ProxyDefaults, TrustDomain,
};
use legate_store::ReadTxn;
use tracing::warn;

use crate::merge::{self, Central};
use crate::same;
use crate::transparent::{self, ImplicitUpstream, ImplicitUpstreams};

/// The servers' own service, which nobody calls through the mesh. Consul's.
const CONTROL_PLANE: &str = "consul";

/// A service as its callers see it: the instances through which it is reached in the mesh, and what
/// they speak. Two of them are equal when they make no difference to those who call them.
///
/// It is one value, so that callers that keep the instances keep what all of them share.
#[derive(Debug, Clone, Default)]
pub struct Instances {
    list: Vec<CheckServiceNode>,
    /// What the service's `service-defaults` say that it speaks.
    pub(crate) protocol: Option<Protocol>,
}

impl Deref for Instances {
    type Target = [CheckServiceNode];

    fn deref(&self) -> &[CheckServiceNode] {
        &self.list
    }
}

impl From<Vec<CheckServiceNode>> for Instances {
    fn from(list: Vec<CheckServiceNode>) -> Self {
        let protocol = None;
        Self { list, protocol }
    }
}

impl PartialEq for Instances {
    fn eq(&self, other: &Self) -> bool {
        self.protocol == other.protocol && same::instances(self, other)
    }
}

/// The instances of an upstream.
pub(crate) fn instances(txn: &ReadTxn<'_>, service: &str) -> Arc<Instances> {
    txn.shared("instances", service, |txn| {
        let defaults = txn.config_entry(ConfigKind::ServiceDefaults, service);
        Instances {
            list: txn.connect(service),
            protocol: defaults.and_then(|entry| merge::entry_protocol(&entry)),
        }
    })
}

/// The intentions that have the service as their destination, in order of precedence.
pub(crate) fn intentions(txn: &ReadTxn<'_>, destination: &str) -> Arc<Vec<Arc<Intention>>> {
    txn.shared("intentions", destination, |txn| {
        txn.intentions_for(destination)
    })
}

/// The services that `source` may call by their virtual IPs: those that have one and that intentions,
/// or else `default`, let it call. Consul's.
pub(crate) fn implicit_upstreams(
    txn: &ReadTxn<'_>,
    source: &str,
    default: Action,
) -> Arc<ImplicitUpstreams> {
    let name = match default {
        Action::Allow => "upstreams unless denied",
        Action::Deny => "upstreams if allowed",
    };
    txn.shared(name, source, |txn| {
        let entries = txn.config_entries(ConfigKind::ServiceIntentions);
        let entries = entries.iter().filter_map(|entry| match &**entry {
            ConfigEntry::ServiceIntentions(entry) => Some(entry),
            _ => None,
        });
        let reach = Reach::new(entries, source, default);
        let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, source);
        let central = Central {
            proxy_defaults: None,
            service_defaults: service_defaults.as_deref(),
        };
        let configured = merge::has_upstream_config(&central);
        let services = txn.services_with_virtual_ips().into_iter();
        let callable = services.filter(|service| {
            let is_other = !service.eq_ignore_ascii_case(source);
            is_other && *service != CONTROL_PLANE && reach.allows(service)
        });
        let upstream = |service: String| match configured {
            false => implicit_upstream(txn, &service),
            true => configured_upstream(txn, source, &service),
        };
        ImplicitUpstreams(callable.map(upstream).collect())
    })
}

/// A service as an upstream of those who have no settings for it.
fn implicit_upstream(txn: &ReadTxn<'_>, service: &str) -> Arc<ImplicitUpstream> {
    txn.shared("implicit upstream", service, |txn| {
        implicit_for(txn, service, &Opaque::default())
    })
}

/// A service as an upstream of one whose `service-defaults` have settings for upstreams.
fn configured_upstream(txn: &ReadTxn<'_>, source: &str, service: &str) -> Arc<ImplicitUpstream> {
    // No name of a service has a slash in it.
    let argument = format!("{source}/{service}");
    txn.shared("implicit upstream with settings", &argument, |txn| {
        let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, source);
        let central = Central {
            proxy_defaults: None,
            service_defaults: service_defaults.as_deref(),
        };
        let upstream = merge::unregistered_upstream(service, &central);
        implicit_for(txn, service, &upstream.config)
    })
}

/// A service as an upstream of one with these settings for it.
fn implicit_for(txn: &ReadTxn<'_>, service: &str, config: &Opaque) -> ImplicitUpstream {
    let proxy_defaults = txn.config_entry(ConfigKind::ProxyDefaults, ProxyDefaults::NAME);
    let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, service);
    let central = Central {
        proxy_defaults: proxy_defaults.as_deref(),
        service_defaults: service_defaults.as_deref(),
    };
    transparent::resolve(txn, service, config, &central)
}

/// The `mesh` config entry, where there is one.
pub(crate) fn mesh(txn: &ReadTxn<'_>) -> Arc<Option<Mesh>> {
    txn.shared("mesh", "", |txn| {
        match &*txn.config_entry(ConfigKind::Mesh, Mesh::NAME)? {
            ConfigEntry::Mesh(mesh) => Some(mesh.clone()),
            _ => None,
        }
    })
}

/// The roots that peers are verified against, with the domain they stand for.
pub(crate) fn roots(txn: &ReadTxn<'_>) -> Arc<Option<(TrustDomain, Arc<CaRoots>)>> {
    txn.shared("roots", "", |txn| {
        let roots = txn.ca_roots()?;
        match roots.trust_domain.parse() {
            Ok(trust_domain) => Some((trust_domain, roots)),
            Err(error) => {
                warn!(%error, "the stored CA roots cannot be used; proxies keep the ones they have");
                None
            }
        }
    })
}
