//! `terminating-gateway`: the services outside the mesh that a gateway connects to.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use crate::ServiceName;
use crate::invalid::Invalid;
use crate::json::shown::null_if_empty;
use crate::meta;
use crate::name::{self, WILDCARD};
use crate::schema;
use crate::tenancy::{Tenancy, TenancyName};

/// The maximum number of services.
const MAX_SERVICES: usize = 10_000;

entry! {
    /// The services of one gateway.
    #[derive(JsonSchema)]
    pub struct TerminatingGateway {
        /// The service that the gateway is registered as.
        pub name: String,
        /// The services that it connects to.
        #[serde(serialize_with = "null_if_empty")]
        #[schemars(length(max = 1024))]
        pub services: Vec<LinkedService>,
    }
}

/// A service that a gateway connects to, with TLS settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule("{certFile} == {keyFile}", "certFile and keyFile must be set together"),
]))]
pub struct LinkedService {
    /// Service name, or `*` for all services.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Path of the CA certificates that verify the service.
    #[serde(rename = "CAFile", skip_serializing_if = "String::is_empty")]
    pub ca_file: String,
    /// Path of the gateway's client certificate.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_file: String,
    /// Path of the key of that certificate.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key_file: String,
    /// TLS server name (SNI).
    #[serde(rename = "SNI", skip_serializing_if = "String::is_empty")]
    pub sni: String,
    /// Whether requests retain their original host name.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_auto_host_rewrite: bool,
}

impl TerminatingGateway {
    /// The entry's tenancy.
    pub fn tenancy(&self) -> Tenancy {
        Tenancy::new(&self.partition, &self.namespace)
    }

    /// The services that it names, without what `*` stands for.
    pub fn named_services(&self) -> BTreeSet<ServiceName> {
        let own = self.tenancy();
        let is_name = |one: &&LinkedService| one.name != WILDCARD && !one.namespace.is_every();
        self.services
            .iter()
            .filter(is_name)
            .map(|one| ServiceName::new(&own.resolve(&one.partition, &one.namespace), &one.name))
            .collect()
    }
}

impl Entry for TerminatingGateway {
    const RIGHTS: EntryRights = EntryRights::Gateway;

    /// With Consul's error texts.
    fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)?;
        if self.services.len() > MAX_SERVICES {
            let reason = format!("at most {MAX_SERVICES} services can be given");
            return Err(Invalid::new("Services", reason));
        }
        let own = self.tenancy();
        let mut seen = BTreeSet::new();
        for (at, service) in self.services.iter().enumerate() {
            let refused = |reason: String| Err(Invalid::new(format!("Services[{at}]"), reason));
            let name = &service.name;
            if name.is_empty() {
                return refused("Service name cannot be blank.".to_owned());
            }
            if name != WILDCARD
                && let Err(error) = name::validate_service_name(name)
            {
                return refused(error.to_string());
            }
            let tenancy = own.resolve(&service.partition, &service.namespace);
            if tenancy.partition != own.partition {
                return refused(format!(
                    "Service {name:?} must be in the partition of the gateway"
                ));
            }
            if !seen.insert((tenancy, name.to_lowercase())) {
                return refused(format!(
                    "Service {name:?} was specified more than once within a namespace"
                ));
            }
            let files = [&service.ca_file, &service.cert_file, &service.key_file];
            let own = !(service.cert_file.is_empty() && service.key_file.is_empty());
            if own && files.iter().any(|file| file.is_empty()) {
                return refused(format!(
                    "Service {name:?} must have a CertFile, CAFile, and KeyFile specified for TLS \
                     origination"
                ));
            }
        }
        Ok(())
    }
}
