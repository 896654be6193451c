//! HashiCorp Vault as the provider: its PKI engine has the root in one mount, and an intermediate
//! that signs leaves in another. Paths, roles and texts are Consul's, so that existing Vault policies
//! apply. Responses of Vault are validated before use.

mod access;
mod client;

use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode};
use legate_identity::{
    CertificateInfo, CsrProfile, IssuedCertificate, LeafKey, LeafRequest, csr_names,
    csr_public_key, is_issued_by, split_certificates,
};
use legate_model::Secret;
use serde_json::{Value, json};

use self::access::Access;
use self::client::{Client, VaultError};
use super::interface::{Established, Issued, Provider, Signed};
use super::mesh::Mesh;
use crate::CaError;
use crate::rotation::half_over;
use crate::settings::{Common, ProviderSettings, Settings, VaultSettings, go_text};

/// Role in the intermediate's mount.
const ROLE: &str = "leaf-cert";

/// A Vault, and its expected root.
pub(crate) struct Vault {
    settings: VaultSettings,
    common: Common,
    mesh: Mesh,
    access: Access,
    /// The active root, if it is known.
    root: Option<String>,
}

impl Vault {
    /// Sends no requests yet.
    pub(crate) fn new(
        settings: VaultSettings,
        common: Common,
        mesh: Mesh,
        root: Option<String>,
    ) -> Result<Self, CaError> {
        let client = Client::new(&settings).map_err(|reason| CaError::Config { reason })?;
        let access = Access::new(client, settings.access.clone(), settings.namespace.clone());
        Ok(Self {
            settings,
            common,
            mesh,
            access,
            root,
        })
    }

    /// Sends a request to the root's mount.
    async fn root(&self, method: Method, path: &str, body: Option<Value>) -> Response {
        let path = format!("{}/{path}", self.settings.root_path);
        let namespace = self.namespace(&self.settings.root_namespace);
        self.access.call(method, namespace, &path, body).await
    }

    /// Sends a request to the intermediate's mount.
    async fn intermediate(&self, method: Method, path: &str, body: Option<Value>) -> Response {
        let path = format!("{}/{path}", self.settings.intermediate_path);
        let namespace = self.namespace(&self.settings.intermediate_namespace);
        self.access.call(method, namespace, &path, body).await
    }

    fn namespace<'a>(&'a self, own: &'a str) -> &'a str {
        match own.is_empty() {
            true => &self.settings.namespace,
            false => own,
        }
    }

    async fn mount(&self, namespace: &str, path: &str, what: &str, config: Value) -> Response {
        let body = json!({
            "type": "pki",
            "description": format!("{what} CA backend for Consul Connect"),
            "config": config,
        });
        let path = format!("sys/mounts/{path}");
        let namespace = self.namespace(namespace);
        let made = self.access.call(Method::POST, namespace, &path, Some(body));
        match made.await {
            // Another server was first.
            Err(error) if error.contains("already in use") => Ok(Value::Null),
            other => other,
        }
    }

    /// Creates the intermediate's mount and role.
    async fn prepare_intermediate(&self) -> Result<(), VaultError> {
        let (path, namespace) = (
            &self.settings.intermediate_path,
            &self.settings.intermediate_namespace,
        );
        let config = json!({ "max_lease_ttl": go_text(self.common.intermediate_ttl) });
        let present = self.intermediate(Method::GET, "ca/pem", None).await;
        if is_missing(&present) {
            self.mount(namespace, path, "intermediate", config).await?;
        } else {
            present?;
            let tune = format!("sys/mounts/{path}/tune");
            let namespace = self.namespace(namespace);
            let tuned = self
                .access
                .call(Method::POST, namespace, &tune, Some(config));
            if let Err(error) = tuned.await {
                tracing::debug!(%error, "cannot tune the intermediate's mount in Vault");
            }
        }
        let role = json!({
            "allow_any_name": true,
            "allowed_uri_sans": "spiffe://*",
            "key_type": "any",
            "max_ttl": go_text(self.common.leaf_ttl),
            "no_store": true,
            "require_cn": false,
        });
        let path = format!("roles/{ROLE}");
        self.intermediate(Method::POST, &path, Some(role)).await?;
        let tidy = json!({ "enabled": true, "tidy_expired_issuers": true });
        let tidied = self.intermediate(Method::POST, "config/auto-tidy", Some(tidy));
        if let Err(error) = tidied.await {
            tracing::debug!(%error, "cannot enable the removal of expired issuers in Vault");
        }
        Ok(())
    }

