//! A CA and its certificate as stored in a Secret, and the schedule by which they are replaced.
//! Pure: values and the time in, the next step out; only keys are random.
//!
//! A CA is replaced in two steps, so that verifiers have the new CA before it signs: the new CA is
//! first published next to the old one, and signs after the overlap has passed. The old one stays
//! published until it expires.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use legate_identity::{Authority, CertificateInfo, IdentityError, LeafRequest, RootRequest};

/// How far a CA's validity is backdated, for API servers with a slow clock.
const BACKDATE: Duration = Duration::from_secs(60 * 60);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Names and lifetimes of a CA and its certificate.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    /// The CA's common name.
    pub(super) common_name: String,
    /// DNS names of the certificate.
    pub(super) dns_names: Vec<String>,
    /// IP addresses of the certificate.
    pub(super) ips: Vec<std::net::IpAddr>,
    /// Lifetime of the CA; it is replaced when a third remains.
    pub(super) ca_ttl: Duration,
    /// Lifetime of the certificate; it is replaced when a third remains.
    pub(super) leaf_ttl: Duration,
    /// How long a new CA is published before it signs.
    pub(super) overlap: Duration,
}

impl Policy {
    /// The webhook's policy. Its only client reads the CA from the webhook's configuration, so an
    /// overlap of an hour is enough for every API server to see a new CA. The CA lives 3 years, the
    /// certificate 90 days.
    #[must_use]
    pub(super) fn webhook(full_name: &str, namespace: &str) -> Policy {
        let service = format!("{full_name}-operator");
        Policy {
            common_name: format!("{service} webhook CA"),
            dns_names: vec![
                format!("{service}.{namespace}.svc"),
                format!("{service}.{namespace}.svc.cluster.local"),
                format!("{service}.{namespace}"),
                service,
            ],
            ips: Vec::new(),
            ca_ttl: 3 * 365 * DAY,
            leaf_ttl: 90 * DAY,
            overlap: Duration::from_secs(60 * 60),
        }
    }

    /// The servers' policy: 10 years and 1 year. Sidecars get the CA when their pod is created, so a
    /// new CA is published for a year before it signs. Names are those of consul-k8s.
    #[must_use]
    pub(super) fn servers(full_name: &str, namespace: &str, datacenter: &str) -> Policy {
        let service = format!("{full_name}-server");
        let mut dns_names = vec!["localhost".to_owned()];
        for name in [
            service.clone(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc"),
            format!("server.{datacenter}.consul"),
        ] {
            dns_names.push(format!("*.{name}"));
            dns_names.push(name);
        }
        Policy {
            common_name: format!("{full_name} CA"),
            dns_names,
            ips: vec![
                std::net::Ipv4Addr::LOCALHOST.into(),
                std::net::Ipv6Addr::LOCALHOST.into(),
            ],
            ca_ttl: 3650 * DAY,
            leaf_ttl: 365 * DAY,
            overlap: 365 * DAY,
        }
    }
}

/// A certificate and its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    /// The certificate.
    pub(super) cert: String,
    /// The private key, a secret.
    pub(super) key: String,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pair(***)")
    }
}

/// The content of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Material {
    /// The CA that signs now.
    pub(super) ca: Pair,
    /// The published CA that will sign next.
    pub(super) next: Option<Pair>,
    /// The certificate of the CA that signed before; its key is deleted.
    pub(super) previous: Option<String>,
    /// The certificate that servers present.
    pub(super) leaf: Pair,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is due before this time.
    Keep(SystemTime),
    /// Create everything: nothing exists, or it has expired.
    Create,
    /// Publish the next CA.
    PublishNext,
    /// Sign with the next CA from now on.
    Promote,
    /// Sign a new certificate with the current CA.
    RenewLeaf,
    /// Remove the previous CA, which has expired.
    ForgetPrevious,
}

