//! `watches` of the files: queries of this agent's own API. Each change of a result runs a program or is sent
//! to a URL, in order, also the first result.
//!
//! A handler that fails is logged, and the watch goes on. The watches of the files with which the agent was
//! started run until it stops.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use http::{HeaderName, HeaderValue, Method};
use legate_model::{Secret, duration};
use legate_runtime::{CancellationToken, Spawner};
use legate_server::ServerConfig;
use serde::Deserialize;
use serde_json::Value;

use crate::server_api::{Api, ApiFlags};
use crate::subprocess;
use crate::watch::{Changes, Query, run_handler};

/// The default timeout of a request to a URL. Consul's.
const HTTP_TIMEOUT: Duration = Duration::from_secs(10);

/// A watch as in files.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct WatchDefinition {
    r#type: String,
    datacenter: String,
    token: Secret,
    namespace: String,
    partition: String,
    stale: bool,
    key: String,
    prefix: String,
    service: String,
    tag: Vec<String>,
    passingonly: bool,
    state: String,
    name: String,
    filter: String,
    handler_type: String,
    handler: String,
    args: Vec<String>,
    http_handler_config: Option<HttpHandler>,
}

/// `http_handler_config`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct HttpHandler {
    path: String,
    method: String,
    #[serde(with = "duration::text")]
    timeout: Duration,
    header: BTreeMap<String, Vec<String>>,
    tls_skip_verify: bool,
}

/// A watch that can run.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    query: Query,
    /// Its token, datacenter and tenant.
    access: ApiFlags,
    handler: Handler,
}

#[derive(Debug, Clone)]
enum Handler {
    Program {
        words: Vec<String>,
        shell: bool,
    },
    Url {
        /// Scheme and authority.
        server: String,
        /// Path and query.
        path: String,
        method: Method,
        headers: Vec<(HeaderName, HeaderValue)>,
        timeout: Duration,
        skip_verify: bool,
    },
}

impl WatchDefinition {
    /// The watch.
    ///
    /// # Errors
    /// If it is incomplete or contradicts itself.
    pub(super) fn checked(self) -> anyhow::Result<Watch> {
        let handler = self.handler()?;
        if self.r#type.starts_with("connect_") {
            bail!("Watch type {} is not allowed in agent config", self.r#type);
        }
        if self.r#type == "agent_service" {
            bail!("Watch type agent_service is not supported: use service");
        }
        let query = Query {
            kind: self.r#type,
            key: self.key,
            prefix: self.prefix,
            service: self.service,
            tag: self.tag,
            passingonly: self.passingonly.to_string(),
            state: self.state,
            name: self.name,
            filter: self.filter,
        };
        query.check()?;
        let named = |text: String| Some(text).filter(|text| !text.is_empty());
        let access = ApiFlags {
            token: Some(self.token).filter(|token| !token.is_empty()),
            datacenter: named(self.datacenter),
            namespace: named(self.namespace),
            partition: named(self.partition),
            stale: self.stale,
            ..ApiFlags::default()
        };
        Ok(Watch {
            query,
            access,
            handler,
        })
    }

    fn handler(&self) -> anyhow::Result<Handler> {
        match self.handler_type.as_str() {
            "" | "script" => {}
            "http" => {
                let config = self.http_handler_config.clone();
                let config = config
                    .context("Handler type 'http' requires 'http_handler_config' to be set")?;
                return config.checked().context("http_handler_config");
            }
            other => bail!("Handler type '{other}' not recognized"),
        }
        ensure!(
            self.handler.is_empty() || self.args.is_empty(),
            "Only one of args and handler allowed"
        );
        let shell = !self.handler.is_empty();
        let words = match shell {
            true => vec![self.handler.clone()],
            false => self.args.clone(),
        };
        ensure!(
            words.first().is_some_and(|program| !program.is_empty()),
            "a handler is required: args, handler, or handler_type = \"http\""
        );
        Ok(Handler::Program { words, shell })
    }
}

impl HttpHandler {
    fn checked(self) -> anyhow::Result<Handler> {
        let rest = ["http://", "https://"]
            .iter()
            .find_map(|scheme| self.path.strip_prefix(scheme));
        let rest = rest
            .with_context(|| format!("path {:?} must begin with http:// or https://", self.path))?;
        let authority = rest.find('/').unwrap_or(rest.len());
        ensure!(authority > 0, "path {:?} names no host", self.path);
        let (server, path) = self.path.split_at(self.path.len() - rest.len() + authority);
        let method = match self.method.as_str() {
            "" => Method::POST,
            method => Method::from_bytes(method.as_bytes())
                .with_context(|| format!("method {method:?} cannot be sent"))?,
        };
        let mut headers = Vec::new();
        for (name, values) in &self.header {
            for value in values {
                let failed = || format!("header {name:?} cannot be sent");
                let name = HeaderName::from_bytes(name.as_bytes()).with_context(failed)?;
                let value = HeaderValue::from_str(value).with_context(failed)?;
                headers.push((name, value));
            }
        }
        let timeout = Some(self.timeout).filter(|timeout| !timeout.is_zero());
        let handler = Handler::Url {
            server: server.to_owned(),
            path: if path.is_empty() { "/" } else { path }.to_owned(),
            method,
            headers,
            timeout: timeout.unwrap_or(HTTP_TIMEOUT),
            skip_verify: self.tls_skip_verify,
        };
        handler.receiver()?;
        Ok(handler)
    }
}

