//! Authentication of gRPC calls, and the gRPC status of ACL errors.

use std::time::Duration;

use legate_api::metadata;
use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::{InvalidTenancyName, Tenancy, TenancyName};
use legate_runtime::CancellationToken;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};

use crate::acl::{self, AclError, Rights};

/// How often the token of an open stream is checked again.
pub(super) const AUTH_CHECK: Duration = Duration::from_secs(300);

/// Stands for a metadata value that is not text. No object has this name. It must not be treated as a missing
/// value.
const NOT_TEXT: &str = "(not text)";

/// The token in a call's metadata; empty if there is none.
pub(super) fn token(metadata: &MetadataMap) -> &str {
    text(metadata, metadata::TOKEN)
}

/// Rejects calls whose metadata contains an invalid namespace or partition.
#[allow(
    clippy::result_large_err,
    reason = "tonic requires this signature of interceptors"
)]
pub(super) fn check_tenancy(call: Request<()>) -> Result<Request<()>, Status> {
    tenancy(call.metadata())?;
    Ok(call)
}

/// The tenancy in a call's metadata; by default, the default tenancy.
#[allow(clippy::result_large_err, reason = "tonic's services return this type")]
pub(super) fn tenancy(metadata: &MetadataMap) -> Result<Tenancy, Status> {
    let named = |key| tenancy_name(key, text(metadata, key));
    let (namespace, partition) = (named(metadata::NAMESPACE)?, named(metadata::PARTITION)?);
    Ok(Tenancy::new(&partition, &namespace))
}

/// The tenancy of a call: from its metadata or, if that names no namespace, from its token.
#[allow(clippy::result_large_err, reason = "tonic's services return this type")]
pub(super) fn own_tenancy(metadata: &MetadataMap, rights: &Rights) -> Result<Tenancy, Status> {
    let named = tenancy(metadata)?;
    match text(metadata, metadata::NAMESPACE).is_empty() {
        true => Ok(rights.own_namespace(token(metadata), named)),
        false => Ok(named),
    }
}

/// The tenancy in the fields of a request, else that of the call.
#[allow(clippy::result_large_err, reason = "tonic's services return this type")]
pub(super) fn tenancy_in(
    call: &Tenancy,
    partition: &str,
    namespace: &str,
) -> Result<Tenancy, Status> {
    let namespace = tenancy_name("namespace", namespace)?;
    Ok(call.resolve(&tenancy_name("partition", partition)?, &namespace))
}

#[allow(clippy::result_large_err, reason = "tonic's services return this type")]
fn tenancy_name(field: &str, value: &str) -> Result<TenancyName, Status> {
    let refuse = |reason: String| Status::invalid_argument(format!("{field}: {reason}"));
    let name: TenancyName = value
        .parse()
        .map_err(|error: InvalidTenancyName| refuse(error.to_string()))?;
    match name.is_every() {
        true => Err(refuse("\"*\" is not permitted: name one".to_owned())),
        false => Ok(name),
    }
}

/// Rejects a datacenter other than this server's.
pub(super) fn only_here(here: &str, datacenter: &str) -> Result<(), Status> {
    if datacenter.is_empty() || datacenter.eq_ignore_ascii_case(here) {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "datacenter {datacenter:?} is not served here: this server serves datacenter {here:?}"
    )))
}

fn text<'a>(metadata: &'a MetadataMap, key: &str) -> &'a str {
    let value = metadata.get(key);
    value.map_or("", |value| value.to_str().unwrap_or(NOT_TEXT))
}

/// The permissions of a token.
pub(super) fn authorizer(rights: &Rights, token: &str) -> Result<Authorizer, Status> {
    rights.of(token).map_err(status)
}

/// Accepts any valid token, but not the anonymous one.
pub(super) fn any_valid_token(rights: &Rights, token: &str) -> Result<(), Status> {
    if rights.are_checked() && acl::is_anonymous(token) {
        return Err(status(AclError::Anonymous));
    }
    authorizer(rights, token).map(|_| ())
}

/// Completes when a stream must end: at shutdown, or when its token is no longer valid.
pub(super) async fn ended(rights: Rights, token: String, stop: CancellationToken) -> Status {
    let mut checks = interval_at(Instant::now() + AUTH_CHECK, AUTH_CHECK);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(checks.tick()).await.is_some() {
        if let Err(status) = any_valid_token(&rights, &token) {
            return status;
        }
    }
    Status::unavailable("this server is stopping; connect to another")
}

/// The token lacks a permission, such as `service:write`, on an object.
pub(super) fn denied(permission: &str, name: &str) -> Status {
    Status::permission_denied(format!(
        "Permission denied: the token lacks permission '{permission}' on {name:?}"
    ))
}

/// For calls that find a service by the id of a proxy: refuses callers that may not even read any service, so that they do
/// not learn which proxies are registered.
pub(super) fn unless_some(access: &Authorizer, wanted: Access, proxy: &str) -> Result<(), Status> {
    match access.some(Resource::Service, Access::Read) {
        true => Ok(()),
        false => Err(denied(&format!("service:{}", wanted.as_str()), proxy)),
    }
}

/// The gRPC status of an ACL error.
pub(super) fn status(error: AclError) -> Status {
    let code = match &error {
        AclError::NotFound
        | AclError::NotBootstrapped
        | AclError::Anonymous
        | AclError::BearerRefused { .. } => Code::Unauthenticated,
        AclError::Disabled | AclError::BrokenMethod { .. } | AclError::BrokenPolicy(_) => {
            Code::FailedPrecondition
        }
        AclError::UnknownMethod { .. } | AclError::BadRequest(_) => Code::InvalidArgument,
        AclError::MethodUnavailable { .. } => Code::Unavailable,
        AclError::NoBinding { .. } | AclError::NoNamespace { .. } | AclError::NotALogin => {
            Code::PermissionDenied
        }
        AclError::Store(_) => Code::Internal,
    };
    Status::new(code, error.to_string())
}
