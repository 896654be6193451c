//! `service-resolver`: selects the instances that serve a service's requests, with failover.

mod load_balancer;

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use crate::instance::CheckServiceNode;
use crate::invalid::Invalid;
use crate::locality::PrioritizeByLocality;
use crate::name::{self, WILDCARD};
use crate::schema;
use crate::tenancy::{NotServed, ServiceName, ServiceReference, Tenancy, TenancyName};
use crate::{duration, meta};

pub use load_balancer::{
    CookieConfig, HashField, HashPolicy, LeastRequestConfig, LoadBalancer, LoadBalancerPolicy,
    RingHashConfig,
};

/// The maximum number of subsets, failovers and targets of a failover; each is a cluster in every
/// caller's proxy.
const MAX_PARTS: usize = 100;

/// The maximum length of a subset's name, which is a label of a server name.
const MAX_SUBSET_NAME: usize = 63;

entry! {
    /// Selects the instances that serve a service's requests.
    #[derive(JsonSchema)]
    #[schemars(extend("x-kubernetes-validations" = [
        schema::rule(
            "!(has(self.redirect) && {failover})",
            "only one of redirect and failover can be given",
        ),
    ]))]
    pub struct ServiceResolver {
        /// Name of the service.
        pub name: String,
        /// Subset for requests without one; empty means all instances.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub default_subset: String,
        /// Subsets of the instances, by name.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        #[schemars(extend("maxProperties" = 256))]
        pub subsets: BTreeMap<String, Subset>,
        /// Redirect to another service or subset.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub redirect: Option<Redirect>,
        /// Failover by subset; `*` applies to all other subsets.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        #[schemars(extend("maxProperties" = 256))]
        pub failover: BTreeMap<String, Failover>,
        /// Whether callers prefer nearby instances; if unset, that of `proxy-defaults`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub prioritize_by_locality: Option<PrioritizeByLocality>,
        /// Connect timeout; 0 means 5 seconds.
        #[serde(with = "duration::text", skip_serializing_if = "Duration::is_zero")]
        #[schemars(with = "duration::Unsigned")]
        pub connect_timeout: Duration,
        /// Request timeout; 0 means Envoy's 15 seconds.
        #[serde(with = "duration::text", skip_serializing_if = "Duration::is_zero")]
        #[schemars(with = "duration::Unsigned")]
        pub request_timeout: Duration,
        /// Load balancing between instances.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub load_balancer: Option<LoadBalancer>,
    }
}

/// A subset of a service's instances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct Subset {
    /// Filter expression over instances; empty selects all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter: String,
    /// Whether instances with warning checks are excluded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_passing: bool,
}

/// Target that replaces a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "{service} || {datacenter} || {samenessGroup}",
        "a redirect needs service, datacenter or samenessGroup",
    ),
    schema::rule(
        "!{peer} || !({serviceSubset} || {partition} || {datacenter})",
        "peer cannot be given with serviceSubset, partition or datacenter",
    ),
]))]
pub struct Redirect {
    /// Name of the target service; empty means the same service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Subset of the target; empty means its default subset.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_subset: String,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Datacenter of the target; empty means the same datacenter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datacenter: String,
    /// Cluster peer that the target is imported from; empty means none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// Refused: sameness groups are not served.
    #[serde(skip_serializing)]
    #[schemars(with = "String")]
    pub sameness_group: NotServed,
}

/// Failover targets, in order. One of `service` (with `service_subset`), `datacenters` and `targets`
/// is set, or the first two together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "!{targets} || !({datacenters} || {service} || {serviceSubset})",
        "targets cannot be given with datacenters, service or serviceSubset",
    ),
    schema::rule(
        "has(self.service) || has(self.serviceSubset) || has(self.namespace) || \
         has(self.datacenters) || has(self.targets) || has(self.policy) || \
         has(self.samenessGroup)",
        "a failover needs a destination",
    ),
]))]
pub struct Failover {
    /// Name of the target service; empty means the same service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Subset of the target; empty means its default subset.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_subset: String,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Datacenters to fail over to, with the same service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1)))]
    pub datacenters: Vec<String>,
    /// Explicit targets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub targets: Vec<FailoverTarget>,
    /// Order of the targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<FailoverPolicy>,
    /// Refused: sameness groups are not served.
    #[serde(skip_serializing)]
    #[schemars(with = "String")]
    pub sameness_group: NotServed,
}

