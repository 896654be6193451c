//! The error type of requests: a status, and a text that tells the client how to proceed. It never contains
//! tokens or keys. Also used by the validation of writes, for all APIs.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderName, StatusCode};
use legate_model::Invalid;
use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::json::DecodeError;
use legate_store::{Rejected, TenantConflict, Unavailable, WriteError};

use crate::acl::AclError;

/// A rejected or failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    text: String,
    /// The missing permission, if that is the reason.
    denied: Option<Box<Denied>>,
}

/// A missing permission. Attached to the response as an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Denied {
    /// Such as `service:write`.
    pub(crate) permission: String,
    /// The object's name; empty if there is none.
    pub(crate) name: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            denied: None,
        }
    }

    /// The text for the client.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The request is invalid; repeating it does not help.
    pub(crate) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    /// For endpoints that look an object up by `id` and then check the permission for its name: refuses callers that
    /// may not even read any object of the kind, so that they do not learn which exist.
    ///
    /// # Errors
    /// The permission is denied on `id`.
    pub(crate) fn unless_some(
        authorizer: &Authorizer,
        resource: Resource,
        access: Access,
        id: &str,
    ) -> Result<(), Self> {
        match authorizer.some(resource, Access::Read) {
            true => Ok(()),
            false => {
                let permission = format!("{resource}:{}", access.as_str());
                Err(Self::denied(&permission, id))
            }
        }
    }

    /// The token lacks a permission, such as `service:write`, on an object.
    pub(crate) fn denied(permission: &str, name: &str) -> Self {
        let on = if name.is_empty() {
            String::new()
        } else {
            format!(" on {name:?}")
        };
        let text = format!("Permission denied: the token lacks permission '{permission}'{on}");
        Self {
            denied: Some(Box::new(Denied {
                permission: permission.to_owned(),
                name: name.to_owned(),
            })),
            ..Self::new(StatusCode::FORBIDDEN, text)
        }
    }

    /// [`Self::denied`], unless the token has the permission.
    pub(crate) fn require(permitted: bool, permission: &str, name: &str) -> Result<(), Self> {
        match permitted {
            true => Ok(()),
            false => Err(Self::denied(permission, name)),
        }
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("Request body too large: the limit is {limit} bytes"),
        )
    }

    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    /// The server is temporarily unable to respond. A retry, or another server, may succeed.
    pub(crate) fn unavailable(text: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    /// Whether a retry, or another server, may succeed.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// For ACL endpoints if ACLs are disabled.
    pub(crate) fn acl_disabled() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "ACL support disabled")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.text).into_response();
        if let Some(denied) = self.denied {
            response.extensions_mut().insert(*denied);
        }
        let headers = response.headers_mut();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(CONTENT_TYPE, text);
        headers.insert(
            HeaderName::from_static("x-content-type-options"),
            HeaderValue::from_static("nosniff"),
        );
        response
    }
}

impl From<Rejected> for ApiError {
    fn from(rejected: Rejected) -> Self {
        let status = match &rejected {
            Rejected::Tenant(conflict) => return conflict.clone().into(),
            Rejected::NodeNameTaken { .. }
            | Rejected::SecretTaken
            | Rejected::CasMismatch { .. } => StatusCode::CONFLICT,
            Rejected::MissingNode { .. }
            | Rejected::MissingService { .. }
            | Rejected::CheckOnOtherNode { .. }
            | Rejected::Missing { .. }
            | Rejected::InvalidEntry { .. }
            | Rejected::MissingLink { .. }
            | Rejected::MissingAuthMethod { .. } => StatusCode::BAD_REQUEST,
            // Valid requests, but Consul's status. Clients match on it for names that are taken.
            Rejected::NoVirtualIpLeft { .. }
            | Rejected::NameTaken { .. }
            | Rejected::PreparedQuery(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, rejected.to_string())
    }
}

impl From<TenantConflict> for ApiError {
    fn from(conflict: TenantConflict) -> Self {
        Self::bad_request(conflict.to_string())
    }
}

impl From<Unavailable> for ApiError {
    fn from(error: Unavailable) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl From<WriteError> for ApiError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Rejected(rejected) => rejected.into(),
            WriteError::Unavailable(error) => error.into(),
        }
    }
}

impl From<Invalid> for ApiError {
    fn from(invalid: Invalid) -> Self {
        Self::bad_request(format!("Invalid request: {invalid}"))
    }
}

impl From<DecodeError> for ApiError {
    fn from(error: DecodeError) -> Self {
        Self::bad_request(format!("Request decoding failed: {error}"))
    }
}

impl From<AclError> for ApiError {
    fn from(error: AclError) -> Self {
        let status = match error {
            AclError::Store(error) => return error.into(),
            AclError::Disabled => return Self::acl_disabled(),
            AclError::NotFound
            | AclError::NotBootstrapped
            | AclError::Anonymous
            | AclError::UnknownMethod { .. }
            | AclError::BearerRefused { .. }
            | AclError::NoBinding { .. }
            | AclError::NoNamespace { .. }
            | AclError::NotALogin => StatusCode::FORBIDDEN,
            AclError::BadRequest(_) => StatusCode::BAD_REQUEST,
            AclError::MethodUnavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            AclError::BrokenMethod { .. } | AclError::BrokenPolicy(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self::new(status, error.to_string())
    }
}
