//! The session's own calls, each with a deadline, and the meaning of their failures.

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
use crate::connection::{AuthenticatedChannel, Token, authenticated};
use crate::dial::Link;
use crate::error::{ErrorKind, SessionError, describe, kind};
use crate::machine::Features;

/// Time limit of a login: the server may have to query its platform.
const LOGIN: Duration = Duration::from_secs(30);

/// Names of calls in errors.
const CHECK_CALL: &str = "the feature check";
const LOGIN_CALL: &str = "the login";

/// The stream of server lists.
pub(crate) type Watch = Pin<Box<dyn Stream<Item = Result<WatchServersResponse, Status>> + Send>>;

/// Requests the server's features, which also verifies that it accepts the token. `login` is the
/// login that created the token, if any.
pub(crate) async fn features(
    link: Link,
    token: Option<Token>,
    login: Option<Arc<LoginConfig>>,
    time: Duration,
) -> Result<Features, SessionError> {
    let server = link.server;
    let channel = authenticated(link.channel.clone(), token.as_ref());
    let mut client = DataplaneServiceClient::new(channel);
    let call = client.get_supported_dataplane_features(GetSupportedDataplaneFeaturesRequest {});
    let status = match timeout(time, call).await {
        Err(_) => return Err(SessionError::timeout(server, CHECK_CALL, time)),
        Ok(Ok(response)) => return supported(server, &response.into_inner()),
        Ok(Err(status)) => status,
    };
    if kind(&status) != ErrorKind::Rejected {
        let error = SessionError::call(server, CHECK_CALL, &status);
        return Err(error.with(link.greeting.hint()));
    }
    let message = describe(&status);
    let text = match (login, token) {
        (Some(login), _) => format!(
            "server {server} rejects the ACL token of the login with auth method {:?} \
             (-login-auth-method): {message}",
            login.auth_method
        ),
        (None, Some(_)) => format!(
            "server {server} rejects the ACL token ({message}): check -static-token, or whether \
             -credential-type should be login"
        ),
        (None, None) => format!(
            "server {server} requires an ACL token ({message}) and none is configured: set \
             -credential-type to static and -static-token, or -credential-type to login"
        ),
    };
    Err(SessionError::new(
        ErrorKind::Rejected,
        Code::Unauthenticated,
        text,
    ))
}

fn supported(
    server: SocketAddr,
    response: &GetSupportedDataplaneFeaturesResponse,
) -> Result<Features, SessionError> {
    let supports = |feature: DataplaneFeatures| {
        let mut list = response.supported_dataplane_features.iter();
        list.any(|entry| entry.feature_name() == feature && entry.supported)
    };
    if !supports(DataplaneFeatures::EnvoyBootstrapConfiguration) {
        let text = format!(
            "server {server} cannot configure proxies: it lacks the feature \
             ENVOY_BOOTSTRAP_CONFIGURATION (Consul has it since 1.14)"
        );
        return Err(SessionError::new(ErrorKind::Server, None, text));
    }
    let watch = supports(DataplaneFeatures::WatchServers);
    Ok(Features { watch })
}

/// The result of a login.
pub(crate) struct LoggedIn {
    pub(crate) token: Token,
    /// When the bearer token expires, by its `exp` claim.
    pub(crate) bearer_expires: Option<SystemTime>,
}

/// Logs in. An error includes whether the bearer token had expired at `now`.
pub(crate) async fn login(
    link: Link,
    config: Arc<LoginConfig>,
    now: SystemTime,
) -> Result<LoggedIn, SessionError> {
    let (server, auth_method) = (link.server, &config.auth_method);
    let bearer = bearer::read(&config.bearer)?;
    let bearer_expires = bearer::expires(&bearer);
    let request = LoginRequest {
        auth_method: auth_method.clone(),
        bearer_token: bearer.expose().to_owned(),
        meta: config.meta.clone().into_iter().collect(),
        namespace: config.namespace.clone(),
        partition: config.partition.clone(),
        datacenter: config.datacenter.clone(),
    };
    let mut client = AclServiceClient::new(link.channel);
    let response = match timeout(LOGIN, client.login(request)).await {
        Err(_) => return Err(SessionError::timeout(server, LOGIN_CALL, LOGIN)),
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => {
            let error = SessionError::call(server, LOGIN_CALL, &status);
            if !matches!(error.kind, ErrorKind::Rejected | ErrorKind::Invalid) {
                return Err(error.with(link.greeting.hint()));
            }
            let note = bearer::note(bearer_expires, now);
            let text = format!(
                "server {server} refuses the login with auth method {auth_method:?} \
                 (-login-auth-method) and {}{note}: {:?}: {}",
                config.bearer,
                status.code(),
                describe(&status)
            );
            return Err(SessionError { text, ..error });
        }
    };
    let token = response.token.filter(|token| !token.secret_id.is_empty());
    let token =
        token.and_then(|token| Token::new(Secret::new(token.secret_id), Some(&token.accessor_id)));
    let token = token.ok_or_else(|| {
        let text = format!(
            "server {server} answered the login with auth method {auth_method:?} without a token"
        );
        SessionError::new(ErrorKind::Server, None, text)
    })?;
    Ok(LoggedIn {
        token,
        bearer_expires,
    })
}

/// Deletes a token that was created by a login. The caller sets the deadline.
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

/// Opens the stream of server lists. If that fails, the error is its only item.
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
