//! Identities in certificates: SPIFFE URIs with Consul's paths.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::tenancy::{Tenancy, TenancyName};

/// The trust domain of a mesh: `<cluster id>.consul`, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TrustDomain(Arc<str>);

impl TrustDomain {
    /// The trust domain of a cluster.
    pub fn of_cluster(cluster_id: &str) -> Self {
        TrustDomain(format!("{cluster_id}.consul").to_lowercase().into())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first label: the cluster id.
    pub fn cluster_id(&self) -> &str {
        self.0.split('.').next().unwrap_or_default()
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TrustDomain {
    type Err = InvalidSpiffeId;

    /// Accepts any case; letters, digits, `.`, `-` and `_`, with at least one dot inside.
    fn from_str(text: &str) -> Result<Self, InvalidSpiffeId> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let dotted = text.split('.').count() > 1 && text.split('.').all(|label| !label.is_empty());
        if dotted && text.chars().all(allowed) {
            Ok(TrustDomain(text.to_ascii_lowercase().into()))
        } else {
            Err(InvalidSpiffeId {
                uri: text.to_owned(),
                reason: "the trust domain must be a dotted host name",
            })
        }
    }
}

impl TryFrom<String> for TrustDomain {
    type Error = InvalidSpiffeId;

    fn try_from(text: String) -> Result<Self, InvalidSpiffeId> {
        text.parse()
    }
}

impl From<TrustDomain> for String {
    fn from(domain: TrustDomain) -> String {
        domain.0.as_ref().to_owned()
    }
}

/// A URI that is not an identity of a mesh, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{uri:?} is not a SPIFFE id of this mesh: {reason}")]
pub struct InvalidSpiffeId {
    uri: String,
    reason: &'static str,
}

/// The identity in a certificate. In a partition other than `default`, the path starts with
/// `/ap/<partition>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpiffeId {
    /// A service in a datacenter: `/ns/<namespace>/dc/<dc>/svc/<service>`.
    Service {
        /// Its trust domain.
        trust_domain: TrustDomain,
        /// Its partition and namespace.
        tenancy: Tenancy,
        /// Its datacenter.
        datacenter: String,
        /// Its name.
        service: String,
    },
    /// The control plane of a datacenter: `/agent/server/dc/<dc>`.
    Server {
        /// Its trust domain.
        trust_domain: TrustDomain,
        /// Its datacenter.
        datacenter: String,
    },
    /// The mesh gateways of a datacenter: `/gateway/mesh/dc/<dc>`.
    MeshGateway {
        /// Its trust domain.
        trust_domain: TrustDomain,
        /// Its partition, in the namespace `default`.
        tenancy: Tenancy,
        /// Its datacenter.
        datacenter: String,
    },
    /// The signing authority; the URI has no path.
    Signing {
        /// Its trust domain.
        trust_domain: TrustDomain,
    },
}

impl SpiffeId {
    /// The trust domain of the identity.
    pub fn trust_domain(&self) -> &TrustDomain {
        match self {
            SpiffeId::Service { trust_domain, .. }
            | SpiffeId::Server { trust_domain, .. }
            | SpiffeId::MeshGateway { trust_domain, .. }
            | SpiffeId::Signing { trust_domain } => trust_domain,
        }
    }

    /// The datacenter; `None` for the signing authority.
    pub fn datacenter(&self) -> Option<&str> {
        match self {
            SpiffeId::Service { datacenter, .. }
            | SpiffeId::Server { datacenter, .. }
            | SpiffeId::MeshGateway { datacenter, .. } => Some(datacenter),
            SpiffeId::Signing { .. } => None,
        }
    }

    /// The tenancy; the default one for identities of the control plane.
    pub fn tenancy(&self) -> Tenancy {
        match self {
            SpiffeId::Service { tenancy, .. } | SpiffeId::MeshGateway { tenancy, .. } => {
                tenancy.clone()
            }
            SpiffeId::Server { .. } | SpiffeId::Signing { .. } => Tenancy::default(),
        }
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}", self.trust_domain())?;
        let tenancy = self.tenancy();
        if !tenancy.is_default_partition() {
            write!(f, "/ap/{}", Segment(&tenancy.partition))?;
        }
        match self {
            SpiffeId::Service {
                datacenter,
                service,
                ..
            } => write!(
                f,
                "/ns/{}/dc/{}/svc/{}",
                Segment(&tenancy.namespace),
                Segment(datacenter),
                Segment(service)
            ),
            SpiffeId::Server { datacenter, .. } => {
                write!(f, "/agent/server/dc/{}", Segment(datacenter))
            }
            SpiffeId::MeshGateway { datacenter, .. } => {
                write!(f, "/gateway/mesh/dc/{}", Segment(datacenter))
            }
            SpiffeId::Signing { .. } => Ok(()),
        }
    }
}

