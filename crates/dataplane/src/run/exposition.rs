//! Where metrics are offered and sent, as the proxy's telemetry keys say, and again when those
//! change. It measures nothing.

use std::net::SocketAddr;
use std::time::Duration;

use legate_envoy::bootstrap::{ProxyConfig, reachable};
use legate_runtime::{Scope, Spawner};

use crate::settings::Settings;
use crate::telemetry::{
    self, Dialect, Endpoints, Merger, OWN_METRICS_PORT, Sink, Source, Target, Telemetry,
};

/// Where Envoy's admin interface has its metrics.
const ENVOY_METRICS: &str = "/stats/prometheus";

/// How long what was exposed before may take to end.
const STOP: Duration = Duration::from_secs(2);

/// Offers and sends metrics until it is stopped.
pub(super) struct Exposition {
    settings: Settings,
    telemetry: Telemetry,
    spawner: Spawner,
    wanted: Option<Wanted>,
    /// The tasks that do what is wanted.
    scope: Scope,
}

/// What the telemetry keys decide about.
#[derive(Debug, PartialEq)]
struct Wanted {
    /// Whether there is a Prometheus listener, which gets the merged metrics.
    merged: bool,
    sinks: Vec<Sink>,
}

impl Exposition {
    /// Nothing is exposed yet.
    pub(super) fn new(settings: Settings, telemetry: Telemetry, spawner: Spawner) -> Self {
        if let Some(tls) = &settings.telemetry.prometheus_tls {
            telemetry.observe_certificate("prometheus", tls.certificate.clone());
        }
        telemetry.retain(settings.telemetry.retention);
        let scope = spawner.child("metrics");
        Self {
            settings,
            telemetry,
            spawner,
            wanted: None,
            scope,
        }
    }

    /// Does what the proxy's telemetry keys say from now on.
    pub(super) async fn follow(&mut self, config: &ProxyConfig) {
        let wanted = Wanted {
            merged: config.prometheus_bind_addr.is_some(),
            sinks: sinks(config),
        };
        if self.wanted.as_ref() == Some(&wanted) {
            return;
        }
        self.stop().await;
        self.scope = self.spawner.child("metrics");
        if wanted.merged {
            self.serve();
        }
        let (telemetry, sinks) = (self.telemetry.clone(), wanted.sinks.clone());
        telemetry::push(telemetry, sinks, &self.scope.spawner());
        self.wanted = Some(wanted);
    }

    /// Ends servers and sinks.
    pub(super) async fn stop(&self) {
        if let Err(error) = self.scope.stop(STOP).await {
            tracing::debug!(%error, "metrics did not end by themselves");
        }
    }

    fn serve(&self) {
        let (settings, spawner) = (&self.settings.telemetry, self.scope.spawner());
        let admin = self.settings.envoy.admin;
        let mut sources = vec![Source {
            name: "envoy",
            target: Target::new(reachable(admin), ENVOY_METRICS),
            takes_query: true,
        }];
        let service = settings.service_metrics_url.as_deref();
        match service.map(str::parse::<Target>).transpose() {
            Ok(target) => sources.extend(target.map(|target| Source {
                name: "service",
                target,
                takes_query: false,
            })),
            Err(error) => tracing::warn!(%error, "-telemetry-prom-service-metrics-url is left out"),
        }
        let endpoints = Endpoints {
            own: SocketAddr::new(settings.bind, OWN_METRICS_PORT),
            merged: SocketAddr::new(settings.bind, settings.merge_port),
        };
        let merger = Merger::new(self.telemetry.clone(), sources, spawner.clone());
        telemetry::start(endpoints, self.telemetry.clone(), merger, &spawner);
    }
}

/// Where the dataplane sends its own metrics: to the sinks that Envoy gets.
fn sinks(config: &ProxyConfig) -> Vec<Sink> {
    let tags = config.stats_tags.clone();
    let wanted = [
        (Dialect::Statsd, &config.statsd),
        (Dialect::Dogstatsd { tags }, &config.dogstatsd),
    ];
    let sinks = wanted.into_iter().filter_map(|(dialect, address)| {
        let address = address.clone()?;
        Some(Sink { dialect, address })
    });
    sinks.collect()
}