impl Step {
    /// The step that is due at `now`.
    ///
    /// # Errors
    /// If a certificate cannot be parsed.
    pub(super) fn due(
        material: Option<&Material>,
        policy: &Policy,
        now: SystemTime,
    ) -> Result<Step, IdentityError> {
        let Some(material) = material else {
            return Ok(Step::Create);
        };
        let ca = CertificateInfo::from_pem(&material.ca.cert)?;
        let leaf = CertificateInfo::from_pem(&material.leaf.cert)?;
        let next = material.next.as_ref();
        let next = next
            .map(|pair| CertificateInfo::from_pem(&pair.cert))
            .transpose()?;
        if now >= ca.not_after {
            return Ok(match next {
                Some(next) if now < next.not_after => Step::Promote,
                _ => Step::Create,
            });
        }
        let ca_due = last_third(&ca);
        let promotion = next.map(|next| next.not_before + BACKDATE + policy.overlap);
        match promotion {
            Some(promotion) if now >= promotion => return Ok(Step::Promote),
            None if now >= ca_due => return Ok(Step::PublishNext),
            _ => {}
        }
        let Some(leaf_due) = renewal(&leaf, &ca, policy, now) else {
            return Ok(Step::RenewLeaf);
        };
        let mut until = promotion.unwrap_or(ca_due).min(leaf_due);
        if let Some(previous) = &material.previous {
            let expiry = CertificateInfo::from_pem(previous)?.not_after;
            if now >= expiry {
                return Ok(Step::ForgetPrevious);
            }
            until = until.min(expiry);
        }
        Ok(Step::Keep(until))
    }

    /// The material after the step.
    ///
    /// # Errors
    /// If a certificate cannot be parsed or created.
    pub(super) fn take(
        self,
        material: Option<Material>,
        policy: &Policy,
        now: SystemTime,
    ) -> Result<Option<Material>, IdentityError> {
        let Some(mut material) = material.filter(|_| self != Step::Create) else {
            let ca = new_ca(policy, now)?;
            let leaf = sign(&ca, policy, now)?;
            return Ok(Some(Material {
                ca,
                next: None,
                previous: None,
                leaf,
            }));
        };
        match self {
            Step::Keep(_) | Step::Create => return Ok(None),
            Step::PublishNext => material.next = Some(new_ca(policy, now)?),
            Step::Promote => {
                if let Some(next) = material.next.take() {
                    let old = std::mem::replace(&mut material.ca, next);
                    material.previous = Some(old.cert);
                }
                material.leaf = sign(&material.ca, policy, now)?;
            }
            Step::RenewLeaf => material.leaf = sign(&material.ca, policy, now)?,
            Step::ForgetPrevious => material.previous = None,
        }
        Ok(Some(material))
    }
}

/// When a certificate of this CA is replaced; `None` if it is now.
pub(super) fn renewal(
    leaf: &CertificateInfo,
    ca: &CertificateInfo,
    policy: &Policy,
    now: SystemTime,
) -> Option<SystemTime> {
    let signed = leaf.authority_key_id.as_ref() == Some(&ca.subject_key_id);
    // A certificate that expires with its CA would be due again at once.
    let due = match leaf.not_after < ca.not_after {
        true => last_third(leaf),
        false => leaf.not_after,
    };
    (signed && names(leaf, policy) && now < due).then_some(due)
}

fn names(leaf: &CertificateInfo, policy: &Policy) -> bool {
    policy
        .dns_names
        .iter()
        .all(|name| leaf.dns_names.contains(name))
        && policy.ips.iter().all(|ip| leaf.ips.contains(ip))
}

/// The time at which two thirds of a lifetime have passed.
fn last_third(info: &CertificateInfo) -> SystemTime {
    let life = info.not_after.duration_since(info.not_before);
    info.not_before + life.unwrap_or_default() / 3 * 2
}

fn new_ca(policy: &Policy, now: SystemTime) -> Result<Pair, IdentityError> {
    let name: String = policy
        .common_name
        .chars()
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect();
    let root = Authority::generate_root(RootRequest {
        common_name: policy.common_name.clone(),
        uri: format!("urn:legate:{name}"),
        serial: rand::random::<u128>() >> 1,
        now: now - BACKDATE,
        ttl: policy.ca_ttl + BACKDATE,
    })?;
    Ok(Pair {
        cert: root.cert_pem().to_owned(),
        key: root.key_pem(),
    })
}

/// Signs a certificate that does not outlive its CA.
pub(super) fn sign(ca: &Pair, policy: &Policy, now: SystemTime) -> Result<Pair, IdentityError> {
    let authority = Authority::from_pem(&ca.cert, &ca.key)?;
    let left = authority.info().not_after.duration_since(now);
    let issued = authority.issue(LeafRequest {
        uris: Vec::new(),
        dns_names: policy.dns_names.clone(),
        ips: policy.ips.clone(),
        serial: rand::random::<u128>() >> 1,
        now,
        ttl: policy.leaf_ttl.min(left.unwrap_or_default()),
    })?;
    Ok(Pair {
        cert: issued.cert_pem,
        key: issued.key.to_pem(),
    })
}

