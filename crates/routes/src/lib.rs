//! What a gateway listens on and where it sends requests and connections: listeners, host names,
//! rules and backends.
//!
//! Different languages describe the same thing: the config entries of API gateways, and the
//! resources of a Kubernetes cluster. Each is compiled to these types, and proxies are configured
//! from them alone. Everything is decided here: the ports are distinct, the rules of a host are in
//! the order in which they are tried, and a backend that cannot be used is an answer. So nothing
//! that reads these types looks at another route if one does not fit.
//!
//! What is served can be written as JSON, in which unknown fields and values are errors: it travels
//! from a cluster to the servers, and is stored there. Fields are only added, with a default.
//!
//! Pure: nothing here reads a store or knows Envoy.

mod backend;
mod check;
mod form;
mod host;
mod listener;
mod matching;
mod order;
mod rule;

pub use backend::{
    AltName, Authorities, Backend, BackendProtocol, BackendTls, Endpoint, Frontend, MAX_ENDPOINTS,
    ServicePort, Transport,
};
pub use check::MAX_PEM;
pub use host::{covers, is_host};
pub use listener::{
    Certificate, Chain, Clients, Content, Datagrams, HostPorts, Listener, ServerTls, Tls,
};
pub use matching::{Match, PathMatch, TextMatch, ValueMatch, quoted};
pub use order::{by_specificity, spread};
pub use rule::{
    Action, Cors, Mirror, NOT_FOUND, Origin, Redirect, Retry, Rewrite, Rule, Target, Timeouts,
    VirtualHost, WeightedBackend,
};
