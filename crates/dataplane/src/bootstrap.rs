//! Inputs of Envoy's bootstrap configuration: fetches the proxy's parameters from a server and
//! combines them with the settings. Starts nothing and writes no file.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::anyhow;
use legate_api::dataplane::get_envoy_bootstrap_params_request::NodeSpec;
use legate_api::dataplane::{GetEnvoyBootstrapParamsRequest, GetEnvoyBootstrapParamsResponse};
use legate_api::json::from_struct;
use legate_client::{Connection, ErrorClass, Session, classify};
use legate_envoy::bootstrap::{
    BootstrapError, BootstrapInputs, NodeInputs, PrometheusInputs, PrometheusTls, ProxyConfig,
    XdsAddress, reachable,
};
use legate_runtime::{Backoff, BackoffPolicy};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use crate::settings::{Proxy, Settings, Telemetry};

/// Time limit of one request for bootstrap parameters.
const ANSWER: Duration = Duration::from_secs(10);

/// Consecutive refusals before the start fails. A new registration or token may not have reached all
/// servers yet.
const PATIENCE: u32 = 4;

/// How long to wait for the proxy's registration at start: on Kubernetes a pod is registered once it
/// has an address, by which time its sidecar is already running. consul-k8s waits just as long.
pub const REGISTRATION: Duration = Duration::from_secs(120);

/// Backoff between refusals: 1.75 s until [`PATIENCE`] is exhausted, unless a registration is
/// awaited.
const REFUSED: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(250),
    multiplier: 2.0,
    jitter: 0.2,
    cap: Duration::from_secs(1),
};

/// Requests the proxy's parameters until a server returns them or servers keep refusing. During the
/// first `registration` an unknown proxy does not count as a refusal.
///
/// # Errors
/// When the session has failed, or the proxy or its token is refused; the error names the settings to
/// check.
pub async fn fetch(
    session: &Session,
    proxy: &Proxy,
    registration: Duration,
) -> anyhow::Result<GetEnvoyBootstrapParamsResponse> {
    let began = Instant::now();
    let mut usual = Backoff::new(BackoffPolicy::UNCONFIGURED);
    let mut refused = Backoff::new(REFUSED);
    let (mut refusals, mut final_refusals) = (0_u32, 0);
    loop {
        let connection = session.connected().await?;
        let status = match ask(&connection, proxy).await {
            Ok(params) => return Ok(params),
            Err(status) => status,
        };
        session.report(&connection, &status);
        let refusal = is_refusal(&status);
        let waits = status.code() == Code::NotFound && began.elapsed() < registration;
        if !refusal {
            (refusals, final_refusals) = (0, 0);
        } else {
            refusals += 1;
            final_refusals += u32::from(!waits);
        }
        if final_refusals >= PATIENCE {
            return Err(refusal_error(connection.server, proxy, &status));
        }
        let backoff = if refusal { &mut refused } else { &mut usual };
        let delay = backoff.next(rand::random());
        // The wait for a registration may take two minutes: log a few of these only.
        if refusals <= PATIENCE || refusals.is_power_of_two() {
            tracing::warn!(
                server = %connection.server,
                code = ?status.code(),
                error = status.message(),
                retry = ?delay,
                "no bootstrap parameters yet"
            );
        }
        sleep(delay).await;
    }
}

async fn ask(
    connection: &Connection,
    proxy: &Proxy,
) -> Result<GetEnvoyBootstrapParamsResponse, Status> {
    let mut client = connection.dataplane();
    match timeout(ANSWER, client.get_envoy_bootstrap_params(request(proxy))).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        // A server that does not answer in time is treated like one that is down: another may answer.
        Err(_) => Err(Status::unavailable(format!("no answer within {ANSWER:?}"))),
    }
}

