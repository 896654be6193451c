//! Callers of a service as principals of Envoy's rules: by the identity in their certificate, or, for a request of a peer
//! that a mesh gateway of this cluster passes on, by what the gateway says of it in `x-forwarded-client-cert`.
//!
//! Envoy verifies a certificate against the roots of the trust domain in its first URI, and compares rules with all of its
//! URIs. So a peer could issue a certificate with a second URI of this mesh, or of another peer: where certificates of
//! peers are accepted, each rule excludes those with a URI of another peer.
//!
//! The services of a peer whose trust domain is not known are never allowed. To deny them, everybody is denied whose trust
//! domain is not known.

use envoy_types::pb::envoy::config::rbac::v3::{Principal, principal};
use legate_intentions::{Action, Layer, SourceMatch};
use legate_model::{DEFAULT_TENANCY, SpiffeId, Tenancy, TrustDomain};
use legate_proxycfg::{PeerCallers, PeerTrust};

use super::{quoted, regex, text_header};
use crate::listener::CLIENT_CERTIFICATE;

/// What a gateway writes before the caller's URI in the first element of the header. Other parts of certificates are in
/// quotes, or left out: they are up to whoever issued them.
const BEFORE_URI: &str =
    r#"^(?:By=[^;,"]*;)*Hash=[^;,"]*;(?:Cert="[^"]*";)?(?:Chain="[^"]*";)?URI="#;

/// What may follow the caller's URI there.
const AFTER_URI: &str = "(?:[;,].*)?$";

/// Matches any part of a path.
const ANY: &str = "[^/]+";

/// Matches any part of a path in the header.
const ANY_IN_HEADER: &str = "[^/;,]+";

/// The callers of one service.
pub(super) struct Callers<'a> {
    pub(super) trust_domain: &'a TrustDomain,
    /// The peers that call it.
    pub(super) peers: &'a PeerCallers,
    pub(super) layer: Layer,
    /// What happens to callers that match.
    pub(super) action: Action,
}

/// A part of the identities of a trust domain.
struct Identities<'a> {
    source: &'a SourceMatch,
    trust_domain: &'a TrustDomain,
    partition: &'a str,
}

impl Callers<'_> {
    /// The callers of a rule; `None` if there are none.
    pub(super) fn matching(&self, source: &SourceMatch) -> Option<Principal> {
        let own = self.principal(source, self.action)?;
        if source.except.is_empty() {
            return Some(own);
        }
        // Exactly these: a rule that denies more excludes no more.
        let others = source.except.iter();
        let others = others.filter_map(|source| self.principal(source, Action::Allow));
        let others = others.map(not);
        Some(all([own].into_iter().chain(others).collect()))
    }

    /// Callers without regard to exceptions.
    fn principal(&self, source: &SourceMatch, action: Action) -> Option<Principal> {
        let Some(peer) = &source.peer else {
            return Some(self.certificate(&Identities {
                source,
                trust_domain: self.trust_domain,
                partition: &source.partition,
            }));
        };
        let known = self.peers.all.get(peer);
        match (known, action) {
            (Some(trust), _) => Some(self.of_peer(source, trust, action)),
            (None, Action::Deny) => Some(self.strangers(source)),
            (None, Action::Allow) => None,
        }
    }

    fn of_peer(&self, source: &SourceMatch, trust: &PeerTrust, action: Action) -> Principal {
        let identities = Identities {
            source,
            trust_domain: &trust.trust_domain,
            partition: &trust.partition,
        };
        let certificate = self.certificate(&identities);
        if self.layer == Layer::L4 {
            return certificate;
        }
        let id = identities.pattern(ANY_IN_HEADER);
        let mut said = header(&format!("{id}{AFTER_URI}"));
        if action == Action::Deny {
            // If the gateway says nothing that can be understood.
            said = any(vec![said, not(header("spiffe://.*$"))]);
        }
        any(vec![certificate, all(vec![self.gateways(source), said])])
    }

    /// Callers of a trust domain that is neither that of the mesh nor of a known peer.
    fn strangers(&self, source: &SourceMatch) -> Principal {
        let peers = self.peers.all.values().map(|peer| &peer.trust_domain);
        let known = of_domains([self.trust_domain].into_iter().chain(peers.clone()));
        let connected = not(authenticated(format!("^{known}/.*$")));
        if self.layer == Layer::L4 {
            return connected;
        }
        let through = match self.peers.all.is_empty() {
            true => self.gateways(source),
            false => {
                let said = header(&format!("{}/.*$", of_domains(peers)));
                all(vec![self.gateways(source), not(said)])
            }
        };
        any(vec![connected, through])
    }

    /// The mesh gateways of the service's partition.
    fn gateways(&self, source: &SourceMatch) -> Principal {
        let mesh = quoted(self.trust_domain.as_str());
        let partition = of_partition(&source.partition);
        authenticated(format!(
            "^spiffe://{mesh}/{partition}gateway/mesh/dc/{ANY}$"
        ))
    }

    /// Those with a certificate of these identities, and of no peer but theirs.
    fn certificate(&self, identities: &Identities<'_>) -> Principal {
        let own = authenticated(format!("^{}$", identities.pattern(ANY)));
        let peers = self
            .peers
            .connecting
            .values()
            .map(|peer| &peer.trust_domain);
        let mut others = peers
            .filter(|domain| *domain != identities.trust_domain)
            .peekable();
        match others.peek() {
            None => own,
            Some(_) => {
                let others = authenticated(format!("^{}/.*$", of_domains(others)));
                all(vec![own, not(others)])
            }
        }
    }
}

