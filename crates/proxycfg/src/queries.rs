//! Reads that many proxies share. Each result is computed once for all of them, and stays the same
//! `Arc` until it changes in a way that proxies see.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_model::{
    CaRoots, ConfigEntry, ConfigKind, EVERY_TENANCY, Intention, JwtProvider, JwtRequirement, Mesh,
    ServiceIntentions, Tenancy, TrustDomain,
};
use legate_store::ReadTxn;
use tracing::warn;

/// The servers' own service, which is not reached through the mesh. As in Consul.
pub(crate) const CONTROL_PLANE: &str = "consul";

/// The intentions that have the service as their destination, in order of precedence.
pub(crate) fn intentions(txn: &ReadTxn<'_>, destination: &str) -> Arc<Vec<Arc<Intention>>> {
    txn.shared("intentions", destination, |txn| {
        txn.intentions_for(destination)
    })
}

/// The JWT providers that intentions name, by name. Names without a provider are left out.
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

/// A provider without the fields that proxies do not use.
pub(crate) fn jwt_provider(txn: &ReadTxn<'_>, name: &str) -> Option<JwtProvider> {
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

/// The `service-intentions` for destinations in a tenancy, and in every namespace.
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

/// The `service-intentions` in a list of entries.
pub(crate) fn intentions_in(
    entries: &[Arc<ConfigEntry>],
) -> impl Iterator<Item = &ServiceIntentions> {
    entries.iter().filter_map(|entry| match &**entry {
        ConfigEntry::ServiceIntentions(entry) => Some(entry),
        _ => None,
    })
}

/// The `mesh` config entry, if there is one.
pub(crate) fn mesh(txn: &ReadTxn<'_>) -> Arc<Option<Mesh>> {
    txn.shared("mesh", "", |txn| {
        match &*txn.config_entry(ConfigKind::Mesh, Mesh::NAME)? {
            ConfigEntry::Mesh(mesh) => Some(mesh.clone()),
            _ => None,
        }
    })
}

/// The roots that peers are verified against, with their trust domain.
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
