//! All resources of one proxy by type and name, and the failures.

use std::collections::HashSet;
use std::ops::Index;
use std::sync::Arc;

use crate::encode::EncodedResource;
use crate::error::{Failure, GenerateError};
use crate::extension::Extensions;
use crate::names::EXPOSED_LISTENER;
use crate::part::{Kept, Made, Unit};
use crate::resource_type::Type;
use crate::section::{Section, Sections};

/// The resources of one type, sorted by name. A list, because every connected proxy holds some
/// twenty resources, and maps have more overhead.
#[derive(Clone, Debug, Default)]
pub struct ByName(Vec<Arc<EncodedResource>>);

impl ByName {
    /// The resource with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<EncodedResource>> {
        self.find(name).ok().map(|at| &self.0[at])
    }

    /// Whether there is a resource with this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// The names, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|one| &one.name)
    }

    /// The resources with their names, sorted by name.
    pub fn iter(&self) -> <&Self as IntoIterator>::IntoIter {
        self.into_iter()
    }

    /// The resources, sorted by name.
    pub fn values(&self) -> impl Iterator<Item = &Arc<EncodedResource>> {
        self.0.iter()
    }

    /// The number of resources.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no resources.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn is_same(&self, other: &Self) -> bool {
        let pairs = || self.0.iter().zip(&other.0);
        self.len() == other.len() && pairs().all(|(a, b)| Arc::ptr_eq(a, b))
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|one| (*one.name).cmp(name))
    }

    /// Inserts a resource unless its name is taken. Returns the resource with that name.
    fn put(&mut self, resource: &Arc<EncodedResource>) -> &Arc<EncodedResource> {
        let at = self.find(&resource.name).unwrap_or_else(|at| {
            self.0.insert(at, Arc::clone(resource));
            at
        });
        &self.0[at]
    }
}

type Named<'a> = (&'a Arc<str>, &'a Arc<EncodedResource>);

impl<'a> IntoIterator for &'a ByName {
    type Item = Named<'a>;
    type IntoIter = std::iter::Map<
        std::slice::Iter<'a, Arc<EncodedResource>>,
        fn(&'a Arc<EncodedResource>) -> Named<'a>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|one| (&one.name, one))
    }
}

impl Index<&str> for ByName {
    type Output = Arc<EncodedResource>;

    /// The resource with this name.
    ///
    /// # Panics
    /// If there is none.
    fn index(&self, name: &str) -> &Self::Output {
        self.get(name).expect("there is a resource of this name")
    }
}

/// The resources of one proxy.
#[derive(Clone, Debug, Default)]
pub struct ResourceSet {
    /// For a type without changes, the same list as in the previous set.
    by_type: [Arc<ByName>; Type::ALL.len()],
    /// The types in which several parts have a resource of the same name.
    repeated: [bool; Type::ALL.len()],
    warnings: Vec<String>,
    failures: Vec<Failure>,
    pub(crate) units: Vec<Arc<Unit>>,
    sections: Sections,
    /// The extensions that were applied.
    pub(crate) extensions: Option<Arc<Extensions>>,
}

impl ResourceSet {
    /// A set of encoded resources, each with its type URL. Resources of other types than the
    /// generated ones are dropped.
    pub fn from_resources<'a>(
        resources: impl IntoIterator<Item = (&'a str, EncodedResource)>,
    ) -> Self {
        let mut set = Self::default();
        for (type_url, resource) in resources {
            if let Some(kind) = Type::from_url(type_url) {
                set.put(kind, &Arc::new(resource));
            }
        }
        set
    }

    /// The resources of a type, by name; empty for types that this crate does not generate.
    pub fn get(&self, type_url: &str) -> &ByName {
        static NONE: ByName = ByName(Vec::new());
        Type::from_url(type_url).map_or(&NONE, |kind| &*self.by_type[kind as usize])
    }

    /// Whether the resources of a type, and the failures, are known to be the same as in the
    /// previous set.
    pub fn is_unchanged(&self, previous: &Self, type_url: &str) -> bool {
        let kind = Type::from_url(type_url).map(|kind| kind as usize);
        let same = |kind: usize| Arc::ptr_eq(&self.by_type[kind], &previous.by_type[kind]);
        kind.is_none_or(same) && self.failures == previous.failures
    }

    /// Inputs that were ignored or replaced by a default, for the log.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The resources that cannot be made, and whether an earlier version of each is in the set.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Whether this resource is missing only because it cannot be made: a client that has it from
    /// an earlier stream keeps it.
    pub fn cannot_make(&self, type_url: &str, name: &str) -> bool {
        let mut lacking = self.failures.iter().filter(|failure| !failure.kept);
        let kind = Type::from_url(type_url);
        kind.is_some_and(|kind| lacking.any(|failure| failure.is_about(kind, name)))
    }

