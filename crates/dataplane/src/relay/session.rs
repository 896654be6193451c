//! One stream of an Envoy: what it subscribed to, what it holds, and what it still has to be told.
//!
//! It compares with the cache and builds updates; when they are sent is decided by the core.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use legate_api::discovery::Resource;

use super::cache::{Candidate, Entries, Entry, Name, Stored, TypeKey, Version};
use super::core::Rejected;
use super::limits::Usage;

/// One stream of an Envoy.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// Who this Envoy says it is, encoded.
    pub(super) node: Bytes,
    subscriptions: Vec<Option<Subscription>>,
}

impl Session {
    pub(super) fn get(&self, key: TypeKey) -> Option<&Subscription> {
        self.subscriptions.get(key.0)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: TypeKey) -> Option<&mut Subscription> {
        self.subscriptions.get_mut(key.0)?.as_mut()
    }

    /// The subscription of a type, made by its first request.
    pub(super) fn open(&mut self, key: TypeKey) -> &mut Subscription {
        if self.subscriptions.len() <= key.0 {
            self.subscriptions.resize_with(key.0 + 1, || None);
        }
        self.subscriptions[key.0].get_or_insert_default()
    }

    /// How many types were asked for.
    pub(super) fn types(&self) -> usize {
        self.subscriptions.iter().flatten().count()
    }

    /// The names that it is subscribed to.
    pub(super) fn asked(&self) -> Usage {
        let subscriptions = self.subscriptions.iter().flatten();
        subscriptions.map(|one| one.asked).sum()
    }

    /// What it said that it holds from an earlier stream.
    pub(super) fn resumed(&self) -> Usage {
        let subscriptions = self.subscriptions.iter().flatten();
        subscriptions.map(|one| one.resumed).sum()
    }

    pub(super) fn is_subscribed(&self) -> bool {
        self.subscriptions.iter().flatten().next().is_some()
    }
}

/// Where the content of a response comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Another Envoy, or an earlier one, has acknowledged it.
    Cache,
    /// A server, and this Envoy's answer decides.
    Candidate,
}

/// A response that Envoy has not answered.
#[derive(Debug)]
pub(super) struct Outstanding {
    nonce: String,
    pub(super) origin: Origin,
    /// What Envoy holds when it accepts: a version, or nothing.
    pub(super) items: Vec<(Name, Option<Version>)>,
}

/// Content of a response.
#[derive(Debug, Default)]
pub(super) struct Update {
    pub(super) resources: Vec<Resource>,
    pub(super) removed: Vec<String>,
    pub(super) items: Vec<(Name, Option<Version>)>,
}

impl Update {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn upsert(&mut self, name: Name, stored: &Stored) {
        self.resources.push(stored.to_resource(&name));
        self.items.push((name, Some(Arc::clone(&stored.version))));
    }

    fn remove(&mut self, name: Name) {
        self.removed.push(name.to_string());
        self.items.push((name, None));
    }
}

/// What has to be said about a name.
enum News<'a> {
    Nothing,
    Upsert(&'a Stored),
    Removal,
}

/// What an Envoy's stream has of one type.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    pub(super) wildcard: bool,
    pub(super) names: BTreeSet<Name>,
    /// How much those are.
    asked: Usage,
    /// How much Envoy held from an earlier stream.
    resumed: Usage,
    /// What Envoy holds; `None` for a name of which it knows that it does not exist.
    sent: HashMap<Name, Option<Version>>,
    /// Names that have to be compared with the cache.
    dirty: BTreeSet<Name>,
    outstanding: Option<Outstanding>,
    /// What was in responses from the cache that Envoy rejected: any of it may have been the reason.
    refused: BTreeSet<Name>,
    /// A response of this type was sent.
    pub(super) responded: bool,
    /// A response of this type was acknowledged.
    acked: bool,
    /// The last answer was a rejection.
    pub(super) rejection: Option<Rejected>,
}