impl Handler {
    /// The server of a URL; `None` for a program.
    fn receiver(&self) -> anyhow::Result<Option<Api>> {
        let Handler::Url {
            server,
            skip_verify,
            ..
        } = self
        else {
            return Ok(None);
        };
        ApiFlags::default()
            .of_server(server, *skip_verify)
            .map(Some)
    }

    async fn handle(
        &self,
        index: u64,
        found: &Value,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        match self {
            Handler::Program { words, shell } => {
                let command = subprocess::command(words, *shell)?;
                let status = run_handler(command, index, found, stop.cancelled()).await?;
                let failed = status.filter(|status| !status.success());
                failed.map_or(Ok(()), |status| bail!("{}", subprocess::shown(status)))
            }
            Handler::Url {
                path,
                method,
                headers,
                timeout,
                ..
            } => {
                let Some(receiver) = self.receiver()? else {
                    return Ok(());
                };
                let mut ask = receiver.ask(method.clone(), path.as_str()).json(found);
                let index = HeaderValue::from(index);
                ask = ask.header(HeaderName::from_static("x-consul-index"), index);
                for (name, value) in headers {
                    ask = ask.header(name.clone(), value.clone());
                }
                ask.within(*timeout).send().await?.success()
            }
        }
    }
}

impl Watch {
    async fn run(self, address: String, stop: CancellationToken) -> anyhow::Result<()> {
        let api = self.access.of_server(&address, false)?;
        let kind = self.query.kind.clone();
        let mut changes = Changes::default();
        let report = |text: &str| tracing::error!(watch = kind, "{text}");
        loop {
            let change = changes.next(&self.query, &api, report);
            let Some(change) = stop.run_until_cancelled(change).await else {
                return Ok(());
            };
            let (index, found) = change?;
            if let Err(error) = self.handler.handle(index, &found, &stop).await {
                tracing::error!(watch = kind, error = %format!("{error:#}"), "Failed to run watch handler");
            }
        }
    }
}

/// Starts watches of a running server.
pub(super) fn start(watches: Vec<Watch>, server: &ServerConfig, spawner: &Spawner) {
    let Some(address) = own_address(server) else {
        return;
    };
    for watch in watches {
        let task = watch.run(address.clone(), spawner.token());
        spawner.spawn("watch", task);
    }
}

/// The address at which the server's own watches reach its API without TLS.
pub(super) fn own_address(server: &ServerConfig) -> Option<String> {
    if let Some(at) = server.http {
        let ip = match at.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        return Some(SocketAddr::new(ip, at.port()).to_string());
    }
    let socket = server.more_listeners.http_sockets.first()?;
    Some(format!("unix://{}", socket.path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(definition: WatchDefinition) -> String {
        format!("{:#}", definition.checked().unwrap_err())
    }

    #[test]
    fn incomplete_watches_are_refused_as_in_consul() {
        let nodes = WatchDefinition {
            r#type: "nodes".to_owned(),
            args: vec!["true".to_owned()],
            ..WatchDefinition::default()
        };
        assert!(nodes.clone().checked().is_ok());
        let of = |change: fn(&mut WatchDefinition)| {
            let mut changed = nodes.clone();
            change(&mut changed);
            refused(changed)
        };
        for (text, says) in [
            (
                of(|one| one.r#type = String::new()),
                "Watch type must be specified",
            ),
            (
                of(|one| one.r#type = "all".to_owned()),
                "Unsupported watch type: all",
            ),
            (
                of(|one| one.r#type = "key".to_owned()),
                "Must specify a single key to watch",
            ),
            (
                of(|one| one.r#type = "connect_roots".to_owned()),
                "Watch type connect_roots is not allowed in agent config",
            ),
            (of(|one| one.args.clear()), "a handler is required"),
            (
                of(|one| one.handler = "x".to_owned()),
                "Only one of args and handler allowed",
            ),
            (
                of(|one| one.handler_type = "mail".to_owned()),
                "Handler type 'mail' not recognized",
            ),
            (
                of(|one| one.handler_type = "http".to_owned()),
                "requires 'http_handler_config'",
            ),
        ] {
            assert!(text.contains(says), "{text}");
        }
    }

    #[test]
    fn a_url_is_split_into_server_and_path() {
        let handler = |path: &str| {
            let config = HttpHandler {
                path: path.to_owned(),
                ..HttpHandler::default()
            };
            config.checked()
        };
        let Handler::Url { server, path, .. } = handler("https://a:1/x/?y=/z").unwrap() else {
            panic!("a URL")
        };
        assert_eq!(
            (server.as_str(), path.as_str()),
            ("https://a:1", "/x/?y=/z")
        );
        let Handler::Url { path, method, .. } = handler("http://a").unwrap() else {
            panic!("a URL")
        };
        assert_eq!((path.as_str(), method), ("/", Method::POST));
        assert!(handler("ftp://a").is_err() && handler("http:///x").is_err());
    }
}