#[expect(
    deprecated,
    reason = "older servers support only the old name of the field"
)]
fn request(proxy: &Proxy) -> GetEnvoyBootstrapParamsRequest {
    let node_spec = match proxy.node_id.is_empty() {
        true => NodeSpec::NodeName(proxy.node_name.clone()),
        false => NodeSpec::NodeId(proxy.node_id.clone()),
    };
    GetEnvoyBootstrapParamsRequest {
        service_id: proxy.id.clone(),
        proxy_id: proxy.id.clone(),
        namespace: proxy.namespace.clone(),
        partition: proxy.partition.clone(),
        node_spec: Some(node_spec),
    }
}

fn is_refusal(status: &Status) -> bool {
    match classify(status) {
        ErrorClass::Permanent | ErrorClass::Credentials => true,
        ErrorClass::Transient => status.code() == Code::NotFound,
        ErrorClass::ThisServer => false,
    }
}

fn refusal_error(server: SocketAddr, proxy: &Proxy, status: &Status) -> anyhow::Error {
    let (id, message) = (&proxy.id, status.message());
    let node = match proxy.node_id.is_empty() {
        true => &proxy.node_name,
        false => &proxy.node_id,
    };
    match status.code() {
        Code::NotFound => anyhow!(
            "server {server} does not know the proxy {id:?} on the node {node:?}: {message}; check \
             -proxy-id and -proxy-node-name, and that the proxy is registered on that node"
        ),
        Code::PermissionDenied | Code::Unauthenticated => anyhow!(
            "server {server} does not let this token see the proxy {id:?}: {message}; the token \
             (-credential-type, -static-token, -login-auth-method) needs service:read on the \
             proxy's service"
        ),
        code => anyhow!(
            "server {server} refuses bootstrap parameters for the proxy {id:?} on the node {node:?} \
             (-proxy-id, -proxy-node-name): {code:?}: {message}"
        ),
    }
}

/// Combines parameters and settings.
///
/// # Errors
/// When a telemetry key of the proxy or a file of the Prometheus listener cannot be used.
pub fn inputs(
    settings: &Settings,
    params: &GetEnvoyBootstrapParamsResponse,
    xds: XdsAddress,
) -> Result<BootstrapInputs, BootstrapError> {
    let telemetry = &settings.telemetry;
    let variable = |name: &str| settings.environment.get(name).map(str::to_owned);
    let proxy_config = match &params.config {
        Some(config) if telemetry.use_central_config => {
            ProxyConfig::decode(&from_struct(config), &variable)?
        }
        _ => ProxyConfig::default(),
    };
    let tls = telemetry
        .prometheus_tls
        .as_ref()
        .map(|tls| PrometheusTls::load(&tls.ca, tls.certificate.clone(), tls.key.clone()));
    Ok(BootstrapInputs {
        node: node(&settings.proxy, params),
        admin: settings.envoy.admin,
        access_logs: params.access_logs.clone(),
        xds,
        ready: settings.envoy.ready,
        prometheus: PrometheusInputs {
            scrape_path: telemetry.scrape_path.clone(),
            backend: merged_metrics(telemetry, settings.envoy.admin),
            tls: tls.transpose()?,
        },
        deprecated_tags: false,
        proxy_config,
    })
}

#[expect(
    deprecated,
    reason = "older servers send the identity under the old name only"
)]
fn node(proxy: &Proxy, params: &GetEnvoyBootstrapParamsResponse) -> NodeInputs {
    let identity = match params.identity.is_empty() {
        true => &params.service,
        false => &params.identity,
    };
    NodeInputs {
        id: proxy.id.clone(),
        cluster: identity.clone(),
        node_name: params.node_name.clone(),
        namespace: params.namespace.clone(),
        partition: params.partition.clone(),
        datacenter: params.datacenter.clone(),
    }
}

