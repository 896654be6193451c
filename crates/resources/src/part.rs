//! Parts: one resource each, made on its own, taken over while nothing that it is made from has
//! changed, and kept in its last good version when it cannot be made.
//!
//! A unit is the parts that refer to each other: a proxy's own side, one upstream. A part that is
//! kept keeps what it refers to as well. Nothing here knows what a resource says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::encode::EncodedResource;
use crate::error::GenerateError;
use crate::listener::Bind;
use crate::memo::Memo;
use crate::set::{Failure, ResourceSet, Type};

/// A resource that could be made.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) resource: Arc<EncodedResource>,
    /// Where a listener listens, if no other one may listen there. Boxed, as what follows, because
    /// every proxy has some twenty parts, hardly one of which fails.
    pub(crate) bind: Option<Box<Bind>>,
}

impl From<Arc<EncodedResource>> for Made {
    fn from(resource: Arc<EncodedResource>) -> Self {
        Self {
            resource,
            bind: None,
        }
    }
}

/// What came of one part.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) kind: Type,
    /// `None` where it failed, or where the proxy has no such resource.
    pub(crate) made: Option<Made>,
    pub(crate) failure: Option<Box<Failure>>,
    pub(crate) warnings: Box<[String]>,
}

/// Parts that refer to each other, in an order that each kind of proxy fixes for itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unit {
    pub(crate) parts: Vec<Part>,
    /// Earlier versions that stay in use, with the place of their part.
    pub(crate) kept: Vec<(usize, Made)>,
}

impl Unit {
    /// The last good version of the part at this place.
    fn last_good(&self, at: usize) -> Option<&Made> {
        let kept = self.kept.iter().find(|(place, _)| *place == at);
        let made = self.parts.get(at).and_then(|part| part.made.as_ref());
        made.or_else(|| kept.map(|(_, made)| made))
    }

    fn has_failed(&self) -> bool {
        self.parts.iter().any(|part| part.failure.is_some())
    }
}

/// Collects the units of one proxy.
pub(crate) struct Composer<'a> {
    pub(crate) memo: &'a Memo,
    computed: &'a AtomicU64,
    previous: Option<&'a ResourceSet>,
    units: Vec<Arc<Unit>>,
}

impl<'a> Composer<'a> {
    pub(crate) fn new(
        memo: &'a Memo,
        computed: &'a AtomicU64,
        previous: Option<&'a ResourceSet>,
    ) -> Self {
        Self {
            memo,
            computed,
            previous,
            units: Vec::new(),
        }
    }

    /// Begins a unit. `before` is its place among the units of the previous set.
    pub(crate) fn unit(&self, before: Option<usize>) -> UnitBuilder<'a> {
        let previous = self.previous.zip(before);
        UnitBuilder {
            computed: self.computed,
            previous: previous.and_then(|(set, place)| set.units.get(place)),
            parts: Vec::new(),
            changed: false,
        }
    }

    pub(crate) fn add(&mut self, unit: UnitBuilder<'a>) {
        self.units.push(unit.finish());
    }

    /// The set of all units; the previous one where each of them is as it was.
    pub(crate) fn finish(self) -> ResourceSet {
        match self.previous {
            Some(previous) if same_units(&previous.units, &self.units) => previous.clone(),
            _ => ResourceSet::of(self.units),
        }
    }
}