impl Identities<'_> {
    /// The identities of a service in every datacenter, or of all services of a namespace or partition. `any` matches a
    /// part of the path.
    fn pattern(&self, any: &str) -> String {
        let SourceMatch {
            namespace, name, ..
        } = self.source;
        let service = name.as_deref().map_or_else(
            || any.to_owned(),
            |service| quoted(&encoded(service, self.trust_domain)),
        );
        let namespace = namespace.as_deref();
        let namespace = namespace.map_or_else(|| any.to_owned(), quoted);
        let partition = of_partition(self.partition);
        let mesh = quoted(self.trust_domain.as_str());
        format!("spiffe://{mesh}/{partition}ns/{namespace}/dc/{any}/svc/{service}")
    }
}

/// The beginning of a path in a partition.
fn of_partition(partition: &str) -> String {
    match partition {
        DEFAULT_TENANCY => String::new(),
        partition => format!("ap/{}/", quoted(partition)),
    }
}

/// The beginning of the identities of these trust domains.
fn of_domains<'a>(domains: impl Iterator<Item = &'a TrustDomain>) -> String {
    let domains: Vec<_> = domains.map(|domain| quoted(domain.as_str())).collect();
    format!("spiffe://(?:{})", domains.join("|"))
}

/// A service's name as encoded in SPIFFE ids.
fn encoded(service: &str, trust_domain: &TrustDomain) -> String {
    let id = SpiffeId::Service {
        trust_domain: trust_domain.clone(),
        tenancy: Tenancy::default(),
        datacenter: String::new(),
        service: service.to_owned(),
    };
    let uri = id.to_string();
    match uri.rsplit_once('/') {
        Some((_, name)) => name.to_owned(),
        None => uri,
    }
}

/// Those of whom the first element of the header says this.
fn header(uri: &str) -> Principal {
    let text = regex(format!("{BEFORE_URI}{uri}"));
    identified(principal::Identifier::Header(text_header(
        CLIENT_CERTIFICATE,
        text,
    )))
}

/// Those with a URI like this in their certificate.
fn authenticated(pattern: String) -> Principal {
    let certificate = principal::Authenticated {
        principal_name: Some(regex(pattern)),
    };
    identified(principal::Identifier::Authenticated(certificate))
}

fn not(other: Principal) -> Principal {
    identified(principal::Identifier::NotId(Box::new(other)))
}

fn all(ids: Vec<Principal>) -> Principal {
    identified(principal::Identifier::AndIds(principal::Set { ids }))
}

fn any(ids: Vec<Principal>) -> Principal {
    identified(principal::Identifier::OrIds(principal::Set { ids }))
}

pub(super) fn identified(identifier: principal::Identifier) -> Principal {
    Principal {
        identifier: Some(identifier),
    }
}
