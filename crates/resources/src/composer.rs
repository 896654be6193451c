//! Collects the units of one proxy into its resource set.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::extension::Extensions;
use crate::memo::Memo;
use crate::part::{Made, Unit, UnitBuilder};
use crate::resource_type::Type;
use crate::section::{Section, Sections};
use crate::set::ResourceSet;

/// The clusters that extensions add.
const OF_EXTENSIONS: Section = Section("of extensions");

/// Collects the units of one proxy.
pub(crate) struct Composer<'a> {
    pub(crate) memo: &'a Memo,
    computed: &'a AtomicU64,
    previous: Option<&'a ResourceSet>,
    units: Vec<Arc<Unit>>,
    sections: Sections,
    extensions: Option<Arc<Extensions>>,
    /// Whether the extensions are those of the previous set.
    same_extensions: bool,
}

impl<'a> Composer<'a> {
    pub(crate) fn new(
        memo: &'a Memo,
        computed: &'a AtomicU64,
        previous: Option<&'a ResourceSet>,
        extensions: Option<Arc<Extensions>>,
    ) -> Self {
        let before = previous.and_then(|set| set.extensions.as_ref());
        let same_extensions = match (before, &extensions) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        Self {
            memo,
            computed,
            previous,
            units: Vec::new(),
            sections: Sections::default(),
            extensions,
            same_extensions,
        }
    }

    /// Begins a unit. `before` is its index in the same section of the previous set.
    pub(crate) fn unit(&self, section: Section, before: Option<usize>) -> UnitBuilder<'a> {
        let previous = self.previous.zip(before);
        let previous = previous.and_then(|(set, place)| set.units_of(section).get(place));
        let extensions = self.extensions.clone();
        let mut unit = UnitBuilder::new(self.memo, self.computed, previous);
        unit.extend_with(extensions, self.same_extensions);
        unit
    }

    /// Adds a unit to a section. The units of a section are added one after the other.
    pub(crate) fn add(&mut self, section: Section, unit: UnitBuilder<'a>) {
        self.sections.begin(section, self.units.len());
        self.units.push(unit.finish());
    }

    /// The set of all units; the previous set if no unit has changed.
    pub(crate) fn finish(mut self) -> ResourceSet {
        self.add_clusters_of_extensions();
        match self.previous {
            Some(previous) if same_units(&previous.units, &self.units) => previous.clone(),
            previous => ResourceSet::of(self.units, self.sections, self.extensions, previous),
        }
    }

    /// The clusters that extensions add are a unit, if there are extensions.
    fn add_clusters_of_extensions(&mut self) {
        let Some(extensions) = self.extensions.clone() else {
            return;
        };
        let mut unit = self.unit(OF_EXTENSIONS, Some(0));
        // `Extensions::cluster` applies the extensions itself. The number of parts changes only
        // with them.
        unit.without_extensions();
        for (at, name) in extensions.with_cluster() {
            let name = || name.to_owned();
            unit.part(Type::Cluster, name, true, |warnings| {
                let made = extensions.cluster(at, self.memo, warnings)?;
                Ok(made.map(Made::from))
            });
        }
        self.add(OF_EXTENSIONS, unit);
    }
}

fn same_units(a: &[Arc<Unit>], b: &[Arc<Unit>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}
