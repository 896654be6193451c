//! Certificates that a server issues for proxies, and what identifies them.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use legate_model::{Secret, ServiceName, SpiffeId, Tenancy, TrustDomain};

/// Whose certificate, and for which host names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafId {
    /// Whose identity it has.
    pub holder: LeafHolder,
    /// Its DNS names, besides the identity.
    pub dns_names: Arc<[String]>,
}

/// Whose identity a certificate has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeafHolder {
    /// A service, or a gateway with the name of a service.
    Service(ServiceName),
    /// The mesh gateways of a partition.
    MeshGateway(Arc<str>),
}

impl LeafId {
    /// The certificate of the mesh gateways of a partition.
    #[must_use]
    pub fn of_mesh_gateway(partition: &Arc<str>) -> Self {
        Self {
            holder: LeafHolder::MeshGateway(Arc::clone(partition)),
            dns_names: Arc::default(),
        }
    }

    /// The same certificate, valid for host names.
    #[must_use]
    pub fn with_dns_names(self, names: impl IntoIterator<Item = String>) -> Self {
        Self {
            dns_names: names.into_iter().collect(),
            ..self
        }
    }

    /// The service, if it is the certificate of one.
    #[must_use]
    pub fn service(&self) -> Option<&ServiceName> {
        match &self.holder {
            LeafHolder::Service(service) => Some(service),
            LeafHolder::MeshGateway(_) => None,
        }
    }

    /// The identity in the certificate.
    pub(crate) fn identity(&self, trust_domain: TrustDomain, datacenter: &str) -> SpiffeId {
        let datacenter = datacenter.to_owned();
        match &self.holder {
            LeafHolder::Service(service) => SpiffeId::Service {
                trust_domain,
                tenancy: service.tenancy.clone(),
                datacenter,
                service: service.name.as_ref().to_owned(),
            },
            LeafHolder::MeshGateway(partition) => SpiffeId::MeshGateway {
                trust_domain,
                tenancy: Tenancy {
                    partition: Arc::clone(partition),
                    ..Tenancy::default()
                },
                datacenter,
            },
        }
    }
}

impl From<ServiceName> for LeafId {
    /// The certificate of a service without DNS names.
    fn from(service: ServiceName) -> Self {
        Self {
            holder: LeafHolder::Service(service),
            dns_names: Arc::default(),
        }
    }
}

impl From<&ServiceName> for LeafId {
    fn from(service: &ServiceName) -> Self {
        service.clone().into()
    }
}

impl From<&str> for LeafId {
    fn from(service: &str) -> Self {
        ServiceName::from(service).into()
    }
}

impl fmt::Display for LeafId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.holder {
            LeafHolder::Service(service) => write!(f, "service {service}")?,
            LeafHolder::MeshGateway(partition) => {
                write!(f, "the mesh gateways of partition {partition}")?;
            }
        }
        match self.dns_names.is_empty() {
            true => Ok(()),
            false => write!(f, " with the names {}", self.dns_names.join(", ")),
        }
    }
}

/// A certificate with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Whose it is.
    pub id: LeafId,
    /// Its SPIFFE ID.
    pub uri: String,
    /// The certificate, followed by the intermediates up to the root.
    pub cert_pem: String,
    /// Its private key.
    pub key_pem: Secret,
    /// Serial number, lower-case hex bytes joined by colons.
    pub serial: String,
    /// Start of its validity.
    pub valid_after: SystemTime,
    /// End of its validity.
    pub valid_before: SystemTime,
    /// Id of the key that signed it: the active root's `SigningKeyID` at that time.
    pub authority_key_id: String,
    /// Increases with each leaf that this server issues.
    pub index: u64,
}

impl Leaf {
    /// Stands for a certificate that is not issued yet, in a preview. It cannot be used.
    #[must_use]
    pub fn to_be_issued(id: &LeafId) -> Self {
        Self {
            id: id.clone(),
            uri: String::new(),
            cert_pem: "a certificate that is not issued yet\n".to_owned(),
            key_pem: Secret::new("its key\n"),
            serial: String::new(),
            valid_after: SystemTime::UNIX_EPOCH,
            valid_before: SystemTime::UNIX_EPOCH,
            authority_key_id: String::new(),
            index: 0,
        }
    }
}
