//! The mesh on Kubernetes: sidecars in pods, pods in the catalog, custom resources as config entries.
