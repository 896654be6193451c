//! Who calls, and what an ACL error is in gRPC.

use std::time::Duration;

use legate_api::metadata;
use legate_model::acl::Authorizer;
use legate_model::{InvalidTenancyName, Tenancy, TenancyName};
use legate_runtime::CancellationToken;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};

use crate::acl::{self, AclError, Rights};

/// How often the token of an open stream is looked at again.
pub(super) const AUTH_CHECK: Duration = Duration::from_secs(300);

/// What stands for a value that is no text: nothing goes by this name. It must not pass for a value
/// that is absent.
const NOT_TEXT: &str = "(not text)";

/// The token of a call; empty when there is none.
pub(super) fn token(metadata: &MetadataMap) -> &str {
    text(metadata, metadata::TOKEN)
}

/// Refuses every call whose metadata name no namespace or partition that there can be.
#[allow(
    clippy::result_large_err,
    reason = "this is how tonic takes interceptors"
)]
pub(super) fn check_tenancy(call: Request<()>) -> Result<Request<()>, Status> {
    tenancy(call.metadata())?;
    Ok(call)
}

/// The tenancy that a call's metadata name; the default one where they name none.
#[allow(
    clippy::result_large_err,
    reason = "this is what tonic's services answer with"
)]
pub(super) fn tenancy(metadata: &MetadataMap) -> Result<Tenancy, Status> {
    let named = |key| tenancy_name(key, text(metadata, key));
    let (namespace, partition) = (named(metadata::NAMESPACE)?, named(metadata::PARTITION)?);
    Ok(Tenancy::new(&partition, &namespace))
}

/// The tenancy that a call is about: what its metadata name, and where they name no namespace that of its
/// token.
#[allow(
    clippy::result_large_err,
    reason = "this is what tonic's services answer with"
)]
pub(super) fn own_tenancy(metadata: &MetadataMap, rights: &Rights) -> Result<Tenancy, Status> {
    let named = tenancy(metadata)?;
    match text(metadata, metadata::NAMESPACE).is_empty() {
        true => Ok(rights.own_namespace(token(metadata), named)),
        false => Ok(named),
    }
}

/// The tenancy that a request names in its fields, or else that of the call.
#[allow(
    clippy::result_large_err,
    reason = "this is what tonic's services answer with"
)]
pub(super) fn tenancy_in(
    call: &Tenancy,
    partition: &str,
    namespace: &str,
) -> Result<Tenancy, Status> {
    let namespace = tenancy_name("namespace", namespace)?;
    Ok(call.resolve(&tenancy_name("partition", partition)?, &namespace))
}

#[allow(
    clippy::result_large_err,
    reason = "this is what tonic's services answer with"
)]
fn tenancy_name(field: &str, value: &str) -> Result<TenancyName, Status> {
    let refuse = |reason: String| Status::invalid_argument(format!("{field}: {reason}"));
    let name: TenancyName = value
        .parse()
        .map_err(|error: InvalidTenancyName| refuse(error.to_string()))?;
    match name.is_every() {
        true => Err(refuse("\"*\" stands for every one: name one".to_owned())),
        false => Ok(name),
    }
}

/// Refuses a datacenter other than this server's.
pub(super) fn only_here(here: &str, datacenter: &str) -> Result<(), Status> {
    if datacenter.is_empty() || datacenter.eq_ignore_ascii_case(here) {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "datacenter {datacenter:?} is not served here: this server is of datacenter {here:?}"
    )))
}

fn text<'a>(metadata: &'a MetadataMap, key: &str) -> &'a str {
    let value = metadata.get(key);
    value.map_or("", |value| value.to_str().unwrap_or(NOT_TEXT))
}

/// What the token allows.
pub(super) fn authorizer(rights: &Rights, token: &str) -> Result<Authorizer, Status> {
    rights.of(token).map_err(status)
}

/// Lets any token pass that exists, but not the absence of one.
pub(super) fn any_valid_token(rights: &Rights, token: &str) -> Result<(), Status> {
    if rights.are_checked() && acl::is_anonymous(token) {
        return Err(status(AclError::Anonymous));
    }
    authorizer(rights, token).map(|_| ())
}

/// Waits until a stream has to end: the server stops, or the token that opened the stream is no
/// longer good.
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

/// The token lacks a permission, such as `service:write`, on something.
pub(super) fn denied(permission: &str, name: &str) -> Status {
    Status::permission_denied(format!(
        "Permission denied: the token lacks permission '{permission}' on {name:?}"
    ))
}

/// The status that says an ACL error to a client.
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
