//! Parts: one resource each. A part is reused while its inputs are unchanged, and keeps its last
//! good version when it cannot be made.
//!
//! A unit is a set of parts that refer to each other: a proxy's own side, or one upstream. A kept
//! part also keeps the resources that it refers to. This file is independent of the contents of
//! resources.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use legate_model::Protocol;

use crate::encode::EncodedResource;
use crate::error::{Failure, GenerateError};
use crate::extension::Extensions;
use crate::extension::part_id::PartId;
use crate::listener::Bind;
use crate::memo::Memo;
use crate::names;
use crate::resource_type::Type;
use crate::upstream::UpstreamTarget;

/// A resource that was made.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) resource: Arc<EncodedResource>,
    /// The address of a listener, if no other listener may use it. Boxed, as `Part::failure` is,
    /// because every proxy has some twenty parts and few have a value here.
    pub(crate) bind: Option<Box<Bind>>,
}

impl Made {
    /// Whether it can replace the other one.
    fn replaces(&self, other: &Self) -> bool {
        self.resource.name == other.resource.name && self.bind == other.bind
    }
}

impl From<Arc<EncodedResource>> for Made {
    fn from(resource: Arc<EncodedResource>) -> Self {
        Self {
            resource,
            bind: None,
        }
    }
}

/// A resource without an address, if it was made.
pub(crate) fn made(
    resource: Result<Arc<EncodedResource>, GenerateError>,
) -> Result<Option<Made>, GenerateError> {
    resource.map(|resource| Some(resource.into()))
}

/// The result of making one part.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) kind: Type,
    /// Whether a user wrote the resource, which may then have any name.
    named_by_user: bool,
    /// Whether the access rules in the last version differ from the current ones.
    outdated: bool,
    /// `None` if it failed, or if the proxy has no such resource.
    pub(crate) made: Option<Made>,
    pub(crate) failure: Option<Box<Failure>>,
    pub(crate) warnings: Box<[String]>,
}

/// Which part of a unit, for parts that depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartAt(usize);

/// Parts that refer to each other, in an order that each kind of proxy defines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unit {
    pub(crate) parts: Vec<Part>,
    /// Earlier versions that remain in use.
    pub(crate) kept: Vec<Kept>,
    /// The last good target of its upstream, while it remains in use by a part in another unit.
    kept_target: Option<Box<LastTarget>>,
}

/// The target of an upstream, with its protocol.
pub(crate) type LastTarget = (Protocol, UpstreamTarget);

/// An earlier version of a resource.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// The index of its part when it was made.
    at: usize,
    pub(crate) kind: Type,
    named_by_user: bool,
    pub(crate) made: Made,
}

impl Unit {
    /// The last version of every resource of the unit.
    fn versions(&self) -> impl Iterator<Item = Kept> {
        let made = self.parts.iter().enumerate().filter_map(|(at, part)| {
            Some(Kept {
                at,
                kind: part.kind,
                named_by_user: part.named_by_user,
                made: part.made.clone()?,
            })
        });
        self.kept.iter().cloned().chain(made)
    }

