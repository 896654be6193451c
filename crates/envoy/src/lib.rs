//! Everything about Envoy: its bootstrap document, its process, its admin interface, and the
//! supervisor that uses all three. Independent of servers, sessions and settings.

pub mod admin;
pub mod bootstrap;
mod cgroup;
mod executable;
pub mod process;
pub mod supervision;

pub use executable::{FindError, find_executable};