/// Keys of a Secret.
const CA_CERT: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const NEXT_CERT: &str = "next-ca.crt";
const NEXT_KEY: &str = "next-ca.key";
const PREVIOUS_CERT: &str = "previous-ca.crt";
const LEAF_CERT: &str = "tls.crt";
const LEAF_KEY: &str = "tls.key";

/// The certificate in a Secret, if it has one with its key.
pub(super) fn leaf(data: &BTreeMap<String, ByteString>) -> Option<CertificateInfo> {
    let text = |key: &str| std::str::from_utf8(&data.get(key)?.0).ok();
    let (cert, key) = (text(LEAF_CERT)?, text(LEAF_KEY)?);
    legate_identity::tls::server_config(cert, key, None).ok()?;
    CertificateInfo::from_pem(cert).ok()
}

/// The content of a Secret with a certificate alone.
pub(super) fn leaf_data(leaf: &Pair) -> BTreeMap<String, ByteString> {
    let all = [(LEAF_CERT, &leaf.cert), (LEAF_KEY, &leaf.key)];
    let bytes = |text: &String| ByteString(text.clone().into_bytes());
    let all = all
        .into_iter()
        .map(|(key, text)| (key.to_owned(), bytes(text)));
    all.collect()
}

impl Material {
    /// The certificates of all CAs that verifiers need.
    #[must_use]
    pub(super) fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|pair| pair.cert.as_str());
        let all = [Some(self.ca.cert.as_str()), next, self.previous.as_deref()];
        let lines = all
            .into_iter()
            .flatten()
            .map(|pem| pem.trim_end().to_owned() + "\n");
        lines.collect()
    }

    /// Parses a Secret. `None` if it has none of the keys: a chart may create an empty Secret for
    /// the operator to fill.
    ///
    /// # Errors
    /// A sentence that names the missing or invalid key.
    pub(super) fn read(data: &BTreeMap<String, ByteString>) -> Result<Option<Material>, String> {
        let text = |key: &str| match data.get(key) {
            None => Ok(None),
            Some(bytes) if bytes.0.is_empty() => Ok(None),
            Some(bytes) => match String::from_utf8(bytes.0.clone()) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(format!("{key} is not text")),
            },
        };
        if [CA_CERT, CA_KEY, LEAF_CERT, LEAF_KEY]
            .iter()
            .all(|key| data.get(*key).is_none_or(|bytes| bytes.0.is_empty()))
        {
            return Ok(None);
        }
        let needed = |key: &str| text(key)?.ok_or_else(|| format!("{key} is missing"));
        let wrong = |key: &'static str| move |error: IdentityError| format!("{key}: {error}");
        let ca = Pair {
            cert: needed(CA_CERT)?,
            key: needed(CA_KEY)?,
        };
        Authority::from_pem(&ca.cert, &ca.key).map_err(wrong(CA_CERT))?;
        let leaf = Pair {
            cert: needed(LEAF_CERT)?,
            key: needed(LEAF_KEY)?,
        };
        legate_identity::tls::server_config(&leaf.cert, &leaf.key, None)
            .map_err(|error| format!("{LEAF_CERT}: {error}"))?;
        let next = match (text(NEXT_CERT)?, text(NEXT_KEY)?) {
            (Some(cert), Some(key)) => {
                Authority::from_pem(&cert, &key).map_err(wrong(NEXT_CERT))?;
                Some(Pair { cert, key })
            }
            _ => None,
        };
        let previous = text(PREVIOUS_CERT)?;
        if let Some(previous) = &previous {
            CertificateInfo::from_pem(previous).map_err(wrong(PREVIOUS_CERT))?;
        }
        Ok(Some(Material {
            ca,
            next,
            previous,
            leaf,
        }))
    }

    /// The content of the Secret.
    #[must_use]
    pub(super) fn data(&self) -> BTreeMap<String, ByteString> {
        let next = self.next.as_ref();
        let all = [
            (CA_CERT, Some(&self.ca.cert)),
            (CA_KEY, Some(&self.ca.key)),
            (NEXT_CERT, next.map(|pair| &pair.cert)),
            (NEXT_KEY, next.map(|pair| &pair.key)),
            (PREVIOUS_CERT, self.previous.as_ref()),
            (LEAF_CERT, Some(&self.leaf.cert)),
            (LEAF_KEY, Some(&self.leaf.key)),
        ];
        let all = all.into_iter().filter_map(|(key, text)| {
            text.map(|text| (key.to_owned(), ByteString(text.clone().into_bytes())))
        });
        all.collect()
    }
}

#[cfg(test)]
mod tests;
