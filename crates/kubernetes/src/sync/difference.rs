//! Computes the calls that bring the catalog to the wanted state of one pod. Pure. Created, changed
//! and deleted pods are treated alike: the actual state is compared with the wanted one.

use std::collections::{BTreeMap, BTreeSet};

use legate_model::DEFAULT_TENANCY;
use serde_json::{Value, json};

use super::catalog::{Catalog, Id, Instance};
use super::facts::{Key, Pod};
use super::registration::{Registration, VirtualIp, check, status};
use super::wanted::{Reason, Wanted};

/// A request to the servers, or a few that belong together.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Creates a namespace of the mesh if it does not exist.
    Namespace(String),
    /// Writes an instance and its check.
    Register(Box<Registration>),
    /// Writes the status of the checks of a pod's instances, in one request.
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
    /// Assigns a virtual IP to a service.
    VirtualIp(VirtualIp),
    /// Removes an instance.
    Deregister {
        /// The catalog's node.
        node: String,
        /// The instance.
        id: Id,
    },
    /// Removes the tokens of a deleted pod.
    RemoveTokens {
        /// The service of the tokens' identity.
        service: String,
        /// Their namespace; empty if namespaces are not used.
        namespace: String,
        /// The pod.
        pod: Key,
        /// Its uid.
        uid: String,
    },
}

impl Call {
    /// The catalog node that the call changes.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Call::Register(registration) => Some(&registration.node),
            Call::Checks { node, .. } | Call::Deregister { node, .. } => Some(node),
            Call::Namespace(_) | Call::VirtualIp(_) | Call::RemoveTokens { .. } => None,
        }
    }

    /// Whether the call adds something. If such a call is refused, the calls after it are skipped,
    /// because a proxy is useless without its service.
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

/// The work for one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The calls, in this order.
    pub calls: Vec<Call>,
    /// An event for users.
    pub reason: Option<Reason>,
    /// Whether the pod is retried without a further change.
    pub again: bool,
}

/// Known state of the servers apart from instances.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Virtual IPs by namespace and service.
    pub virtual_ips: BTreeMap<(String, String), String>,
    /// Namespaces.
    pub namespaces: BTreeSet<String>,
}

impl Known {
    /// Whether a service has this virtual IP.
    fn has(&self, virtual_ip: &VirtualIp) -> bool {
        self.virtual_ips.get(&virtual_ip.place()) == Some(&virtual_ip.address)
    }

    /// The call that creates a namespace, if it may not exist.
    fn missing(&self, namespace: &str) -> Option<Call> {
        let there = namespace.is_empty()
            || namespace == DEFAULT_TENANCY
            || self.namespaces.contains(namespace);
        (!there).then(|| Call::Namespace(namespace.to_owned()))
    }
}

/// The plan for the pod of `key`; `pod` is `None` if it does not exist.
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
        // Instances of this very pod stay; those of an earlier pod are removed.
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

/// The event if a foreign instance has the id of a wanted one.
fn taken(key: &Key, wanted: &Registration, catalog: &Catalog) -> Option<Reason> {
    let instance = catalog.instance(&wanted.node, &wanted.id)?;
    if instance.owner.as_ref() == Some(key) {
        return None;
    }
    // An unmarked instance of this very pod: consul-k8s wrote it before the pod was handed over.
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
            "The catalog already has an instance {:?} on node {:?}, which belongs to {of}: give the \
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
        // After the service, which has to exist, and before its proxies, which then have the
        // address at once.
        if let Some(virtual_ip) = virtual_ip.take() {
            calls.push(Call::VirtualIp(virtual_ip));
        }
    }
    if let Some(first) = stale.first() {
        let ids = stale.iter().map(|wanted| wanted.id.clone()).collect();
        calls.insert(0, checks(pod, &first.node, ids));
    }
}

/// One request for all checks of a pod, so that its instances change together.
fn checks(pod: &Pod, node: &str, ids: Vec<Id>) -> Call {
    let list: Vec<Value> = ids.iter().map(|id| check(pod, id)).collect();
    Call::Checks {
        node: node.to_owned(),
        status: status(pod),
        body: json!({"Node": node, "SkipNodeUpdate": true, "Checks": list}),
        ids,
    }
}

/// Keeps the pod's existing instances and only updates their health.
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

/// Removes unwanted instances, proxies first, because callers connect to those.
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
