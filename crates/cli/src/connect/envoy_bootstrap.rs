//! The bootstrap document of an Envoy that connects to the server itself: the document of legate-dataplane,
//! with the server's address, TLS and token instead of the dataplane's.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use http::StatusCode;
use legate_envoy::bootstrap::{
    BootstrapInputs, LOCAL_AGENT_CLUSTER, NodeInputs, PrometheusInputs, PrometheusTls, ProxyConfig,
    XdsAddress, build,
};
use serde_json::{Map, Value, json};

use super::envoy_flags::{BootstrapOptions, Options};
use super::envoy_proxy::{Proxy, registration};
use crate::output::{list, text, warn};
use crate::server_api::{Api, environment, refused};

/// Consul's name of the server's cluster in such documents.
const SERVER_CLUSTER: &str = "local_agent";
/// The default port of the gRPC API.
const DEFAULT_PORT: u64 = 8502;

/// The xDS server.
struct Server {
    address: XdsAddress,
    /// PEM of the CA certificates, for TLS.
    authorities: Option<String>,
}

/// The bootstrap document.
pub(super) async fn document(options: &Options, api: &Api, proxy: &Proxy) -> anyhow::Result<Value> {
    let of = &options.bootstrap_of;
    let server = server(of, api, options.api.ca_file.as_deref()).await?;
    check_token(api).await;
    let node = &options.which.node_name;
    let registered = registration(api, node, &proxy.id).await?;
    let service = &registered.service;
    if !service["Proxy"].is_object() {
        bail!("service is not a Connect proxy or gateway");
    }
    let destination = text(&service["Proxy"], "DestinationServiceName");
    let either = |own: &str, parameter: &str| match own {
        "" => api.parameter(parameter).unwrap_or_default().to_owned(),
        own => own.to_owned(),
    };
    let admin = resolved(&of.admin_bind)
        .await
        .context("Failed to resolve admin bind address")?;
    let config = service["Proxy"]["Config"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let config = if of.no_central_config {
        Map::new()
    } else {
        config
    };
    let inputs = BootstrapInputs {
        node: NodeInputs {
            id: proxy.id.clone(),
            cluster: match destination {
                "" => proxy.stands_for.clone(),
                destination => destination.to_owned(),
            },
            node_name: node.clone(),
            namespace: either(text(service, "Namespace"), "ns"),
            partition: either(text(service, "Partition"), "partition"),
            datacenter: either(&registered.datacenter, "dc"),
        },
        admin,
        access_logs: vec![admin_log(&of.admin_access_log_path)],
        xds: server.address.clone(),
        ready: ready(of, service, &options.register.address)?,
        prometheus: prometheus(of, admin)?,
        deprecated_tags: !of.omit_deprecated_tags,
        proxy_config: ProxyConfig::decode(&config, &environment)?,
    };
    let built = build(&inputs)?;
    for warning in &built.warnings {
        warn(warning);
    }
    Ok(for_server(built.document, &server, api))
}

/// Warns if Envoy gets no token although ACLs are enabled.
async fn check_token(api: &Api) {
    if api.token().is_some() {
        return;
    }
    let own = api.get("/v1/acl/token/self").value().await;
    if own.is_err_and(|error| refused(&error) == Some(StatusCode::FORBIDDEN)) {
        warn(
            "No ACL token was provided to Envoy. Because the ACL system is enabled, pass a suitable \
             ACL token for this service to Envoy to avoid potential communication failure.",
        );
    }
}

fn admin_log(path: &str) -> String {
    json!({
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": path,
        },
    })
    .to_string()
}

fn ready(
    of: &BootstrapOptions,
    service: &Value,
    gateway: &str,
) -> anyhow::Result<Option<SocketAddr>> {
    let address = match (
        of.envoy_ready_bind_address.as_str(),
        of.envoy_ready_bind_port,
    ) {
        (host, port) if !host.is_empty() && port != 0 => format!("{host}:{port}"),
        _ if service["Kind"] == "ingress-gateway" && !gateway.is_empty() => match gateway {
            port if port.starts_with(':') => format!("127.0.0.1{port}"),
            address => address.to_owned(),
        },
        _ => return Ok(None),
    };
    let parsed = address.parse();
    parsed
        .map(Some)
        .with_context(|| format!("{address:?} is not ADDRESS:PORT"))
}

