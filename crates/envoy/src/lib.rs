//! Envoy from the outside: its bootstrap document, its process, its admin interface, and the
//! supervisor that joins the three. Knows nothing of servers, sessions or settings.

pub mod admin;
pub mod bootstrap;
mod cgroup;
mod executable;
pub mod process;
pub mod supervision;

pub use executable::{FindError, find_executable};
