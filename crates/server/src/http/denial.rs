//! Completes the text of denied requests with the token's accessor id, as Consul does. Endpoints report the
//! missing permission; the token is known where the request was read.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::body::Body;
use axum::response::Response;
use http::header::CONTENT_LENGTH;
use legate_model::Tenancy;
use legate_model::acl::ANONYMOUS_SECRET;
use legate_store::Reader;

use crate::acl::is_anonymous;
use crate::api_error::Denied;

/// The token and tenancy of a request, set when it is read. Clones share the values.
#[derive(Debug, Clone, Default)]
pub(super) struct Asker(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    token: OnceLock<String>,
    tenancy: Mutex<Option<Tenancy>>,
}

impl Asker {
    /// Sets the secret of the token. Later calls have no effect.
    pub(super) fn note(&self, token: &str) {
        // A request is read once.
        let _ = self.0.token.set(token.to_owned());
    }

    /// Sets the tenancy. The last call wins, because the body takes precedence.
    pub(super) fn note_tenancy(&self, tenancy: Tenancy) {
        *self
            .0
            .tenancy
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(tenancy);
    }

    /// The tenancy of the request, if it has been read.
    pub(super) fn tenancy(&self) -> Option<Tenancy> {
        let known = self.0.tenancy.lock();
        known.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Completes the text of a denied request.
pub(super) fn complete(mut response: Response, asker: &Asker, reader: &Reader) -> Response {
    let Some(denied) = response.extensions_mut().remove::<Denied>() else {
        return response;
    };
    let token = asker.0.token.get().map_or(ANONYMOUS_SECRET, String::as_str);
    let accessor = match is_anonymous(token) {
        true => None,
        false => {
            let state = reader.state();
            let held = state.read().token_by_secret(token);
            Some(held.map_or_else(String::new, |held| held.accessor_id.clone()))
        }
    };
    response.headers_mut().remove(CONTENT_LENGTH);
    *response.body_mut() = Body::from(denied.text(accessor.as_deref()));
    response
}

impl Denied {
    /// The complete text, with the token's accessor id; `None` for the anonymous token.
    fn text(&self, accessor: Option<&str>) -> String {
        let on = match self.name.as_str() {
            "" => String::new(),
            name => format!(" on {name:?}"),
        };
        let lacks = format!("lacks permission '{}'{on}", self.permission);
        match accessor {
            Some(id) => format!("Permission denied: token with AccessorID '{id}' {lacks}"),
            None => format!(
                "Permission denied: anonymous token {lacks}. The anonymous token is used implicitly \
                 when a request does not specify a token."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_consuls() {
        let denied = |name: &str| Denied {
            permission: "service:read".to_owned(),
            name: name.to_owned(),
        };
        assert_eq!(
            denied("web").text(Some("1234")),
            "Permission denied: token with AccessorID '1234' lacks permission 'service:read' on \
             \"web\""
        );
        assert_eq!(
            denied("").text(None),
            "Permission denied: anonymous token lacks permission 'service:read'. The anonymous token \
             is used implicitly when a request does not specify a token."
        );
    }
}