/// One target of a failover.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "!{peer} || !({serviceSubset} || {partition} || {datacenter})",
        "peer cannot be given with serviceSubset, partition or datacenter",
    ),
]))]
pub struct FailoverTarget {
    /// Name of the target service; empty means the same service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Subset of the target; empty means its default subset.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_subset: String,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Datacenter of the target; empty means the same datacenter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datacenter: String,
    /// Cluster peer that the target is imported from; empty means none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer: String,
}

/// Order of failover targets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct FailoverPolicy {
    /// The order.
    pub mode: FailoverMode,
    /// Refused: regions are not served.
    #[serde(skip_serializing)]
    #[schemars(with = "Vec<String>", length(max = 64))]
    pub regions: NotServed,
}

/// Order of failover targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailoverMode {
    /// Unset, which means as listed.
    #[default]
    #[serde(rename = "")]
    Default,
    /// As listed.
    Sequential,
    /// Nearest first.
    OrderByLocality,
}

impl ServiceResolver {
    /// Whether a subset of this name exists; the empty name, for all instances, always does.
    pub fn has_subset(&self, name: &str) -> bool {
        name.is_empty() || self.subsets.contains_key(name)
    }

    /// Whether the entry is equivalent to having none.
    pub fn is_default(&self) -> bool {
        self.default_subset.is_empty()
            && self.subsets.is_empty()
            && self.redirect.is_none()
            && self.failover.is_empty()
            && self.connect_timeout.is_zero()
            && self.request_timeout.is_zero()
            && self.load_balancer.is_none()
            && self.prioritize_by_locality.is_none()
    }

    /// The paths of redirects and failover to other datacenters. They are accepted, as in Consul.
    /// On a server without a port for servers, targets there have no instances, so requests go to the next target if
    /// there is one.
    pub fn other_datacenters(&self, local: &str) -> Vec<String> {
        let mut paths = Vec::new();
        let redirect = self.redirect.as_ref();
        if redirect.is_some_and(|redirect| !is_here(&redirect.datacenter, local)) {
            paths.push("Redirect.Datacenter".to_owned());
        }
        for (subset, failover) in &self.failover {
            let datacenters = failover.datacenters.iter().enumerate();
            let elsewhere = datacenters.filter(|(_, other)| !is_here(other, local));
            paths.extend(elsewhere.map(|(at, _)| format!("Failover.{subset}.Datacenters[{at}]")));
            let targets = failover.targets.iter().enumerate();
            let elsewhere = targets.filter(|(_, target)| !is_here(&target.datacenter, local));
            let path = |(at, _)| format!("Failover.{subset}.Targets[{at}].Datacenter");
            paths.extend(elsewhere.map(path));
        }
        paths
    }

    /// Checks that the subset exists if the target is this service.
    fn validate_subset(&self, to: ServiceReference<'_>, subset: &str) -> Result<(), Invalid> {
        let own = ServiceName::new(&Tenancy::new(&self.partition, &self.namespace), &self.name);
        if to.resolve(&own) == own && !self.has_subset(subset) {
            return Err(Invalid::new(
                "ServiceSubset",
                format!("{subset:?} is not a valid subset of {:?}", self.name),
            ));
        }
        Ok(())
    }

    fn validate_subsets(&self) -> Result<(), Invalid> {
        if self.subsets.len() > MAX_PARTS {
            let reason = format!("at most {MAX_PARTS} subsets can be given");
            return Err(Invalid::new("Subsets", reason));
        }
        for (name, subset) in &self.subsets {
            validate_subset_name(name).map_err(|error| error.within("Subsets"))?;
            if let Err(error) = CheckServiceNode::filter(&subset.filter) {
                let reason =
                    format!("Filter for subset {name:?} is not a valid expression: {error}");
                return Err(Invalid::new("Subsets", reason));
            }
        }
        if !self.has_subset(&self.default_subset) {
            return Err(Invalid::new(
                "DefaultSubset",
                format!("{:?} is not a valid subset", self.default_subset),
            ));
        }
        Ok(())
    }