    /// The resources that differ from those of the unit before, with their types. `None` if
    /// anything else differs: names, addresses, warnings or failures.
    pub(crate) fn versions_after<'u>(
        &'u self,
        before: &Self,
    ) -> Option<Vec<(Type, &'u Arc<EncodedResource>)>> {
        let is_plain = |unit: &Self| {
            let mut parts = unit.parts.iter();
            unit.kept.is_empty() && parts.all(|part| part.failure.is_none())
        };
        if self.parts.len() != before.parts.len() || !is_plain(self) || !is_plain(before) {
            return None;
        }
        let mut changed = Vec::new();
        for (now, before) in self.parts.iter().zip(&before.parts) {
            let kind = now.kind;
            let alike = kind == before.kind && now.warnings == before.warnings;
            match (&now.made, &before.made) {
                (None, None) if alike => {}
                (Some(now), Some(before)) if alike && now.replaces(before) => {
                    if !Arc::ptr_eq(&now.resource, &before.resource) {
                        changed.push((kind, &now.resource));
                    }
                }
                _ => return None,
            }
        }
        Some(changed)
    }

    fn version(&self, kind: Type, name: &str) -> Option<Kept> {
        self.versions().find(|one| one.is(kind, name))
    }

    /// The resource that an upstream's target refers to.
    fn version_of(&self, target: &LastTarget) -> Option<Kept> {
        match &target.1 {
            UpstreamTarget::Cluster(name) => self.version(Type::Cluster, name),
            UpstreamTarget::Routes(name) => self.version(Type::Routes, name),
        }
    }

    /// The last good version of a failed part: the one at the same index, or else the one with the
    /// same name. Resources that users named are found by index only.
    fn last_good(&self, at: usize, failure: &Failure) -> Option<Kept> {
        let versions = || {
            let is = |one: &Kept| failure.is_about(one.kind, &one.made.resource.name);
            self.versions().filter(is)
        };
        let in_place = versions().find(|one| one.at == at);
        let named_alike = in_place.or_else(|| versions().next());
        named_alike.or_else(|| {
            let mut all = self.versions();
            all.find(|one| one.named_by_user && one.at == at && one.kind == failure.kind())
        })
    }
}

impl Kept {
    fn is(&self, kind: Type, name: &str) -> bool {
        self.kind == kind && *self.made.resource.name == *name
    }

    /// Whether it names the other one. A false match keeps a resource needlessly, but does no harm.
    fn refers_to(&self, other: &Self) -> bool {
        if (self.kind, other.kind) == (Type::Cluster, Type::Cluster) {
            let (own, other) = (&self.made.resource.name, &other.made.resource.name);
            return names::is_failover_member(other, own);
        }
        let name = other.made.resource.name.as_bytes();
        let mut texts = self.made.resource.body.windows(name.len().max(1));
        self.kind.refers_to(other.kind) && texts.any(|text| text == name)
    }
}

/// Collects the parts of one unit.
pub(crate) struct UnitBuilder<'a> {
    computed: &'a AtomicU64,
    previous: Option<&'a Arc<Unit>>,
    parts: Vec<Part>,
    /// Whether the parts are those of the previous unit.
    taken_over: bool,
    changed: bool,
    memo: &'a Memo,
    extensions: Option<Arc<Extensions>>,
    same_extensions: bool,
    upstream: Option<Box<str>>,
    kept_target: Option<Box<LastTarget>>,
}

impl<'a> UnitBuilder<'a> {
    /// A unit without extensions. `previous` is the unit in the last set.
    pub(crate) fn new(
        memo: &'a Memo,
        computed: &'a AtomicU64,
        previous: Option<&'a Arc<Unit>>,
    ) -> Self {
        Self {
            computed,
            previous,
            parts: Vec::new(),
            taken_over: false,
            changed: false,
            memo,
            extensions: None,
            same_extensions: true,
            upstream: None,
            kept_target: None,
        }
    }

    /// Sets the extensions of the parts, and whether they are the previous ones.
    pub(crate) fn extend_with(&mut self, extensions: Option<Arc<Extensions>>, same: bool) {
        self.extensions = extensions;
        self.same_extensions = same;
    }

    /// Disables extensions for the unit: its parts already include their changes.
    pub(crate) fn without_extensions(&mut self) {
        self.extensions = None;
        self.changed = !self.same_extensions;
    }

    fn parts(&self) -> &[Part] {
        match self.previous {
            Some(previous) if self.taken_over => &previous.parts,
            _ => &self.parts,
        }
    }

    /// Sets the upstream of the parts, which extensions match.
    #[must_use]
    pub(crate) fn for_upstream(mut self, upstream: &str) -> Self {
        self.upstream = self.extensions.is_some().then(|| upstream.into());
        self
    }

