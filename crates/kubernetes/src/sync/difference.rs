//! The calls that make the catalog say what is wanted of one pod. Pure, and the same for a pod that
//! came, changed or went: what stands is compared with what should.

use std::collections::{BTreeMap, BTreeSet};

use legate_model::DEFAULT_TENANCY;
use serde_json::{Value, json};

use super::catalog::{Catalog, Id, Instance};
use super::facts::{Key, Pod};
use super::registration::{Registration, VirtualIp, check, status};
use super::wanted::{Reason, Wanted};

/// One request to the servers, or a few that belong together.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Makes a namespace of the mesh where there is none.
    Namespace(String),
    /// Writes an instance and its check.
    Register(Box<Registration>),
    /// Writes the status of checks of one pod's instances, all at once.
    Checks {
        /// The catalog's node.
        node: String,
        /// The instances.
        ids: Vec<Id>,
        /// Their status.
        status: &'static str,
        /// The body of `PUT /v1/catalog/register`.
        body: Value,
    },
    /// Gives a service a virtual IP.
    VirtualIp(VirtualIp),
    /// Removes an instance.
    Deregister {
        /// The catalog's node.
        node: String,
        /// The instance.
        id: Id,
    },
    /// Removes the tokens that a pod has left behind.
    RemoveTokens {
        /// The service whose identity they have.
        service: String,
        /// The namespace that they are in; empty where namespaces are not used.
        namespace: String,
        /// The pod.
        pod: Key,
        /// Its uid.
        uid: String,
    },
}

impl Call {
    /// The catalog's node that it changes.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Call::Register(registration) => Some(&registration.node),
            Call::Checks { node, .. } | Call::Deregister { node, .. } => Some(node),
            Call::Namespace(_) | Call::VirtualIp(_) | Call::RemoveTokens { .. } => None,
        }
    }

    /// Whether it adds something. Where one of these is refused, those after it are not made: a
    /// proxy is of no use without its service.
    #[must_use]
    pub fn adds(&self) -> bool {
        match self {
            Call::Namespace(_) | Call::Register(_) | Call::Checks { .. } | Call::VirtualIp(_) => {
                true
            }
            Call::Deregister { .. } | Call::RemoveTokens { .. } => false,
        }
    }
}

/// What to do for one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In this order.
    pub calls: Vec<Call>,
    /// Something for people to know.
    pub reason: Option<Reason>,
    /// Whether it is to be looked at again although nothing happens.
    pub again: bool,
}

/// What the servers are known to have besides instances.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Virtual IPs by namespace and service.
    pub virtual_ips: BTreeMap<(String, String), String>,
    /// Namespaces.
    pub namespaces: BTreeSet<String>,
}

impl Known {
    /// Whether a service has just this virtual IP.
    fn has(&self, virtual_ip: &VirtualIp) -> bool {
        self.virtual_ips.get(&virtual_ip.place()) == Some(&virtual_ip.address)
    }

    /// The call for a namespace that may not be there.
    fn missing(&self, namespace: &str) -> Option<Call> {
        let there = namespace.is_empty()
            || namespace == DEFAULT_TENANCY
            || self.namespaces.contains(namespace);
        (!there).then(|| Call::Namespace(namespace.to_owned()))
    }
}

/// What is done for the pod of `key`, which is `pod` where it exists.
#[must_use]
pub fn plan(
    key: &Key,
    pod: Option<(&Pod, Wanted)>,
    catalog: &Catalog,
    tokens: bool,
    known: &Known,
) -> Plan {
    let mut plan = Plan::default();
    let (wanted, kept_uid) = match pod {
        None => (Vec::new(), None),
        Some((
            pod,
            Wanted::Instances {
                registrations,
                virtual_ip,
                remark,
            },
        )) => {
            plan.reason = remark;
            if let Some(taken) = registrations.iter().find_map(|r| taken(key, r, catalog)) {
                plan.reason = Some(taken);
                plan.again = true;
                (Vec::new(), Some(pod))
            } else {
                let virtual_ip = virtual_ip.filter(|virtual_ip| !known.has(virtual_ip));
                write(pod, &registrations, virtual_ip, catalog, &mut plan.calls);
                let first = registrations.first();
                let needed = first.and_then(|r| known.missing(&r.id.namespace));
                let registers = |call: &Call| matches!(call, Call::Register(_));
                if plan.calls.iter().any(registers) {
                    plan.calls.splice(0..0, needed);
                }
                (registrations, None)
            }
        }
        Some((_, Wanted::Nothing)) => (Vec::new(), None),
        // What is there of this very pod stays, and what was there of an earlier one goes.
        Some((pod, Wanted::Later { namespace })) => {
            // Its sidecar logs in there as soon as it runs.
            plan.calls.extend(known.missing(&namespace));
            (Vec::new(), Some(pod))
        }
        Some((pod, Wanted::Wrong(reason))) => {
            plan.reason = Some(reason);
            (Vec::new(), Some(pod))
        }
    };
    if let Some(pod) = kept_uid {
        keep(pod, catalog, &mut plan.calls);
    }
    let kept = |instance: &Instance| kept_uid.is_some_and(|pod| pod.uid == instance.uid);
    remove(key, &wanted, catalog, kept, tokens, &mut plan.calls);
    plan
}