/// A path segment, percent-encoded where required.
struct Segment<'a>(&'a str);

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            // Characters that RFC 3986 permits unencoded in a path segment.
            if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte) {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// Reverses percent-encoding; `None` when it is malformed or not UTF-8.
fn decode(segment: &str) -> Option<String> {
    let bytes = segment.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'%' {
            let hex = segment.get(i + 1..i + 3)?;
            if !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            out.push(u8::from_str_radix(hex, 16).ok()?);
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8(out).ok().filter(|text| !text.is_empty())
}

impl FromStr for SpiffeId {
    type Err = InvalidSpiffeId;

    fn from_str(uri: &str) -> Result<Self, InvalidSpiffeId> {
        let fail = |reason| InvalidSpiffeId {
            uri: uri.to_owned(),
            reason,
        };
        let rest = match uri.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("spiffe") => rest,
            _ => return Err(fail("it must start with spiffe://")),
        };
        if rest.contains(['?', '#']) {
            return Err(fail("it must have no query and no fragment"));
        }
        let (host, path) = match rest.split_once('/') {
            Some((host, path)) => (host, Some(path)),
            None => (rest, None),
        };
        let trust_domain: TrustDomain = host
            .parse()
            .map_err(|error: InvalidSpiffeId| fail(error.reason))?;
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return Ok(SpiffeId::Signing { trust_domain });
        };
        let segments = path
            .split('/')
            .map(decode)
            .collect::<Option<Vec<String>>>()
            .ok_or_else(|| fail("a path segment is empty or wrongly percent-encoded"))?;
        let mut segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        // A wildcard is not a valid identity.
        let tenant = |name: &str| match name.parse::<TenancyName>() {
            Ok(name) if !name.is_every() => Ok(name),
            _ => Err(fail("its namespace or partition has no valid name")),
        };
        let mut partition = TenancyName::default();
        if let ["ap", named, ..] = segments.as_slice() {
            partition = tenant(named)?;
            segments.drain(..2);
        }
        let of_partition = Tenancy::new(&partition, &TenancyName::default());
        match segments.as_slice() {
            ["ns", namespace, "dc", datacenter, "svc", service] => Ok(SpiffeId::Service {
                trust_domain,
                tenancy: of_partition.resolve(&partition, &tenant(namespace)?),
                datacenter: (*datacenter).to_owned(),
                service: (*service).to_owned(),
            }),
            ["agent", "server", "dc", datacenter] if of_partition.is_default() => {
                Ok(SpiffeId::Server {
                    trust_domain,
                    datacenter: (*datacenter).to_owned(),
                })
            }
            ["gateway", "mesh", "dc", datacenter] => Ok(SpiffeId::MeshGateway {
                trust_domain,
                tenancy: of_partition,
                datacenter: (*datacenter).to_owned(),
            }),
            _ => Err(fail(
                "its path is not one of /ns/<namespace>/dc/<dc>/svc/<service>, /agent/server/dc/<dc>, \
                 /gateway/mesh/dc/<dc>",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_service_identity_has_consuls_path() {
        let id = SpiffeId::Service {
            trust_domain: TrustDomain::of_cluster("AAAA-bbbb"),
            tenancy: Tenancy::default(),
            datacenter: "dc1".into(),
            service: "web".into(),
        };
        assert_eq!(
            id.to_string(),
            "spiffe://aaaa-bbbb.consul/ns/default/dc/dc1/svc/web"
        );
        assert_eq!(id.trust_domain().cluster_id(), "aaaa-bbbb");
    }

    #[test]
    fn encoded_segments_are_decoded() {
        let id: SpiffeId = "SPIFFE://X.Consul/ns/default/dc/dc%31/svc/a%20b%2Fc"
            .parse()
            .unwrap();
        assert_eq!(
            id,
            SpiffeId::Service {
                trust_domain: "x.consul".parse().unwrap(),
                tenancy: Tenancy::default(),
                datacenter: "dc1".into(),
                service: "a b/c".into(),
            }
        );
        assert_eq!(
            id.to_string(),
            "spiffe://x.consul/ns/default/dc/dc1/svc/a%20b%2Fc"
        );
    }

    #[test]
    fn the_other_kinds_are_distinguished() {
        let signing: SpiffeId = "spiffe://x.consul".parse().unwrap();
        assert!(matches!(signing, SpiffeId::Signing { .. }));
        let server: SpiffeId = "spiffe://x.consul/agent/server/dc/dc1".parse().unwrap();
        assert_eq!(server.datacenter(), Some("dc1"));
        let gateway: SpiffeId = "spiffe://x.consul/gateway/mesh/dc/dc1".parse().unwrap();
        assert!(matches!(gateway, SpiffeId::MeshGateway { .. }));
        let in_partition: SpiffeId = "spiffe://x.consul/ap/default/ns/default/dc/dc1/svc/web"
            .parse()
            .unwrap();
        assert!(matches!(in_partition, SpiffeId::Service { .. }));
        let uri = "spiffe://x.consul/ap/shop/ns/team/dc/dc1/svc/web";
        let of_tenant: SpiffeId = uri.parse().unwrap();
        assert_eq!(&*of_tenant.tenancy().partition, "shop");
        assert_eq!(&*of_tenant.tenancy().namespace, "team");
        assert_eq!(of_tenant.to_string(), uri);
    }

    #[test]
    fn invalid_identities_are_refused_with_the_reason() {
        for (uri, reason) in [
            (
                "https://x.consul/ns/default/dc/d/svc/w",
                "start with spiffe://",
            ),
            ("spiffe://localhost", "dotted host name"),
            ("spiffe://x.consul:80/agent/server/dc/d", "dotted host name"),
            ("spiffe://x..consul", "dotted host name"),
            ("spiffe://x.consul/ns/*/dc/d/svc/w", "no valid name"),
            (
                "spiffe://x.consul/ap/a.b/ns/default/dc/d/svc/w",
                "no valid name",
            ),
            ("spiffe://x.consul/ap/p/agent/server/dc/d", "not one of"),
            ("spiffe://x.consul/ns/default/dc/d/svc/", "segment is empty"),
            (
                "spiffe://x.consul/ns/default/dc/d/svc/%+1",
                "percent-encoded",
            ),
            (
                "spiffe://x.consul/ns/default/dc/d/svc/%ff",
                "percent-encoded",
            ),
            ("spiffe://x.consul/ns/default/dc/d/svc/w?x", "no query"),
            ("spiffe://x.consul/user/w", "not one of"),
        ] {
            let error = uri.parse::<SpiffeId>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(uri), "{error}");
        }
    }

    proptest! {
        #[test]
        fn printing_and_parsing_agree(
            cluster in "[a-zA-Z0-9-]{1,36}",
            datacenter in "[^\\p{C}]{1,12}",
            service in "\\PC{1,24}",
            partition in "[a-z][a-z0-9]{0,8}",
            namespace in "[a-z][a-z0-9-]{0,8}[a-z]",
            kind in 0..4,
        ) {
            let trust_domain = TrustDomain::of_cluster(&cluster);
            let partition: TenancyName = partition.parse().unwrap();
            let tenancy = Tenancy::new(&partition, &namespace.parse().unwrap());
            let id = match kind {
                0 => SpiffeId::Service { trust_domain, tenancy, datacenter, service },
                1 => SpiffeId::Server { trust_domain, datacenter },
                2 => SpiffeId::MeshGateway {
                    trust_domain,
                    tenancy: tenancy.of_partition(),
                    datacenter,
                },
                _ => SpiffeId::Signing { trust_domain },
            };
            let uri = id.to_string();
            prop_assert!(uri.is_ascii());
            prop_assert_eq!(uri.parse::<SpiffeId>(), Ok(id));
        }

        #[test]
        fn parsing_never_panics(uri in "(spiffe://)?[a-z./%0-9é:@-]{0,40}") {
            let _ = uri.parse::<SpiffeId>();
        }
    }
}