fn prometheus(of: &BootstrapOptions, admin: SocketAddr) -> anyhow::Result<PrometheusInputs> {
    let backend = match of.prometheus_backend_port.as_str() {
        // Envoy's own metrics.
        "" => admin,
        port => SocketAddr::from((
            [127, 0, 0, 1],
            port.parse()
                .with_context(|| format!("-prometheus-backend-port {port:?}"))?,
        )),
    };
    let ca = of
        .prometheus_ca_file
        .as_ref()
        .or(of.prometheus_ca_path.as_ref());
    let tls = match (ca, &of.prometheus_cert_file, &of.prometheus_key_file) {
        (Some(ca), Some(certificate), Some(key)) => {
            Some(PrometheusTls::load(ca, certificate.clone(), key.clone())?)
        }
        _ => None,
    };
    Ok(PrometheusInputs {
        scrape_path: of.prometheus_scrape_path.clone(),
        backend,
        tls,
    })
}

async fn resolved(address: &str) -> anyhow::Result<SocketAddr> {
    let mut found = tokio::net::lookup_host(address).await?;
    found
        .next()
        .with_context(|| format!("{address:?} has no address"))
}

/// The address of the server's gRPC API, from flags or from the agent.
async fn server(
    of: &BootstrapOptions,
    api: &Api,
    http_ca: Option<&Path>,
) -> anyhow::Result<Server> {
    let given = of
        .grpc_addr
        .clone()
        .or_else(|| environment("CONSUL_GRPC_ADDR"));
    let Said { address, plain } = match given.filter(|address| !address.is_empty()) {
        Some(address) => Said {
            address,
            plain: None,
        },
        None => said_by_agent(api)
            .await
            .context("Error looking up xDS port")?,
    };
    let path = |flag: &Option<PathBuf>, name: &str| {
        flag.clone()
            .or_else(|| environment(name).map(PathBuf::from))
    };
    let ca = path(&of.grpc_ca_file, "CONSUL_GRPC_CACERT");
    let ca = ca.or_else(|| path(&of.grpc_ca_path, "CONSUL_GRPC_CAPATH"));
    let is_socket = address.starts_with("unix://");
    let is_tls = match is_socket {
        true => ca.is_some(),
        false => address.to_ascii_lowercase().starts_with("https://"),
    };
    let http_ca = || {
        http_ca
            .map(PathBuf::from)
            .or_else(|| path(&None, "CONSUL_CACERT"))
    };
    let (address, authorities) = match (is_tls, ca.or_else(http_ca)) {
        (false, _) => (address, None),
        (true, Some(ca)) => (address, Some(pem(&ca)?)),
        // Without another certificate, servers present one of the mesh.
        (true, None) => match (roots(api).await, plain) {
            (Ok(roots), _) => (address, Some(roots)),
            // A secondary datacenter may get its roots through the gateway that this is for.
            (Err(error), Some(plain))
                if refused(&error) == Some(StatusCode::SERVICE_UNAVAILABLE) =>
            {
                warn(&format!(
                    "{error:#}: Envoy connects to {plain} without TLS; with -grpc-ca-file it would use TLS"
                ));
                (plain, None)
            }
            (Err(error), _) => return Err(error),
        },
    };
    let address = match address.strip_prefix("unix://") {
        Some(socket) => XdsAddress::Unix(socket.into()),
        None => {
            let bare = address
                .split_once("://")
                .map_or(address.as_str(), |(_, rest)| rest);
            let resolved = resolved(bare).await;
            XdsAddress::Tcp(resolved.context("Failed to resolve agent address")?)
        }
    };
    Ok(Server {
        address,
        authorities,
    })
}

/// Where the agent serves xDS.
struct Said {
    address: String,
    /// The address without TLS, if the other one has it.
    plain: Option<String>,
}

