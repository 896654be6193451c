//! Kubernetes' Gateway API: the objects with which people describe gateways, a verdict on each of
//! them, what each gateway serves, and how callers in the mesh reach Services.
//!
//! ```text
//! objects ─► World ─► resolve ─┬─► verdicts (their conditions, for who writes statuses)
//!                              ├─► legate_routes (listeners, hosts, rules, backends, for proxies)
//!                              └─► infrastructure (ports, addresses, labels, for who makes it)
//! ```
//!
//! [`resolve()`] is a function of the whole [`World`]: what it says does not depend on the order of
//! objects or on what it has said before. Between equals the older one wins, and in one second the
//! name decides. Each object gets a verdict, also a bad one, and one bad value concerns as little as
//! can be.
//!
//! Three rules hold everywhere:
//!
//! - A rule is never taken out of the order. What cannot be served is replaced by an answer, so that
//!   no other rule gets its requests, and a condition names the field.
//! - A field that exists and has no meaning here is found, never skipped ([`Object::unserved`]).
//! - What protects is never left out: a listener that cannot verify clients as it should is closed,
//!   and a backend whose policy cannot be applied is not called in plain text. For a
//!   reference to another namespace without a grant, nothing says whether its object exists.
//!
//! Pure: nothing here reads a cluster, keeps time, or writes a status. Secrets are names here, with
//! what somebody else found out about them; endpoints are unknown.

mod condition;
mod duration;
mod kind;
mod object;
mod outcome;
mod resolve;
pub mod types;
mod world;

pub use condition::Condition;
pub use kind::RouteKind;
pub use object::{Key, Meta, Object};
pub use outcome::{
    AncestorVerdict, ClassVerdict, GatewayVerdict, InfrastructurePlan, ListenerSetVerdict,
    ListenerVerdict, MAX_ANCESTORS, Outcome, ParentVerdict, PolicyVerdict, RouteId, RouteVerdict,
    Served, ServedFrontend,
};
pub use resolve::resolve;
pub use world::{Front, Servers, Service, ServicePort, World};
