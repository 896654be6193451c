//! What is known of a Secret, without the tokens in it. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use legate_model::PeeringToken;
use sha2::{Digest, Sha256};

use super::TOKEN_LABEL;
use super::object::Key;

/// Annotation of the Secrets that are made here: the SHA-256 of the token. So a changed token is noticed.
pub(super) const DIGEST_ANNOTATION: &str = "consul.hashicorp.com/peering-token-digest";

/// Annotation of the Secrets that are made here: the acceptor that each belongs to, and the Secret's name, so that a copy
/// belongs to nobody. An owner reference would let Kubernetes delete the copies in other clusters, which have no such object.
pub(super) const OWNER_ANNOTATION: &str = "consul.hashicorp.com/peering-acceptor";

/// The value of [`OWNER_ANNOTATION`] for the acceptor with this uid.
pub(super) fn owner(uid: &str, secret: &str) -> String {
    format!("{uid}/{secret}")
}

/// A Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretFact {
    pub(super) key: Key,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// [`OWNER_ANNOTATION`].
    pub(super) owner: Option<String>,
    pub(super) labelled: bool,
    /// [`DIGEST_ANNOTATION`].
    pub(super) digest: Option<String>,
    tokens: BTreeMap<String, Token>,
}

/// What is known of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) digest: String,
    /// The id of the peering in the cluster that made it; `None` if it is not a token.
    pub(super) peer_id: Option<String>,
}

impl Token {
    pub(super) fn of(text: &[u8]) -> Token {
        let token = std::str::from_utf8(text).ok();
        let token = token.and_then(|text| PeeringToken::decode(&text.into()).ok());
        Token {
            digest: digest(text),
            peer_id: token.map(|token| token.peer_id),
        }
    }
}

/// The SHA-256 of a token, as hexadecimal digits.
pub(super) fn digest(token: &[u8]) -> String {
    let digest = Sha256::digest(token);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl SecretFact {
    pub(super) fn of(secret: &Secret) -> SecretFact {
        let data = secret.data.iter().flatten();
        SecretFact {
            key: Key::new(&secret.namespace().unwrap_or_default(), &secret.name_any()),
            uid: secret.uid().unwrap_or_default(),
            resource_version: secret.resource_version().unwrap_or_default(),
            owner: secret.annotations().get(OWNER_ANNOTATION).cloned(),
            labelled: secret.labels().get(TOKEN_LABEL).map(String::as_str) == Some("true"),
            digest: secret.annotations().get(DIGEST_ANNOTATION).cloned(),
            tokens: data
                .map(|(key, token)| (key.clone(), Token::of(&token.0)))
                .collect(),
        }
    }

    /// The token of a key; an empty value is none.
    pub(super) fn token(&self, key: &str) -> Option<&Token> {
        let token = self.tokens.get(key)?;
        (token.digest != digest(b"")).then_some(token)
    }

    /// Whether it belongs to the acceptor with this uid. consul-k8s names no owner: then the acceptor's status has to
    /// name the Secret.
    pub(super) fn belongs_to(&self, uid: &str, recorded: bool) -> bool {
        match self.owner {
            Some(_) => self.was_made_for(uid),
            None => self.labelled && recorded,
        }
    }

    /// Whether it was made here for the acceptor with this uid.
    pub(super) fn was_made_for(&self, uid: &str) -> bool {
        self.owner.as_deref() == Some(&owner(uid, &self.key.name))
    }

    /// Whether the token of a key is the one that was made here, of the peering with this id.
    pub(super) fn is_current(&self, key: &str, peering: &str) -> bool {
        self.token(key).is_some_and(|token| {
            let unchanged = self.digest.as_ref().is_none_or(|it| *it == token.digest);
            unchanged && token.peer_id.as_deref() == Some(peering)
        })
    }
}
