//! Which writes a secondary datacenter passes on to the primary: those of rows that all datacenters have. They come back
//! by replication.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderName};
use http::{Method, Request};
use legate_model::Tenancy;
use legate_model::acl::{AuthMethod, Token};
use legate_model::json::{UnknownFields, from_slice};
use legate_store::{ReadTxn, Reader};
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::call::{BODY_LIMIT, BODY_TIME, read_body, token_in};
use super::params::Params;
use crate::acl::replicated;
use crate::api_error::ApiError;
use crate::config::ServerConfig;

/// Marks what a secondary has passed on. A server that is no primary either does not pass it on again.
pub(super) const FOR_PRIMARY: HeaderName = HeaderName::from_static("x-legate-for-primary");

/// Paths below which every write is one of rows that all datacenters have.
const SHARED: [&str; 7] = [
    "/v1/config",
    "/v1/connect/intentions",
    "/v1/acl/policy",
    "/v1/acl/role",
    "/v1/acl/bootstrap",
    "/v1/namespace",
    "/v1/partition",
];

/// The primary datacenter, in a secondary.
pub(super) struct Primary {
    pub(super) datacenter: String,
    /// Whether ACLs are enabled here.
    acls: bool,
    reader: Reader,
}

/// The fields of bodies that decide.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Named {
    /// Of a token.
    local: bool,
    /// Of an auth method.
    name: String,
    token_locality: String,
    /// Of a binding rule or a login.
    auth_method: String,
}

impl Primary {
    /// `None` in the primary datacenter.
    pub(super) fn of(config: &ServerConfig, reader: Reader) -> Option<Self> {
        Some(Self {
            datacenter: config.primary()?.to_ascii_lowercase(),
            acls: config.acl.enabled,
            reader,
        })
    }

    /// Whether the primary may have to answer. If so, [`Self::decides`] says whether it has to.
    pub(super) fn may_decide(&self, method: &Method, path: &str) -> bool {
        let is_write = [Method::PUT, Method::POST, Method::DELETE].contains(method);
        let of_acls = path.starts_with("/v1/acl/");
        let is_shared = of_acls || SHARED.iter().any(|shared| is_below(path, shared));
        is_write && is_shared && (self.acls || !of_acls)
    }

    /// The answer to a login, once its token is known in this datacenter.
    pub(super) async fn known_here(&self, response: Response) -> Response {
        let (mut head, body) = response.into_parts();
        // By it the body is read as it is here.
        head.headers.remove(CONTENT_LENGTH);
        let Ok(body) = to_bytes(body, BODY_LIMIT).await else {
            let text = "The answer of the primary datacenter to a login cannot be read";
            return ApiError::internal(text).into_response();
        };
        if let Ok(token) = serde_json::from_slice::<Token>(&body)
            && !token.local
        {
            replicated(&self.reader, token.secret_id.expose()).await;
        }
        Response::from_parts(head, Body::from(body))
    }

    /// Whether the primary has to answer a request. Returns the request, whose body may have been read.
    ///
    /// # Errors
    /// If the body cannot be read.
    pub(super) async fn decides(
        &self,
        request: Request<Body>,
    ) -> Result<(bool, Request<Body>), ApiError> {
        let path = request.uri().path();
        // What a change would do is computed with the proxies of this datacenter.
        let params = Params::parse(request.uri())?;
        if is_below(path, "/v1/config") && params.flag("dry-run")? {
            return Ok((false, request));
        }
        // Indexes differ from those of the primary, so the entry is compared here.
        if is_below(path, "/v1/config") && params.cas()?.is_some_and(|index| index != 0) {
            return Ok((false, request));
        }
        if SHARED.iter().any(|shared| is_below(path, shared)) {
            return Ok((true, request));
        }
        let (head, body) = request.into_parts();
        let body = read_body(&head.headers, body, BODY_LIMIT, BODY_TIME).await?;
        let decides = {
            let state = self.reader.state();
            let in_url = params.get("token").filter(|token| !token.is_empty());
            let token = in_url.map_or_else(|| token_in(&head.headers), str::to_owned);
            let path = percent_decode_str(head.uri.path()).decode_utf8_lossy();
            is_global(&state.read(), &path, &body, &token)
        };
        Ok((decides, Request::from_parts(head, Body::from(body))))
    }
}

/// Whether a path is this one, or one below it.
fn is_below(path: &str, shared: &str) -> bool {
    let rest = path.strip_prefix(shared);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a write of the ACL tables is about what is not local to this datacenter.
fn is_global(txn: &ReadTxn<'_>, path: &str, body: &Bytes, token: &str) -> bool {
    let mut parts = path.trim_start_matches("/v1/acl/").split('/');
    let (kind, id) = (parts.next().unwrap_or_default(), parts.next());
    // By the rules of the endpoints. What cannot be read is refused by the primary.
    let body: &[u8] = if body.is_empty() { b"{}" } else { body };
    let Ok(named) = from_slice::<Named>(body, UnknownFields::Ignore) else {
        return true;
    };
    let has_global_method = |name: &str| {
        let method = anywhere(txn, |txn| txn.auth_method(name));
        method.is_some_and(|method: Arc<AuthMethod>| !method.token_locality.is_local())
    };
    match (kind, id) {
        ("token", None) => !named.local,
        ("token", Some(accessor)) => {
            let token = anywhere(txn, |txn| txn.token_by_accessor(accessor));
            token.is_none_or(|token| !token.local)
        }
        ("auth-method", name) => {
            let is_known = |name: &str| !name.is_empty() && has_global_method(name);
            named.token_locality == "global" || is_known(&named.name) || name.is_some_and(is_known)
        }
        ("binding-rule", None) | ("login", _) => has_global_method(&named.auth_method),
        ("binding-rule", Some(id)) => {
            let rule = anywhere(txn, |txn| txn.binding_rule(id));
            rule.is_some_and(|rule| has_global_method(&rule.auth_method))
        }
        ("logout", _) => {
            let token = txn.token_by_secret(token);
            // One that is not known here may not be replicated yet.
            token.is_none_or(|token| !token.local)
        }
        _ => false,
    }
}

/// The first result in any namespace: ids are unique, and a name that is global is so in each.
fn anywhere<T>(txn: &ReadTxn<'_>, look: impl Fn(&ReadTxn<'_>) -> Option<T>) -> Option<T> {
    let tenancies: Vec<Tenancy> = txn.tenancies();
    tenancies
        .iter()
        .find_map(|tenancy| txn.in_tenancy(tenancy, &look))
}

