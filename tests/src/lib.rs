//! A whole mesh for scenarios and measurements: a control plane, applications, and real
//! `legate-dataplane` processes with real Envoys. The control plane is Legate's, in this process, as a
//! process, or as several processes with an etcd. Consul's programs can replace either half.
//!
//! Each mesh has its own loopback addresses, so that meshes run concurrently on fixed ports. Nothing
//! here checks product behaviour; scenarios do.

mod agent;
pub mod app;
pub mod captured;
pub mod client;
mod consul;
mod control_plane;
pub mod dns;
pub mod interop;
pub mod load;
pub mod mesh;
pub mod program;
pub mod replicas;
pub mod scripted;
mod server_process;
pub mod sidecar;
pub mod sites;
pub mod steps;
pub mod table;
pub mod wait;

pub use mesh::{Datacenter, Mesh, MeshOptions, ServiceSpec};
pub use sidecar::{Sidecar, SidecarFlags};
pub use wait::eventually;