    /// Returns the root, followed by certificates that link it to further roots.
    async fn prepare_root(&self) -> Result<String, VaultError> {
        let present = self.root(Method::GET, "ca/pem", None).await;
        let mounted = !is_missing(&present);
        let mut root = match mounted {
            true => pem(present?),
            false => {
                let ttl = go_text(self.common.root_ttl);
                let config = json!({ "max_lease_ttl": ttl, "default_lease_ttl": ttl });
                let (namespace, path) = (&self.settings.root_namespace, &self.settings.root_path);
                self.mount(namespace, path, "root", config).await?;
                String::new()
            }
        };
        if root.is_empty() {
            let made = self
                .root(Method::POST, "root/generate/internal", Some(self.new_key()))
                .await?;
            root = text(&made, "certificate")?;
        }
        let chain = pem(self.root(Method::GET, "ca_chain", None).await?);
        // Some versions of Vault have no chain for roots that they generated themselves.
        Ok(if chain.is_empty() { root } else { chain })
    }

    fn new_key(&self) -> Value {
        json!({
            "common_name": self.mesh.common_name("vault", rand::random()),
            "uri_sans": self.mesh.uri(),
            "key_type": self.common.key.algorithm(),
            "key_bits": self.common.key.bits(),
        })
    }

    /// The current intermediate, if there is one.
    async fn present_intermediate(&self) -> Result<Option<String>, VaultError> {
        let present = pem(self.intermediate(Method::GET, "ca/pem", None).await?);
        Ok(Some(present).filter(|pem| !pem.is_empty()))
    }

    /// Creates a new key in the intermediate's mount, certified by the root.
    async fn new_intermediate(&self, root: &str) -> Result<String, CaError> {
        let path = "intermediate/generate/internal";
        let asked = self
            .intermediate(Method::POST, path, Some(self.new_key()))
            .await?;
        let body = json!({
            "csr": text(&asked, "csr")?,
            "use_csr_values": true,
            "format": "pem_bundle",
            "ttl": go_text(self.common.intermediate_ttl),
        });
        let path = "root/sign-intermediate";
        let signed = self.root(Method::POST, path, Some(body)).await?;
        let body = json!({ "certificate": text(&signed, "certificate")? });
        let path = "intermediate/set-signed";
        let set = self.intermediate(Method::POST, path, Some(body)).await?;
        // Since Vault 1.11 a mount has several issuers, and the old one remains the default.
        let key = asked["data"]["key_id"].as_str();
        if let Some((mapping, key)) = set["data"]["mapping"].as_object().zip(key) {
            let mut issuers = mapping.iter();
            let issuer = issuers.find(|(_, of)| of.as_str() == Some(key));
            let (issuer, _) = issuer.ok_or_else(|| {
                VaultError::answer(path, format!("it does not name the issuer of key {key}"))
            })?;
            self.make_default(issuer).await?;
        }
        let present = self.present_intermediate().await?.ok_or_else(|| {
            VaultError::answer("ca/pem", "there is no intermediate although one was set")
        })?;
        check_intermediate(&present, root)?;
        Ok(present)
    }