impl Subscription {
    pub(super) fn interested(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// Whether it is subscribed to anything at all.
    pub(super) fn is_active(&self) -> bool {
        self.wildcard || !self.names.is_empty()
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.outstanding.is_some()
    }

    /// Nothing is left to compare.
    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Envoy has acknowledged an answer, or holds what it asked for from an earlier stream.
    pub(super) fn is_settled(&self) -> bool {
        self.acked || (!self.wildcard && self.names.iter().all(|name| self.sent.contains_key(name)))
    }

    /// How many of the names are not known to this Envoy.
    pub(super) fn unanswered(&self) -> usize {
        self.names
            .iter()
            .filter(|name| !self.sent.contains_key(*name))
            .count()
    }

    /// Takes over what Envoy holds from an earlier stream.
    pub(super) fn resume(&mut self, held: impl IntoIterator<Item = (Name, String)>) {
        for (name, version) in held {
            self.resumed.add(name.len() + version.len());
            self.sent.insert(name, Some(Arc::from(version)));
        }
    }

    pub(super) fn subscribe_all(&mut self, entries: &Entries) {
        self.wildcard = true;
        self.dirty.extend(entries.keys().cloned());
    }

    /// What Envoy holds of which the cache knows nothing.
    pub(super) fn other_than<'a>(&'a self, entries: &'a Entries) -> impl Iterator<Item = &'a Name> {
        let held = self.sent.iter().filter(|(_, version)| version.is_some());
        held.map(|(name, _)| name)
            .filter(|name| !entries.contains_key(*name))
    }

    /// Whether Envoy holds something of which the cache knows nothing.
    pub(super) fn holds_other_than(&self, entries: &Entries) -> bool {
        self.other_than(entries).next().is_some()
    }

    pub(super) fn unsubscribe_all(&mut self) {
        self.wildcard = false;
        let names = &self.names;
        self.sent.retain(|name, _| names.contains(name));
        self.dirty.retain(|name| names.contains(name));
    }

    /// Subscribing again to a name asks for it to be sent again.
    pub(super) fn subscribe(&mut self, name: &Name) {
        if self.names.insert(Arc::clone(name)) {
            self.asked.add(name.len());
        } else {
            self.sent.remove(name);
        }
        self.dirty.insert(Arc::clone(name));
    }

    pub(super) fn unsubscribe(&mut self, names: &HashSet<Name>) {
        for name in names {
            if self.names.remove(name) {
                self.asked.remove(name.len());
            }
            if !self.wildcard {
                self.sent.remove(name);
                self.dirty.remove(name);
            }
        }
        if let Some(outstanding) = &mut self.outstanding
            && !self.wildcard
        {
            outstanding.items.retain(|(name, _)| !names.contains(name));
        }
    }

    /// The cache has changed.
    pub(super) fn touch(&mut self, names: &[Name]) {
        let news = names
            .iter()
            .filter(|name| self.interested(name))
            .cloned()
            .collect::<Vec<_>>();
        if news.is_empty() {
            return;
        }
        self.dirty.extend(news);
        // What was wrong may be right now.
        for name in std::mem::take(&mut self.refused) {
            if self.interested(&name) {
                self.sent.insert(Arc::clone(&name), Some(Arc::from("")));
                self.dirty.insert(name);
            }
        }
    }

    /// Envoy drops these when it is told about what refers to them, also when it was told about
    /// them shortly before: they have to be sent again.
    pub(super) fn resend(&mut self, names: &HashSet<Name>) {
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.items.retain(|(name, _)| !names.contains(name));
        }
        for name in names
            .iter()
            .filter(|name| self.wildcard || self.names.contains(*name))
        {
            self.sent.remove(name);
            self.dirty.insert(Arc::clone(name));
        }
    }

    fn news<'a>(&self, entries: &'a Entries, name: &Name) -> News<'a> {
        if !self.interested(name) {
            return News::Nothing;
        }
        match (entries.get(name), self.sent.get(name)) {
            (Some(Entry::Present(stored)), Some(Some(held))) if *held == stored.version => {
                News::Nothing
            }
            (Some(Entry::Present(stored)), _) => News::Upsert(stored),
            (Some(Entry::Absent), Some(None)) => News::Nothing,
            (Some(Entry::Absent), _) => News::Removal,
            // Of a name that is not in the cache only a wildcard says that it does not exist.
            (None, Some(Some(_))) if !self.names.contains(name) => News::Removal,
            (None, _) => News::Nothing,
        }
    }

    /// Whether the cache has resources that this Envoy should hold and does not.
    pub(super) fn has_upserts(&self, entries: &Entries) -> bool {
        self.dirty
            .iter()
            .any(|name| matches!(self.news(entries, name), News::Upsert(_)))
    }

    /// What has changed in the cache since it was last compared. Removals may have to wait.
    pub(super) fn take_changes(&mut self, entries: &Entries, removals: bool) -> Update {
        let mut update = Update::default();
        for name in std::mem::take(&mut self.dirty) {
            match self.news(entries, &name) {
                News::Nothing => {}
                News::Upsert(stored) => update.upsert(name, stored),
                News::Removal if removals => update.remove(name),
                News::Removal => {
                    self.dirty.insert(name);
                }
            }
        }
        update
    }

    /// The part of a candidate that is news to this Envoy.
    pub(super) fn select(&self, entries: &Entries, candidate: &Candidate) -> Update {
        let mut update = Update::default();
        for (name, stored) in &candidate.resources {
            let held = self
                .sent
                .get(name)
                .is_some_and(|held| held.as_ref() == Some(&stored.version));
            let same = held
                && matches!(entries.get(name), Some(Entry::Present(cached)) if cached == stored);
            if self.interested(name) && !same {
                update.upsert(Arc::clone(name), stored);
            }
        }
        for name in &candidate.removed {
            let news = match self.sent.get(name) {
                Some(Some(_)) => true,
                Some(None) => false,
                None => self.names.contains(name),
            };
            if self.interested(name) && news {
                update.remove(Arc::clone(name));
            }
        }
        update
    }

    /// Notes a response that is on its way to Envoy.
    pub(super) fn sending(
        &mut self,
        nonce: String,
        origin: Origin,
        items: Vec<(Name, Option<Version>)>,
    ) {
        self.responded = true;
        self.outstanding = Some(Outstanding {
            nonce,
            origin,
            items,
        });
    }

    /// The response that an answer is about, or `None` for an answer that came too late.
    pub(super) fn answered(&mut self, nonce: &str) -> Option<Outstanding> {
        self.outstanding
            .take_if(|outstanding| outstanding.nonce == nonce)
    }

    /// Envoy accepted a response.
    pub(super) fn acked(&mut self, items: Vec<(Name, Option<Version>)>) {
        self.hold(items);
        self.acked = true;
        self.rejection = None;
    }

    /// Envoy rejected a response from the cache. It is not given that again until something changes.
    pub(super) fn refused(&mut self, items: Vec<(Name, Option<Version>)>) {
        let names = items.iter().map(|(name, _)| Arc::clone(name));
        self.refused.extend(names);
        self.hold(items);
    }

    /// Remembers versions as the last that Envoy was given.
    fn hold(&mut self, items: Vec<(Name, Option<Version>)>) {
        for (name, version) in items {
            if version.is_some() || self.names.contains(&name) {
                self.sent.insert(name, version);
            } else {
                self.sent.remove(&name);
            }
        }
    }
}
