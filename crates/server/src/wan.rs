//! This server as one of several datacenters: its settings for [`legate_wan`], and members as the API shows them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use legate_model::{CheckServiceNode, QueryFailover, QueryScope, ServiceQuery};
use legate_runtime::{BoxError, Clock, Spawner};
use legate_store::{Mirror, Store};
use legate_wan::{Body, GatewaySettings, Status, Wan, WanConfig};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use crate::config::ServerConfig;
use crate::dns::{Client, Transport};
use crate::http::member_tags;
use crate::prepared::Sought;
use crate::start_error::StartError;

/// Beginning of the paths that only servers of other datacenters may ask.
pub(crate) const FOR_SERVERS: &str = "/v1/internal/legate/servers/";
/// The time in which another datacenter must answer a DNS question. Clients wait for 5 s.
const DNS_TIMEOUT: Duration = Duration::from_secs(3);

/// The time in which another datacenter must answer a prepared query of DNS, so that the next one can be asked, too.
pub(crate) const DNS_QUERY_TIMEOUT: Duration = Duration::from_millis(1500);
/// The time in which another datacenter must answer a prepared query over HTTP.
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer in bytes: some ten thousand instances.
pub(crate) const LARGEST_ANSWER: usize = 16 * 1024 * 1024;

/// Joins nobody yet. `None` without a port for servers. The listeners of `config` must be bound, and the node stored.
pub(crate) fn new(
    config: &ServerConfig,
    store: &Store,
    clock: &Clock,
    spawner: Spawner,
) -> Result<Option<Wan>, StartError> {
    let Some(wan) = &config.wan else {
        return Ok(None);
    };
    if wan.files.is_none() {
        tracing::warn!(
            port = wan.listen.port(),
            "whoever reaches the port for servers counts as a server of any datacenter, since there is no certificate \
             (tls.internal_rpc): for development only"
        );
    }
    let node = store.state().read().node(&config.node_name);
    let id = node.map(|node| node.id.clone()).unwrap_or_default();
    let primary = config.primary().unwrap_or(&config.datacenter);
    let gateways = wan.through_gateways.as_ref();
    let gateways = gateways.map(|known| GatewaySettings {
        primary: primary.to_ascii_lowercase(),
        primary_gateways: known.addresses.clone(),
        interval: known.interval,
    });
    let config = WanConfig {
        datacenter: config.datacenter.clone(),
        node: config.node_name.clone(),
        domain: config
            .dns_domains
            .names()
            .next()
            .unwrap_or_else(|| "consul".to_owned()),
        advertise: SocketAddr::new(wan.advertise, wan.listen.port()),
        tags: member_tags(config, &id),
        files: wan.files.clone(),
        join: wan.join.clone(),
        retry_interval: wan.retry_interval,
        retry_max: wan.retry_max,
        gateways,
    };
    Ok(Some(Wan::new(config, clock, spawner)?))
}

/// Another datacenter, as this server sees it.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Datacenter {
    name: String,
    /// The number of its servers that have not left.
    servers: usize,
    /// How many of them answer.
    alive: usize,
    /// Seconds that the nearest takes to answer.
    round_trip: Option<f64>,
    /// What the last failed probe failed with.
    error: Option<String>,
    /// The mesh gateways through which its servers were reached last.
    gateways: BTreeSet<String>,
    /// How many lists of its instances and gateways this server reads for proxies.
    ranges: usize,
    /// Seconds for which the oldest of them may have been out of date; 0 while all are up to date.
    oldest: f64,
    /// Why one of them could not be read last.
    range_error: Option<Arc<str>>,
}

/// All other datacenters, the nearest first, those of ranges that nobody knows any more, and those that are not known but
/// asked for.
pub(crate) fn datacenters(wan: &Wan, mirror: &Mirror) -> Vec<Datacenter> {
    let (ranges, unknown) = (&mirror.list(Instant::now()), mirror.unknown_datacenters());
    let mut servers = wan.members();
    servers.retain(|member| member.status != Status::Left);
    let mut names: Vec<String> = wan.datacenters().into_iter().skip(1).collect();
    for range in ranges {
        if !names.iter().any(|name| **name == *range.range.datacenter) {
            names.push(range.range.datacenter.as_ref().to_owned());
        }
    }
    for (name, _) in &unknown {
        if !names.iter().any(|known| **known == **name) {
            names.push(name.as_ref().to_owned());
        }
    }
    let why_unknown = |name: &str| {
        let mut all = unknown.iter();
        all.find_map(|(unknown, reason)| (**unknown == *name).then(|| Arc::from(*reason)))
    };
    let seen = names.into_iter().map(|name| {
        let own = || ranges.iter().filter(|one| *one.range.datacenter == *name);
        let oldest = own().filter_map(|one| one.age).max().unwrap_or_default();
        let servers = servers
            .iter()
            .filter(|server| server.name.datacenter == name);
        let alive = servers
            .clone()
            .filter(|server| server.status == Status::Alive);
        let nearest = alive.clone().filter_map(|server| server.round_trip).min();
        Datacenter {
            servers: servers.clone().count(),
            alive: alive.count(),
            round_trip: nearest.map(|time| time.as_secs_f64()),
            error: servers.clone().find_map(|server| server.error.clone()),
            gateways: servers
                .filter_map(|server| server.gateway.clone())
                .collect(),
            ranges: own().count(),
            oldest: oldest.as_secs_f64(),
            range_error: own()
                .find_map(|one| one.error.clone())
                .or_else(|| why_unknown(&name)),
            name,
        }
    });
    seen.collect()
}

