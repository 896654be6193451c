//! `ServiceResolver`: which instances answer for a service.

use std::collections::BTreeMap;

use super::declaration::spec;
use super::parts::{FailoverPolicy, PrioritizeByLocality};
use super::values::{Period, rules};

const POLICIES: [&str; 6] = [
    "",
    "random",
    "round_robin",
    "least_request",
    "ring_hash",
    "maglev",
];

spec! {
    /// Which instances answer for a service.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "!(has(self.redirect) && has(self.failover) && size(self.failover) > 0)",
        "only one of redirect and failover can be given",
    )])))]
    ServiceResolverSpec {
        /// The subset that is used where none is asked for.
        default_subset: String,
        /// Subsets of the instances, by name.
        #[schemars(extend("maxProperties" = 256))]
        subsets: BTreeMap<String, Subset>,
        /// Another service that answers in its place.
        redirect: Redirect,
        /// Where requests go when no instance is healthy, by subset; `*` stands for every one.
        #[schemars(extend("maxProperties" = 256))]
        failover: BTreeMap<String, Failover>,
        /// Longest time to connect.
        connect_timeout: Period,
        /// Longest time for a request.
        request_timeout: Period,
        /// How an instance is chosen.
        load_balancer: LoadBalancer,
        /// Whether instances near by are preferred.
        prioritize_by_locality: PrioritizeByLocality,
    }

    /// A subset of a service's instances.
    Subset {
        /// The instances, as a filter expression such as `Service.Meta.version == v1`.
        filter: String,
        /// Leave out instances with a warning.
        only_passing: bool,
    }

    /// Another service that answers.
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        (
            "(has(self.service) && size(self.service) > 0) || \
             (has(self.datacenter) && size(self.datacenter) > 0) || \
             (has(self.samenessGroup) && size(self.samenessGroup) > 0)",
            "a redirect needs service, datacenter or samenessGroup",
        ),
        (
            "!(has(self.peer) && size(self.peer) > 0) || \
             !((has(self.serviceSubset) && size(self.serviceSubset) > 0) || \
             (has(self.partition) && size(self.partition) > 0) || \
             (has(self.datacenter) && size(self.datacenter) > 0))",
            "peer cannot be given with serviceSubset, partition or datacenter",
        ),
    ])))]
    Redirect {
        /// The service.
        service: String,
        /// A subset of it.
        service_subset: String,
        /// Its namespace.
        namespace: String,
        /// Its partition.
        partition: String,
        /// Its datacenter.
        datacenter: String,
        /// Its cluster peer.
        peer: String,
        /// Its group of peers and partitions.
        sameness_group: String,
    }

    /// Where requests go when no instance is healthy.
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        (
            "!(has(self.targets) && size(self.targets) > 0) || \
             !((has(self.datacenters) && size(self.datacenters) > 0) || \
             (has(self.service) && size(self.service) > 0) || \
             (has(self.serviceSubset) && size(self.serviceSubset) > 0))",
            "targets cannot be given with datacenters, service or serviceSubset",
        ),
        (
            "has(self.service) || has(self.serviceSubset) || has(self.namespace) || \
             has(self.datacenters) || has(self.targets) || has(self.policy) || \
             has(self.samenessGroup)",
            "a failover needs a destination",
        ),
    ])))]
    Failover {
        /// Another service.
        service: String,
        /// A subset of it.
        service_subset: String,
        /// Its namespace.
        namespace: String,
        /// Datacenters, in this order.
        #[schemars(length(max = 64), inner(length(min = 1)))]
        datacenters: Vec<String>,
        /// Destinations, in this order.
        #[schemars(length(max = 64))]
        targets: Vec<FailoverTarget>,
        /// In which order they are tried.
        policy: FailoverPolicy,
        /// A group of peers and partitions.
        sameness_group: String,
    }

    /// A destination of failover.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "!(has(self.peer) && size(self.peer) > 0) || \
         !((has(self.serviceSubset) && size(self.serviceSubset) > 0) || \
         (has(self.partition) && size(self.partition) > 0) || \
         (has(self.datacenter) && size(self.datacenter) > 0))",
        "peer cannot be given with serviceSubset, partition or datacenter",
    )])))]
    FailoverTarget {
        /// The service.
        service: String,
        /// A subset of it.
        service_subset: String,
        /// Its partition.
        partition: String,
        /// Its namespace.
        namespace: String,
        /// Its datacenter.
        datacenter: String,
        /// Its cluster peer.
        peer: String,
    }

    /// How an instance is chosen.
    LoadBalancer {
        /// The policy.
        #[schemars(extend("enum" = POLICIES))]
        policy: String,
        /// Settings of `ring_hash`.
        ring_hash_config: RingHash,
        /// Settings of `least_request`.
        least_request_config: LeastRequest,
        /// What `ring_hash` and `maglev` choose by.
        #[schemars(length(max = 64))]
        hash_policies: Vec<HashPolicy>,
    }

    /// Settings of `ring_hash`.
    RingHash {
        /// Smallest number of entries in the ring.
        minimum_ring_size: u64,
        /// Largest number of entries in the ring.
        maximum_ring_size: u64,
    }

    /// Settings of `least_request`.
    LeastRequest {
        /// How many instances are compared.
        choice_count: u32,
    }

    /// What an instance is chosen by.
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        (
            "!(has(self.field) && size(self.field) > 0 && has(self.sourceIP) && self.sourceIP)",
            "only one of field and sourceIP can be given",
        ),
        (
            "!(has(self.field) && size(self.field) > 0) || (has(self.fieldValue) && \
             size(self.fieldValue) > 0)",
            "field needs fieldValue",
        ),
    ])))]
    HashPolicy {
        /// `header`, `cookie` or `query_parameter`.
        #[schemars(extend("enum" = ["", "header", "cookie", "query_parameter"]))]
        field: String,
        /// Its name.
        field_value: String,
        /// The cookie that is set where a request has none.
        cookie_config: Cookie,
        /// The address of the caller.
        source_ip("sourceIP" => "SourceIP"): bool,
        /// Look no further where this policy gives a value.
        terminal: bool,
    }

    /// A cookie that is set.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "!(has(self.session) && self.session && has(self.ttl) && self.ttl != '0s' && \
         self.ttl != '0')",
        "only one of session and ttl can be given",
    )])))]
    Cookie {
        /// It ends with the browser's session.
        session: bool,
        /// How long it lives.
        ttl("ttl" => "TTL"): Period,
        /// Its path.
        path: String,
    }
}
