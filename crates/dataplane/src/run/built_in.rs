//! The life of a sidecar with the built-in proxy: relay, parameters, proxy, and its end.
//!
//! It starts no process and writes no bootstrap document. What only such a document can say is refused by name.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use legate_api::json::to_struct;
use legate_api::node::Node;
use legate_envoy::admin::AdminClient;
use legate_envoy::bootstrap::{self as envoy_bootstrap, BootstrapInputs, ProxyConfig};
use legate_envoy::supervision;
use legate_runtime::{ReadyHandle, file_limit, heap, http_server};
use prost::Message as _;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::desired::failed;
use super::exposition::Exposition;
use super::process::Process;
use super::sidecar::{Sidecar, announce_ready, parameters, relay};
use crate::bootstrap;
use crate::l4::{BuiltIn, Options, Pages, Parts, Times};
use crate::leave::Drainer;
use crate::lifecycle::EnvoyControls;
use crate::settings::Settings;
use crate::signals::Urgency;
use crate::telemetry::Stage;

/// How long a connection may be idle once one of its directions has ended. Envoy waits for the idle timeout, an hour.
const HALF_CLOSED: Duration = Duration::from_secs(300);

/// Without connections, the time after a stop was requested ends early, but not before this.
const MIN_DRAIN: Duration = supervision::MIN_DRAIN;

/// How often it is looked whether connections are left.
const LOOK: Duration = Duration::from_millis(200);

/// Runs until a stop is requested.
pub(super) async fn run(sidecar: Sidecar, process: &mut Process) -> anyhow::Result<()> {
    let (built_in, ready) = create(process);
    let spawner = process.work.spawner();
    let relay = relay(process, sidecar.listener, sidecar.metrics);
    let admin = AdminClient::new(process.settings.envoy.admin);
    let (handle, _controls) = supervision::handle();
    let mut status = process.status(Some(relay.clone()), None);
    status.built_in = Some(built_in.clone());
    process.serve_lifecycle(
        sidecar.lifecycle,
        status,
        Some(EnvoyControls {
            restarter: None,
            drainer: Drainer::new(admin, handle, spawner.clone()),
        }),
    );
    let Some(params) = parameters(process).await? else {
        return Ok(());
    };
    let inputs = bootstrap::inputs(&process.settings, &params, sidecar.xds).map_err(failed)?;
    if let Some(what) = needs_envoy(&process.settings, &inputs.proxy_config) {
        bail!("{what} needs Envoy: remove it, or run with -proxy envoy");
    }
    let node = node(&inputs);
    let pages = pages(process, &built_in, &inputs, watch::channel(None).1)?;
    expose(process, &pages, &inputs)?;
    let (settings, telemetry) = (process.settings.clone(), process.telemetry.clone());
    let mut exposition = Exposition::new(settings, telemetry, spawner.clone());
    exposition.follow(&inputs.proxy_config).await;
    announce_ready(process);
    built_in
        .start(node, relay, ready, None, &spawner)
        .context("the threads of the built-in proxy cannot be started")?;
    process.telemetry.stages().reached(Stage::Envoy);
    process.unless_stopped(std::future::pending::<()>()).await?;
    let ending = process.readiness.register("end");
    ending.pending("stopping");
    end(process, &built_in).await;
    exposition.stop().await;
    Ok(())
}

/// The built-in proxy, not started, and the readiness of the proxy.
pub(super) fn create(process: &Process) -> (BuiltIn, ReadyHandle) {
    let options = options(&process.settings);
    // One for each data thread, and one for the rest.
    heap::configure(i32::try_from(options.threads + 1).unwrap_or(i32::MAX));
    let ready = process.readiness.register("proxy");
    ready.pending("not started yet: it needs the proxy's parameters from a server");
    (BuiltIn::new(&options), ready)
}

/// The admin pages. They are those of `envoy`, if one serves.
pub(super) fn pages(
    process: &Process,
    built_in: &BuiltIn,
    inputs: &BootstrapInputs,
    envoy: watch::Receiver<Option<SocketAddr>>,
) -> anyhow::Result<Pages> {
    let document = envoy_bootstrap::build(inputs).map_err(failed)?.document;
    let stop = process.stop.clone();
    let parts = Parts {
        built_in: built_in.clone(),
        bootstrap: document,
        drain_time: process.settings.envoy.drain_time,
        quit: Box::new(move || {
            stop.request(Urgency::Graceful);
        }),
        envoy,
    };
    Ok(Pages::new(parts, &process.work.spawner()))
}