/// Asks a server of another datacenter a DNS question. `None`: it does not answer in time.
pub(crate) async fn ask_dns(
    wan: &Wan,
    datacenter: &str,
    client: &Client,
    question: Vec<u8>,
) -> Option<Vec<u8>> {
    let (partition, namespace) = (&client.tenancy.partition, &client.tenancy.namespace);
    let transport = match client.transport {
        Transport::Udp => "udp",
        Transport::Tcp => "tcp",
    };
    let mut path = format!("dns?transport={transport}&ns={namespace}&partition={partition}");
    if let Some(own) = &client.translate_for {
        // The name of a datacenter has no other characters than a URL.
        path.push_str("&translate-for=");
        path.push_str(own);
    }
    let asked = ask(wan, datacenter, &path, &client.token, question);
    match timeout(DNS_TIMEOUT, asked).await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(error)) => {
            tracing::debug!(%error, datacenter, "a DNS question to another datacenter was not answered");
            None
        }
        Err(_) => None,
    }
}

/// A prepared query, for another datacenter.
#[derive(Serialize, Deserialize)]
pub(crate) struct RemoteQuery {
    /// What is selected, without failover.
    pub(crate) service: ServiceQuery,
    pub(crate) connect: bool,
    pub(crate) near: String,
}

/// Its result.
#[derive(Deserialize)]
pub(crate) struct RemoteInstances {
    /// The instances.
    pub(crate) nodes: Vec<CheckServiceNode>,
    pub(crate) filtered: bool,
}

/// Selects instances in another datacenter, with the rights that the token has there.
///
/// # Errors
/// If it cannot be asked, or refuses.
pub(crate) async fn select(
    wan: &Wan,
    datacenter: &str,
    token: &str,
    sought: Sought<'_>,
    scope: QueryScope<'_>,
    limit: Duration,
) -> Result<RemoteInstances, BoxError> {
    let service = ServiceQuery {
        failover: QueryFailover::default(),
        partition: scope.partition.clone(),
        namespace: scope.namespace.clone(),
        // It peers with this datacenter, and not with that one.
        peer: String::new(),
        ..sought.wanted.clone()
    };
    let question = serde_json::to_vec(&RemoteQuery {
        service,
        connect: sought.connect,
        near: sought.near.to_owned(),
    })?;
    let asked = ask(wan, datacenter, "query", token, question);
    let answer = timeout(limit, asked).await??;
    Ok(serde_json::from_slice(&answer)?)
}

/// A request for another datacenter, with a whole body.
pub(crate) fn request(
    method: Method,
    datacenter: &str,
    path: &str,
    token: &str,
    body: impl Into<Bytes>,
) -> http::Result<Request<Body>> {
    let body = Full::new(body.into()).map_err(|never| match never {});
    // The authority is not used: the connection is to a server of that datacenter.
    Request::builder()
        .method(method)
        .uri(format!("https://server.{datacenter}{path}"))
        .header("x-consul-token", token)
        .body(body.boxed_unsync())
}

/// Asks a server of another datacenter what only servers may ask.
async fn ask(
    wan: &Wan,
    datacenter: &str,
    path: &str,
    token: &str,
    question: Vec<u8>,
) -> Result<Vec<u8>, BoxError> {
    ask_up_to(wan, datacenter, path, token, question, LARGEST_ANSWER).await
}

/// The same, for an answer of at most `largest` bytes.
pub(crate) async fn ask_up_to(
    wan: &Wan,
    datacenter: &str,
    path: &str,
    token: &str,
    question: Vec<u8>,
    largest: usize,
) -> Result<Vec<u8>, BoxError> {
    let path = format!("{FOR_SERVERS}{path}");
    let request = request(Method::POST, datacenter, &path, token, question)?;
    let answer = wan.request(datacenter, request).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), largest).collect();
    let body = body.await?.to_bytes();
    match status {
        StatusCode::OK => Ok(body.into()),
        _ => Err(String::from_utf8_lossy(&body).into_owned().into()),
    }
}

/// The number of a status in Consul's API.
pub(crate) fn number(status: Status) -> u8 {
    match status {
        Status::Alive => 1,
        Status::Left => 3,
        Status::Failed => 4,
    }
}
