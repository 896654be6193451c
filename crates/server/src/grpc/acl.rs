//! `ACLService`: login and logout.

use legate_api::acl::acl_service_server::AclService;
use legate_api::acl::{LoginRequest, LoginResponse, LoginToken, LogoutRequest, LogoutResponse};
use legate_model::Secret;
use tonic::{Request, Response, Status};

use super::auth;
use crate::acl::{Login, Logins};

pub(super) struct Service {
    logins: Logins,
    datacenter: String,
}

impl Service {
    pub(super) fn new(logins: Logins, datacenter: String) -> Self {
        Self { logins, datacenter }
    }
}

#[tonic::async_trait]
impl AclService for Service {
    async fn login(
        &self,
        request: Request<LoginRequest>,
    ) -> Result<Response<LoginResponse>, Status> {
        let of_call = auth::tenancy(request.metadata())?;
        let request = request.into_inner();
        auth::only_here(&self.datacenter, &request.datacenter)?;
        let login = Login {
            tenancy: auth::tenancy_in(&of_call, &request.partition, &request.namespace)?,
            auth_method: request.auth_method,
            bearer: Secret::new(request.bearer_token),
            meta: request.meta.into_iter().collect(),
        };
        let token = self.logins.login(&login).await;
        let token = token.map_err(auth::status)?;
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
        auth::only_here(&self.datacenter, &request.datacenter)?;
        let ended = self.logins.logout(&request.token).await;
        ended.map_err(auth::status)?;
        Ok(Response::new(LogoutResponse {}))
    }
}
