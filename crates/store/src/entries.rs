//! Config entries, and the intentions in `service-intentions` entries. Intentions are stored
//! nowhere else.

use std::collections::BTreeSet;
use std::sync::Arc;

use legate_model::virtual_ip::is_given_for;
use legate_model::{
    ConfigEntry, ConfigKind, EVERY_TENANCY, ExportedServices, Intention, ServiceIntentions,
    ServiceName, SourceIntention, Tenancy, WILDCARD,
};

use crate::key::{Table, fold};
use crate::read::ReadTxn;
use crate::rejected::Rejected;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// One config entry.
    pub fn config_entry(&self, kind: ConfigKind, name: &str) -> Option<Arc<ConfigEntry>> {
        let tenancy = kind.tenancy(&self.tenancy);
        self.in_tenancy(&tenancy, |txn| txn.get(&[kind.as_str(), name]))
    }

    /// All config entries of a kind, ordered by name.
    pub fn config_entries(&self, kind: ConfigKind) -> Vec<Arc<ConfigEntry>> {
        let tenancy = kind.tenancy(&self.tenancy);
        self.in_tenancy(&tenancy, |txn| txn.scan(&[kind.as_str()]))
    }

    /// All config entries of a kind in all tenancies: those of the default namespaces first,
    /// ordered by name within a namespace. Does not depend on entries of other kinds.
    pub fn config_entries_of_all(&self, kind: ConfigKind) -> Vec<Arc<ConfigEntry>> {
        self.entries_within(&self.tenancies(), kind)
    }

    /// The same for the current partition.
    pub fn config_entries_here(&self, kind: ConfigKind) -> Vec<Arc<ConfigEntry>> {
        self.entries_within(&self.tenancies_here(), kind)
    }

    fn entries_within(&self, tenancies: &[Tenancy], kind: ConfigKind) -> Vec<Arc<ConfigEntry>> {
        // Entries for every namespace of a partition are in none of its namespaces.
        let every = tenancies.iter().filter(|one| **one == one.of_partition());
        let every = every.map(|one| self.in_tenancy(one, ReadTxn::every_namespace));
        // Entries of partition scope are in the default namespace.
        let holders = tenancies.iter().cloned().chain(every);
        let holders = holders.filter(|one| kind.tenancy(one) == *one);
        holders
            .flat_map(|tenancy| self.in_tenancy(&tenancy, |txn| txn.config_entries(kind)))
            .collect()
    }

    /// The entries of other services that may route requests to a service, in all tenancies.
    pub fn config_entries_leading_to(&self, service: &str) -> Vec<Arc<ConfigEntry>> {
        self.find_all(Table::ConfigEntriesByDestination, &[service])
    }

    /// All intentions, ordered by precedence.
    pub fn intentions(&self) -> Vec<Arc<Intention>> {
        sorted(&self.config_entries(ConfigKind::ServiceIntentions))
    }

    /// All intentions for destinations in all tenancies.
    pub fn intentions_everywhere(&self) -> Vec<Arc<Intention>> {
        sorted(&self.config_entries_of_all(ConfigKind::ServiceIntentions))
    }

    /// All intentions for destinations in the current partition.
    pub fn intentions_here(&self) -> Vec<Arc<Intention>> {
        sorted(&self.config_entries_here(ConfigKind::ServiceIntentions))
    }

    /// The intentions that apply to a destination, including those for `*` and for the namespace
    /// `*`, ordered by precedence.
    pub fn intentions_for(&self, destination: &str) -> Vec<Arc<Intention>> {
        let of = |name| self.config_entry(ConfigKind::ServiceIntentions, name);
        let any = (fold(destination) != WILDCARD).then(|| of(WILDCARD));
        let every = self.every_namespace();
        let anywhere = (every != self.tenancy).then(|| {
            self.in_tenancy(&every, |txn| {
                txn.config_entry(ConfigKind::ServiceIntentions, WILDCARD)
            })
        });
        let wider = any.flatten().into_iter().chain(anywhere.flatten());
        let all: Vec<_> = of(destination).into_iter().chain(wider).collect();
        sorted(&all)
    }

    /// The tenancy of a partition's entries for all of its namespaces.
    pub(crate) fn every_namespace(&self) -> Tenancy {
        Tenancy {
            namespace: EVERY_TENANCY.into(),
            ..self.tenancy.clone()
        }
    }

    /// The intention for exactly this pair. The comparison of the source is case-sensitive, as in
    /// enforcement.
    pub fn intention(&self, source: &ServiceName, destination: &str) -> Option<Arc<Intention>> {
        let entry = self.service_intentions(destination)?;
        let mut all = entry.intentions();
        all.find(|i| i.source() == *source).map(Arc::new)
    }

    /// Whether proxies of a partition may reach a service: in the same partition always, otherwise
    /// only if it is exported to them.
    pub fn is_exported(&self, service: &ServiceName, to: &str) -> bool {
        let home = service.tenancy.of_partition();
        if *home.partition == *to {
            return true;
        }
        self.in_tenancy(&home, |txn| {
            let entry = txn.config_entry(ConfigKind::ExportedServices, &home.partition);
            match entry.as_deref() {
                Some(ConfigEntry::ExportedServices(entry)) => txn.exports(entry, service, to),
                _ => false,
            }
        })
    }

    fn exports(&self, entry: &ExportedServices, service: &ServiceName, to: &str) -> bool {
        let is_member = |group: &str| match self
            .config_entry(ConfigKind::SamenessGroup, group)
            .as_deref()
        {
            Some(ConfigEntry::SamenessGroup(group)) => {
                let mut members = group.members.iter();
                members.any(|member| member.partition.eq_ignore_ascii_case(to))
            }
            _ => false,
        };
        entry.consumers(service).any(|consumer| {
            let group = consumer.sameness_group.as_str();
            consumer.partition.eq_ignore_ascii_case(to) || (!group.is_empty() && is_member(group))
        })
    }

    /// The intention with this id of the legacy API, in any tenancy.
    pub fn intention_by_id(&self, id: &str) -> Option<Arc<Intention>> {
        let mut all = self.intentions_everywhere().into_iter();
        all.find(|intention| fold(&intention.id) == fold(id))
    }

    /// Whether the destination has intentions that were not written with the legacy API, which then
    /// cannot change them.
    pub fn has_intentions_without_id(&self, destination: &str) -> bool {
        let entry = self.service_intentions(destination);
        entry.is_some_and(|entry| {
            entry
                .sources
                .iter()
                .any(|source| source.legacy_id.is_empty())
        })
    }

    fn service_intentions(&self, destination: &str) -> Option<ServiceIntentions> {
        match &*self.config_entry(ConfigKind::ServiceIntentions, destination)? {
            ConfigEntry::ServiceIntentions(entry) => Some(entry.clone()),
            _ => None,
        }
    }
}