/// Address at which Envoy reaches the merged metrics. If they are served on all addresses, this is
/// the address of the admin interface, which is always configured.
fn merged_metrics(telemetry: &Telemetry, admin: SocketAddr) -> SocketAddr {
    let port = telemetry.merge_port;
    let near = SocketAddr::new(reachable(admin).ip(), port);
    match telemetry.bind {
        IpAddr::V4(ip) if ip.is_unspecified() && near.is_ipv4() => near,
        IpAddr::V6(ip) if ip.is_unspecified() => near,
        _ => reachable(SocketAddr::new(telemetry.bind, port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{self, Environment, Invocation};

    fn proxy() -> Proxy {
        Proxy {
            id: "web-proxy".to_owned(),
            node_name: "n1".to_owned(),
            ..Proxy::default()
        }
    }

    #[test]
    #[expect(deprecated, reason = "both names of the proxy's id are sent")]
    fn the_node_id_wins_over_the_name_and_both_ids_are_sent() {
        let by_name = request(&proxy());
        assert_eq!(by_name.node_spec, Some(NodeSpec::NodeName("n1".to_owned())));
        assert_eq!(
            (by_name.service_id.as_str(), by_name.proxy_id.as_str()),
            ("web-proxy", "web-proxy")
        );
        let by_id = request(&Proxy {
            node_id: "u-u".to_owned(),
            ..proxy()
        });
        assert_eq!(by_id.node_spec, Some(NodeSpec::NodeId("u-u".to_owned())));
    }

    #[test]
    fn refusals_name_the_settings_to_look_at() {
        let server = "10.0.0.1:8502".parse().unwrap();
        for (status, words) in [
            (
                Status::not_found("no such proxy"),
                ["web-proxy", "-proxy-id", "-proxy-node-name"],
            ),
            (
                Status::permission_denied("no"),
                ["web-proxy", "-static-token", "service:read"],
            ),
            (
                Status::unauthenticated("no"),
                ["web-proxy", "-credential-type", "-login-auth-method"],
            ),
            (
                Status::invalid_argument("no"),
                ["web-proxy", "-proxy-id", "InvalidArgument"],
            ),
        ] {
            assert!(is_refusal(&status));
            let text = refusal_error(server, &proxy(), &status).to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        for status in [
            Status::unavailable(""),
            Status::internal(""),
            Status::resource_exhausted(""),
        ] {
            assert!(!is_refusal(&status));
        }
    }

    #[test]
    #[expect(deprecated, reason = "the old name replaces a missing new one")]
    fn the_identity_names_the_cluster_and_the_service_stands_in() {
        let mut params = GetEnvoyBootstrapParamsResponse {
            service: "old".to_owned(),
            identity: "web".to_owned(),
            ..GetEnvoyBootstrapParamsResponse::default()
        };
        assert_eq!(node(&proxy(), &params).cluster, "web");
        params.identity.clear();
        assert_eq!(node(&proxy(), &params).cluster, "old");
    }

    /// The settings of telemetry with this address and the port 7.
    fn telemetry(bind: &str) -> Telemetry {
        let flags = [
            "-addresses=10.0.0.1",
            "-proxy-id=web-proxy",
            "-telemetry-prom-merge-port=7",
            &format!("-telemetry-prom-bind-addr={bind}"),
        ];
        match settings::load(flags.map(Into::into), Environment::default()) {
            Ok(Invocation::Run { settings, .. }) => settings.telemetry,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn merged_metrics_are_reached_where_they_listen() {
        for (bind, admin, reached) in [
            ("::", "127.0.0.1:1", "127.0.0.1:7"),
            ("::", "[::1]:1", "[::1]:7"),
            ("::", "0.0.0.0:1", "127.0.0.1:7"),
            ("0.0.0.0", "127.0.0.9:1", "127.0.0.9:7"),
            ("0.0.0.0", "[::1]:1", "127.0.0.1:7"),
            ("127.0.0.2", "127.0.0.1:1", "127.0.0.2:7"),
            ("::1", "127.0.0.1:1", "[::1]:7"),
        ] {
            let found = merged_metrics(&telemetry(bind), admin.parse().unwrap());
            assert_eq!(found, reached.parse().unwrap(), "{bind} {admin}");
        }
    }
}
