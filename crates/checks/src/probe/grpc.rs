//! gRPC checks: query the standard health service, which must return `SERVING`.

use hyper_util::rt::TokioIo;
use legate_model::{CheckStatus, CheckType};
use tonic::transport::{Endpoint, Uri};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::dial::Dialer;
use super::output::RunResult;

pub(super) async fn run(dialer: &Dialer, check: &CheckType) -> RunResult {
    let target = check.grpc.as_str();
    match query(dialer, check).await {
        Ok(ServingStatus::Serving) => (
            CheckStatus::Passing,
            format!("gRPC check {target}: success"),
        ),
        Ok(other) => {
            let status = other.as_str_name();
            (
                CheckStatus::Critical,
                format!("gRPC check {target}: {status}"),
            )
        }
        Err(error) => (
            CheckStatus::Critical,
            format!("gRPC check {target}: {error}"),
        ),
    }
}

async fn query(dialer: &Dialer, check: &CheckType) -> Result<ServingStatus, String> {
    let (address, service) = check.grpc.split_once('/').unwrap_or((&check.grpc, ""));
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let scheme = if check.grpc_use_tls { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"));
    let endpoint = endpoint.map_err(|error| text(&error))?;
    let stream = dialer
        .connect(
            check,
            address,
            host,
            check.grpc_use_tls.then_some(b"h2".as_slice()),
        )
        .await
        .map_err(|error| error.to_string())?;
    let mut stream = Some(TokioIo::new(stream));
    // There is only this connection, so reconnecting is impossible.
    let connector = tower::service_fn(move |_: Uri| {
        let stream = stream.take();
        async move { stream.ok_or_else(|| std::io::Error::other("the connection was lost")) }
    });
    let channel = endpoint.connect_with_connector(connector).await;
    let mut client = HealthClient::new(channel.map_err(|error| text(&error))?);
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = client
        .check(request)
        .await
        .map_err(|status| format!("{:?}: {}", status.code(), status.message()))?;
    Ok(answer.into_inner().status())
}

/// An error with its causes.
fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
