//! Starts the webhook, and keeps its view of the installation up to date.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use legate_runtime::{Backoff, BackoffPolicy, ReadyHandle};
use tokio::sync::watch;

use super::dns::ResolvConf;
use super::installation::{Cluster, Installation};
use super::webhook::{AdmissionMetrics, Webhook};
use crate::certificates::Certificates;
use crate::context::{Context, listen};

/// The backoff while the API server does not answer.
const RETRY: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(500),
    multiplier: 1.5,
    jitter: 0.5,
    cap: Duration::from_secs(10),
};

/// The installation as it is now; `None` until it is known.
pub type Published = watch::Receiver<Option<Arc<Installation>>>;

/// A started webhook.
#[derive(Debug)]
pub struct Started {
    /// Where it listens.
    pub address: SocketAddr,
    /// For others that make pods.
    pub installation: Published,
}

/// Starts the webhook in the scope that serves requests.
///
/// # Errors
/// If its port cannot be bound, or the machine's nameservers cannot be read.
pub async fn start(context: &Context, certificates: &Certificates) -> anyhow::Result<Started> {
    let options = &context.options;
    let address = SocketAddr::new(options.ports.bind, options.ports.webhook_port);
    let listener = listen("the webhook", address)?;
    let address = listener.local_addr()?;
    let resolv_conf = ResolvConf::parse(&read_resolv_conf()?);
    let (sender, installation) = watch::channel(None);
    let ready = context.readiness.register("webhook");
    let known = Installation {
        full_name: options.names.full_name.clone(),
        namespace: options.names.namespace.clone(),
        servers: options.servers.clone(),
        sidecars: options.sidecars.clone(),
        config: (*context.config).clone(),
        log_level: format!("{:?}", context.log.level).to_lowercase(),
        log_json: context.log.json,
        cluster: Cluster::default(),
        ca_certs: None,
        resolv_conf,
    };
    let (client, stop) = (context.client.clone(), context.answers.token());
    let authorities = certificates.servers_ca();
    context.answers.spawn("installation", async move {
        let kept = keep(known, client, authorities, &sender, &ready);
        stop.run_until_cancelled(kept).await;
        Ok::<_, Infallible>(())
    });
    let webhook = Webhook {
        installation: installation.clone(),
        caches: context.caches.clone(),
        metrics: AdmissionMetrics::register(&context.registry)?,
    };
    webhook.serve(listener, certificates.tls(), &context.answers);
    Ok(Started {
        address,
        installation,
    })
}

fn read_resolv_conf() -> anyhow::Result<String> {
    const PATH: &str = "/etc/resolv.conf";
    std::fs::read_to_string(PATH).map_err(|error| {
        anyhow::anyhow!("cannot read {PATH}, which the DNS of pods is based on: {error}")
    })
}

/// Publishes the installation once the cluster's version and the servers' CA certificates are known,
/// and whenever they change.
async fn keep(
    mut installation: Installation,
    client: Client,
    mut authorities: watch::Receiver<Option<String>>,
    sender: &watch::Sender<Option<Arc<Installation>>>,
    ready: &ReadyHandle,
) {
    installation.cluster = version(&client, ready).await;
    loop {
        installation.ca_certs = authorities.borrow_and_update().clone();
        match installation.knows_servers() {
            true => ready.ready(),
            false => ready.pending("the servers' CA is not available yet"),
        }
        sender.send_replace(Some(Arc::new(installation.clone())));
        if authorities.changed().await.is_err() {
            // The CA certificates never change.
            return std::future::pending().await;
        }
    }
}

async fn version(client: &Client, ready: &ReadyHandle) -> Cluster {
    let mut backoff = Backoff::new(RETRY);
    loop {
        match client.apiserver_version().await {
            Ok(version) => {
                tracing::info!(version = version.git_version, "connected to the API server");
                return Cluster::of_version(&version.major, &version.minor);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the API server's version: retrying");
                ready.pending(format!("cannot read the API server's version: {error}"));
            }
        }
        tokio::time::sleep(backoff.next(rand::random())).await;
    }
}
