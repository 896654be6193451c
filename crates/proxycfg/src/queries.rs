//! What many proxies read alike. Each is computed once for all of them, and stays the same `Arc`
//! until it says something else to a proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_intentions::{Action, Reach};
use legate_model::{
    CaRoots, ConfigEntry, ConfigKind, EVERY_TENANCY, Intention, JwtProvider, JwtRequirement, Mesh,
    ServiceIntentions, ServiceName, Tenancy, TrustDomain, Upstream, UpstreamType,
};
use legate_store::ReadTxn;
use tracing::warn;

use crate::chain::{self, Callers, ResolvedChain};
use crate::egress;
use crate::manager::ManagerConfig;
use crate::merge::{self, Central};
use crate::prepared_query;
use crate::transparent::{self, ImplicitUpstream, ImplicitUpstreams};

/// The servers' own service, which nobody calls through the mesh. Consul's.
pub(crate) const CONTROL_PLANE: &str = "consul";

/// The intentions that have the service as their destination, in order of precedence.
pub(crate) fn intentions(txn: &ReadTxn<'_>, destination: &str) -> Arc<Vec<Arc<Intention>>> {
    txn.shared("intentions", destination, |txn| {
        txn.intentions_for(destination)
    })
}

/// The providers of JSON Web Tokens that intentions name, by the name that stands there. One that does
/// not exist is not among them.
pub type JwtProviders = BTreeMap<String, JwtProvider>;

/// The providers that the intentions of a destination name.
pub(crate) fn jwt_providers(txn: &ReadTxn<'_>, destination: &str) -> Arc<JwtProviders> {
    txn.shared("JWT providers", destination, |txn| {
        let intentions = intentions(txn, destination);
        let permissions = |intention: &Arc<Intention>| {
            let list = intention.permissions.iter();
            list.filter_map(|one| one.jwt.clone()).collect::<Vec<_>>()
        };
        let own = intentions.iter().filter_map(|one| one.jwt.clone());
        let all: Vec<_> = own.chain(intentions.iter().flat_map(permissions)).collect();
        let names = all.iter().flat_map(JwtRequirement::provider_names);
        let found = names.filter_map(|name| Some((name.to_owned(), jwt_provider(txn, name)?)));
        found.collect()
    })
}

/// A provider without what makes no difference to proxies.
fn jwt_provider(txn: &ReadTxn<'_>, name: &str) -> Option<JwtProvider> {
    match &*txn.config_entry(ConfigKind::JwtProvider, name)? {
        ConfigEntry::JwtProvider(provider) => Some(JwtProvider {
            meta: BTreeMap::new(),
            create_index: 0,
            modify_index: 0,
            ..provider.clone()
        }),
        _ => None,
    }
}

/// What becomes of what is sent to an upstream. `local` is the datacenter whose catalog this is.
pub(crate) fn upstream(
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

/// The `service-intentions` for destinations of a tenancy, and of every namespace.
pub(crate) fn intention_entries(txn: &ReadTxn<'_>, of: &Tenancy) -> Vec<Arc<ConfigEntry>> {
    let every = Tenancy {
        namespace: EVERY_TENANCY.into(),
        ..of.clone()
    };
    let read = |txn: &ReadTxn<'_>| txn.config_entries(ConfigKind::ServiceIntentions);
    let both = [of, &every].into_iter();
    both.flat_map(|tenancy| txn.in_tenancy(tenancy, read))
        .collect()
}

/// The intentions among some entries.
pub(crate) fn intentions_in(
    entries: &[Arc<ConfigEntry>],
) -> impl Iterator<Item = &ServiceIntentions> {
    entries.iter().filter_map(|entry| match &**entry {
        ConfigEntry::ServiceIntentions(entry) => Some(entry),
        _ => None,
    })
}

/// The services that `source`, of the tenancy that is read, may call by their virtual IPs: those that
/// have one, of its own partition or exported to it, and that intentions, or else the default, let it
/// call. Consul's.
pub(crate) fn implicit_upstreams(
    txn: &ReadTxn<'_>,
    source: &str,
    config: &ManagerConfig,
    trust_domain: &TrustDomain,
) -> Arc<ImplicitUpstreams> {
    let default = config.default_intention;
    let name = match default {
        Action::Allow => "upstreams unless denied",
        Action::Deny => "upstreams if allowed",
    };
    txn.shared(name, source, |txn| {
        let own = txn.tenancy();
        let source_name = ServiceName::new(own, source);
        let mut services = txn.services_with_virtual_ips();
        services.retain(|service| txn.is_exported(service, &own.partition));
        let tenancies: BTreeSet<&Tenancy> = services.iter().map(|one| &one.tenancy).collect();
        let mut entries = Vec::new();
        for tenancy in tenancies {
            // Intentions for a place outside the mesh give nobody a service in it.
            let outside = txn.in_tenancy(tenancy, egress::only_outside);
            let mut found = intention_entries(txn, tenancy);
            found.retain(|entry| !intentions_in(std::slice::from_ref(entry)).any(&outside));
            entries.extend(found);
        }
        let reach = Reach::new(intentions_in(&entries), &source_name, default);
        let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, source);
        let central = Central {
            proxy_defaults: None,
            service_defaults: service_defaults.as_deref(),
        };
        let configured = merge::has_upstream_config(&central);
        let callable = services.into_iter().filter(|service| {
            let is_own = service.tenancy == *own && service.name.eq_ignore_ascii_case(source);
            !is_own && *service.name != *CONTROL_PLANE && reach.allows(service)
        });
        let local = &*config.datacenter;
        let upstream = |service: ServiceName| match configured {
            false => implicit_upstream(txn, &service, local, trust_domain),
            true => configured_upstream(txn, source, &service, local, trust_domain),
        };
        ImplicitUpstreams(callable.map(upstream).collect())
    })
}

/// A service as an upstream of those who have no settings for it.
fn implicit_upstream(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    local: &str,
    trust_domain: &TrustDomain,
) -> Arc<ImplicitUpstream> {
    txn.shared("implicit upstream", &service.to_string(), |txn| {
        let upstream = merge::plain_upstream(service, txn.tenancy());
        transparent::resolve(txn, upstream, local, trust_domain)
    })
}

/// A service as an upstream of one whose `service-defaults` have settings for upstreams.
fn configured_upstream(
    txn: &ReadTxn<'_>,
    source: &str,
    service: &ServiceName,
    local: &str,
    trust_domain: &TrustDomain,
) -> Arc<ImplicitUpstream> {
    // No name of a service has a slash in it.
    let argument = format!("{source}/{service}");
    txn.shared("implicit upstream with settings", &argument, |txn| {
        let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, source);
        let central = Central {
            proxy_defaults: None,
            service_defaults: service_defaults.as_deref(),
        };
        let upstream = merge::unregistered_upstream(service, txn.tenancy(), &central);
        transparent::resolve(txn, upstream, local, trust_domain)
    })
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
