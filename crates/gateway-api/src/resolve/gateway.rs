//! Gateways with the listeners of their own and those of their ListenerSets, and what is said of
//! them.

use std::collections::BTreeMap;

use super::class::{self, Class};
use super::listener::{self, ListenerPlan, Owner};
use super::lookup::{Lookup, Referrer};
use super::{clients, conflicts, consul, programmed};
use crate::condition::{ACCEPTED, CONFLICTED, Condition, PROGRAMMED, Problem, RESOLVED};
use crate::object::{Key, Object};
use crate::outcome::{GatewayVerdict, ListenerSetVerdict, ListenerVerdict};
use crate::types::{GROUP, Gateway, KindReference, ListenerSet};
use crate::world::Front;

/// A gateway of this controller.
pub(super) struct GatewayPlan<'a> {
    pub(super) object: &'a Object<Gateway>,
    pub(super) class: &'a Class<'a>,
    /// Why nothing is made for it.
    pub(super) refused: Option<Problem>,
    /// The ListenerSets that name it, the oldest first.
    pub(super) sets: Vec<SetPlan<'a>>,
    /// Its own listeners, and then those of each ListenerSet that may add any.
    pub(super) listeners: Vec<ListenerPlan<'a>>,
    /// What it presents to backends; `None` if nothing is asked for.
    pub(super) presented: Option<Result<Key, Problem>>,
    front: Option<&'a Front>,
}

/// A ListenerSet of a gateway.
pub(super) struct SetPlan<'a> {
    pub(super) object: &'a Object<ListenerSet>,
    /// Why it adds no listeners.
    pub(super) refused: Option<Problem>,
}

const LISTENERS_NOT_VALID: &str = "ListenersNotValid";

/// The gateway with all its listeners. `sets` are those that name it, the oldest first.
pub(super) fn plan<'a>(
    lookup: &Lookup<'a>,
    class: &'a Class<'a>,
    object: &'a Object<Gateway>,
    sets: &[&'a Object<ListenerSet>],
) -> GatewayPlan<'a> {
    let owner = (Owner::Gateway, object);
    let mut listeners = listener::plans(lookup, object, owner, &object.spec.listeners);
    let mut planned = Vec::new();
    for (index, set) in sets.iter().copied().enumerate() {
        let refused = refused_set(lookup, object, set);
        if refused.is_none() {
            let owner = (Owner::Set(index), set);
            listeners.extend(listener::plans(lookup, object, owner, &set.spec.listeners));
        }
        planned.push(SetPlan {
            object: set,
            refused,
        });
    }
    conflicts::find(&mut listeners);
    consul::refuse_listeners(lookup.world, &mut listeners);
    GatewayPlan {
        object,
        class,
        refused: refused(lookup, class, object),
        sets: planned,
        listeners,
        presented: presented(lookup, object),
        front: lookup.world.fronts.get(&object.meta.key()),
    }
}

