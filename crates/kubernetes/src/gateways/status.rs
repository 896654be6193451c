//! The statuses of objects: what others have written, with the own verdict in its place. Pure.
//!
//! Conditions and entries of other controllers stay as they are, in their order. The time of a
//! condition changes with its status only.

use legate_gateway_api::types::{GatewayAddress, KindReference, ParentReference};
use legate_gateway_api::{
    ClassVerdict, Condition, GatewayVerdict, Key, ListenerSetVerdict, ListenerVerdict,
    PolicyVerdict, RouteVerdict,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::kinds::{GROUP, Kind};

/// Types of conditions that are removed if a verdict does not have them.
const OWN: [&str; 6] = [
    "Accepted",
    "Programmed",
    "ResolvedRefs",
    "Conflicted",
    "SupportedVersion",
    "InsecureFrontendValidationMode",
];

/// What is said of an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict<'a> {
    Class(&'a ClassVerdict),
    Gateway(&'a GatewayVerdict),
    ListenerSet(&'a ListenerSetVerdict),
    /// `None` if the route names no gateway of this controller.
    Route(Option<&'a RouteVerdict>),
    /// `None` if the policy concerns none.
    Policy(Option<&'a PolicyVerdict>),
}

/// Who writes, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer<'a> {
    /// The controller's name.
    pub(super) controller: &'a str,
    /// The time, as Kubernetes writes it.
    pub(super) now: &'a str,
}

impl Writer<'_> {
    /// The fields of the status of an object that change; `None` if none does.
    pub(super) fn change(self, status: &Value, verdict: Verdict<'_>) -> Option<Value> {
        let wanted = match verdict {
            Verdict::Class(verdict) => json!({
                "conditions": self.merged(status, verdict.generation, &verdict.conditions),
                "supportedFeatures": verdict.supported_features.iter()
                    .map(|name| json!({"name": name}))
                    .collect::<Vec<_>>(),
            }),
            Verdict::Gateway(verdict) => self.gateway(status, verdict),
            Verdict::ListenerSet(verdict) => json!({
                "conditions": self.merged(status, verdict.generation, &verdict.conditions),
                "listeners": self.listeners(status, verdict.generation, &verdict.listeners),
            }),
            Verdict::Route(verdict) => json!({"parents": self.parents(status, verdict)}),
            Verdict::Policy(verdict) => json!({"ancestors": self.ancestors(status, verdict)}),
        };
        let wanted = wanted.as_object().cloned().unwrap_or_default();
        let is_other = |(name, value): &(String, Value)| match &status[name] {
            Value::Null => !is_nothing(value),
            known => known != value,
        };
        let changed: Map<_, _> = wanted.into_iter().filter(is_other).collect();
        (!changed.is_empty()).then_some(Value::Object(changed))
    }

    fn gateway(self, status: &Value, verdict: &GatewayVerdict) -> Value {
        json!({
            "addresses": verdict.addresses.iter().map(address).collect::<Vec<_>>(),
            "attachedListenerSets": verdict.attached_listener_sets,
            "conditions": self.merged(status, verdict.generation, &verdict.conditions),
            "listeners": self.listeners(status, verdict.generation, &verdict.listeners),
        })
    }

    fn listeners(self, status: &Value, generation: i64, verdicts: &[ListenerVerdict]) -> Value {
        let known = status["listeners"].as_array();
        let entries = verdicts.iter().map(|verdict| {
            let mut known = known.into_iter().flatten();
            let known = known.find(|one| one["name"] == verdict.name.as_str());
            let known = known.unwrap_or(&Value::Null);
            json!({
                "name": verdict.name,
                "supportedKinds": verdict.supported_kinds.iter().map(kind).collect::<Vec<_>>(),
                "attachedRoutes": verdict.attached_routes,
                "conditions": self.merged(known, generation, &verdict.conditions),
            })
        });
        entries.collect()
    }

    fn parents(self, status: &Value, verdict: Option<&RouteVerdict>) -> Value {
        let (own, mut all) = self.entries(&status["parents"]);
        for parent in verdict.iter().flat_map(|verdict| &verdict.parents) {
            let reference = reference(&parent.parent);
            let known = own.iter().find(|one| one["parentRef"] == reference);
            let generation = verdict.map_or(0, |verdict| verdict.generation);
            all.push(json!({
                "parentRef": reference,
                "controllerName": self.controller,
                "conditions": self.all(known, generation, &parent.conditions),
            }));
        }
        Value::Array(all)
    }

    fn ancestors(self, status: &Value, verdict: Option<&PolicyVerdict>) -> Value {
        let (own, mut all) = self.entries(&status["ancestors"]);
        for ancestor in verdict.iter().flat_map(|verdict| &verdict.ancestors) {
            let reference = ancestor_reference(&ancestor.gateway);
            let known = own.iter().find(|one| one["ancestorRef"] == reference);
            let generation = verdict.map_or(0, |verdict| verdict.generation);
            all.push(json!({
                "ancestorRef": reference,
                "controllerName": self.controller,
                "conditions": self.all(known, generation, &ancestor.conditions),
            }));
        }
        Value::Array(all)
    }

    /// The own entries of a list, and those of other controllers.
    fn entries(self, list: &Value) -> (Vec<&Value>, Vec<Value>) {
        let list = list.as_array().into_iter().flatten();
        let (own, others): (Vec<_>, Vec<_>) =
            list.partition(|one| one["controllerName"] == self.controller);
        (own, others.into_iter().cloned().collect())
    }

    /// The conditions of an own entry.
    fn all(self, known: Option<&&Value>, generation: i64, conditions: &[Condition]) -> Value {
        let known = known.map_or(&Value::Null, |known| &known["conditions"]);
        let conditions = conditions.iter();
        conditions
            .map(|one| self.condition(known, generation, one))
            .collect()
    }

    /// The conditions of an object, with those of other types unchanged.
    fn merged(self, object: &Value, generation: i64, conditions: &[Condition]) -> Value {
        let known = &object["conditions"];
        let of = |name: &Value| conditions.iter().find(|one| *name == one.kind);
        let mut all = Vec::new();
        for one in known.as_array().into_iter().flatten() {
            match of(&one["type"]) {
                Some(own) => all.push(self.condition(known, generation, own)),
                None if OWN.iter().any(|name| one["type"] == *name) => {}
                None => all.push(one.clone()),
            }
        }
        for own in conditions {
            if !all.iter().any(|one| one["type"] == own.kind) {
                all.push(self.condition(known, generation, own));
            }
        }
        Value::Array(all)
    }

    fn condition(self, known: &Value, generation: i64, condition: &Condition) -> Value {
        let status = if condition.holds { "True" } else { "False" };
        let mut known = known.as_array().into_iter().flatten();
        let known = known.find(|one| one["type"] == condition.kind);
        let since = known.filter(|known| known["status"] == status);
        let since = since.and_then(|known| known["lastTransitionTime"].as_str());
        json!({
            "type": condition.kind,
            "status": status,
            "observedGeneration": generation,
            "lastTransitionTime": since.unwrap_or(self.now),
            "reason": condition.reason,
            "message": condition.message,
        })
    }
}

/// Whether a field that is not there says the same.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Number(number) => number.as_u64() == Some(0),
        _ => false,
    }
}

/// A reference as it is in the route: unset fields are left out.
fn reference(parent: &ParentReference) -> Value {
    without_nulls(parent)
}

fn address(address: &GatewayAddress) -> Value {
    json!({
        "type": address.r#type.as_deref().unwrap_or("IPAddress"),
        "value": address.value,
    })
}

fn kind(kind: &KindReference) -> Value {
    without_nulls(kind)
}

fn without_nulls(value: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(value).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

fn ancestor_reference(gateway: &Key) -> Value {
    json!({
        "group": GROUP,
        "kind": Kind::Gateway.as_str(),
        "namespace": gateway.namespace,
        "name": gateway.name,
    })
}

#[cfg(test)]
mod tests;
