//! Messages of Consul's public gRPC services and the delta-xDS envelope.
