//! Config entries, and the intentions that the `service-intentions` entries hold. There is no
//! second place where intentions are kept.

use std::sync::Arc;

use imbl::OrdMap;
use legate_model::{
    ConfigEntry, ConfigKind, Intention, ServiceIntentions, SourceIntention, WILDCARD,
};

use crate::apply::Changes;
use crate::catalog::Key;
use crate::command::Rejected;
use crate::topic::{Topic, fold};

type EntryKey = (ConfigKind, Key);

/// The config entries.
#[derive(Clone, Default)]
pub(crate) struct Entries {
    entries: OrdMap<EntryKey, Arc<ConfigEntry>>,
    /// What each `service-intentions` entry says, one intention a source, by destination.
    intentions: OrdMap<Key, Arc<[Arc<Intention>]>>,
}

// Reading.
impl Entries {
    pub(crate) fn get(&self, kind: ConfigKind, name: &str) -> Option<&Arc<ConfigEntry>> {
        self.entries.get(&(kind, fold(name)))
    }

    pub(crate) fn of_kind(&self, kind: ConfigKind) -> impl Iterator<Item = &Arc<ConfigEntry>> {
        self.entries
            .range((kind, Key::from(""))..)
            .take_while(move |((of, _), _)| *of == kind)
            .map(|(_, entry)| entry)
    }

    pub(crate) fn intentions(&self) -> Vec<Arc<Intention>> {
        sorted(self.intentions.values().flat_map(|of| of.iter()))
    }

    pub(crate) fn intentions_for(&self, destination: &str) -> Vec<Arc<Intention>> {
        let destination = fold(destination);
        let any = (&*destination != WILDCARD).then(|| self.intentions.get(WILDCARD));
        let own = self.intentions.get(&destination);
        let both = own.into_iter().chain(any.flatten());
        sorted(both.flat_map(|of| of.iter()))
    }

    pub(crate) fn intention(&self, source: &str, destination: &str) -> Option<Arc<Intention>> {
        let all = self.intentions.get(&fold(destination))?;
        all.iter().find(|i| i.source_name == source).cloned()
    }

    pub(crate) fn has_intentions(&self, destination: &str) -> bool {
        self.intentions.contains_key(&fold(destination))
    }
}

/// In the order in which intentions decide.
fn sorted<'a>(intentions: impl Iterator<Item = &'a Arc<Intention>>) -> Vec<Arc<Intention>> {
    let mut all: Vec<_> = intentions.cloned().collect();
    all.sort_by(|a, b| {
        let names = |i: &Intention| (i.source_name.clone(), i.destination_name.clone());
        b.precedence
            .cmp(&a.precedence)
            .then_with(|| names(a).cmp(&names(b)))
    });
    all
}

// Changing. On an error the caller throws this copy away.
impl Entries {
    pub(crate) fn upsert(
        &mut self,
        mut entry: ConfigEntry,
        cas: Option<u64>,
        changes: &mut Changes,
    ) -> Result<(), Rejected> {
        let key = (entry.kind(), fold(entry.name()));
        let existing = self.entries.get(&key).cloned();
        refuse_stale(&key, existing.as_deref(), cas)?;
        let old = existing.as_deref();
        let index = changes.index;
        entry.set_indexes(
            old.map_or(index, ConfigEntry::create_index),
            old.map_or(index, ConfigEntry::modify_index),
        );
        if old == Some(&entry) {
            return Ok(());
        }
        entry.set_indexes(entry.create_index(), index);
        if let ConfigEntry::ServiceIntentions(intentions) = &entry {
            let expanded = intentions.intentions().map(Arc::new).collect();
            self.intentions.insert(key.1.clone(), expanded);
        }
        self.entries.insert(key.clone(), Arc::new(entry));
        touch_entry(&key, changes);
        Ok(())
    }

    pub(crate) fn delete(
        &mut self,
        kind: ConfigKind,
        name: &str,
        cas: Option<u64>,
        changes: &mut Changes,
    ) -> Result<(), Rejected> {
        let key = (kind, fold(name));
        refuse_stale(&key, self.entries.get(&key).map(|entry| &**entry), cas)?;
        if self.entries.remove(&key).is_none() {
            return Ok(());
        }
        if kind == ConfigKind::ServiceIntentions {
            self.intentions.remove(&key.1);
        }
        touch_entry(&key, changes);
        Ok(())
    }

    pub(crate) fn upsert_intention(
        &mut self,
        intention: Intention,
        changes: &mut Changes,
    ) -> Result<(), Rejected> {
        let mut entry = self
            .of_destination(&intention.destination_name)
            .unwrap_or_else(|| ServiceIntentions {
                name: intention.destination_name.clone(),
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
        self.replace_sources(entry, changes)
    }

    pub(crate) fn delete_intention(
        &mut self,
        source: &str,
        destination: &str,
        changes: &mut Changes,
    ) -> Result<(), Rejected> {
        let Some(mut entry) = self.of_destination(destination) else {
            return Ok(());
        };
        entry.sources.retain(|s| s.name != source);
        if entry.sources.is_empty() {
            return self.delete(ConfigKind::ServiceIntentions, destination, None, changes);
        }
        self.replace_sources(entry, changes)
    }

    fn of_destination(&self, destination: &str) -> Option<ServiceIntentions> {
        match &**self.get(ConfigKind::ServiceIntentions, destination)? {
            ConfigEntry::ServiceIntentions(entry) => Some(entry.clone()),
            _ => None,
        }
    }

    fn replace_sources(
        &mut self,
        entry: ServiceIntentions,
        changes: &mut Changes,
    ) -> Result<(), Rejected> {
        let name = entry.name.clone();
        let mut entry = ConfigEntry::ServiceIntentions(entry);
        entry.validate().map_err(|invalid| Rejected::InvalidEntry {
            entry: format!("{}/{name}", ConfigKind::ServiceIntentions),
            reason: invalid.to_string(),
        })?;
        entry.normalise();
        self.upsert(entry, None, changes)
    }
}

fn refuse_stale(
    (kind, name): &EntryKey,
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

fn touch_entry((kind, name): &EntryKey, changes: &mut Changes) {
    changes.touch(Topic::ConfigEntries(*kind));
    changes.touch(Topic::ConfigEntry {
        kind: *kind,
        name: name.clone(),
    });
    if *kind == ConfigKind::ServiceIntentions {
        changes.touch(Topic::Intentions);
        changes.touch(Topic::IntentionsFor(name.clone()));
    }
}
