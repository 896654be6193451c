//! What Envoy's resources refer to: the few fields of its messages that lead to other resources.

use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET};
use prost::Message;
use prost_types::Any;

/// The cluster type whose endpoints are resources of their own.
const EDS: i32 = 3;

#[derive(Clone, PartialEq, Message)]
struct Cluster {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    kind: i32,
    #[prost(message, optional, tag = "3")]
    eds: Option<EdsConfig>,
    #[prost(message, optional, tag = "24")]
    transport: Option<TransportSocket>,
}

#[derive(Clone, PartialEq, Message)]
struct EdsConfig {
    #[prost(string, tag = "2")]
    service_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Listener {
    #[prost(message, repeated, tag = "3")]
    chains: Vec<FilterChain>,
    #[prost(message, optional, tag = "25")]
    default_chain: Option<FilterChain>,
}

#[derive(Clone, PartialEq, Message)]
struct FilterChain {
    #[prost(message, repeated, tag = "3")]
    filters: Vec<Filter>,
    #[prost(message, optional, tag = "6")]
    transport: Option<TransportSocket>,
}

#[derive(Clone, PartialEq, Message)]
struct Filter {
    #[prost(message, optional, tag = "4")]
    config: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct ConnectionManager {
    #[prost(message, optional, tag = "3")]
    rds: Option<Rds>,
}

#[derive(Clone, PartialEq, Message)]
struct Rds {
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct TransportSocket {
    #[prost(message, optional, tag = "3")]
    config: Option<Any>,
}

/// Of clients and of servers alike.
#[derive(Clone, PartialEq, Message)]
struct TlsContext {
    #[prost(message, optional, tag = "1")]
    common: Option<CommonTls>,
}

#[derive(Clone, PartialEq, Message)]
struct CommonTls {
    #[prost(message, repeated, tag = "6")]
    certificates: Vec<SecretConfig>,
    #[prost(message, optional, tag = "7")]
    validation: Option<SecretConfig>,
    #[prost(message, optional, tag = "8")]
    combined: Option<CombinedValidation>,
}

#[derive(Clone, PartialEq, Message)]
struct CombinedValidation {
    #[prost(message, optional, tag = "2")]
    validation: Option<SecretConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct SecretConfig {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Routes {
    #[prost(bytes = "vec", repeated, tag = "2")]
    hosts: Vec<Vec<u8>>,
}

/// What one resource is about.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// The type and name of each resource that it refers to.
    pub(super) references: Vec<(&'static str, String)>,
    /// The filter chains of a listener, or the virtual hosts of routes.
    pub(super) size: usize,
}

impl Content {
    /// Of a resource as it was received.
    ///
    /// # Errors
    ///
    /// If it is not a resource of this type.
    pub(super) fn of(url: &str, resource: &[u8]) -> Result<Self, prost::DecodeError> {
        let value = Any::decode(resource)?.value;
        let mut content = Self::default();
        match url {
            CLUSTER => content.cluster(Cluster::decode(&*value)?)?,
            LISTENER => content.listener(Listener::decode(&*value)?)?,
            ROUTE => content.size = Routes::decode(&*value)?.hosts.len(),
            _ => {}
        }
        Ok(content)
    }

    fn cluster(&mut self, cluster: Cluster) -> Result<(), prost::DecodeError> {
        if cluster.kind == EDS {
            let named = cluster.eds.map(|eds| eds.service_name);
            let named = named.filter(|name| !name.is_empty());
            self.refer(ENDPOINT, named.unwrap_or(cluster.name));
        }
        self.secrets(cluster.transport)
    }

    fn listener(&mut self, listener: Listener) -> Result<(), prost::DecodeError> {
        self.size = listener.chains.len();
        for chain in listener.chains.into_iter().chain(listener.default_chain) {
            let configs = chain.filters.into_iter().filter_map(|filter| filter.config);
            for config in configs.filter(|config| config.type_url.ends_with("ConnectionManager")) {
                if let Some(rds) = ConnectionManager::decode(&*config.value)?.rds {
                    self.refer(ROUTE, rds.name);
                }
            }
            self.secrets(chain.transport)?;
        }
        Ok(())
    }

    fn secrets(&mut self, transport: Option<TransportSocket>) -> Result<(), prost::DecodeError> {
        let config = transport.and_then(|transport| transport.config);
        let Some(config) = config.filter(|config| config.type_url.ends_with("TlsContext")) else {
            return Ok(());
        };
        let common = TlsContext::decode(&*config.value)?.common;
        let common = common.unwrap_or_default();
        let combined = common.combined.and_then(|combined| combined.validation);
        let validation = common.validation.or(combined);
        for secret in common.certificates.into_iter().chain(validation) {
            self.refer(SECRET, secret.name);
        }
        Ok(())
    }

    fn refer(&mut self, url: &'static str, name: String) {
        self.references.push((url, name));
    }
}
