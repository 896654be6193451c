//! The calls that a session itself makes, each with a deadline, and what their errors are about.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream, TryStreamExt};
use legate_api::acl::acl_service_client::AclServiceClient;
use legate_api::acl::{LoginRequest, LogoutRequest};
use legate_api::dataplane::dataplane_service_client::DataplaneServiceClient;
use legate_api::dataplane::{DataplaneFeatures, GetSupportedDataplaneFeaturesRequest};
use legate_api::serverdiscovery::server_discovery_service_client::ServerDiscoveryServiceClient;
use legate_api::serverdiscovery::{WatchServersRequest, WatchServersResponse};
use legate_model::Secret;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::config::{Bearer, LoginConfig};
use crate::connection::{AuthenticatedChannel, Token};
use crate::error::{SessionError, describe, is_not_found};
use crate::machine::{Credential, Failure, FailureKind, Features};

/// How long a feature check may take.
const FEATURES: Duration = Duration::from_secs(10);
/// How long a login may take: the server may have to ask its platform.
const LOGIN: Duration = Duration::from_secs(30);
/// Largest file that is read as a bearer token.
const BEARER: u64 = 64 * 1024;

/// Lists of servers as they come.
pub(crate) type Watch = Pin<Box<dyn Stream<Item = Result<WatchServersResponse, Status>> + Send>>;

/// What a status of a session's own call is about.
pub(crate) fn kind(status: &Status) -> FailureKind {
    match status.code() {
        _ if is_not_found(status) => FailureKind::Rejected,
        // The connection itself is what failed.
        _ if std::error::Error::source(status).is_some() => FailureKind::Server,
        Code::Unauthenticated | Code::PermissionDenied => FailureKind::Rejected,
        Code::InvalidArgument | Code::FailedPrecondition => FailureKind::Invalid,
        Code::Unimplemented => FailureKind::Unsupported,
        _ => FailureKind::Server,
    }
}

fn server_failure(error: SessionError) -> Failure {
    Failure {
        kind: FailureKind::Server,
        error: Arc::new(error),
    }
}

/// Asks what the server can do, which also tells whether it accepts the token.
pub(crate) async fn features(
    server: SocketAddr,
    channel: AuthenticatedChannel,
    credential: Credential,
    auth_method: String,
) -> Result<Features, Failure> {
    const CALL: &str = "the feature check";
    let mut client = DataplaneServiceClient::new(channel);
    let call = client.get_supported_dataplane_features(GetSupportedDataplaneFeaturesRequest {});
    let response = match timeout(FEATURES, call).await {
        Err(_) => {
            return Err(server_failure(SessionError::Timeout {
                server,
                call: CALL,
                after: FEATURES,
            }));
        }
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => {
            let kind = kind(&status);
            let message = describe(&status);
            let error = match (kind, credential) {
                (FailureKind::Rejected, Credential::None) => {
                    SessionError::TokenWanted { server, message }
                }
                (FailureKind::Rejected, Credential::Static) => {
                    SessionError::TokenRejected { server, message }
                }
                (FailureKind::Rejected, Credential::Login) => SessionError::LoginTokenRejected {
                    server,
                    auth_method,
                    message,
                },
                _ => SessionError::call(server, CALL, &status),
            };
            return Err(Failure {
                kind,
                error: Arc::new(error),
            });
        }
    };
    let supports = |feature: DataplaneFeatures| {
        let mut list = response.supported_dataplane_features.iter();
        list.any(|entry| entry.feature_name() == feature && entry.supported)
    };
    Ok(Features {
        bootstrap: supports(DataplaneFeatures::EnvoyBootstrapConfiguration),
        watch: supports(DataplaneFeatures::WatchServers),
    })
}

/// Logs in. The bearer file is read now, so that a rotated token is picked up.
pub(crate) async fn login(
    server: SocketAddr,
    channel: Channel,
    config: Arc<LoginConfig>,
) -> Result<Token, Failure> {
    const CALL: &str = "the login";
    let bearer = bearer(&config.bearer).map_err(|error| Failure {
        kind: FailureKind::Rejected,
        error: Arc::new(error),
    })?;
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
        Err(_) => {
            return Err(server_failure(SessionError::Timeout {
                server,
                call: CALL,
                after: LOGIN,
            }));
        }
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return Err(login_failure(server, &config, &status)),
    };
    let token = response.token.filter(|token| !token.secret_id.is_empty());
    let token =
        token.and_then(|token| Token::new(Secret::new(token.secret_id), Some(&token.accessor_id)));
    token.ok_or_else(|| {
        server_failure(SessionError::NoSecret {
            server,
            auth_method: config.auth_method.clone(),
        })
    })
}

fn login_failure(server: SocketAddr, config: &LoginConfig, status: &Status) -> Failure {
    let kind = kind(status);
    let error = match kind {
        FailureKind::Rejected | FailureKind::Invalid => SessionError::LoginRefused {
            server,
            auth_method: config.auth_method.clone(),
            bearer: config.bearer.to_string(),
            code: status.code(),
            message: describe(status),
        },
        _ => SessionError::call(server, "the login", status),
    };
    Failure {
        kind,
        error: Arc::new(error),
    }
}

fn bearer(bearer: &Bearer) -> Result<Secret, SessionError> {
    match bearer {
        Bearer::Token(token) => Ok(token.clone()),
        Bearer::File(path) => read_bearer(path).map_err(|reason| SessionError::BearerFile {
            path: path.clone(),
            reason,
        }),
    }
}

fn read_bearer(path: &Path) -> Result<Secret, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let length = file
        .take(BEARER + 1)
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    if length as u64 > BEARER {
        return Err(format!("it holds more than {BEARER} bytes"));
    }
    match text.trim() {
        "" => Err("it is empty".to_owned()),
        token => Ok(Secret::new(token)),
    }
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
    use std::io::Write;

    use tempfile::NamedTempFile;

    use super::*;

    #[test]
    fn a_bearer_file_is_trimmed_and_bounded() {
        let mut file = NamedTempFile::new().unwrap();
        let read = |file: &NamedTempFile| {
            bearer(&Bearer::File(file.path().to_owned())).map_err(|error| error.to_string())
        };
        assert!(read(&file).unwrap_err().contains("it is empty"));
        writeln!(file, " jwt").unwrap();
        assert_eq!(read(&file).unwrap().expose(), "jwt");
        write!(file, "{}", "x".repeat(70_000)).unwrap();
        assert!(read(&file).unwrap_err().contains("more than 65536"));
        let missing = bearer(&Bearer::File("/no/such/token".into()))
            .unwrap_err()
            .to_string();
        assert!(
            missing.contains("/no/such/token (-login-bearer-token-path)"),
            "{missing}"
        );
    }
}