fn same_units(a: &[Arc<Unit>], b: &[Arc<Unit>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

/// Collects the parts of one unit.
pub(crate) struct UnitBuilder<'a> {
    computed: &'a AtomicU64,
    previous: Option<&'a Arc<Unit>>,
    parts: Vec<Part>,
    changed: bool,
}

impl UnitBuilder<'_> {
    /// Adds the next part. It is taken from the previous unit when `unchanged` says that it is made
    /// from the same values, and made by `build` otherwise. `name` is how a failure names it.
    pub(crate) fn part(
        &mut self,
        kind: Type,
        name: impl FnOnce() -> String,
        unchanged: bool,
        build: impl FnOnce(&mut Vec<String>) -> Result<Option<Made>, GenerateError>,
    ) {
        let before = self
            .previous
            .and_then(|unit| unit.parts.get(self.parts.len()));
        if let Some(before) = before.filter(|_| unchanged) {
            self.parts.push(before.clone());
            return;
        }
        self.changed = true;
        self.computed.fetch_add(1, Ordering::Relaxed);
        let mut warnings = Vec::new();
        let (made, failure) = match build(&mut warnings) {
            Ok(made) => (made, None),
            Err(reason) => (None, Some(Box::new(Failure::new(kind, name(), reason)))),
        };
        self.parts.push(Part {
            kind,
            made,
            failure,
            warnings: warnings.into(),
        });
    }

    /// The place of the part that is added next.
    pub(crate) fn next_place(&self) -> usize {
        self.parts.len()
    }

    /// Why the part at this place cannot be had in any version of this name, when that is so.
    pub(crate) fn missing(&self, at: usize, name: &str) -> Option<&GenerateError> {
        let failure = self.parts[at].failure.as_ref()?;
        let good = self.previous.and_then(|unit| unit.last_good(at));
        let is_there = good.is_some_and(|made| *made.resource.name == *name);
        (!is_there).then_some(&failure.reason)
    }

    /// Whether the part at this place fails, or did in the previous unit.
    pub(crate) fn troubled(&self, at: usize) -> bool {
        let before = self.previous.and_then(|unit| unit.parts.get(at));
        let parts = self.parts.get(at).into_iter().chain(before);
        parts.into_iter().any(|part| part.failure.is_some())
    }

    fn finish(mut self) -> Arc<Unit> {
        if let Some(previous) = self.previous
            && !self.changed
        {
            return Arc::clone(previous);
        }
        // It lives as long as the proxy is as it is.
        self.parts.shrink_to_fit();
        let kept = self.keep();
        for (at, part) in self.parts.iter_mut().enumerate() {
            if let Some(failure) = &mut part.failure {
                failure.kept = kept.iter().any(|(place, _)| *place == at);
            }
        }
        Arc::new(Unit {
            parts: self.parts,
            kept,
        })
    }

    /// The last good versions of what failed and of what those refer to. What was kept before is
    /// not followed by later versions, so that a part that fails for long keeps one of each.
    fn keep(&self) -> Vec<(usize, Made)> {
        let mut kept: Vec<(usize, Made)> = Vec::new();
        let Some(previous) = self.previous else {
            return kept;
        };
        let failed = |at: usize| self.parts[at].failure.is_some();
        let needed = |at: usize| {
            let to = self.parts[at].kind;
            let mut parts = self.parts.iter().filter(|part| part.failure.is_some());
            failed(at) || parts.any(|part| part.kind.refers_to(to))
        };
        // The unit may have had more parts: what those made is not wanted any more.
        let is_part = |at: usize| at < self.parts.len();
        let made = previous.parts.iter().enumerate();
        let made = made.filter(|(at, _)| is_part(*at) && (!previous.has_failed() || failed(*at)));
        let made = made.filter_map(|(at, part)| Some((at, part.made.clone()?)));
        let all = previous.kept.iter().cloned().chain(made);
        for (at, one) in all.filter(|(at, _)| is_part(*at)) {
            let is = |kind: Type, other: &Made| {
                kind == self.parts[at].kind && other.resource.name == one.resource.name
            };
            let replaced = self
                .parts
                .iter()
                .any(|part| part.made.as_ref().is_some_and(|made| is(part.kind, made)));
            let twice = kept
                .iter()
                .any(|(place, made)| is(self.parts[*place].kind, made));
            if needed(at) && !replaced && !twice {
                kept.push((at, one));
            }
        }
        kept
    }
}