    /// Makes an issuer the default, and removes the previous one.
    async fn make_default(&self, issuer: &str) -> Result<(), VaultError> {
        let path = "config/issuers";
        let known = self.intermediate(Method::GET, path, None).await?;
        let mut config = known["data"].clone();
        let before = config["default"].as_str().unwrap_or_default().to_owned();
        if before == issuer {
            return Ok(());
        }
        config["default"] = issuer.into();
        self.intermediate(Method::POST, path, Some(config)).await?;
        if before.is_empty() {
            return Ok(());
        }
        let path = format!("issuer/{before}");
        let old = self.intermediate(Method::GET, &path, None).await?;
        let mut removed = self.intermediate(Method::DELETE, &path, None).await;
        if let Some(key) = old["data"]["key_id"].as_str() {
            let path = format!("key/{key}");
            removed = removed.and(self.intermediate(Method::DELETE, &path, None).await);
        }
        if let Err(error) = removed {
            tracing::warn!(%error, issuer = before, "remove the old issuer from Vault by hand");
        }
        Ok(())
    }

    /// Signs a request with the intermediate.
    async fn signed(&self, csr_pem: &str, ttl: Duration) -> Result<Signed, CaError> {
        let body = json!({ "csr": csr_pem, "ttl": go_text(ttl) });
        let path = format!("sign/{ROLE}");
        let answer = self.intermediate(Method::POST, &path, Some(body)).await?;
        let wrong = |reason: &str| VaultError::answer(&path, reason);
        let cert_pem = text(&answer, "certificate")?;
        let issuer = text(&answer, "issuing_ca")?;
        let info = CertificateInfo::from_pem(&cert_pem)?;
        if info.uris != csr_names(csr_pem)?.uris {
            return Err(wrong("the certificate has another identity").into());
        }
        if info.is_ca || info.public_key != csr_public_key(csr_pem)? {
            return Err(wrong("the certificate is for another key, or for an authority").into());
        }
        if info.not_after <= self.mesh.clock.now() {
            return Err(wrong("the certificate has expired already").into());
        }
        if !is_issued_by(&cert_pem, &issuer)? {
            return Err(wrong("the certificate is not signed by what it names").into());
        }
        if let Some(root) = &self.root {
            check_intermediate(&issuer, root)?;
        }
        Ok(Signed {
            cert_pem,
            issuer: Some(issuer),
        })
    }
}

type Response = Result<Value, VaultError>;

/// Whether the engine is not mounted.
fn is_missing(asked: &Response) -> bool {
    matches!(asked, Err(error) if error.status() == Some(StatusCode::NOT_FOUND))
}

/// Normalises a PEM text that Vault returns outside of JSON.
fn pem(answer: Value) -> String {
    let text = answer.as_str().unwrap_or_default().trim_end();
    match text.is_empty() {
        true => String::new(),
        false => format!("{text}\n"),
    }
}

fn text(answer: &Value, field: &str) -> Result<String, VaultError> {
    let text = answer["data"][field]
        .as_str()
        .unwrap_or_default()
        .trim_end();
    match text.is_empty() {
        true => Err(VaultError::answer(field, "the field is missing or empty")),
        false => Ok(format!("{text}\n")),
    }
}

/// Validates that the intermediate is a CA certificate issued by the root.
fn check_intermediate(pem: &str, root: &str) -> Result<(), CaError> {
    let info = CertificateInfo::from_pem(pem)?;
    if info.is_ca && is_issued_by(pem, root)? {
        return Ok(());
    }
    let reason = "the intermediate is not signed by the root: check RootPKIPath and \
                  IntermediatePKIPath";
    Err(VaultError::answer("ca/pem", reason).into())
}

#[async_trait]
impl Provider for Vault {
    async fn find_root(&self) -> Result<String, CaError> {
        self.access.look_up().await?;
        let root = self.prepare_root().await?;
        // Anything but certificates must not be added to the mesh's roots.
        match split_certificates(&root) {
            Ok(_) => Ok(root),
            Err(error) => Err(VaultError::answer("the root", error.to_string()).into()),
        }
    }