    /// Adds the next part. If `unchanged`, the part of the previous unit is reused, otherwise
    /// `build` makes it. `name` is the name in a failure.
    pub(crate) fn part(
        &mut self,
        kind: Type,
        name: impl FnOnce() -> String,
        unchanged: bool,
        build: impl FnOnce(&mut Vec<String>) -> Result<Option<Made>, GenerateError>,
    ) -> PartAt {
        let at = PartAt(self.parts.len());
        let before = self
            .previous
            .and_then(|unit| unit.parts.get(self.parts.len()));
        if let Some(before) = before.filter(|_| unchanged && self.same_extensions) {
            self.parts.push(before.clone());
            return at;
        }
        self.changed = true;
        self.computed.fetch_add(1, Ordering::Relaxed);
        let mut warnings = Vec::new();
        let (made, failure) = match (build(&mut warnings), &self.extensions) {
            (Ok(made), None) => (made, None),
            (made, _) => {
                let name = name();
                let made = made.and_then(|made| self.extend(kind, &name, made, &mut warnings));
                match made {
                    Ok(made) => (made, None),
                    Err(reason) => (None, Some(Box::new(Failure::new(kind, name, reason)))),
                }
            }
        };
        self.parts.push(Part {
            kind,
            named_by_user: false,
            outdated: false,
            made,
            failure,
            warnings: warnings.into(),
        });
        at
    }

    /// Sets for the last part whether a user wrote it, so that it may have any name.
    pub(crate) fn named_by_user(&mut self, is: bool) {
        if let Some(part) = self.parts.last_mut() {
            part.named_by_user = is;
        }
    }

    /// Sets for the last part whether the access rules in its last version are outdated. If such a
    /// part fails for a reason other than its rules, it is not kept: otherwise a user could bypass
    /// a new rule by breaking another setting.
    pub(crate) fn outdated(&mut self, is: bool) {
        if let Some(part) = self.parts.last_mut() {
            part.outdated = is;
        }
    }

