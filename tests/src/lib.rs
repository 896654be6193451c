//! A whole mesh for scenarios and measurements: a control plane in the process, applications, and
//! real `legate-dataplane` processes that run real Envoys.
//!
//! Each mesh has loopback addresses of its own, so that meshes run side by side on fixed ports.
//! Nothing here checks product behaviour; scenarios do.

pub mod app;
pub mod client;
pub mod load;
pub mod mesh;
pub mod sidecar;
pub mod wait;

pub use mesh::{Mesh, MeshOptions, ServiceSpec};
pub use sidecar::{Sidecar, SidecarFlags};
pub use wait::eventually;