fn refused(lookup: &Lookup<'_>, class: &Class<'_>, object: &Object<Gateway>) -> Option<Problem> {
    if let Some(error) = &object.broken {
        let message = format!("spec cannot be read: {error}");
        return Some(Problem::new("Invalid", message));
    }
    if let Some(problem) = &class.refused {
        let message = format!(
            "the GatewayClass {} is not accepted: {}",
            class.object.meta.name, problem.message
        );
        return Some(Problem::new("InvalidParameters", message));
    }
    let infrastructure = object.spec.infrastructure.as_ref();
    let parameters = infrastructure.and_then(|one| one.parameters_ref.as_ref());
    if let Some(problem) = class::missing_parameters(lookup.world, parameters) {
        return Some(problem);
    }
    let kinds = object.spec.addresses.iter();
    let mut kinds = kinds.filter_map(|address| address.r#type.as_deref());
    let other = kinds.find(|kind| !["IPAddress", "Hostname"].contains(kind))?;
    let message = format!("addresses of the type {other:?} are not served");
    Some(Problem::new("UnsupportedAddress", message))
}

fn refused_set(
    lookup: &Lookup<'_>,
    gateway: &Object<Gateway>,
    set: &Object<ListenerSet>,
) -> Option<Problem> {
    let allowed = gateway.spec.allowed_listeners.as_ref();
    let allowed = allowed.and_then(|allowed| allowed.namespaces.as_ref());
    let namespaces = (&*gateway.meta.namespace, &*set.meta.namespace);
    if !lookup.selects(allowed, "None", namespaces) {
        let message = "the Gateway's allowedListeners does not have the namespace";
        return Some(Problem::new("NotAllowed", message));
    }
    let error = set.broken.as_ref()?;
    let message = format!("spec cannot be read: {error}");
    Some(Problem::new("Invalid", message))
}

fn presented(lookup: &Lookup<'_>, object: &Object<Gateway>) -> Option<Result<Key, Problem>> {
    let backend = object.spec.tls.as_ref()?.backend.as_ref()?;
    let reference = backend.client_certificate_ref.as_ref()?;
    let from = Referrer {
        group: GROUP,
        kind: "Gateway",
        namespace: &object.meta.namespace,
    };
    Some(lookup.certificate(from, reference, "InvalidClientCertificateRef"))
}

impl<'a> GatewayPlan<'a> {
    /// The listeners of one owner.
    fn of(&self, owner: Owner) -> impl Iterator<Item = &ListenerPlan<'a>> {
        self.listeners.iter().filter(move |one| one.owner == owner)
    }

    /// Whether anything is made for it.
    pub(super) fn is_served(&self) -> bool {
        self.refused.is_none() && self.listeners.iter().any(ListenerPlan::is_served)
    }

    pub(super) fn verdict(&self) -> GatewayVerdict {
        let generation = self.object.meta.generation;
        let mut conditions = vec![self.accepted(), self.programmed()];
        if let Some(presented) = &self.presented {
            let problem = presented.as_ref().err();
            conditions.push(Condition::unless(RESOLVED, RESOLVED, problem));
        }
        if clients::allows_any(&self.object.spec) {
            let insecure =
                Condition::holds("InsecureFrontendValidationMode", "ConfigurationChanged");
            conditions.push(insecure.saying("clients without a valid certificate are let in"));
        }
        let attached = self.sets.iter().enumerate();
        let attached = attached.filter(|(index, set)| self.set_problem(*index, set).is_none());
        GatewayVerdict {
            generation,
            conditions,
            addresses: self
                .front
                .map_or_else(Vec::new, |front| front.addresses.clone()),
            listeners: self.listeners_of(Owner::Gateway),
            attached_listener_sets: attached.count(),
        }
    }

    fn accepted(&self) -> Condition {
        if self.refused.is_some() {
            return Condition::unless(ACCEPTED, ACCEPTED, self.refused.as_ref());
        }
        let bad: Vec<_> = self
            .of(Owner::Gateway)
            .filter(|one| !one.is_served())
            .collect();
        let names: Vec<_> = bad.iter().map(|one| one.spec.name.as_str()).collect();
        let message = format!("not served: {}", names.join(", "));
        match (self.is_served(), bad.is_empty()) {
            (true, true) => Condition::holds(ACCEPTED, ACCEPTED),
            (true, false) => Condition::holds(ACCEPTED, LISTENERS_NOT_VALID).saying(&message),
            (false, _) => {
                let problem = Problem::new(LISTENERS_NOT_VALID, message);
                Condition::unless(ACCEPTED, ACCEPTED, Some(&problem))
            }
        }
    }

    fn programmed(&self) -> Condition {
        let problem = match self.is_served() {
            true => programmed::gateway(self.object, self.front),
            false => Some(Problem::new("Invalid", "nothing is served")),
        };
        Condition::unless(PROGRAMMED, PROGRAMMED, problem.as_ref())
    }

    /// Why a ListenerSet is not accepted.
    fn set_problem(&self, index: usize, set: &SetPlan<'_>) -> Option<Problem> {
        if set.refused.is_some() {
            return set.refused.clone();
        }
        if self.refused.is_some() {
            let message = "the Gateway is not accepted";
            return Some(Problem::new("ParentNotAccepted", message));
        }
        let is_served = self.of(Owner::Set(index)).any(ListenerPlan::is_served);
        let message = "none of the listeners can be served";
        (!is_served).then(|| Problem::new(LISTENERS_NOT_VALID, message))
    }

    pub(super) fn set_verdicts(&self) -> BTreeMap<Key, ListenerSetVerdict> {
        let verdicts = self.sets.iter().enumerate().map(|(index, set)| {
            let problem = self.set_problem(index, set);
            let bad = self.of(Owner::Set(index)).any(|one| !one.is_served());
            let reason = if bad { LISTENERS_NOT_VALID } else { ACCEPTED };
            let accepted = Condition::unless(ACCEPTED, reason, problem.as_ref());
            let pending = || programmed::acknowledged(self.front, self.acknowledged(set));
            let problem = problem.or_else(pending);
            let verdict = ListenerSetVerdict {
                generation: set.object.meta.generation,
                conditions: vec![
                    accepted,
                    Condition::unless(PROGRAMMED, PROGRAMMED, problem.as_ref()),
                ],
                listeners: self.listeners_of(Owner::Set(index)),
            };
            (set.object.meta.key(), verdict)
        });
        verdicts.collect()
    }

    /// Whether a proxy has acknowledged a ListenerSet as it is.
    fn acknowledged(&self, set: &SetPlan<'_>) -> bool {
        let known = self
            .front
            .and_then(|front| front.sets.get(&set.object.meta.key()));
        known.is_some_and(|known| *known >= set.object.meta.generation)
    }

    fn listeners_of(&self, owner: Owner) -> Vec<ListenerVerdict> {
        self.of(owner)
            .map(|one| self.listener_verdict(one))
            .collect()
    }

    fn listener_verdict(&self, listener: &ListenerPlan<'_>) -> ListenerVerdict {
        let refused = listener.refused.as_ref();
        let problem = listener.conflict.as_ref().or(refused);
        let no_conflict = Condition {
            holds: false,
            ..Condition::holds(CONFLICTED, "NoConflicts")
        };
        let conflicted = listener.conflict.as_ref().map_or(no_conflict, |conflict| {
            Condition::holds(CONFLICTED, conflict.reason).saying(&conflict.message)
        });
        let programmed = self.listener_programmed(listener);
        let kinds = listener.kinds.iter().map(|kind| KindReference {
            group: Some(GROUP.to_owned()),
            kind: kind.as_str().to_owned(),
        });
        ListenerVerdict {
            name: listener.spec.name.clone(),
            supported_kinds: kinds.collect(),
            attached_routes: listener.attached.len(),
            conditions: vec![
                Condition::unless(ACCEPTED, ACCEPTED, problem),
                Condition::unless(PROGRAMMED, PROGRAMMED, programmed.as_ref()),
                Condition::unless(RESOLVED, RESOLVED, listener.unresolved.as_ref()),
                conflicted,
            ],
        }
    }

    /// Why proxies do not serve a listener.
    fn listener_programmed(&self, listener: &ListenerPlan<'_>) -> Option<Problem> {
        const INVALID: &str = "Invalid";
        if listener.conflict.is_some() {
            return listener.conflict.clone();
        }
        if self.refused.is_some() || !listener.is_served() {
            let message = "it is not served, as other conditions say";
            return Some(Problem::new(INVALID, message));
        }
        let front = self.front;
        let rejected = front.and_then(|front| front.rejected.get(&listener.spec.port));
        if let Some(reason) = rejected {
            return Some(Problem::new(
                INVALID,
                format!("proxies refuse it: {reason}"),
            ));
        }
        let is_acknowledged = match listener.owner {
            Owner::Gateway => {
                front.is_some_and(|front| front.generation >= self.object.meta.generation)
            }
            Owner::Set(index) => self.acknowledged(&self.sets[index]),
        };
        programmed::acknowledged(front, is_acknowledged)
    }
}
