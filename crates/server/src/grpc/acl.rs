//! `ACLService`: login and logout, here or in the datacenter whose auth method or token it is.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use legate_api::acl::acl_service_server::AclService;
use legate_api::acl::{LoginRequest, LoginResponse, LoginToken, LogoutRequest, LogoutResponse};
use legate_model::acl::Token;
use legate_model::{Secret, Tenancy};
use legate_store::Reader;
use legate_wan::Wan;
use serde_json::json;
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status};

use super::auth;
use crate::acl::{Login, Logins, replicated};
use crate::handles::Handles;
use crate::wan;

/// The time in which another datacenter must answer a login. Its auth method may have to ask elsewhere, too.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest answer of another datacenter in bytes.
const LARGEST_ANSWER: usize = 1024 * 1024;

pub(super) struct Service {
    logins: Logins,
    reader: Reader,
    datacenter: String,
    /// The primary datacenter, if it is another one.
    primary: Option<String>,
    wan: Option<Wan>,
}

impl Service {
    pub(super) fn new(handles: &Handles) -> Self {
        let config = &handles.config;
        Self {
            logins: handles.logins(),
            reader: handles.store.reader(),
            datacenter: config.datacenter.clone(),
            primary: config.primary().map(str::to_ascii_lowercase),
            wan: handles.wan.clone(),
        }
    }

    /// The other datacenter that must answer: the one that is named, or the primary for what is global.
    #[allow(clippy::result_large_err, reason = "tonic's services return this type")]
    fn elsewhere(
        &self,
        named: &str,
        is_global: impl FnOnce() -> bool,
    ) -> Result<Option<(Wan, String)>, Status> {
        let Some(wan) = &self.wan else {
            return auth::only_here(&self.datacenter, named).map(|()| None);
        };
        let is_named = !named.is_empty() && !named.eq_ignore_ascii_case(&self.datacenter);
        let datacenter = match is_named {
            true => Some(named.to_ascii_lowercase()),
            false => self.primary.clone().filter(|_| is_global()),
        };
        Ok(datacenter.map(|datacenter| (wan.clone(), datacenter)))
    }

    fn has_global_method(&self, tenancy: &Tenancy, name: &str) -> bool {
        let state = self.reader.state();
        let method = state.read().within(tenancy.clone()).auth_method(name);
        method.is_some_and(|method| !method.token_locality.is_local())
    }
}

/// Sends a login or logout to another datacenter.
async fn ask(
    wan: &Wan,
    datacenter: &str,
    path: &str,
    token: &str,
    body: Vec<u8>,
) -> Result<Bytes, Status> {
    let invalid = |_| Status::invalid_argument(format!("datacenter {datacenter:?} is not valid"));
    let request = wan::request(Method::POST, datacenter, path, token, body).map_err(invalid)?;
    let away = |reason: String| Status::unavailable(format!("datacenter {datacenter:?}: {reason}"));
    let answer = timeout(TIMEOUT, wan.request(datacenter, request)).await;
    let answer = answer.map_err(|_| away(format!("no answer within {TIMEOUT:?}")))?;
    let answer = answer.map_err(|error| away(error.to_string()))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LARGEST_ANSWER).collect();
    let body = body.await.map_err(|error| away(error.to_string()))?;
    let body = body.to_bytes();
    let code = match status {
        StatusCode::OK => return Ok(body),
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => Code::PermissionDenied,
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        _ => Code::Internal,
    };
    Err(Status::new(code, String::from_utf8_lossy(&body)))
}

#[tonic::async_trait]
impl AclService for Service {
    async fn login(
        &self,
        request: Request<LoginRequest>,
    ) -> Result<Response<LoginResponse>, Status> {
        let of_call = auth::tenancy(request.metadata())?;
        let request = request.into_inner();
        let login = Login {
            tenancy: auth::tenancy_in(&of_call, &request.partition, &request.namespace)?,
            auth_method: request.auth_method,
            bearer: Secret::new(request.bearer_token),
            meta: request.meta.into_iter().collect(),
        };
        let is_global = || self.has_global_method(&login.tenancy, &login.auth_method);
        let token = match self.elsewhere(&request.datacenter, is_global)? {
            None => self.logins.login(&login).await.map_err(auth::status)?,
            Some((wan, datacenter)) => {
                let body = json!({
                    "AuthMethod": login.auth_method,
                    "BearerToken": login.bearer.expose(),
                    "Meta": login.meta,
                    "Namespace": &*login.tenancy.namespace,
                    "Partition": &*login.tenancy.partition,
                });
                let body = body.to_string().into_bytes();
                let answer = ask(&wan, &datacenter, "/v1/acl/login", "", body).await?;
                let token: Token = serde_json::from_slice(&answer)
                    .map_err(|error| Status::internal(error.to_string()))?;
                if !token.local && self.primary.is_some() {
                    replicated(&self.reader, token.secret_id.expose()).await;
                }
                token
            }
        };
        Ok(Response::new(LoginResponse {
            token: Some(LoginToken {
                accessor_id: token.accessor_id.clone(),
                secret_id: token.secret_id.expose().to_owned(),
            }),
        }))
    }

    async fn logout(
        &self,
        request: Request<LogoutRequest>,
    ) -> Result<Response<LogoutResponse>, Status> {
        let request = request.into_inner();
        let is_global = || {
            let token = self.reader.state().read().token_by_secret(&request.token);
            // One that is not known here may not be replicated yet.
            token.is_none_or(|token| !token.local)
        };
        match self.elsewhere(&request.datacenter, is_global)? {
            None => self
                .logins
                .logout(&request.token)
                .await
                .map_err(auth::status)?,
            Some((wan, datacenter)) => {
                let path = "/v1/acl/logout";
                ask(&wan, &datacenter, path, &request.token, Vec::new()).await?;
            }
        }
        Ok(Response::new(LogoutResponse {}))
    }
}
