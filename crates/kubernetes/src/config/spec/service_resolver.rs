//! `ServiceResolver`: the instances that serve a service.

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
    /// The instances that serve a service.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "!(has(self.redirect) && has(self.failover) && size(self.failover) > 0)",
        "only one of redirect and failover can be given",
    )])))]
    ServiceResolverSpec {
        /// The subset for requests that name none.
        default_subset: String,
        /// Subsets of the instances, by name.
        #[schemars(extend("maxProperties" = 256))]
        subsets: BTreeMap<String, Subset>,
        /// Another service that replaces this one.
        redirect: Redirect,
        /// Failover destinations by subset if no instance is healthy; `*` applies to all subsets.
        #[schemars(extend("maxProperties" = 256))]
        failover: BTreeMap<String, Failover>,
        /// Connect timeout.
        connect_timeout: Period,
        /// Request timeout.
        request_timeout: Period,
        /// The load balancing policy.
        load_balancer: LoadBalancer,
        /// Whether instances of the same locality are preferred.
        prioritize_by_locality: PrioritizeByLocality,
    }

    /// A subset of a service's instances.
    Subset {
        /// A filter expression for instances, such as `Service.Meta.version == v1`.
        filter: String,
        /// Exclude instances with warnings.
        only_passing: bool,
    }

    /// Another service that replaces this one.
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
        /// Its sameness group.
        sameness_group: String,
    }

    /// Failover destinations if no instance is healthy.
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
        /// Datacenters, in order of preference.
        #[schemars(length(max = 64), inner(length(min = 1)))]
        datacenters: Vec<String>,
        /// Destinations, in order of preference.
        #[schemars(length(max = 64))]
        targets: Vec<FailoverTarget>,
        /// The order in which destinations are tried.
        policy: FailoverPolicy,
        /// A sameness group.
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

    /// The load balancing policy.
    LoadBalancer {
        /// Name of the policy.
        #[schemars(extend("enum" = POLICIES))]
        policy: String,
        /// Settings of `ring_hash`.
        ring_hash_config: RingHash,
        /// Settings of `least_request`.
        least_request_config: LeastRequest,
        /// The hash keys of `ring_hash` and `maglev`.
        #[schemars(length(max = 64))]
        hash_policies: Vec<HashPolicy>,
    }

    /// Settings of `ring_hash`.
    RingHash {
        /// Minimum number of entries in the ring.
        minimum_ring_size: u64,
        /// Maximum number of entries in the ring.
        maximum_ring_size: u64,
    }

    /// Settings of `least_request`.
    LeastRequest {
        /// How many random instances are compared.
        choice_count: u32,
    }

    /// A hash key.
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
        /// The name of the header, cookie or parameter.
        field_value: String,
        /// A cookie that is generated if a request has none.
        cookie_config: Cookie,
        /// Hash the caller's IP address.
        source_ip("sourceIP" => "SourceIP"): bool,
        /// Stop here if this policy yields a value.
        terminal: bool,
    }

    /// A generated cookie.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "!(has(self.session) && self.session && has(self.ttl) && self.ttl != '0s' && \
         self.ttl != '0')",
        "only one of session and ttl can be given",
    )])))]
    Cookie {
        /// The cookie ends with the browser's session.
        session: bool,
        /// The lifetime of the cookie.
        ttl("ttl" => "TTL"): Period,
        /// Its path.
        path: String,
    }
}
