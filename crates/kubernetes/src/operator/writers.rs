//! The controllers that write to the servers. Only one operator runs them at a time, while it holds
//! the Lease.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use legate_runtime::metrics::{self, IntGauge, Registry};
use legate_runtime::{Backoff, BackoffPolicy, Spawner};
use tokio::sync::watch;

use crate::certificates::{Certificates, SigningCa};
use crate::config;
use crate::context::Context;
use crate::federation;
use crate::gateways;
use crate::inject::{Published, mark};
use crate::leader::{self, Lead};
use crate::peering;
use crate::servers::{Credentials, Login, Servers};
use crate::sync;

/// The backoff while the servers are unreachable.
const UNREACHABLE: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(500),
    multiplier: 1.5,
    jitter: 0.5,
    cap: Duration::from_secs(10),
};

/// Starts to campaign for the Lease.
///
/// # Errors
///
/// If flags do not identify this operator or the servers.
pub(super) fn start(
    context: &Context,
    certificates: &Certificates,
    installation: &Published,
) -> anyhow::Result<()> {
    let names = &context.options.names;
    anyhow::ensure!(
        !names.pod_name.is_empty(),
        "--pod-name is empty: set the pod's own name, which identifies the holder of the Lease"
    );
    let lease = leader::Settings {
        namespace: names.namespace.clone(),
        name: format!("{}-operator", names.full_name),
        identity: names.pod_name.clone(),
        times: leader::Times::default(),
    };
    let metrics = Metrics::register(&context.registry)?;
    let installation = installation.clone();
    // Connections and the token are needed until the writers have stopped.
    let ca = certificates.servers_ca();
    let servers = servers(context, ca, context.answers.clone())?;
    let signing_ca = certificates.signing_ca();
    let started = context.clone();
    let writers = servers.clone();
    let leading = leader::run(
        context.client.clone(),
        lease,
        context.clock.clone(),
        context.controllers.clone(),
        move |lead, spawner| {
            write(&started, &metrics, &writers, &lead, &spawner);
            serve_gateways(&started, &writers, &installation, &lead, &spawner);
            federate(&started, &writers, &signing_ca, &lead, &spawner);
            peer(&started, &metrics, &writers, &lead, &spawner);
        },
    );
    context.controllers.spawn("leader", async move {
        let ended = leading.await;
        if let Err(error) = servers.logout().await {
            tracing::warn!(%error, "cannot log out");
        }
        ended
    });
    Ok(())
}

/// Metrics that persist across leadership changes.
struct Metrics {
    leader: IntGauge,
    sync: sync::SyncMetrics,
    config: config::ConfigMetrics,
    peering: peering::PeeringMetrics,
}

impl Metrics {
    fn register(registry: &Registry) -> Result<Metrics, metrics::Error> {
        let leader = IntGauge::new(
            "legate_k8s_leader",
            "1 while this operator holds the Lease, else 0.",
        )?;
        registry.register(Box::new(leader.clone()))?;
        Ok(Metrics {
            leader,
            sync: sync::SyncMetrics::register(registry)?,
            config: config::ConfigMetrics::register(registry)?,
            peering: peering::PeeringMetrics::register(registry)?,
        })
    }
}

/// Sets the leadership metric until it is dropped.
struct Leads(IntGauge);

impl Leads {
    fn new(gauge: &IntGauge) -> Leads {
        gauge.set(1);
        Leads(gauge.clone())
    }
}

