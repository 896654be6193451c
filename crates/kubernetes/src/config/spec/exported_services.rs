//! `ExportedServices`: services that other partitions and peers may call.

use super::declaration::spec;
use super::values::rules;

spec! {
    /// Services that other partitions and peers may call.
    ExportedServicesSpec {
        /// The services.
        #[schemars(required, length(min = 1, max = 1024))]
        services: Vec<ExportedService>,
    }

    /// An exported service.
    ExportedService {
        /// Its name, or `*`.
        #[schemars(required)]
        name: String,
        /// Its namespace.
        namespace: String,
        /// The partitions and peers that may call it.
        #[schemars(required, length(min = 1, max = 256))]
        consumers: Vec<Consumer>,
    }

    /// A partition, peer or sameness group that may call a service.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.peer) && size(self.peer) > 0 ? 1 : 0) + \
         (has(self.partition) && size(self.partition) > 0 ? 1 : 0) + \
         (has(self.samenessGroup) && size(self.samenessGroup) > 0 ? 1 : 0) == 1",
        "exactly one of peer, partition and samenessGroup is needed",
    )])))]
    Consumer {
        /// A partition.
        partition: String,
        /// A cluster peer.
        peer: String,
        /// A sameness group.
        sameness_group: String,
    }
}