    fn validate_redirect(&self, redirect: &Redirect) -> Result<(), Invalid> {
        if !self.failover.is_empty() {
            let reason = "Redirect and Failover cannot both be set";
            return Err(Invalid::new("Redirect", reason));
        }
        let r = redirect;
        let named = [&r.service, &r.service_subset, &r.datacenter, &r.peer];
        let tenancy = [("Namespace", &r.namespace), ("Partition", &r.partition)];
        if named.iter().all(|text| text.is_empty())
            && tenancy.iter().all(|(_, name)| name.is_empty())
        {
            return Err(Invalid::new("Redirect", "it is empty: leave it out"));
        }
        if r.service.is_empty() && !r.service_subset.is_empty() {
            return Err(Invalid::new(
                "Redirect.ServiceSubset",
                "it is defined without Redirect.Service",
            ));
        }
        for (field, name) in tenancy {
            let without = name.is_empty() || !r.service.is_empty();
            validate_redirect_tenancy(field, name, without, &r.peer)?;
        }
        self.validate_datacenter("redirect", &r.datacenter, &r.partition)
            .map_err(|reason| Invalid::new("Redirect.Datacenter", reason))?;
        let placed = [&r.service_subset, &r.datacenter];
        if !r.peer.is_empty() && placed.iter().any(|text| !text.is_empty()) {
            let reason = "it cannot be set with Redirect.ServiceSubset or Redirect.Datacenter";
            return Err(Invalid::new("Redirect.Peer", reason));
        }
        if !r.peer.is_empty() && r.service.is_empty() {
            let reason = "it is defined without Redirect.Service";
            return Err(Invalid::new("Redirect.Peer", reason));
        }
        validate_destination(&r.service).map_err(|error| error.within("Redirect"))?;
        let to = ServiceReference {
            service: &r.service,
            partition: &r.partition,
            namespace: &r.namespace,
        };
        self.validate_subset(to, &r.service_subset)
            .map_err(|error| error.within("Redirect"))
    }

    /// Targets in another datacenter cannot have a partition. With Consul's error texts.
    fn validate_datacenter(
        &self,
        what: &str,
        datacenter: &str,
        partition: &TenancyName,
    ) -> Result<(), String> {
        let own = Tenancy::new(&self.partition, &self.namespace);
        if datacenter.is_empty() {
            return Ok(());
        }
        if !own.is_default_partition() {
            return Err(format!(
                "Cross-datacenter {what} is only supported in the default partition"
            ));
        }
        match own.resolve(partition, TenancyName::NONE).partition == own.partition {
            true => Ok(()),
            false => Err(format!(
                "Cross-datacenter and cross-partition {what} is not supported"
            )),
        }
    }

    fn validate_failover(&self, subset: &str, failover: &Failover) -> Result<(), Invalid> {
        let f = failover;
        if subset != WILDCARD && (subset.is_empty() || !self.has_subset(subset)) {
            let reason = format!("{subset:?} is not a valid subset");
            return Err(Invalid::new("", reason));
        }
        let single =
            !f.service.is_empty() || !f.service_subset.is_empty() || !f.namespace.is_empty();
        if !single && f.datacenters.is_empty() && f.targets.is_empty() {
            return Err(Invalid::new(
                "",
                "one of Service, ServiceSubset, Namespace, Targets, or Datacenters is required",
            ));
        }
        if !f.targets.is_empty() && (single || !f.datacenters.is_empty()) {
            return Err(Invalid::new(
                "Targets",
                "it cannot be set with Service, ServiceSubset, Namespace or Datacenters",
            ));
        }
        if f.targets.len().max(f.datacenters.len()) > MAX_PARTS {
            let reason = format!("at most {MAX_PARTS} can be given");
            return Err(Invalid::new("Targets", reason));
        }
        if f.datacenters.iter().any(String::is_empty) {
            return Err(Invalid::new("Datacenters", "found empty datacenter"));
        }
        validate_destination(&f.service)?;
        validate_single(&f.namespace).map_err(|reason| Invalid::new("Namespace", reason))?;
        for datacenter in &f.datacenters {
            self.validate_datacenter("failover", datacenter, TenancyName::NONE)
                .map_err(|reason| Invalid::new("Datacenters", reason))?;
        }
        let to = ServiceReference {
            service: &f.service,
            partition: TenancyName::NONE,
            namespace: &f.namespace,
        };
        self.validate_subset(to, &f.service_subset)?;
        for (at, target) in f.targets.iter().enumerate() {
            let within = |error: Invalid| error.within(format_args!("Targets[{at}]"));
            let placed = [&target.service_subset, &target.datacenter];
            if !target.peer.is_empty() && placed.iter().any(|text| !text.is_empty()) {
                let reason = "it cannot be set with ServiceSubset or Datacenter";
                return Err(within(Invalid::new("Peer", reason)));
            }
            let partition = &target.partition;
            for (other, field) in [(&target.peer, "Peer"), (&target.datacenter, "Datacenter")] {
                if !other.is_empty() && !partition.is_empty() {
                    let reason = format!("it cannot be set with {field}");
                    return Err(within(Invalid::new("Partition", reason)));
                }
            }
            self.validate_datacenter("failover", &target.datacenter, TenancyName::NONE)
                .map_err(|reason| within(Invalid::new("Datacenter", reason)))?;
            validate_destination(&target.service).map_err(within)?;
            for (field, name) in [("Namespace", &target.namespace), ("Partition", partition)] {
                validate_single(name).map_err(|reason| within(Invalid::new(field, reason)))?;
            }
            let to = ServiceReference {
                service: &target.service,
                partition,
                namespace: &target.namespace,
            };
            self.validate_subset(to, &target.service_subset)
                .map_err(within)?;
        }
        Ok(())
    }
}