#[cfg(test)]
mod tests {
    use legate_model::Secret;
    use legate_model::acl::{BindingRule, Token, TokenLocality};
    use legate_store::{Store, WriteError};

    use super::*;

    async fn primary() -> Primary {
        let store = Store::new();
        store
            .write(|txn| {
                for (name, local) in [("here", true), ("all", false)] {
                    txn.put_token(Token {
                        accessor_id: name.to_owned(),
                        secret_id: Secret::new(name),
                        local,
                        ..Token::default()
                    })?;
                    txn.put_auth_method(AuthMethod {
                        name: name.to_owned(),
                        token_locality: match local {
                            true => TokenLocality::Local,
                            false => TokenLocality::Global,
                        },
                        ..AuthMethod::default()
                    })?;
                    txn.put_binding_rule(BindingRule {
                        id: name.to_owned(),
                        auth_method: name.to_owned(),
                        ..BindingRule::default()
                    })?;
                }
                Ok::<_, WriteError>(())
            })
            .await
            .unwrap();
        Primary {
            datacenter: "dc1".to_owned(),
            acls: true,
            reader: store.reader(),
        }
    }

    #[tokio::test]
    async fn writes_of_shared_rows_are_for_the_primary() {
        let primary = primary().await;
        for (method, path, body, expected) in [
            ("PUT", "/v1/config", "{}", true),
            ("PUT", "/v1/config?dry-run", "{}", false),
            ("PUT", "/v1/config?dry-run=false", "{}", true),
            ("PUT", "/v1/config?cas=0", "{}", true),
            ("PUT", "/v1/config?cas=7", "{}", false),
            ("PUT", "/v1/acl/policy?dry-run", "{}", true),
            ("GET", "/v1/config/service-defaults", "", false),
            ("DELETE", "/v1/config/service-defaults/web", "", true),
            (
                "PUT",
                "/v1/connect/intentions/exact?source=a&destination=b",
                "{}",
                true,
            ),
            ("PUT", "/v1/connect/ca/configuration", "{}", false),
            ("PUT", "/v1/acl/policy", "{}", true),
            ("DELETE", "/v1/acl/role/1", "", true),
            ("PUT", "/v1/acl/bootstrap", "", true),
            ("PUT", "/v1/namespace/a", "{}", true),
            ("PUT", "/v1/kv/v1/config", "{}", false),
            ("PUT", "/v1/acl/token", "{}", true),
            ("PUT", "/v1/acl/token", r#"{"Local": true}"#, false),
            ("PUT", "/v1/acl/token", r#"{"local": true}"#, false),
            ("PUT", "/v1/acl/token", r#"{"Local": null}"#, true),
            ("PUT", "/v1/acl/token/here", "{}", false),
            ("PUT", "/v1/acl/token/here/clone", "{}", false),
            ("DELETE", "/v1/acl/token/all", "", true),
            ("DELETE", "/v1/acl/token/unknown", "", true),
            ("PUT", "/v1/acl/auth-method", r#"{"Name": "a"}"#, false),
            (
                "PUT",
                "/v1/acl/auth-method",
                r#"{"TokenLocality": "global"}"#,
                true,
            ),
            ("PUT", "/v1/acl/auth-method", r#"{"Name": "all"}"#, true),
            ("DELETE", "/v1/acl/auth-method/%61ll", "", true),
            ("DELETE", "/v1/acl/auth-method/here", "", false),
            ("DELETE", "/v1/acl/auth-method/all", "", true),
            (
                "PUT",
                "/v1/acl/binding-rule",
                r#"{"AuthMethod": "all"}"#,
                true,
            ),
            (
                "PUT",
                "/v1/acl/binding-rule",
                r#"{"AuthMethod": "here"}"#,
                false,
            ),
            ("DELETE", "/v1/acl/binding-rule/all", "", true),
            ("POST", "/v1/acl/login", r#"{"AuthMethod": "all"}"#, true),
            ("POST", "/v1/acl/login", r#"{"auth_method": "all"}"#, true),
            ("POST", "/v1/acl/login", r#"{"AuthMethod": "here"}"#, false),
            ("POST", "/v1/acl/logout?token=unknown", "", true),
            ("POST", "/v1/acl/logout?token=all", "", true),
            ("POST", "/v1/acl/logout?token=here", "", false),
        ] {
            let request = Request::builder().method(method).uri(path);
            let request = request.body(Body::from(body)).unwrap();
            let may = primary.may_decide(request.method(), request.uri().path());
            let (decides, request) = primary.decides(request).await.unwrap();
            assert_eq!(may && decides, expected, "{method} {path} {body}");
            let read = axum::body::to_bytes(request.into_body(), BODY_LIMIT).await;
            assert_eq!(read.unwrap(), body, "{path}");
        }
    }
}
