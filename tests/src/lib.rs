//! A whole mesh for scenarios and measurements: a control plane, applications, and real
//! `legate-dataplane` processes that run real Envoys. The control plane is Legate's, in the process or
//! as several processes over an etcd, and Consul's programs can take the place of either half.
//!
//! Each mesh has loopback addresses of its own, so that meshes run side by side on fixed ports.
//! Nothing here checks product behaviour; scenarios do.

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
pub mod sidecar;
pub mod table;
pub mod wait;

pub use mesh::{Mesh, MeshOptions, ServiceSpec};
pub use sidecar::{Sidecar, SidecarFlags};
pub use wait::eventually;
