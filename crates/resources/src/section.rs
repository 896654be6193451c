//! The sections of a set: each kind of proxy groups its units by name, so that the unit of the
//! previous set is found by the name of its section and its index there.

/// The name of a group of units, unique for a kind of proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section(pub(crate) &'static str);

/// The sections of a set, in the order of the units, each with the index of its first unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sections(Vec<(Section, usize)>);

impl Sections {
    /// Begins a section at a unit, unless it is the section of the unit before.
    pub(crate) fn begin(&mut self, section: Section, at: usize) {
        let last = self.0.last().map(|(last, _)| *last);
        if last != Some(section) {
            debug_assert!(self.0.iter().all(|(known, _)| *known != section));
            self.0.push((section, at));
        }
    }

    /// The units of a section among all units of its set.
    pub(crate) fn part<'u, T>(&self, section: Section, units: &'u [T]) -> &'u [T] {
        let Some(at) = self.0.iter().position(|(known, _)| *known == section) else {
            return &[];
        };
        let end = self.0.get(at + 1).map_or(units.len(), |(_, start)| *start);
        units.get(self.0[at].1..end).unwrap_or_default()
    }

    pub(crate) fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }
}