/// Somebody else's instance stands where one of this pod should.
fn taken(key: &Key, wanted: &Registration, catalog: &Catalog) -> Option<Reason> {
    let instance = catalog.instance(&wanted.node, &wanted.id)?;
    if instance.owner.as_ref() == Some(key) {
        return None;
    }
    // Unmarked, and of this very pod: consul-k8s wrote it before the pod was handed over.
    if instance.owner.is_none() && instance.uid == wanted.instance.uid {
        return None;
    }
    let of = match &instance.owner {
        Some(owner) => format!("the pod {owner}"),
        None => "somebody else".to_owned(),
    };
    Some(Reason {
        reason: "NotRegistered",
        message: format!(
            "The catalog already has an instance {:?} on node {:?}, which is of {of}: give the \
             service or the pod another name, or deregister that instance",
            wanted.id.id, wanted.node
        ),
    })
}

fn write(
    pod: &Pod,
    registrations: &[Registration],
    mut virtual_ip: Option<VirtualIp>,
    catalog: &Catalog,
    calls: &mut Vec<Call>,
) {
    let mut stale: Vec<&Registration> = Vec::new();
    for wanted in registrations {
        let stands = catalog.instance(&wanted.node, &wanted.id);
        let same = stands.is_some_and(|stands| {
            stands.digest.is_some()
                && stands.digest == wanted.instance.digest
                && stands.status.is_some()
                && stands.owner == wanted.instance.owner
        });
        if !same {
            calls.push(Call::Register(Box::new(wanted.clone())));
        } else if stands.and_then(|stands| stands.status.as_deref()) != Some(status(pod)) {
            stale.push(wanted);
        }
        // The service has to exist, and its proxies should find the address at once.
        if let Some(virtual_ip) = virtual_ip.take() {
            calls.push(Call::VirtualIp(virtual_ip));
        }
    }
    if let Some(first) = stale.first() {
        let ids = stale.iter().map(|wanted| wanted.id.clone()).collect();
        calls.insert(0, checks(pod, &first.node, ids));
    }
}

/// One request for all checks of a pod: callers see its instances change together.
fn checks(pod: &Pod, node: &str, ids: Vec<Id>) -> Call {
    let list: Vec<Value> = ids.iter().map(|id| check(pod, id)).collect();
    Call::Checks {
        node: node.to_owned(),
        status: status(pod),
        body: json!({"Node": node, "SkipNodeUpdate": true, "Checks": list}),
        ids,
    }
}

/// What stands of this pod stays as it is, apart from its health.
fn keep(pod: &Pod, catalog: &Catalog, calls: &mut Vec<Call>) {
    let mut nodes: BTreeMap<&str, Vec<Id>> = BTreeMap::new();
    for ((node, id), instance) in catalog.of(&pod.key) {
        if instance.uid == pod.uid && instance.status.as_deref() != Some(status(pod)) {
            nodes.entry(node).or_default().push(id.clone());
        }
    }
    for (node, ids) in nodes {
        calls.push(checks(pod, node, ids));
    }
}

/// Removes what is not wanted, proxies first: callers are sent to those.
fn remove(
    key: &Key,
    wanted: &[Registration],
    catalog: &Catalog,
    kept: impl Fn(&Instance) -> bool,
    tokens: bool,
    calls: &mut Vec<Call>,
) {
    let mut removed: Vec<_> = Vec::new();
    let mut left: Vec<(String, String, String)> = Vec::new();
    for (place, instance) in catalog.of(key) {
        let stays = wanted
            .iter()
            .find(|r| (&r.node, &r.id) == (&place.0, &place.1));
        if stays.is_none() && !kept(instance) {
            removed.push(place);
        }
        let new_uid = stays.is_none_or(|r| r.instance.uid != instance.uid);
        if new_uid && !kept(instance) && !instance.uid.is_empty() {
            let service = instance.service.as_str();
            let service = service
                .strip_suffix("-sidecar-proxy")
                .unwrap_or(service)
                .to_owned();
            left.push((service, place.1.namespace.clone(), instance.uid.clone()));
        }
    }
    removed.sort_by_key(|(node, id)| (!id.id.ends_with("-sidecar-proxy"), node, id));
    calls.extend(removed.into_iter().map(|(node, id)| Call::Deregister {
        node: node.clone(),
        id: id.clone(),
    }));
    left.sort();
    left.dedup();
    if tokens {
        let removals = left.into_iter();
        calls.extend(
            removals.map(|(service, namespace, uid)| Call::RemoveTokens {
                service,
                namespace,
                pod: key.clone(),
                uid,
            }),
        );
    }
}
