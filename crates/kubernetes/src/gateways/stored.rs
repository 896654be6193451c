//! The config entries that Consul's servers have of gateways, and what they say of them. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::entries::{
    DIGEST, EntryId, GATEWAY, GENERATION, HTTP_ROUTE, KINDS, OF_GATEWAY, OWNER, PORT, TCP_ROUTE,
};
use super::fronts::{Acknowledged, AllAcknowledged};

/// The entries of each of [`KINDS`].
pub(super) type Stored = [Vec<StoredEntry>; KINDS.len()];

/// An entry.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct StoredEntry {
    name: String,
    #[serde(deserialize_with = "or_default")]
    meta: BTreeMap<String, String>,
    status: Status,
    #[serde(deserialize_with = "or_default")]
    listeners: Vec<Listener>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Listener {
    name: String,
    port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Condition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
    #[serde(deserialize_with = "or_default")]
    resource: Resource,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Resource {
    section_name: String,
}

/// Go writes empty lists and maps as null.
fn or_default<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: serde::Deserializer<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Condition {
    /// Why something is not as it should be.
    fn problem(&self) -> Option<String> {
        let good = if self.r#type == "Conflicted" {
            "False"
        } else {
            "True"
        };
        (self.status != good).then(|| format!("{}: {}", self.reason, self.message))
    }
}

impl StoredEntry {
    fn is_of(&self, gateway: &str) -> bool {
        self.meta.get(OF_GATEWAY).is_some_and(|of| of == gateway)
    }

    fn problems(&self) -> impl Iterator<Item = (&Condition, String)> {
        let conditions = self.status.conditions.iter();
        conditions.filter_map(|one| Some((one, one.problem()?)))
    }
}

/// The digests of the entries of a gateway that this cluster has written.
pub(super) fn digests(all: &Stored, owner: &str, gateway: &str) -> BTreeMap<EntryId, String> {
    let each = all.iter().enumerate().flat_map(|(kind, entries)| {
        let own = entries.iter().filter(|entry| entry.is_of(gateway));
        let own = own.filter(|entry| entry.meta.get(OWNER).is_some_and(|of| of == owner));
        own.map(move |entry| {
            let digest = entry.meta.get(DIGEST).cloned().unwrap_or_default();
            ((kind, entry.name.clone()), digest)
        })
    });
    each.collect()
}

fn of_kind<'a>(all: &'a Stored, name: &str) -> &'a [StoredEntry] {
    let at = KINDS.iter().position(|kind| *kind == name);
    at.map_or(&[], |at| &all[at])
}

/// Whose entry of this name it is that a gateway of this cluster cannot have; empty if nobody says it.
pub(super) fn other_owner<'a>(all: &'a Stored, owner: &str, gateway: &str) -> Option<&'a str> {
    let mut entries = of_kind(all, GATEWAY).iter();
    let entry = entries.find(|entry| entry.name == gateway)?;
    let known = entry.meta.get(OWNER).map_or("", String::as_str);
    (known != owner).then_some(known)
}

/// What the servers say of the gateways, and which have entries. That proxies have acknowledged it, they do not say.
pub(super) fn acknowledged(all: &Stored) -> AllAcknowledged {
    let mut gateways = AllAcknowledged::new();
    let entries = of_kind(all, GATEWAY).iter();
    for gateway in entries.filter(|entry| entry.is_of(&entry.name)) {
        let mut rejected = BTreeMap::new();
        for (condition, problem) in gateway.problems() {
            let section = &condition.resource.section_name;
            let listeners = gateway.listeners.iter();
            let named = listeners.filter(|one| section.is_empty() || one.name == *section);
            rejected.extend(named.map(|one| (one.port.to_string(), problem.clone())));
        }
        // A new entry has no conditions before the servers have seen to it.
        let mut is_known = !gateway.status.conditions.is_empty();
        let routes = of_kind(all, HTTP_ROUTE).iter();
        let routes = routes.chain(of_kind(all, TCP_ROUTE));
        for route in routes.filter(|route| route.is_of(&gateway.name)) {
            is_known &= !route.status.conditions.is_empty();
            let port = route.meta.get(PORT).cloned().unwrap_or_default();
            let problems = route.problems();
            rejected.extend(problems.map(|(_, problem)| (port.clone(), problem)));
        }
        let generations = gateway.meta.iter().filter_map(|(key, value)| {
            let uid = key.strip_prefix(GENERATION)?;
            Some((uid.to_owned(), value.parse().ok()?))
        });
        let known = Acknowledged {
            owner: gateway.meta.get(OWNER).cloned().unwrap_or_default(),
            acknowledged: generations.filter(|_| is_known).collect(),
            rejected,
        };
        gateways.insert(gateway.name.clone(), known);
    }
    // What is left of a gateway whose removal was interrupted.
    for entry in all.iter().flatten() {
        if let Some(gateway) = entry.meta.get(OF_GATEWAY) {
            let known = gateways.entry(gateway.clone()).or_default();
            if known.owner.is_empty() {
                known.owner = entry.meta.get(OWNER).cloned().unwrap_or_default();
            }
        }
    }
    gateways
}