    /// Applies the extensions to a part.
    fn extend(
        &self,
        kind: Type,
        name: &str,
        made: Option<Made>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Made>, GenerateError> {
        let (Some(extensions), Some(made)) = (&self.extensions, made.as_ref()) else {
            return Ok(made);
        };
        let place = PartId {
            kind,
            name,
            upstream: self.upstream.as_deref(),
        };
        let resource = Arc::clone(&made.resource);
        let resource = extensions.apply(self.memo, place, resource, warnings)?;
        let bind = made.bind.clone();
        Ok(Some(Made { resource, bind }))
    }

    /// Why a part has no version of this name; `None` if it has one.
    pub(crate) fn missing(&self, at: PartAt, name: &str) -> Option<&GenerateError> {
        let part = &self.parts()[at.0];
        let failure = part.failure.as_ref()?;
        let before = self.previous.and_then(|unit| unit.version(part.kind, name));
        before.is_none().then_some(&failure.reason)
    }

    /// Why a resource of this type has no version; `None` if all have one.
    pub(crate) fn lacking(&self, kind: Type) -> Option<&GenerateError> {
        let mut failures = self.failures(kind);
        let lacking = failures.find(|failure| !self.has_version(failure));
        lacking.map(|failure| &failure.reason)
    }

    /// Whether the resource of this type and name has no version.
    pub(crate) fn lacks(&self, kind: Type, name: &str) -> bool {
        self.failures(kind)
            .any(|failure| failure.is_about(kind, name) && !self.has_version(failure))
    }

    /// Why the resource of this type and name has no version; `None` if it has one.
    pub(crate) fn reason(&self, kind: Type, name: &str) -> Option<&GenerateError> {
        let mut failures = self.failures(kind);
        let lacking =
            failures.find(|failure| failure.is_about(kind, name) && !self.has_version(failure));
        lacking.map(|failure| &failure.reason)
    }

    fn failures(&self, kind: Type) -> impl Iterator<Item = &Failure> {
        let parts = self.parts().iter().filter(move |part| part.kind == kind);
        parts.filter_map(|part| part.failure.as_deref())
    }

    /// Whether there is an earlier version of a failed resource.
    fn has_version(&self, failure: &Failure) -> bool {
        let mut versions = self.previous.into_iter().flat_map(|unit| unit.versions());
        versions.any(|one| failure.is_about(one.kind, &one.made.resource.name))
    }

    /// Keeps the last good target of the upstream, with its resources. `last` returns the target in
    /// the last snapshot. `None` if there never was one.
    pub(crate) fn keep_target(
        &mut self,
        last: impl FnOnce() -> Option<LastTarget>,
    ) -> Option<&LastTarget> {
        let previous = self.previous?;
        self.kept_target = previous.kept_target.clone().or_else(|| {
            let target = last().filter(|target| previous.version_of(target).is_some());
            target.map(Box::new)
        });
        self.kept_target.as_deref()
    }

    /// Reuses all parts of the previous unit, if there is one. No part may be added after that.
    pub(crate) fn take_over(&mut self) -> bool {
        self.taken_over = self.previous.is_some() && self.same_extensions;
        self.taken_over
    }

    /// Whether all parts of the previous unit were made.
    pub(crate) fn is_sound(&self) -> bool {
        let failed = |unit: &Arc<Unit>| unit.parts.iter().any(|part| part.failure.is_some());
        self.previous.is_some_and(|unit| !failed(unit))
    }

    /// Whether a part of this type fails, or failed in the previous unit.
    pub(crate) fn has_trouble(&self, kind: Type) -> bool {
        let before = self.previous.into_iter().flat_map(|unit| &unit.parts);
        let mut parts = self.parts().iter().chain(before);
        parts.any(|part| part.kind == kind && part.failure.is_some())
    }

    /// Whether a part fails, or failed in the previous unit.
    pub(crate) fn troubled(&self, at: PartAt) -> bool {
        let before = self.previous.and_then(|unit| unit.parts.get(at.0));
        let parts = self.parts().get(at.0).into_iter().chain(before);
        parts.into_iter().any(|part| part.failure.is_some())
    }

    pub(crate) fn finish(mut self) -> Arc<Unit> {
        if let Some(previous) = self.previous
            && !self.changed
            && previous.parts.len() == self.parts().len()
        {
            return Arc::clone(previous);
        }
        // The unit is long-lived.
        self.parts.shrink_to_fit();
        let kept = self.keep();
        Arc::new(Unit {
            parts: self.parts,
            kept,
            kept_target: self.kept_target,
        })
    }

    /// The last good versions of failed parts, and of the resources that those refer to.
    fn keep(&mut self) -> Vec<Kept> {
        let Some(previous) = self.previous else {
            return Vec::new();
        };
        let mut kept: Vec<Kept> = Vec::new();
        for (at, part) in self.parts.iter_mut().enumerate() {
            let Some(failure) = &mut part.failure else {
                continue;
            };
            let is_gone = part.outdated && !failure.reason.is_about_access();
            let good = previous.last_good(at, failure).filter(|_| !is_gone);
            failure.kept = good.is_some();
            kept.extend(good);
        }
        let is_made = |one: &Kept| {
            let mut parts = self.parts.iter();
            parts.any(|part| {
                let name = part.made.as_ref().map(|made| &made.resource.name);
                name.is_some_and(|name| one.is(part.kind, name))
            })
        };
        let target = self.kept_target.as_ref();
        let target = target.and_then(|target| previous.version_of(target));
        kept.extend(target.filter(|one| !is_made(one)));
        let mut place = 0;
        while let Some(one) = kept.get(place).cloned() {
            for other in previous.versions().filter(|other| one.refers_to(other)) {
                let is = |known: &Kept| known.is(other.kind, &other.made.resource.name);
                if !kept.iter().any(is) && !is_made(&other) {
                    kept.push(other);
                }
            }
            place += 1;
        }
        kept
    }
}
