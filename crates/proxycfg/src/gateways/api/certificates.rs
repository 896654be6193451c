//! The certificates of listeners: what proxies get as secrets, and by which server names they are
//! chosen.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use legate_identity::CertificateInfo;
use legate_model::{
    ApiGatewayListener, ApiGatewayTls, ConfigEntry, ConfigKind, ResourceReference, Secret,
    ServiceName,
};
use legate_routes::{Certificate, Chain, ServerTls, Tls, is_host};
use legate_store::ReadTxn;

use super::listener::{References, references};

/// A certificate with its key, as a secret of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayCertificate {
    /// The name of the secret: the kind and the name of the config entry.
    pub secret: String,
    /// Where both are.
    pub source: CertificateSource,
    /// The last second of its validity; `None` if it is in files, which the gateway alone reads.
    pub expires: Option<SystemTime>,
}

/// Where a certificate and its key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// In the config entry, in PEM.
    Inline {
        /// The chain, the leaf first.
        certificate: String,
        /// The key.
        key: Secret,
    },
    /// In files of the gateway.
    Files {
        /// Path of the chain.
        certificate: String,
        /// Path of the key.
        key: String,
    },
}

impl CertificateSource {
    pub(super) fn expires(&self) -> Option<SystemTime> {
        let Self::Inline { certificate, .. } = self else {
            return None;
        };
        let info = CertificateInfo::from_pem(certificate).ok()?;
        Some(info.not_after)
    }
}

/// The certificate that a reference of a gateway names, if it exists.
pub(super) fn read(
    txn: &ReadTxn<'_>,
    gateway: &ServiceName,
    reference: &ResourceReference,
) -> Arc<Option<GatewayCertificate>> {
    let name = reference.resolve(&gateway.tenancy);
    let argument = format!("{}/{}", reference.kind, name.name);
    txn.in_tenancy(&name.tenancy, |txn| {
        txn.shared("certificate of gateways", &argument, |txn| {
            let kind: ConfigKind = reference.kind.parse().ok()?;
            let source = match &*txn.config_entry(kind, &name.name)? {
                ConfigEntry::InlineCertificate(entry) => CertificateSource::Inline {
                    certificate: entry.certificate.clone(),
                    key: entry.private_key.clone(),
                },
                ConfigEntry::FileSystemCertificate(entry) => CertificateSource::Files {
                    certificate: entry.certificate.clone(),
                    key: entry.private_key.clone(),
                },
                _ => return None,
            };
            Some(GatewayCertificate {
                secret: format!("{kind}/{name}"),
                expires: source.expires(),
                source,
            })
        })
    })
}

/// What listeners need of a certificate. It rarely changes when the certificate does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Presented {
    /// The name of the secret.
    secret: String,
    /// The hosts that the certificate is for, in lower case; `None` if it is in files, which nobody
    /// here can read.
    hosts: Option<BTreeSet<String>>,
}

/// What listeners need of the certificate that a reference of a gateway names, if it exists. A shared
/// query, because certificates are many and are read as such here only.
pub(super) fn presented(
    txn: &ReadTxn<'_>,
    gateway: &ServiceName,
    reference: &ResourceReference,
) -> Arc<Option<Presented>> {
    let name = reference.resolve(&gateway.tenancy);
    let argument = format!("{}/{}", reference.kind, name.name);
    txn.in_tenancy(&name.tenancy, |txn| {
        txn.shared("certificate of listeners", &argument, |txn| {
            let found = read(txn, gateway, reference);
            let found = found.as_ref().as_ref()?;
            let hosts = match &found.source {
                CertificateSource::Inline { certificate, .. } => Some(hosts(certificate)),
                CertificateSource::Files { .. } => None,
            };
            Some(Presented {
                secret: found.secret.clone(),
                hosts,
            })
        })
    })
}

fn hosts(certificate: &str) -> BTreeSet<String> {
    let hosts = legate_identity::certificate_hosts(certificate).unwrap_or_default();
    let hosts = hosts.into_iter().map(|host| host.to_lowercase());
    hosts.filter(|host| is_host(host)).collect()
}