/// The services that get a virtual IP because a terminating gateway leads to them, as in Consul.
fn given_by_gateway(entry: Option<&ConfigEntry>) -> BTreeSet<ServiceName> {
    match entry {
        Some(ConfigEntry::TerminatingGateway(entry)) => entry.named_services(),
        _ => BTreeSet::new(),
    }
}

/// The intentions of some entries, ordered by precedence.
fn sorted(entries: &[Arc<ConfigEntry>]) -> Vec<Arc<Intention>> {
    let of = |entry: &Arc<ConfigEntry>| match &**entry {
        ConfigEntry::ServiceIntentions(entry) => entry.intentions().map(Arc::new).collect(),
        _ => Vec::new(),
    };
    let mut all: Vec<Arc<Intention>> = entries.iter().flat_map(of).collect();
    let tenancies = |one: &Arc<Intention>| (one.source().tenancy, one.destination().tenancy);
    all.sort_by(|a, b| {
        let decides_first = b.precedence.cmp(&a.precedence);
        decides_first
            .then_with(|| a.source_name.cmp(&b.source_name))
            .then_with(|| a.destination_name.cmp(&b.destination_name))
            .then_with(|| tenancies(a).cmp(&tenancies(b)))
    });
    all
}

impl WriteTxn {
    /// Upserts a config entry that is valid and normalised. `cas`: only if this is the modify index
    /// of the stored entry; 0: only if there is none.
    ///
    /// # Errors
    /// [`Rejected::CasMismatch`], [`Rejected::NoVirtualIpLeft`].
    pub fn put_config_entry(
        &mut self,
        mut entry: ConfigEntry,
        cas: Option<u64>,
    ) -> Result<(), Rejected> {
        let tenancy = entry.kind().tenancy(&self.tenancy);
        if tenancy != self.tenancy {
            return self.in_tenancy(&tenancy, |txn| txn.put_config_entry(entry, cas));
        }
        entry.set_tenancy(&tenancy);
        let existing = self.read().config_entry(entry.kind(), entry.name());
        refuse_stale(entry.kind(), entry.name(), existing.as_deref(), cas)?;
        if is_given_for(entry.kind(), entry.name()) {
            self.allocate_virtual_ip(entry.name())?;
        }
        let old = existing.as_deref();
        let given = given_by_gateway(Some(&entry));
        for service in &given {
            self.in_tenancy(&service.tenancy, |txn| {
                txn.allocate_virtual_ip(&service.name).map(drop)
            })?;
        }
        let index = self.index();
        entry.set_indexes(
            old.map_or(index, ConfigEntry::create_index),
            old.map_or(index, ConfigEntry::modify_index),
        );
        if old != Some(&entry) {
            entry.set_indexes(entry.create_index(), index);
            self.put(entry);
        }
        self.free_virtual_ips(given_by_gateway(old).difference(&given));
        Ok(())
    }

