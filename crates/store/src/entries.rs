//! Config entries, and the intentions that the `service-intentions` entries hold. There is no
//! second place where intentions are kept.

use std::sync::Arc;

use legate_model::virtual_ip::is_given_for;
use legate_model::{
    ConfigEntry, ConfigKind, Intention, ServiceIntentions, SourceIntention, WILDCARD,
};

use crate::command::Rejected;
use crate::key::{Table, fold};
use crate::read::ReadTxn;
use crate::write::WriteTxn;

impl ReadTxn<'_> {
    /// One config entry.
    pub fn config_entry(&self, kind: ConfigKind, name: &str) -> Option<Arc<ConfigEntry>> {
        self.get(&[kind.as_str(), name])
    }

    /// All config entries of a kind in the order of their names.
    pub fn config_entries(&self, kind: ConfigKind) -> Vec<Arc<ConfigEntry>> {
        self.scan(&[kind.as_str()])
    }

    /// The entries of other services that may send requests to a service.
    pub fn config_entries_leading_to(&self, service: &str) -> Vec<Arc<ConfigEntry>> {
        self.find_all(Table::ConfigEntriesByDestination, &[service])
    }

    /// All intentions, the one that decides first before the others.
    pub fn intentions(&self) -> Vec<Arc<Intention>> {
        sorted(&self.config_entries(ConfigKind::ServiceIntentions))
    }

    /// The intentions that apply to a destination, those for `*` included, the one that decides
    /// first before the others.
    pub fn intentions_for(&self, destination: &str) -> Vec<Arc<Intention>> {
        let of = |name| self.config_entry(ConfigKind::ServiceIntentions, name);
        let any = (fold(destination) != WILDCARD).then(|| of(WILDCARD));
        let both: Vec<_> = of(destination).into_iter().chain(any.flatten()).collect();
        sorted(&both)
    }

    /// The intention for exactly this pair. The source is compared with regard to case, as it is
    /// where the intention is enforced.
    pub fn intention(&self, source: &str, destination: &str) -> Option<Arc<Intention>> {
        let entry = self.service_intentions(destination)?;
        let mut all = entry.intentions();
        all.find(|i| i.source_name == source).map(Arc::new)
    }

    /// The intention that the oldest endpoints made with this id.
    pub fn intention_by_id(&self, id: &str) -> Option<Arc<Intention>> {
        let mut all = self.intentions().into_iter();
        all.find(|intention| fold(&intention.id) == fold(id))
    }

    /// Whether intentions of this destination were written otherwise than with the oldest endpoints,
    /// which then cannot change them any more.
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

/// The intentions of some entries, in the order in which they decide.
fn sorted(entries: &[Arc<ConfigEntry>]) -> Vec<Arc<Intention>> {
    let of = |entry: &Arc<ConfigEntry>| match &**entry {
        ConfigEntry::ServiceIntentions(entry) => entry.intentions().map(Arc::new).collect(),
        _ => Vec::new(),
    };
    let mut all: Vec<Arc<Intention>> = entries.iter().flat_map(of).collect();
    all.sort_by(|a, b| {
        let decides_first = b.precedence.cmp(&a.precedence);
        decides_first
            .then_with(|| a.source_name.cmp(&b.source_name))
            .then_with(|| a.destination_name.cmp(&b.destination_name))
    });
    all
}

impl WriteTxn {
    /// Adds or replaces a config entry that is valid and normalised. `cas`: only when the stored
    /// entry's modify index is this one; 0: only when there is none.
    ///
    /// # Errors
    /// [`Rejected::CasMismatch`], [`Rejected::NoVirtualIpLeft`].
    pub fn put_config_entry(
        &mut self,
        mut entry: ConfigEntry,
        cas: Option<u64>,
    ) -> Result<(), Rejected> {
        let existing = self.read().config_entry(entry.kind(), entry.name());
        refuse_stale(entry.kind(), entry.name(), existing.as_deref(), cas)?;
        if is_given_for(entry.kind(), entry.name()) {
            self.give_virtual_ip(entry.name())?;
        }
        let old = existing.as_deref();
        let index = self.index();
        entry.set_indexes(
            old.map_or(index, ConfigEntry::create_index),
            old.map_or(index, ConfigEntry::modify_index),
        );
        if old != Some(&entry) {
            entry.set_indexes(entry.create_index(), index);
            self.put(entry);
        }
        Ok(())
    }

    /// Removes a config entry. An entry that does not exist is no error. `cas`: only when the
    /// stored entry's modify index is this one.
    ///
    /// # Errors
    /// [`Rejected::CasMismatch`].
    pub fn remove_config_entry(
        &mut self,
        kind: ConfigKind,
        name: &str,
        cas: Option<u64>,
    ) -> Result<(), Rejected> {
        let existing = self.read().config_entry(kind, name);
        refuse_stale(kind, name, existing.as_deref(), cas)?;
        if self.remove::<ConfigEntry>(&[kind.as_str(), name]) {
            self.free_virtual_ip(name);
        }
        Ok(())
    }

    /// Adds or replaces one source in the `service-intentions` entry of its destination.
    ///
    /// # Errors
    /// [`Rejected::InvalidEntry`] when the entry would not be valid;
    /// [`Rejected::NoVirtualIpLeft`].
    pub fn put_intention(&mut self, intention: Intention) -> Result<(), Rejected> {
        let name = intention.destination_name.clone();
        let existing = self.read().service_intentions(&name);
        let mut entry = existing.unwrap_or_else(|| ServiceIntentions {
            name,
            ..ServiceIntentions::default()
        });
        // Exactly: proxies compare callers' certificates with the name as it is written here.
        let source = &intention.source_name;
        let place = entry.sources.iter().position(|s| s.name == *source);
        let edited = SourceIntention::from(intention);
        match place {
            Some(place) => entry.sources[place] = edited,
            None => entry.sources.push(edited),
        }
        self.replace_sources(entry)
    }

    /// Replaces the intention with an id, whose source may be another one now. An id that no
    /// intention of this destination has is no error.
    ///
    /// # Errors
    /// [`Rejected::InvalidEntry`] when the entry would not be valid.
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

    /// Removes one source from the `service-intentions` entry of its destination, and the entry
    /// with its last source. What does not exist is no error.
    ///
    /// # Errors
    /// [`Rejected::InvalidEntry`] when the entry would not be valid.
    pub fn remove_intention(&mut self, source: &str, destination: &str) -> Result<(), Rejected> {
        let Some(mut entry) = self.read().service_intentions(destination) else {
            return Ok(());
        };
        entry.sources.retain(|s| s.name != source);
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
