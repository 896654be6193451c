//! Serves and pushes metrics as the proxy's telemetry keys configure, and follows changes of them.
//! It measures nothing.

use std::net::SocketAddr;
use std::time::Duration;

use legate_envoy::bootstrap::{ProxyConfig, reachable};
use legate_runtime::{Scope, Spawner};

use crate::settings::{ProxyKind, Settings};
use crate::telemetry::{
    self, Dialect, Endpoints, Merger, OWN_METRICS_PORT, Sink, Source, Target, Telemetry,
};

/// Path of the metrics at Envoy's admin interface.
const ENVOY_METRICS: &str = "/stats/prometheus";

/// Time limit for stopping the previous servers and sinks.
const STOP: Duration = Duration::from_secs(2);

/// Serves and pushes metrics until it is stopped.
pub(super) struct Exposition {
    settings: Settings,
    telemetry: Telemetry,
    spawner: Spawner,
    /// The configuration in effect; `None` before the first.
    current: Option<Wanted>,
    /// Tasks of the current configuration.
    scope: Scope,
}

/// The part of the telemetry keys that matters here.
#[derive(Debug, PartialEq)]
struct Wanted {
    /// Whether to serve the merged metrics, which Envoy's Prometheus listener exposes.
    merged: bool,
    /// Where Prometheus scrapes, if the dataplane serves that itself.
    exposed: Option<SocketAddr>,
    sinks: Vec<Sink>,
}

impl Exposition {
    /// Creates an instance that exposes nothing yet.
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
            current: None,
            scope,
        }
    }

    /// Applies the proxy's telemetry keys.
    pub(super) async fn follow(&mut self, config: &ProxyConfig) {
        let wanted = Wanted {
            merged: config.prometheus_bind_addr.is_some(),
            exposed: config
                .prometheus_bind_addr
                .filter(|_| match self.settings.envoy.kind {
                    ProxyKind::Envoy => false,
                    ProxyKind::BuiltIn => true,
                    // An Envoy serves it with TLS.
                    ProxyKind::Auto => self.settings.telemetry.prometheus_tls.is_none(),
                }),
            sinks: sinks(config),
        };
        if self.current.as_ref() == Some(&wanted) {
            return;
        }
        self.stop().await;
        self.scope = self.spawner.child("metrics");
        if wanted.merged {
            self.serve(wanted.exposed);
        }
        let (telemetry, sinks) = (self.telemetry.clone(), wanted.sinks.clone());
        telemetry::push(telemetry, sinks, &self.scope.spawner());
        self.current = Some(wanted);
    }

    /// Stops servers and sinks.
    pub(super) async fn stop(&self) {
        if let Err(error) = self.scope.stop(STOP).await {
            tracing::debug!(%error, "metrics did not end by themselves");
        }
    }

    fn serve(&self, exposed: Option<SocketAddr>) {
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
            Err(error) => tracing::warn!(%error, "-telemetry-prom-service-metrics-url is ignored"),
        }
        let endpoints = Endpoints {
            own: SocketAddr::new(settings.bind, OWN_METRICS_PORT),
            merged: SocketAddr::new(settings.bind, settings.merge_port),
            exposed: exposed.map(|address| (address, settings.scrape_path.clone())),
        };
        let merger = Merger::new(self.telemetry.clone(), sources, spawner.clone());
        telemetry::start(endpoints, self.telemetry.clone(), merger, &spawner);
    }
}

/// Sinks for the dataplane's own metrics: the same ones that Envoy uses.
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