    /// The reason why a proxy cannot use the set: no listener at all, or no certificate or roots,
    /// because they cannot be made.
    pub fn unusable(&self) -> Option<&GenerateError> {
        let lacking = || self.failures.iter().filter(|failure| !failure.kept);
        let secret = lacking().find(|failure| failure.kind() == Type::Secret);
        let listens = !self.by_type[Type::Listener as usize].is_empty();
        let listener = lacking().find(|failure| failure.kind() == Type::Listener);
        let first = secret.or_else(|| listener.filter(|_| !listens));
        first.map(|failure| &failure.reason)
    }

    /// The resources that the units made, then their kept versions if they do not conflict.
    pub(crate) fn of(
        units: Vec<Arc<Unit>>,
        mut sections: Sections,
        extensions: Option<Arc<Extensions>>,
        previous: Option<&Self>,
    ) -> Self {
        // The set is long-lived.
        sections.shrink();
        if let Some(mut set) = previous.and_then(|previous| previous.with_versions_of(&units)) {
            set.units = units;
            set.sections = sections;
            set.extensions = extensions;
            return set;
        }
        let mut set = Self {
            extensions,
            ..Self::default()
        };
        let mut taken = HashSet::new();
        for unit in &units {
            set.add_made(unit, &mut taken);
        }
        for unit in &units {
            for Kept { kind, made, .. } in &unit.kept {
                let free = made.bind.as_ref().is_none_or(|bind| taken.insert(bind));
                if free {
                    set.put(*kind, &made.resource);
                }
            }
        }
        for (place, list) in set.by_type.iter_mut().enumerate() {
            let before = previous.map(|previous| &previous.by_type[place]);
            match before.filter(|before| before.is_same(list)) {
                Some(before) => *list = Arc::clone(before),
                None => Arc::make_mut(list).0.shrink_to_fit(),
            }
        }
        set.units = units;
        set.sections = sections;
        set
    }

    /// The units of a section.
    pub(crate) fn units_of(&self, section: Section) -> &[Arc<Unit>] {
        self.sections.part(section, &self.units)
    }

    /// This set with new versions of its resources, `None` if the units differ in anything else.
    fn with_versions_of(&self, units: &[Arc<Unit>]) -> Option<Self> {
        if units.len() != self.units.len() {
            return None;
        }
        let mut changed = Vec::new();
        for (before, now) in self.units.iter().zip(units) {
            if !Arc::ptr_eq(before, now) {
                changed.extend(now.versions_after(before)?);
            }
        }
        if changed
            .iter()
            .any(|(kind, _)| self.repeated[*kind as usize])
        {
            return None;
        }
        let mut set = self.clone();
        for (kind, resource) in changed {
            let list = Arc::make_mut(&mut set.by_type[kind as usize]);
            let at = list.find(&resource.name).ok()?;
            list.0[at] = Arc::clone(resource);
        }
        Some(set)
    }

    fn add_made<'a>(&mut self, unit: &'a Unit, taken: &mut HashSet<&'a crate::listener::Bind>) {
        for part in &unit.parts {
            self.failures.extend(part.failure.as_deref().cloned());
            let Some(Made { resource, bind }) = &part.made else {
                self.warnings.extend_from_slice(&part.warnings);
                continue;
            };
            let known = self.by_type[part.kind as usize].contains_key(&resource.name);
            // Upstreams of the same service share their endpoints.
            if !(known && part.kind == Type::Endpoints) {
                self.warnings.extend_from_slice(&part.warnings);
            }
            let free = bind.as_ref().is_none_or(|bind| taken.insert(bind));
            if let Some(bind) = bind.as_ref().filter(|_| !free) {
                // It may have the name of another resource, which it cannot replace.
                self.repeated[part.kind as usize] = true;
                let listener = resource.name.strip_suffix(&format!(":{}", bind.suffix()));
                let listener = listener.unwrap_or(&resource.name);
                let what = match listener.starts_with(EXPOSED_LISTENER) {
                    true => "listener",
                    false => "upstream",
                };
                self.warnings.push(format!(
                    "{what} {listener} listens on {}, as another one does: it has no listener",
                    bind.suffix()
                ));
            } else if !self.put(part.kind, resource) {
                let name = &resource.name;
                self.warnings.extend(match part.kind {
                    Type::Cluster => Some(format!(
                        "two upstreams with different Config have the cluster {name}: the first one is used"
                    )),
                    Type::Listener => Some(format!(
                        "two different listeners are named {name}: the first one is used"
                    )),
                    Type::Endpoints | Type::Routes | Type::Secret => None,
                });
            }
        }
    }

    /// Inserts a resource unless its name is taken. Returns whether this version is in the set.
    fn put(&mut self, kind: Type, resource: &Arc<EncodedResource>) -> bool {
        let list = Arc::make_mut(&mut self.by_type[kind as usize]);
        let count = list.len();
        let is_in = list.put(resource).version == resource.version;
        self.repeated[kind as usize] |= list.len() == count;
        is_in
    }
}