/// The certificates of all listeners of a gateway, each once. Shared, because they do not change
/// with the routes.
pub(super) fn of_gateway(
    txn: &ReadTxn<'_>,
    gateway: &ServiceName,
) -> Arc<Vec<Arc<Option<GatewayCertificate>>>> {
    txn.shared("certificates of an API gateway", &gateway.name, |txn| {
        let mut found = Vec::new();
        let mut known = HashSet::new();
        let stored = txn.config_entry(ConfigKind::ApiGateway, &gateway.name);
        for (_, references) in listeners(txn, gateway, stored.as_deref()) {
            for reference in &references.certificates {
                let certificate = read(txn, gateway, reference);
                if known.insert(Arc::as_ptr(&certificate)) {
                    found.push(certificate);
                }
            }
        }
        found
    })
}

/// How connections to a port of a gateway are accepted. Shared like [`of_gateway`].
pub(super) fn on_port(txn: &ReadTxn<'_>, gateway: &ServiceName, port: u16) -> Arc<Vec<Chain>> {
    let argument = format!("{port}/{}", gateway.name);
    txn.shared("filter chains of a port", &argument, |txn| {
        let stored = txn.config_entry(ConfigKind::ApiGateway, &gateway.name);
        let mut here = listeners(txn, gateway, stored.as_deref());
        here.retain(|(listener, _)| listener.port == port);
        let mut found = Vec::new();
        let mut known = HashSet::new();
        for reference in here.iter().flat_map(|(_, one)| &one.certificates) {
            let certificate = presented(txn, gateway, reference);
            if known.insert(Arc::as_ptr(&certificate)) {
                found.push((reference.name.clone(), certificate));
            }
        }
        let listeners: Vec<_> = here.iter().map(|(listener, _)| *listener).collect();
        chains(&listeners, &found)
    })
}

/// The listeners of a stored gateway, with what they refer to.
fn listeners<'a>(
    txn: &ReadTxn<'_>,
    gateway: &ServiceName,
    stored: Option<&'a ConfigEntry>,
) -> Vec<(&'a ApiGatewayListener, Arc<References>)> {
    let Some(ConfigEntry::ApiGateway(entry)) = stored else {
        return Vec::new();
    };
    let listeners = entry.listeners.iter().enumerate();
    let with_references = |(place, one)| (one, references(txn, gateway, place));
    listeners.map(with_references).collect()
}

/// The chains of listeners on one port, with the names of the certificates' entries. Several
/// certificates are chosen by server name. For other names, and for those that several certificates
/// have, there is the certificate in files, which nobody here can read, or else that of the gateway,
/// as in Consul.
fn chains(
    listeners: &[&ApiGatewayListener],
    certificates: &[(String, Arc<Option<Presented>>)],
) -> Vec<Chain> {
    let settings = listeners.iter().map(|one| &one.tls);
    let settings = settings.clone().find(|tls| !tls.is_empty());
    let none = ApiGatewayTls::default();
    let shared = settings.unwrap_or(&none);
    let tls = |certificates: Vec<Certificate>| {
        Tls::Terminated(ServerTls {
            certificates,
            min_version: shared.min_version.clone(),
            max_version: shared.max_version.clone(),
            cipher_suites: shared.cipher_suites.clone(),
            clients: None,
        })
    };
    let chain = |name: Option<&str>, server_names, tls| Chain {
        name: name.map(str::to_owned),
        server_names,
        tls,
        content: 0,
    };
    let known: Vec<_> = certificates
        .iter()
        .filter_map(|(name, found)| Some((name, (**found).as_ref()?)))
        .collect();
    let secret = |one: &Presented| Certificate::Secret(one.secret.clone());
    match known.as_slice() {
        [] if settings.is_none() => vec![chain(None, Vec::new(), Tls::None)],
        [] => vec![chain(None, Vec::new(), tls(vec![Certificate::OfGateway]))],
        [(name, only)] => vec![chain(Some(name), Vec::new(), tls(vec![secret(only)]))],
        several => {
            let mut chains = Vec::new();
            let mut others = Vec::new();
            let mut holders = BTreeMap::<_, usize>::new();
            for host in several.iter().flat_map(|(_, one)| &one.hosts).flatten() {
                *holders.entry(host).or_default() += 1;
            }
            for (name, one) in several {
                let Some(hosts) = &one.hosts else {
                    others.push(secret(one));
                    continue;
                };
                let own: Vec<_> = hosts
                    .iter()
                    .filter(|host| holders[host] == 1)
                    .cloned()
                    .collect();
                if !own.is_empty() {
                    chains.push(chain(Some(name), own, tls(vec![secret(one)])));
                }
            }
            if others.is_empty() {
                others.push(Certificate::OfGateway);
            }
            chains.push(chain(Some("default"), Vec::new(), tls(others)));
            chains
        }
    }
}
