//! BackendTLSPolicies: which one holds for a port of a Service, and how it is called then.

use std::collections::{BTreeMap, BTreeSet};

use legate_routes::{AltName, Authorities, BackendTls, is_host};

use super::lookup::{Lookup, Reasons, Referrer};
use crate::condition::{ACCEPTED, Condition, Problem, RESOLVED};
use crate::object::{Key, Object};
use crate::outcome::{AncestorVerdict, MAX_ANCESTORS, PolicyVerdict};
use crate::types::{BackendTlsPolicy, GROUP, ObjectReference};

/// A Service, and the name of one of its ports or all of them.
type Target = (Key, Option<String>);

/// The policies.
pub(super) struct Policies<'a> {
    /// The oldest first.
    all: Vec<Policy<'a>>,
    /// The policies that hold.
    by_target: BTreeMap<Target, usize>,
}

struct Policy<'a> {
    object: &'a Object<BackendTlsPolicy>,
    targets: BTreeSet<Target>,
    /// Why not all authorities can be used.
    unresolved: Option<Problem>,
    /// How backends are called, or why they are not.
    tls: Result<BackendTls, Problem>,
    /// Whether an older policy holds for one of its targets.
    is_conflicted: bool,
}

impl<'a> Policies<'a> {
    pub(super) fn new(lookup: &Lookup<'a>) -> Self {
        let mut sorted: Vec<_> = lookup.world.policies.iter().collect();
        sorted.sort_by_key(|object| object.meta.age());
        let mut by_target = BTreeMap::new();
        let mut all = Vec::new();
        for (at, object) in sorted.into_iter().enumerate() {
            let mut policy = policy(lookup, object);
            for target in &policy.targets {
                // A policy that cannot be applied holds as well: without it, the backend would be
                // called in another way than its owner wants.
                let holds = *by_target.entry(target.clone()).or_insert(at) == at;
                policy.is_conflicted |= !holds;
            }
            all.push(policy);
        }
        Self { all, by_target }
    }

    /// How a port of a Service is called by TLS; `None` if no policy holds for it, and an error if
    /// it cannot be called.
    pub(super) fn of(&self, service: &Key, port: &str) -> Option<Result<&BackendTls, &Problem>> {
        let of_port = self
            .by_target
            .get(&(service.clone(), Some(port.to_owned())));
        let of_all = || self.by_target.get(&(service.clone(), None));
        let policy = &self.all[*of_port.or_else(of_all)?];
        Some(policy.tls.as_ref())
    }

    /// What is said of each policy. `users`: the gateways, the oldest first, with the Services to
    /// which their routes lead.
    pub(super) fn verdicts(&self, users: &[(Key, BTreeSet<Key>)]) -> BTreeMap<Key, PolicyVerdict> {
        let verdicts = self.all.iter().filter_map(|policy| {
            let is_used = |services: &BTreeSet<Key>| {
                let mut targets = policy.targets.iter();
                targets.any(|(service, _)| services.contains(service))
            };
            let concerned = users.iter().filter(|(_, services)| is_used(services));
            let ancestors = concerned
                .take(MAX_ANCESTORS)
                .map(|(gateway, _)| AncestorVerdict {
                    gateway: gateway.clone(),
                    conditions: policy.conditions(),
                });
            let ancestors: Vec<_> = ancestors.collect();
            let verdict = PolicyVerdict {
                generation: policy.object.meta.generation,
                ancestors,
            };
            (!verdict.ancestors.is_empty()).then(|| (policy.object.meta.key(), verdict))
        });
        verdicts.collect()
    }
}

impl Policy<'_> {
    fn conditions(&self) -> Vec<Condition> {
        let message = "an older BackendTLSPolicy has the same target";
        let conflict = Problem::new("Conflicted", message);
        let conflict = self.is_conflicted.then_some(&conflict);
        let problem = conflict.or(self.tls.as_ref().err());
        vec![
            Condition::unless(ACCEPTED, ACCEPTED, problem),
            Condition::unless(RESOLVED, RESOLVED, self.unresolved.as_ref()),
        ]
    }
}

fn policy<'a>(lookup: &Lookup<'_>, object: &'a Object<BackendTlsPolicy>) -> Policy<'a> {
    let targets = object.spec.target_refs.iter();
    let services = targets.filter(|one| one.group.is_empty() && one.kind == "Service");
    let targets = services.map(|one| {
        let key = Key::new(&object.meta.namespace, &one.name);
        (key, one.section_name.clone())
    });
    let mut unresolved = None;
    let authorities = authorities(lookup, object, &mut unresolved);
    Policy {
        object,
        targets: targets.collect(),
        tls: authorities.and_then(|authorities| tls(object, authorities)),
        unresolved,
        is_conflicted: false,
    }
}

fn invalid(message: impl Into<String>) -> Problem {
    Problem::new("Invalid", message)
}

fn authorities(
    lookup: &Lookup<'_>,
    object: &Object<BackendTlsPolicy>,
    unresolved: &mut Option<Problem>,
) -> Result<Authorities, Problem> {
    let validation = &object.spec.validation;
    match validation.well_known_ca_certificates.as_deref() {
        Some("System") => return Ok(Authorities::OfSystem),
        None | Some("") => {}
        Some(other) => {
            let message = format!("validation.wellKnownCACertificates: {other:?} is not served");
            return Err(invalid(message));
        }
    }
    let from = Referrer {
        group: GROUP,
        kind: "BackendTLSPolicy",
        namespace: &object.meta.namespace,
    };
    let reasons = Reasons {
        kind: "InvalidKind",
        object: "InvalidCACertificateRef",
    };
    let mut pem = String::new();
    for reference in &validation.ca_certificate_refs {
        let reference = ObjectReference {
            group: Some(reference.group.clone()),
            kind: Some(reference.kind.clone()),
            name: reference.name.clone(),
            namespace: None,
        };
        match lookup.authorities(from, &reference, reasons) {
            Ok(one) => {
                pem.push_str(one.trim_end());
                pem.push('\n');
            }
            Err(problem) => {
                unresolved.get_or_insert(problem);
            }
        }
    }
    if pem.is_empty() {
        let message = "no certificate of an authority is left with which to verify backends";
        return Err(Problem::new("NoValidCACertificate", message));
    }
    Ok(Authorities::Pem(pem))
}

fn tls(object: &Object<BackendTlsPolicy>, authorities: Authorities) -> Result<BackendTls, Problem> {
    if let Some(error) = &object.broken {
        return Err(invalid(format!("spec cannot be read: {error}")));
    }
    if let Some(path) = object.unserved.first() {
        return Err(invalid(format!("spec.{path} is not served")));
    }
    let validation = &object.spec.validation;
    if !is_host(&validation.hostname) {
        let message = format!(
            "validation.hostname: {:?} is not a host",
            validation.hostname
        );
        return Err(invalid(message));
    }
    let mut names = Vec::new();
    for name in &validation.subject_alt_names {
        let (host, uri) = (name.hostname.as_ref(), name.uri.as_ref());
        names.push(match (name.r#type.as_str(), host, uri) {
            ("Hostname", Some(host), _) if is_host(host) => AltName::Host(host.clone()),
            ("URI", _, Some(uri)) if !uri.is_empty() => AltName::Uri(uri.clone()),
            (other, ..) => {
                let message = format!("validation.subjectAltNames: {other:?} is not served");
                return Err(invalid(message));
            }
        });
    }
    if names.is_empty() {
        names.push(AltName::Host(validation.hostname.clone()));
    }
    Ok(BackendTls {
        server_name: validation.hostname.clone(),
        authorities,
        names,
        presented: None,
    })
}
