//! What references lead to, and whether they are permitted.

use std::collections::BTreeMap;

use crate::condition::Problem;
use crate::object::{Key, Object};
use crate::types::{AllowedNamespaces, LabelSelector, ObjectReference, ReferenceGrant};
use crate::world::World;

/// Who refers to something.
#[derive(Clone, Copy)]
pub(super) struct Referrer<'a> {
    pub(super) group: &'a str,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
}

/// The reasons for references that lead nowhere.
#[derive(Clone, Copy)]
pub(super) struct Reasons {
    /// For an object of a kind that nobody here understands.
    pub(super) kind: &'static str,
    /// For one that does not exist, or is useless.
    pub(super) object: &'static str,
}

pub(super) const NOT_PERMITTED: &str = "RefNotPermitted";

/// The objects by what they are looked up by.
pub(super) struct Lookup<'a> {
    pub(super) world: &'a World,
    /// By their namespace.
    grants: BTreeMap<&'a str, Vec<&'a ReferenceGrant>>,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(world: &'a World) -> Self {
        let mut grants = BTreeMap::<_, Vec<_>>::new();
        // A field without a meaning could be a restriction: such a grant permits nothing.
        let is_clear =
            |one: &&Object<ReferenceGrant>| one.broken.is_none() && one.unserved.is_empty();
        for grant in world.grants.iter().filter(is_clear) {
            let of_namespace = grants.entry(grant.meta.namespace.as_str()).or_default();
            of_namespace.push(&grant.spec);
        }
        Self { world, grants }
    }

    /// Whether something may be referred to: it is in the same namespace, or there is a grant.
    pub(super) fn permits(
        &self,
        from: Referrer<'_>,
        (group, kind): (&str, &str),
        to: &Key,
    ) -> bool {
        if from.namespace == to.namespace {
            return true;
        }
        let grants = self.grants.get(to.namespace.as_str());
        grants.into_iter().flatten().any(|grant| {
            let from = grant.from.iter().any(|one| {
                one.group == from.group && one.kind == from.kind && one.namespace == from.namespace
            });
            let to = grant.to.iter().any(|one| {
                let is_named = one.name.as_ref().is_none_or(|name| *name == to.name);
                one.group == group && one.kind == kind && is_named
            });
            from && to
        })
    }

    /// The object of a core kind that a reference leads to. Without permission, the
    /// verdict is the same whether or not it exists.
    fn object(
        &self,
        from: Referrer<'_>,
        reference: &ObjectReference,
        (expected, usual): (&str, Option<&str>),
        reasons: Reasons,
    ) -> Result<Key, Problem> {
        let group = reference.group.as_deref().unwrap_or_default();
        let kind = reference.kind.as_deref().or(usual).unwrap_or_default();
        if !group.is_empty() || kind != expected {
            let message = format!(
                "{kind} {:?} of group {group:?} is not a {expected}",
                reference.name
            );
            return Err(Problem::new(reasons.kind, message));
        }
        let namespace = reference.namespace.as_deref().unwrap_or(from.namespace);
        let key = Key::new(namespace, &reference.name);
        if !self.permits(from, ("", expected), &key) {
            let message = format!(
                "no ReferenceGrant in namespace {namespace} lets a {} of namespace {} refer to \
                 the {expected} {}",
                from.kind, from.namespace, reference.name
            );
            return Err(Problem::new(NOT_PERMITTED, message));
        }
        Ok(key)
    }

    /// The Secret with a certificate that a reference leads to.
    pub(super) fn certificate(
        &self,
        from: Referrer<'_>,
        reference: &ObjectReference,
        reason: &'static str,
    ) -> Result<Key, Problem> {
        let reasons = Reasons {
            kind: reason,
            object: reason,
        };
        let key = self.object(from, reference, ("Secret", Some("Secret")), reasons)?;
        match self.world.certificates.get(&key) {
            Some(Ok(())) => Ok(key),
            Some(Err(why)) => Err(Problem::new(reason, format!("Secret {key}: {why}"))),
            None => Err(Problem::new(reason, format!("there is no Secret {key}"))),
        }
    }

    /// The certificates of the authorities that a reference leads to, in PEM.
    pub(super) fn authorities(
        &self,
        from: Referrer<'_>,
        reference: &ObjectReference,
        reasons: Reasons,
    ) -> Result<&'a str, Problem> {
        let key = self.object(from, reference, ("ConfigMap", None), reasons)?;
        let problem = |message| Problem::new(reasons.object, message);
        match self.world.authorities.get(&key) {
            Some(Ok(pem)) => Ok(pem),
            Some(Err(why)) => Err(problem(format!("ConfigMap {key}: {why}"))),
            None => Err(problem(format!("there is no ConfigMap {key}"))),
        }
    }

    /// Whether a choice of namespaces has one. Without a choice, or with an unknown one, what
    /// `usual` says.
    pub(super) fn selects(
        &self,
        allowed: Option<&AllowedNamespaces>,
        usual: &str,
        (own, other): (&str, &str),
    ) -> bool {
        let from = allowed.and_then(|allowed| allowed.from.as_deref());
        match from.unwrap_or(usual) {
            "All" => true,
            "Same" => own == other,
            "Selector" => {
                let selector = allowed.and_then(|allowed| allowed.selector.as_ref());
                let labels = self.world.namespaces.get(other);
                selector
                    .zip(labels)
                    .is_some_and(|(selector, labels)| has(selector, labels))
            }
            _ => false,
        }
    }
}

/// Whether labels are as a selector asks for. An unknown operator selects nothing.
fn has(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut equal = selector.match_labels.iter();
    let mut conditions = selector.match_expressions.iter();
    equal.all(|(name, value)| labels.get(name) == Some(value))
        && conditions.all(|condition| {
            let value = labels.get(&condition.key);
            let is_one = value.is_some_and(|value| condition.values.contains(value));
            match condition.operator.as_str() {
                "In" => is_one,
                "NotIn" => !is_one,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}
