//! Keys of gRPC metadata used by Consul's services.

/// ACL secret. Servers use the first value only.
pub const TOKEN: &str = "x-consul-token";

/// Namespace of a DNS query; empty means the default one.
pub const NAMESPACE: &str = "x-consul-namespace";

/// Partition of a DNS query; empty means the default one.
pub const PARTITION: &str = "x-consul-partition";