    /// Removes a config entry. A no-op if it does not exist. `cas`: only if this is the modify
    /// index of the stored entry.
    ///
    /// # Errors
    /// [`Rejected::CasMismatch`].
    pub fn remove_config_entry(
        &mut self,
        kind: ConfigKind,
        name: &str,
        cas: Option<u64>,
    ) -> Result<(), Rejected> {
        let tenancy = kind.tenancy(&self.tenancy);
        if tenancy != self.tenancy {
            return self.in_tenancy(&tenancy, |txn| txn.remove_config_entry(kind, name, cas));
        }
        let existing = self.read().config_entry(kind, name);
        refuse_stale(kind, name, existing.as_deref(), cas)?;
        if self.remove::<ConfigEntry>(&[kind.as_str(), name]) {
            self.free_virtual_ip(name);
            self.free_virtual_ips(&given_by_gateway(existing.as_deref()));
        }
        Ok(())
    }

    /// Upserts one source in the `service-intentions` entry of its destination, in the current
    /// tenancy.
    ///
    /// # Errors
    /// [`Rejected::InvalidEntry`] if the entry would become invalid;
    /// [`Rejected::NoVirtualIpLeft`].
    pub fn put_intention(&mut self, intention: Intention) -> Result<(), Rejected> {
        let name = intention.destination_name.clone();
        let existing = self.read().service_intentions(&name);
        let mut entry = existing.unwrap_or_else(|| ServiceIntentions {
            name,
            partition: self.tenancy.shown_partition(),
            namespace: self.tenancy.shown_namespace(),
            ..ServiceIntentions::default()
        });
        // Case-sensitive: proxies compare callers' certificates with the stored name.
        let source = intention.source();
        let is = |other: &SourceIntention| other.service(&self.tenancy) == source;
        let place = entry.sources.iter().position(is);
        let edited = SourceIntention::from(intention);
        match place {
            Some(place) => entry.sources[place] = edited,
            None => entry.sources.push(edited),
        }
        self.replace_sources(entry)
    }

    /// Replaces the intention with this id, possibly with another source. A no-op if the
    /// destination has no intention with this id.
    ///
    /// # Errors
    /// [`Rejected::InvalidEntry`] if the entry would become invalid.
    pub fn replace_intention(&mut self, intention: Intention) -> Result<(), Rejected> {
        let destination = &intention.destination_name;
        let Some(mut entry) = self.read().service_intentions(destination) else {
            return Ok(());
        };
        let mut sources = entry.sources.iter_mut();
        let old = sources.find(|source| fold(&source.legacy_id) == fold(&intention.id));
        if let Some(source) = old {
            *source = SourceIntention::from(intention);
        }
        self.replace_sources(entry)
    }

    /// Removes one source from the `service-intentions` entry of its destination, and with the last
    /// source the entry. A no-op if it does not exist.
    ///
    /// # Errors
    /// [`Rejected::InvalidEntry`] if the entry would become invalid.
    pub fn remove_intention(
        &mut self,
        source: &ServiceName,
        destination: &str,
    ) -> Result<(), Rejected> {
        let Some(mut entry) = self.read().service_intentions(destination) else {
            return Ok(());
        };
        entry
            .sources
            .retain(|other| other.service(&self.tenancy) != *source);
        if entry.sources.is_empty() {
            return self.remove_config_entry(ConfigKind::ServiceIntentions, destination, None);
        }
        self.replace_sources(entry)
    }

    fn replace_sources(&mut self, entry: ServiceIntentions) -> Result<(), Rejected> {
        let name = entry.name.clone();
        let mut entry = ConfigEntry::ServiceIntentions(entry);
        entry.validate().map_err(|invalid| Rejected::InvalidEntry {
            entry: format!("{}/{name}", ConfigKind::ServiceIntentions),
            reason: invalid.to_string(),
        })?;
        if let ConfigEntry::ServiceIntentions(entry) = &mut entry {
            entry.arrange();
        }
        self.put_config_entry(entry, None)
    }
}

fn refuse_stale(
    kind: ConfigKind,
    name: &str,
    existing: Option<&ConfigEntry>,
    cas: Option<u64>,
) -> Result<(), Rejected> {
    let actual = existing.map_or(0, ConfigEntry::modify_index);
    match cas {
        Some(expected) if expected != actual => Err(Rejected::CasMismatch {
            object: format!("{kind}/{name}"),
            expected,
            actual,
        }),
        _ => Ok(()),
    }
}