async fn said_by_agent(api: &Api) -> anyhow::Result<Said> {
    let own = api.get("/v1/agent/self").value().await?;
    let ports = &own["xDS"]["Ports"];
    let set = |value: &Value| value.as_u64().filter(|port| *port > 0);
    let plain = set(&ports["Plaintext"]).or(set(&own["DebugConfig"]["GRPCPort"]));
    let at = |port: u64| format!("localhost:{port}");
    if let Some(port) = set(&ports["TLS"]) {
        return Ok(Said {
            address: format!("https://{}", at(port)),
            plain: plain.map(at),
        });
    }
    if plain.is_none() {
        warn(
            "-grpc-addr not provided and unable to discover a gRPC address for xDS. Defaulting to \
             localhost:8502",
        );
    }
    Ok(Said {
        address: at(plain.unwrap_or(DEFAULT_PORT)),
        plain: None,
    })
}

/// The certificates of a file, or of all files in a folder.
fn pem(path: &Path) -> anyhow::Result<String> {
    let failed = || format!("cannot read {}", path.display());
    if !path.is_dir() {
        return std::fs::read_to_string(path).with_context(failed);
    }
    let mut all = String::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(path)
        .with_context(failed)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    for file in files {
        all.push_str(&std::fs::read_to_string(&file).with_context(failed)?);
    }
    Ok(all)
}

async fn roots(api: &Api) -> anyhow::Result<String> {
    let roots = api.get("/v1/connect/ca/roots").value().await;
    let roots =
        roots.context("no -grpc-ca-file is given, and the roots of the mesh cannot be read")?;
    Ok(list(&roots, "Roots")
        .iter()
        .map(|root| text(root, "RootCert"))
        .collect())
}

/// Replaces the dataplane by the server.
fn for_server(mut document: Value, server: &Server, api: &Api) -> Value {
    rename(&mut document);
    if let Some(authorities) = &server.authorities {
        let clusters = document["static_resources"]["clusters"].as_array_mut();
        for cluster in clusters.into_iter().flatten() {
            if cluster["name"] == SERVER_CLUSTER {
                cluster["transport_socket"] = json!({
                    "name": "tls",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                        "common_tls_context": {"validation_context": {
                            "trusted_ca": {"inline_string": authorities},
                        }},
                    },
                });
            }
        }
    }
    let token = api.token().map(|token| token.expose()).unwrap_or_default();
    let services = &mut document["dynamic_resources"]["ads_config"]["grpc_services"];
    // A template's document sets the xDS server itself.
    if services.is_array() {
        services[0]["initial_metadata"] = json!([{"key": "x-consul-token", "value": token}]);
    }
    document
}

/// Renames the server's cluster everywhere in the document.
fn rename(value: &mut Value) {
    match value {
        Value::String(text) if text == LOCAL_AGENT_CLUSTER => *text = SERVER_CLUSTER.to_owned(),
        Value::Array(values) => values.iter_mut().for_each(rename),
        Value::Object(fields) => fields.values_mut().for_each(rename),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_api::ApiFlags;

    #[test]
    fn the_server_takes_the_dataplanes_place() {
        let flags = ApiFlags {
            token: Some("secret".into()),
            ..ApiFlags::default()
        };
        let api = flags.connect_without_environment().unwrap();
        let server = Server {
            address: XdsAddress::Unix("/x".into()),
            authorities: Some("PEM".to_owned()),
        };
        let document = json!({
            "static_resources": {"clusters": [{"name": LOCAL_AGENT_CLUSTER}, {"name": "other"}]},
            "dynamic_resources": {"ads_config": {"grpc_services": [
                {"envoy_grpc": {"cluster_name": LOCAL_AGENT_CLUSTER}}]}},
        });
        let made = for_server(document, &server, &api);
        let clusters = &made["static_resources"]["clusters"];
        assert_eq!(clusters[0]["name"], SERVER_CLUSTER);
        assert!(clusters[0]["transport_socket"].is_object());
        assert!(clusters[1]["transport_socket"].is_null());
        let service = &made["dynamic_resources"]["ads_config"]["grpc_services"][0];
        assert_eq!(service["envoy_grpc"]["cluster_name"], SERVER_CLUSTER);
        assert_eq!(service["initial_metadata"][0]["value"], "secret");
    }
}
