//! `ServiceSplitter`: distributes the requests to a service by weight.

use super::declaration::spec;
use super::parts::HeaderModifiers;
use super::values::rules;

spec! {
    /// Distributes the requests to a service by weight.
    ServiceSplitterSpec {
        /// The splits; their weights add up to 100.
        #[schemars(required, length(min = 1, max = 256))]
        #[schemars(extend("x-kubernetes-validations" = rules(&[(
            "self.map(s, has(s.weight) ? s.weight : 0.0).sum() > 99.995 && \
             self.map(s, has(s.weight) ? s.weight : 0.0).sum() < 100.005",
            "the weights have to add up to 100",
        )])))]
        splits: Vec<Split>,
    }

    /// A split.
    Split {
        /// The percentage of requests, in steps of 0.01.
        #[schemars(range(min = 0, max = 100))]
        weight: f64,
        /// The service. Default: the splitter's own.
        service: String,
        /// A subset of it.
        service_subset: String,
        /// Its namespace.
        namespace: String,
        /// Its partition.
        partition: String,
        /// Changes to requests.
        request_headers: HeaderModifiers,
        /// Changes to responses.
        response_headers: HeaderModifiers,
    }
}
