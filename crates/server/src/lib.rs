//! The control plane: HTTP and gRPC APIs, DNS, and their composition.