    async fn establish(&self) -> Result<Established, CaError> {
        let root_pem = self.find_root().await?;
        self.prepare_intermediate().await?;
        let now = self.mesh.clock.now();
        let usable = |pem: &String| {
            let Ok(info) = CertificateInfo::from_pem(pem) else {
                return false;
            };
            check_intermediate(pem, &root_pem).is_ok() && !half_over(&info, now)
        };
        let present = self.present_intermediate().await?.filter(usable);
        let intermediate = match present {
            Some(present) => present,
            None => self.new_intermediate(&root_pem).await?,
        };
        Ok(Established {
            root_pem,
            intermediate: Some(intermediate),
            key: Secret::default(),
        })
    }

    async fn issue(&self, request: LeafRequest) -> Result<Issued, CaError> {
        let LeafKey { key, csr_pem } = LeafKey::generate(&request)?;
        let signed = self.signed(&csr_pem, request.ttl).await?;
        Ok(Issued {
            certificate: IssuedCertificate {
                info: CertificateInfo::from_pem(&signed.cert_pem)?,
                cert_pem: signed.cert_pem,
                key,
            },
            issuer: signed.issuer,
        })
    }

    async fn sign(&self, csr_pem: &str, profile: CsrProfile) -> Result<Signed, CaError> {
        self.signed(csr_pem, profile.ttl).await
    }

    async fn sign_intermediate(
        &self,
        csr_pem: &str,
        profile: CsrProfile,
    ) -> Result<String, CaError> {
        let body = json!({
            "csr": csr_pem,
            "use_csr_values": true,
            "format": "pem_bundle",
            "max_path_length": 0,
            "ttl": go_text(profile.ttl),
        });
        let path = "root/sign-intermediate";
        let signed = self.root(Method::POST, path, Some(body)).await?;
        Ok(text(&signed, "certificate")?)
    }

    fn cross_signs(&self) -> bool {
        true
    }

    async fn cross_sign(&self, root_pem: &str, _: CsrProfile) -> Result<String, CaError> {
        let path = "root/sign-self-issued";
        let body = json!({ "certificate": root_pem });
        let answer = self.root(Method::POST, path, Some(body)).await?;
        let link = text(&answer, "certificate")?;
        let (old, new) = (
            CertificateInfo::from_pem(root_pem)?,
            CertificateInfo::from_pem(&link)?,
        );
        let issuer = match &self.root {
            Some(root) => is_issued_by(&link, root)?,
            None => true,
        };
        if !issuer || !new.is_ca || old.public_key != new.public_key {
            let reason = "the certificate does not link the new root to the old one";
            return Err(VaultError::answer(path, reason).into());
        }
        Ok(link)
    }

    async fn is_ready(&self) -> Result<bool, CaError> {
        let present = self.present_intermediate().await?;
        Ok(match (present, &self.root) {
            (Some(present), Some(root)) => check_intermediate(&present, root).is_ok(),
            _ => false,
        })
    }

    async fn renew_intermediate(&self) -> Result<Option<String>, CaError> {
        let root = match &self.root {
            Some(root) => root.clone(),
            None => self.prepare_root().await?,
        };
        self.new_intermediate(&root).await.map(Some)
    }

    async fn keep(&self) -> Option<Duration> {
        self.access.keep().await
    }

    async fn clean_up(&self, next: &Settings) -> Result<(), CaError> {
        if let ProviderSettings::Vault(next) = &next.provider
            && next.intermediate_path == self.settings.intermediate_path
            && next.address == self.settings.address
        {
            return Ok(());
        }
        let path = format!("sys/mounts/{}", self.settings.intermediate_path);
        let namespace = self.namespace(&self.settings.intermediate_namespace);
        let removed = self.access.call(Method::DELETE, namespace, &path, None);
        removed.await?;
        Ok(())
    }
}