impl Drop for Leads {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// The controllers; each has its line here.
fn write(context: &Context, metrics: &Metrics, servers: &Servers, lead: &Lead, spawner: &Spawner) {
    let tenants = context.options.servers.http.tenants();
    let names = &context.options.names;
    let options = sync::Options {
        reporter: format!("{}-operator", names.full_name),
        installation: mark(&names.namespace, &names.full_name),
        node_meta: context.config.consul_node.meta.clone(),
        tenants: tenants.clone(),
        gateway_api: context.config.api_gateway.enabled,
        auth_method: context.options.sidecars.sidecar_auth_method.clone(),
        component_auth_method: context.options.servers.login_auth_method.clone(),
        metrics: metrics.sync.clone(),
        clock: context.clock.clone(),
    };
    let sync = sync::run(
        context.client.clone(),
        servers.clone(),
        lead.clone(),
        options,
    );
    let leads = Leads::new(&metrics.leader);
    spawner.spawn("sync", async move {
        let _leads = leads;
        sync.await
    });
    let settings = config::Settings {
        datacenter: context.options.servers.datacenter.clone(),
        tenants: tenants.clone(),
        clock: context.clock.clone(),
        metrics: metrics.config.clone(),
    };
    config::start(&context.client, servers, &settings, lead, spawner);
    // With ACLs, `acl-init` creates it, because its token has the right.
    let made_here = context.options.servers.login_auth_method.is_none();
    if let Some(name) = tenants.partition().filter(|_| made_here) {
        let (servers, lead, name) = (servers.clone(), lead.clone(), name.to_owned());
        spawner.spawn("partition", async move {
            let made = ensure_partition(&servers, &name);
            lead.token().run_until_cancelled(made).await;
            Ok::<_, Infallible>(())
        });
    }
}

/// Serves the Gateway API if the chart says so, or else removes what callers would still use of it.
fn serve_gateways(
    context: &Context,
    servers: &Servers,
    installation: &Published,
    lead: &Lead,
    spawner: &Spawner,
) {
    let client = context.client.clone();
    if !context.config.api_gateway.enabled {
        let removal = gateways::remove_frontends(client, servers.clone(), lead.clone());
        spawner.spawn("frontends", removal);
        return;
    }
    let options = gateways::Options {
        installation: installation.clone(),
        clock: context.clock.clone(),
    };
    let gateways = gateways::run(client, servers.clone(), lead.clone(), options);
    spawner.spawn("gateways", gateways);
}

/// Keeps the Secret for secondary datacenters, if the chart says so.
fn federate(
    context: &Context,
    servers: &Servers,
    ca: &watch::Receiver<Option<SigningCa>>,
    lead: &Lead,
    spawner: &Spawner,
) {
    let federation = &context.config.federation;
    if !federation.create_federation_secret {
        return;
    }
    let names = &context.options.names;
    let options = federation::Options {
        full_name: names.full_name.clone(),
        namespace: names.namespace.clone(),
        datacenter: context.options.servers.datacenter.clone(),
        replication_token: federation.create_replication_token,
        ca: ca.clone(),
    };
    let (client, servers, lead) = (context.client.clone(), servers.clone(), lead.clone());
    let kept = federation::run(client, servers, lead, options);
    spawner.spawn("federation secret", kept);
}

/// Serves PeeringAcceptors and PeeringDialers, if the chart enables it.
fn peer(context: &Context, metrics: &Metrics, servers: &Servers, lead: &Lead, spawner: &Spawner) {
    let values = &context.config.peering;
    if !values.enabled {
        return;
    }
    let options = peering::Options {
        reporter: format!("{}-operator", context.options.names.full_name),
        namespaces: values.k8s_allow_namespaces.clone(),
        clock: context.clock.clone(),
        metrics: metrics.peering.clone(),
    };
    let (client, servers, lead) = (context.client.clone(), servers.clone(), lead.clone());
    let peering = peering::run(client, servers, lead, options);
    spawner.spawn("peering", peering);
}

/// Creates the partition if it does not exist. If the servers refuse, another user has to create
/// it, and the registrations report the error.
async fn ensure_partition(servers: &Servers, name: &str) {
    let mut backoff = Backoff::new(UNREACHABLE);
    while let Err(error) = servers.ensure_partition(name).await {
        tracing::warn!(partition = name, %error, "cannot create the partition");
        if error.refusal().is_some() {
            return;
        }
        tokio::time::sleep(backoff.next(rand::random())).await;
    }
}

fn servers(
    context: &Context,
    ca: watch::Receiver<Option<String>>,
    spawner: Spawner,
) -> anyhow::Result<Servers> {
    let flags = &context.options.servers;
    let names = &context.options.names;
    let credentials = match (&flags.token_file, &flags.login_auth_method) {
        (Some(file), _) => Credentials::File(file.clone()),
        (None, Some(method)) => Credentials::Login(Login {
            auth_method: method.clone(),
            bearer_token_file: flags.login_bearer_token_file.clone(),
            meta: [
                ("component".to_owned(), "operator".to_owned()),
                (
                    "pod".to_owned(),
                    format!("{}/{}", names.namespace, names.pod_name),
                ),
            ]
            .into(),
        }),
        (None, None) => Credentials::None,
    };
    let options = flags.http.options(credentials)?;
    let servers = match flags.managed_ca {
        true => Servers::trusting(options, ca, spawner),
        false => Servers::new(options, spawner),
    };
    servers.context("cannot create a client of the servers")
}
