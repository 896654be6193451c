//! Errors of token resolution, logins and logouts. The texts never contain a secret.

use legate_store::{Rejected, Unavailable, WriteError};

/// An ACL request was denied or could not be processed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AclError {
    /// No token has this secret, or it has expired. Consul's text, on which clients match.
    #[error("ACL not found")]
    NotFound,
    /// No token has this secret, and there has never been a management token. Consul's text.
    #[error(
        "ACL system must be bootstrapped before making any requests that require authorization: ACL \
         not found"
    )]
    NotBootstrapped,
    /// ACLs are disabled.
    #[error("ACL support disabled")]
    Disabled,
    /// The call requires a token.
    #[error("a token must be provided: send it in the metadata x-consul-token")]
    Anonymous,
    /// A login names a method that does not exist.
    #[error("auth method {name:?} not found: create it, or correct the name in the login settings")]
    UnknownMethod {
        /// The requested name.
        name: String,
    },
    /// The method exists but its configuration cannot be used.
    #[error("auth method {name:?} cannot be used: {reason}")]
    BrokenMethod {
        /// The method.
        name: String,
        /// The reason, and how to correct it.
        reason: String,
    },
    /// The server that verifies the bearer token cannot be reached.
    #[error("auth method {name:?} cannot be used now: {reason}")]
    MethodUnavailable {
        /// The method.
        name: String,
        /// The server, and its error.
        reason: String,
    },
    /// A policy of the token cannot be parsed, so its denials are unknown.
    #[error("the token's {0}; write the policy again, or remove it")]
    BrokenPolicy(String),
    /// The login request is invalid.
    #[error("{0}")]
    BadRequest(String),
    /// The method rejects the bearer token.
    #[error("login with auth method {method:?} refused: {reason}")]
    BearerRefused {
        /// The method.
        method: String,
        /// The reason.
        reason: String,
    },
    /// The bearer token is valid, but no binding rule matches.
    #[error("Permission denied: no binding rule of auth method {method:?} applies to this login")]
    NoBinding {
        /// The method.
        method: String,
    },
    /// The login maps to a namespace that does not exist.
    #[error(
        "Permission denied: auth method {method:?} makes the token in namespace {namespace:?}, which does \
         not exist: create it, or correct the method's NamespaceRules"
    )]
    NoNamespace {
        /// The method.
        method: String,
        /// The namespace.
        namespace: String,
    },
    /// Logout of a token that was not created by a login.
    #[error("Permission denied: this token was not created by a login, so it cannot be logged out")]
    NotALogin,
    /// The store rejected the write, or could not perform it.
    #[error("{0}")]
    Store(#[from] WriteError),
}

impl From<Rejected> for AclError {
    fn from(rejected: Rejected) -> Self {
        Self::Store(rejected.into())
    }
}

impl From<Unavailable> for AclError {
    fn from(error: Unavailable) -> Self {
        Self::Store(error.into())
    }
}
