//! The calls that a session itself makes, each with a deadline, and the kinds of their failures.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::stream::{self, Stream, TryStreamExt};
use legate_api::acl::acl_service_client::AclServiceClient;
use legate_api::acl::{LoginRequest, LogoutRequest};
use legate_api::dataplane::dataplane_service_client::DataplaneServiceClient;
use legate_api::dataplane::{
    DataplaneFeatures, GetSupportedDataplaneFeaturesRequest, GetSupportedDataplaneFeaturesResponse,
};
use legate_api::serverdiscovery::server_discovery_service_client::ServerDiscoveryServiceClient;
use legate_api::serverdiscovery::{WatchServersRequest, WatchServersResponse};
use legate_model::Secret;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::bearer;
use crate::config::LoginConfig;
use crate::connection::{AuthenticatedChannel, Token};
use crate::error::{SessionError, describe, is_not_found};
use crate::machine::{Credential, Failure, FailureKind, Features};

/// How long a login may take: the server may have to ask its platform.
const LOGIN: Duration = Duration::from_secs(30);

/// Calls by their names in errors.
const CHECK_CALL: &str = "the feature check";
const LOGIN_CALL: &str = "the login";

/// Lists of servers as they come.
pub(crate) type Watch = Pin<Box<dyn Stream<Item = Result<WatchServersResponse, Status>> + Send>>;

/// The kind of failure that the status of a session's own call stands for.
pub(crate) fn kind(status: &Status) -> FailureKind {
    match status.code() {
        _ if is_not_found(status) => FailureKind::Rejected,
        // The connection failed, not the call.
        _ if std::error::Error::source(status).is_some() => FailureKind::Server,
        Code::Unauthenticated | Code::PermissionDenied => FailureKind::Rejected,
        Code::InvalidArgument | Code::FailedPrecondition => FailureKind::Invalid,
        Code::Unimplemented => FailureKind::Unsupported,
        _ => FailureKind::Server,
    }
}

/// Asks what the server can do, which also tells whether it accepts the token. `auth_method` is that
/// of the login that made the token.
pub(crate) async fn features(
    server: SocketAddr,
    channel: AuthenticatedChannel,
    credential: Credential,
    auth_method: String,
    time: Duration,
) -> Result<Features, Failure> {
    let mut client = DataplaneServiceClient::new(channel);
    let call = client.get_supported_dataplane_features(GetSupportedDataplaneFeaturesRequest {});
    let status = match timeout(time, call).await {
        Err(_) => return Err(Failure::timeout(server, CHECK_CALL, time)),
        Ok(Ok(response)) => return Ok(supported(&response.into_inner())),
        Ok(Err(status)) => status,
    };
    let kind = kind(&status);
    let message = describe(&status);
    let error = match (kind, credential) {
        (FailureKind::Rejected, Credential::None) => SessionError::TokenWanted { server, message },
        (FailureKind::Rejected, Credential::Static) => {
            SessionError::TokenRejected { server, message }
        }
        (FailureKind::Rejected, Credential::Login) => SessionError::LoginTokenRejected {
            server,
            auth_method,
            message,
        },
        _ => SessionError::call(server, CHECK_CALL, &status),
    };
    Err(Failure::new(kind, error))
}

fn supported(response: &GetSupportedDataplaneFeaturesResponse) -> Features {
    let supports = |feature: DataplaneFeatures| {
        let mut list = response.supported_dataplane_features.iter();
        list.any(|entry| entry.feature_name() == feature && entry.supported)
    };
    Features {
        bootstrap: supports(DataplaneFeatures::EnvoyBootstrapConfiguration),
        watch: supports(DataplaneFeatures::WatchServers),
    }
}

/// The result of a login.
pub(crate) struct LoggedIn {
    pub(crate) token: Token,
    /// When the bearer token expires, by its `exp` claim.
    pub(crate) bearer_expires: Option<SystemTime>,
}

/// Logs in. An error says whether the bearer token had expired at `now`.
pub(crate) async fn login(
    server: SocketAddr,
    channel: Channel,
    config: Arc<LoginConfig>,
    now: SystemTime,
) -> Result<LoggedIn, Failure> {
    let bearer =
        bearer::read(&config.bearer).map_err(|error| Failure::new(FailureKind::Rejected, error))?;
    let bearer_expires = bearer::expires(&bearer);
    let request = LoginRequest {
        auth_method: config.auth_method.clone(),
        bearer_token: bearer.expose().to_owned(),
        meta: config.meta.clone().into_iter().collect(),
        namespace: config.namespace.clone(),
        partition: config.partition.clone(),
        datacenter: config.datacenter.clone(),
    };
    let mut client = AclServiceClient::new(channel);
    let response = match timeout(LOGIN, client.login(request)).await {
        Err(_) => return Err(Failure::timeout(server, LOGIN_CALL, LOGIN)),
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => {
            let note = bearer::note(bearer_expires, now);
            return Err(login_failure(server, &config, &note, &status));
        }
    };
    let token = response.token.filter(|token| !token.secret_id.is_empty());
    let token =
        token.and_then(|token| Token::new(Secret::new(token.secret_id), Some(&token.accessor_id)));
    match token {
        Some(token) => Ok(LoggedIn {
            token,
            bearer_expires,
        }),
        None => Err(Failure::of_server(SessionError::NoSecret {
            server,
            auth_method: config.auth_method.clone(),
        })),
    }
}

fn login_failure(server: SocketAddr, config: &LoginConfig, note: &str, status: &Status) -> Failure {
    let kind = kind(status);
    let error = match kind {
        FailureKind::Rejected | FailureKind::Invalid => SessionError::LoginRefused {
            server,
            auth_method: config.auth_method.clone(),
            bearer: format!("{}{note}", config.bearer),
            code: status.code(),
            message: describe(status),
        },
        _ => SessionError::call(server, LOGIN_CALL, status),
    };
    Failure::new(kind, error)
}

/// Deletes a token that a login made. The caller sets the deadline.
pub(crate) async fn logout(
    channel: Channel,
    token: Secret,
    datacenter: String,
) -> Result<(), Status> {
    let request = LogoutRequest {
        token: token.expose().to_owned(),
        datacenter,
    };
    AclServiceClient::new(channel)
        .logout(request)
        .await
        .map(drop)
}

/// Opens the stream of server lists; an error of opening it is its only item.
pub(crate) fn watch(channel: AuthenticatedChannel) -> Watch {
    let open = async move {
        let mut client = ServerDiscoveryServiceClient::new(channel);
        client
            .watch_servers(WatchServersRequest { wan: false })
            .await
            .map(tonic::Response::into_inner)
    };
    Box::pin(stream::once(open).try_flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_a_sessions_own_call_is_about_something() {
        for number in 1..=16 {
            let code = Code::from_i32(number);
            let wanted = match code {
                Code::Unauthenticated | Code::PermissionDenied => FailureKind::Rejected,
                Code::InvalidArgument | Code::FailedPrecondition => FailureKind::Invalid,
                Code::Unimplemented => FailureKind::Unsupported,
                _ => FailureKind::Server,
            };
            assert_eq!(kind(&Status::new(code, "text")), wanted, "{code:?}");
            let not_found = Status::new(code, "rpc error: ACL not found");
            assert_eq!(kind(&not_found), FailureKind::Rejected, "{code:?}");
            let mut local = Status::new(code, "transport error");
            local.set_source(Arc::new(std::io::Error::from(
                std::io::ErrorKind::BrokenPipe,
            )));
            assert_eq!(kind(&local), FailureKind::Server, "{code:?}");
        }
    }
}
