//! Why a token is not accepted, or a login or logout fails. The texts never carry a secret.

use legate_store::{Rejected, Unavailable, WriteError};

/// Access control says no, or cannot say yes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AclError {
    /// No token has this secret, or it has expired. Consul's words, which clients compare with.
    #[error("ACL not found")]
    NotFound,
    /// No token has this secret, and there never was one that could do everything. Consul's words.
    #[error(
        "ACL system must be bootstrapped before making any requests that require authorization: ACL \
         not found"
    )]
    NotBootstrapped,
    /// The server runs without access control.
    #[error("ACL support disabled")]
    Disabled,
    /// The call needs a token and got none.
    #[error("a token must be provided: send it in the metadata x-consul-token")]
    Anonymous,
    /// A login names a method that does not exist.
    #[error("auth method {name:?} not found: create it, or correct the name in the login settings")]
    UnknownMethod {
        /// The name that was looked for.
        name: String,
    },
    /// The method exists but its configuration cannot be used.
    #[error("auth method {name:?} cannot be used: {reason}")]
    BrokenMethod {
        /// The method.
        name: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Who has to be asked about the proof gives no answer.
    #[error("auth method {name:?} cannot be used now: {reason}")]
    MethodUnavailable {
        /// The method.
        name: String,
        /// Who was asked, and what came of it.
        reason: String,
    },
    /// A policy of the token cannot be read; what it denies is not known.
    #[error("the token's {0}; write the policy again, or remove it")]
    BrokenPolicy(String),
    /// The login does not hold what it must.
    #[error("{0}")]
    BadRequest(String),
    /// The bearer token is not accepted by the method.
    #[error("login with auth method {method:?} refused: {reason}")]
    BearerRefused {
        /// The method.
        method: String,
        /// What is wrong with the token.
        reason: String,
    },
    /// The bearer token is good, but no binding rule gives its owner anything.
    #[error("Permission denied: no binding rule of auth method {method:?} applies to this login")]
    NoBinding {
        /// The method.
        method: String,
    },
    /// The login leads to a namespace that does not exist.
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
    /// A logout of a token that was not made by a login.
    #[error("Permission denied: this token was not created by a login, so it cannot be logged out")]
    NotALogin,
    /// The tables refused the change, or it could not be stored.
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