/// Serves the admin interface, and the pages that Envoy would serve with listeners of its own.
pub(super) fn expose(
    process: &Process,
    pages: &Pages,
    inputs: &BootstrapInputs,
) -> anyhow::Result<()> {
    let spawner = process.work.spawner();
    let bind = |address, what: &str| {
        http_server::bind(address).with_context(|| format!("cannot listen on {address} for {what}"))
    };
    let admin = process.settings.envoy.admin;
    let setting = "the admin interface (-envoy-admin-bind-address, -envoy-admin-bind-port)";
    pages.serve(bind(admin, setting)?, &spawner);
    if let Some(address) = inputs.ready {
        let setting = "readiness (-envoy-ready-bind-address, -envoy-ready-bind-port)";
        pages.expose("readiness", "/ready", bind(address, setting)?, &spawner);
    }
    if let Some(address) = inputs.proxy_config.stats_bind_addr {
        let setting = "statistics (envoy_stats_bind_addr)";
        pages.expose("statistics", "/stats", bind(address, setting)?, &spawner);
    }
    Ok(())
}

pub(super) fn options(settings: &Settings) -> Options {
    Options {
        threads: usize::try_from(settings.envoy.concurrency)
            .unwrap_or(1)
            .max(1),
        files: file_limit::current().unwrap_or(1024),
        host_name: nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .unwrap_or_default(),
        times: Times {
            half_closed: Some(HALF_CLOSED),
            drain: settings.envoy.drain_time,
        },
    }
}

/// The first setting that only Envoy has.
pub(super) fn needs_envoy(settings: &Settings, keys: &ProxyConfig) -> Option<&'static str> {
    let all = [
        (
            !settings.envoy.extra_args.is_empty(),
            "an argument after --",
        ),
        (settings.envoy.state_dir.is_some(), "-envoy-state-dir"),
        (
            settings.telemetry.prometheus_tls.is_some() && keys.prometheus_bind_addr.is_some(),
            "TLS for Prometheus (-telemetry-prom-ca-certs-path and others)",
        ),
        (
            keys.bootstrap_json_tpl.is_some(),
            "envoy_bootstrap_json_tpl",
        ),
        (
            !keys.extra_static_clusters.is_empty(),
            "envoy_extra_static_clusters_json",
        ),
        (
            !keys.extra_static_listeners.is_empty(),
            "envoy_extra_static_listeners_json",
        ),
        (
            !keys.extra_stats_sinks.is_empty(),
            "envoy_extra_stats_sinks_json",
        ),
        (keys.stats_config.is_some(), "envoy_stats_config_json"),
        (keys.tracing.is_some(), "envoy_tracing_json"),
        (keys.statsd.is_some(), "envoy_statsd_url"),
        (keys.dogstatsd.is_some(), "envoy_dogstatsd_url"),
        (
            keys.telemetry_collector_bind_socket_dir.is_some(),
            "envoy_telemetry_collector_bind_socket_dir",
        ),
    ];
    all.into_iter()
        .find_map(|(given, what)| given.then_some(what))
}

/// Says to servers which proxy it is, as Envoy does with the bootstrap document of the dataplane.
pub(super) fn node(inputs: &BootstrapInputs) -> Bytes {
    let node = &inputs.node;
    let or_default = |name: &str| if name.is_empty() { "default" } else { name }.to_owned();
    let metadata = json!({
        "node_name": node.node_name,
        "namespace": or_default(&node.namespace),
        "partition": or_default(&node.partition),
    });
    let metadata = metadata.as_object().map(to_struct);
    let node = Node {
        id: node.id.clone(),
        cluster: node.cluster.clone(),
        metadata,
        user_agent_name: "legate-l4".to_owned(),
        user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Node::default()
    };
    node.encode_to_vec().into()
}

/// Serves on for the grace period.
pub(super) async fn end(process: &mut Process, built_in: &BuiltIn) {
    let settings = process.settings.lifecycle.clone();
    let urgency = process.signals.urgency();
    if urgency == Urgency::Now || settings.shutdown_grace.is_zero() {
        return;
    }
    tracing::info!(grace = ?settings.shutdown_grace, "initiating shutdown");
    if settings.drain_listeners {
        built_in.drain_to_stop();
    }
    let begin = Instant::now();
    let over = async {
        while begin.elapsed() < settings.shutdown_grace {
            let idle = settings.end_when_idle && built_in.connections() == 0;
            if idle && begin.elapsed() >= MIN_DRAIN {
                return;
            }
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = over => {}
        _ = process.signals.beyond(urgency) => {}
    }
}
