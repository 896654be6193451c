//! Reads a sidecar's state from the server that it is connected to, by port-forward to the server's
//! pod.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::server;
use crate::kubernetes::check::collect::{ask_server, server_pods};
use crate::kubernetes::forward::{LARGE, Page};
use crate::kubernetes::table::printable;
use crate::server_api::ServerApi;

/// A sidecar as identified in its own status, and its server.
#[derive(Debug, PartialEq, Eq)]
struct Connection {
    node: String,
    id: String,
    /// The namespace and partition in its settings; empty if not set.
    namespace: String,
    partition: String,
    server: SocketAddr,
}

impl Connection {
    fn of(status: &Value) -> anyhow::Result<Self> {
        let text = |path: &str| status.pointer(path).and_then(Value::as_str);
        let server = text("/session/server").filter(|_| status["session"]["state"] == "connected");
        let server = server.context("the sidecar is not connected to a server")?;
        let (Some(node), Some(id)) = (text("/proxy/node_name"), text("/proxy/id")) else {
            bail!("the sidecar's status has no proxy id");
        };
        Ok(Self {
            node: node.to_owned(),
            id: id.to_owned(),
            namespace: text("/proxy/namespace").unwrap_or_default().to_owned(),
            partition: text("/proxy/partition").unwrap_or_default().to_owned(),
            server: server.parse().context("the address of the server")?,
        })
    }
}

impl Connection {
    /// The server's path for the proxy's state.
    fn path(&self) -> String {
        let mut path = server::path(&self.node, &self.id);
        for (name, value) in [("ns", &self.namespace), ("partition", &self.partition)] {
            if !value.is_empty() {
                path.push(if path.contains('?') { '&' } else { '?' });
                path += &format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
            }
        }
        path
    }
}

/// The document of `/v1/internal/legate/proxy` for a sidecar with this status.
///
/// # Errors
///
/// If its server is not a pod of the cluster's release, is unreachable, or refuses.
pub(super) async fn document(
    client: &Client,
    status: &Value,
    api: &ServerApi,
) -> anyhow::Result<Value> {
    let connection = Connection::of(status)?;
    let token = api.token()?;
    let found = server_pods(client).await;
    let (release, pods) = found.context("its pod was not found; use --http-addr")?;
    let server = connection.server;
    let pod = pods.iter().find(|pod| has(pod, server.ip()));
    let pod = pod.map(ResourceExt::name_any).with_context(|| {
        format!(
            "{server} is not a server of the release {} in {}: use --http-addr",
            release.full_name, release.namespace
        )
    })?;
    let path = connection.path();
    let page = Page {
        path: &path,
        token: token.as_deref(),
        limits: LARGE,
    };
    let answer = ask_server(client, &release, &pod, page).await;
    let answer = answer.with_context(|| format!("pod {pod}"))?;
    match answer.status {
        StatusCode::OK => serde_json::from_slice(&answer.body).context("its response is not JSON"),
        status => bail!("{}", refused(&pod, status, &answer.body)),
    }
}

/// Whether a pod has this address.
fn has(pod: &Pod, address: IpAddr) -> bool {
    let Some(status) = &pod.status else {
        return false;
    };
    let all = status.pod_ips.iter().flatten().map(|one| &*one.ip);
    let mut all = all.chain(status.pod_ip.as_deref());
    all.any(|ip| ip.parse() == Ok(address))
}

fn refused(pod: &str, status: StatusCode, body: &[u8]) -> String {
    let reason = printable(String::from_utf8_lossy(body).trim());
    let next = match status {
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
            "; set --token-file or CONSUL_HTTP_TOKEN to a token with service:read on the proxy's \
             service and node:read on its node"
        }
        _ => "",
    };
    format!("pod {pod} answers {status}: {reason}{next}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_names_the_proxy_and_its_server() {
        let status = |state: &str| {
            json!({
                "proxy": {"id": "web-1-web-sidecar-proxy", "node_name": "n1-virtual",
                    "namespace": "", "partition": "one"},
                "session": {"state": state, "server": "10.0.0.1:8502"},
            })
        };
        let expected = Connection {
            node: "n1-virtual".to_owned(),
            id: "web-1-web-sidecar-proxy".to_owned(),
            namespace: String::new(),
            partition: "one".to_owned(),
            server: "10.0.0.1:8502".parse().unwrap(),
        };
        let path = "/v1/internal/legate/proxy/n1%2Dvirtual/web%2D1%2Dweb%2Dsidecar%2Dproxy";
        assert_eq!(expected.path(), format!("{path}?partition=one"));
        assert_eq!(Connection::of(&status("connected")).unwrap(), expected);
        let error = Connection::of(&status("waiting")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the sidecar is not connected to a server"
        );
    }

    #[test]
    fn a_server_is_the_pod_with_its_address() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "legate-server-0"},
            "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        }))
        .unwrap();
        for (address, is_its) in [("10.0.0.1", true), ("fd00::1", true), ("10.0.0.2", false)] {
            assert_eq!(has(&pod, address.parse().unwrap()), is_its, "{address}");
        }
        assert!(!has(&Pod::default(), "10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn a_refusal_names_the_permissions_that_the_token_needs() {
        let text = refused(
            "legate-server-0",
            StatusCode::FORBIDDEN,
            b"Permission denied\n",
        );
        assert!(text.starts_with("pod legate-server-0 answers 403 Forbidden: Permission denied; "));
        assert!(text.contains("CONSUL_HTTP_TOKEN") && text.contains("node:read"));
        let text = refused("a", StatusCode::NOT_FOUND, b"no proxy");
        assert_eq!(text, "pod a answers 404 Not Found: no proxy");
    }
}