/// Whether a datacenter is the server's own; empty means that it is.
fn is_here(datacenter: &str, local: &str) -> bool {
    datacenter.is_empty() || datacenter.eq_ignore_ascii_case(local)
}

/// Validates that a target's namespace or partition is not a wildcard.
pub(super) fn validate_single(name: &TenancyName) -> Result<(), &'static str> {
    match name.is_every() {
        true => Err("\"*\" is not allowed here: name one"),
        false => Ok(()),
    }
}

fn validate_redirect_tenancy(
    field: &str,
    name: &TenancyName,
    is_placed: bool,
    peer: &str,
) -> Result<(), Invalid> {
    let refused = |reason| Err(Invalid::new(format!("Redirect.{field}"), reason));
    if !is_placed {
        return refused("it is defined without Redirect.Service");
    }
    if field == "Partition" && !name.is_empty() && !peer.is_empty() {
        return refused("it cannot be set with Redirect.Peer");
    }
    match validate_single(name) {
        Ok(()) => Ok(()),
        Err(reason) => refused(reason),
    }
}

/// Validates a target service; empty means the entry's own service.
pub(super) fn validate_destination(service: &str) -> Result<(), Invalid> {
    if service.is_empty() {
        return Ok(());
    }
    name::validate_service_name(service).map_err(|error| Invalid::new("Service", error.to_string()))
}

fn validate_subset_name(subset: &str) -> Result<(), Invalid> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let edges = !subset.starts_with('-') && !subset.ends_with('-');
    if subset.is_empty() || subset.len() > MAX_SUBSET_NAME || !edges || !subset.chars().all(inner) {
        return Err(Invalid::new(
            format!("{subset:?}"),
            "a subset's name has 1 to 63 lower case letters, digits and inner hyphens",
        ));
    }
    Ok(())
}

impl Entry for ServiceResolver {
    const RIGHTS: EntryRights = EntryRights::Service;

    fn destinations(&self) -> Vec<ServiceReference<'_>> {
        let redirect = self.redirect.iter().map(|to| ServiceReference {
            service: &to.service,
            partition: &to.partition,
            namespace: &to.namespace,
        });
        let failover = self.failover.values().flat_map(|failover| {
            let targets = failover.targets.iter().map(|target| ServiceReference {
                service: &target.service,
                partition: &target.partition,
                namespace: &target.namespace,
            });
            targets.chain([ServiceReference {
                service: &failover.service,
                partition: TenancyName::NONE,
                namespace: &failover.namespace,
            }])
        });
        redirect.chain(failover).collect()
    }

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)?;
        self.validate_subsets()?;
        if let Some(redirect) = &self.redirect {
            self.validate_redirect(redirect)?;
        }
        for (subset, failover) in &self.failover {
            self.validate_failover(subset, failover)
                .map_err(|error| error.within(format_args!("Failover[{subset:?}]")))?;
        }
        match &self.load_balancer {
            Some(balancer) => balancer
                .validate()
                .map_err(|error| error.within("LoadBalancer")),
            None => Ok(()),
        }
    }
}
