//! Decodes Envoy's resources strictly: a resource is understood in every field, or it is refused by name.
//!
//! Generated decoders drop fields that they do not know. A proxy that did so would serve a listener without the filter
//! that authorises its callers. Here a table for each message names the fields that the proxy acts upon, and those that
//! make no difference for it; any other field is refused. It never resolves a reference to another resource.

mod access_log;
mod cluster;
mod json;
mod listener;
mod parts;
mod problem;
mod rbac;
#[cfg(test)]
mod schema;
mod table;
mod tables;
mod tls;
mod tree;

use table::Message;
use tree::Node;

use self::problem::Problem;
use crate::model::{Cluster, Endpoints, Listener, Name, Secret};

/// Why a resource is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It may be valid, but has something that only Envoy can serve.
    #[error("needs Envoy: {what}")]
    NeedsEnvoy {
        /// What it is, beginning with its path in the resource, such as `filter_chains[0].filters[1]: ...`.
        what: String,
    },
    /// Envoy would reject it as well; in Envoy's words where it has some.
    #[error("{0}")]
    Invalid(String),
}

/// The type URL and the value of an encoded `google.protobuf.Any`, such as the body of a resource in a response.
///
/// # Errors
///
/// [`Refused::Invalid`] if the bytes are no such message.
pub fn any(bytes: &[u8]) -> Result<(&str, &[u8]), Refused> {
    Ok(tree::any(bytes)?)
}

/// Decodes an `envoy.config.listener.v3.Listener`. Whether its filter chains exclude each other is checked by
/// [`Chains::new`](crate::chains::Chains::new).
///
/// # Errors
///
/// [`Refused`] says why it is not served.
pub fn listener(bytes: &[u8]) -> Result<Listener, Refused> {
    resource(&tables::listener::LISTENER, bytes, listener::listener)
}

/// Decodes an `envoy.config.cluster.v3.Cluster`.
///
/// # Errors
///
/// [`Refused`] says why it is not served.
pub fn cluster(bytes: &[u8]) -> Result<Cluster, Refused> {
    resource(&tables::cluster::CLUSTER, bytes, cluster::cluster)
}

/// Decodes an `envoy.config.endpoint.v3.ClusterLoadAssignment`; the name is the one by which clusters refer to it.
///
/// # Errors
///
/// [`Refused`] says why it is not served.
pub fn endpoints(bytes: &[u8]) -> Result<(Name, Endpoints), Refused> {
    resource(&tables::cluster::LOAD_ASSIGNMENT, bytes, cluster::endpoints)
}

/// Decodes an `envoy.extensions.transport_sockets.tls.v3.Secret`; the name is the one by which TLS contexts refer to it.
///
/// # Errors
///
/// [`Refused`] says why it is not served.
pub fn secret(bytes: &[u8]) -> Result<(Name, Secret), Refused> {
    resource(&tables::tls::SECRET, bytes, tls::secret)
}

fn resource<T>(
    table: &'static Message,
    bytes: &[u8],
    make: impl FnOnce(&Node<'_>) -> Result<T, Problem>,
) -> Result<T, Refused> {
    let node = tree::read(table, bytes)?;
    let made = make(&node)?;
    node.check_read()?;
    Ok(made)
}

/// A resource as Envoy's JSON with the names of the fields as in the schema. Private keys are shown as `[redacted]`.
/// What the tables do not have is left out.
pub fn to_json(type_url: &str, bytes: &[u8]) -> serde_json::Value {
    let tables: [&'static Message; 4] = [
        &tables::listener::LISTENER,
        &tables::cluster::CLUSTER,
        &tables::cluster::LOAD_ASSIGNMENT,
        &tables::tls::SECRET,
    ];
    let name = type_url.rsplit('/').next();
    let table = tables.into_iter().find(|table| Some(table.name) == name);
    let node = table.and_then(|table| tree::read_known(table, bytes).ok());
    let shown = node.map_or_else(|| serde_json::json!({}), |node| json::of(&node));
    match shown {
        serde_json::Value::Object(mut fields) => {
            fields.insert("@type".to_owned(), type_url.into());
            fields.into()
        }
        other => other,
    }
}
