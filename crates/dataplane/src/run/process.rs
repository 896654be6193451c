//! What the stages of the process share, and the steps that both modes take.

use std::future::Future;
use std::time::Duration;

use legate_client::Session;
use legate_envoy::supervision::Report;
use legate_runtime::{Readiness, Scope, TaskError};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::dns::{DnsOptions, DnsProxy, Limits};
use crate::lifecycle::{self, EnvoyControls, LifecycleParts};
use crate::relay::Relay;
use crate::settings::Settings;
use crate::signals::{Signals, StopSender, Urgency};
use crate::status::{ConnectionCounter, StatusSource};
use crate::telemetry::{Stage, Telemetry};

/// How long everything but the session may take to end.
const STOP: Duration = Duration::from_secs(3);

/// How long the session may take to end; a logout has 5 s of its own.
const LOGOUT: Duration = Duration::from_secs(6);

/// Everything that the stages of the process share.
pub(super) struct Process {
    pub(super) settings: Settings,
    pub(super) stop: StopSender,
    pub(super) signals: Signals,
    pub(super) telemetry: Telemetry,
    pub(super) readiness: Readiness,
    pub(super) session: Session,
    /// Hears of every task that fails, and ends last.
    pub(super) scope: Scope,
    /// What works for Envoy and for clients; it ends before the session does.
    pub(super) work: Scope,
    /// The session's own tasks.
    pub(super) connection: Scope,
}

impl Process {
    /// Waits for `work`, unless a stop is asked for (`None`) or a task fails.
    pub(super) async fn unless_stopped<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> anyhow::Result<Option<T>> {
        tokio::select! {
            biased;
            _ = self.signals.beyond(Urgency::None) => Ok(None),
            error = self.scope.failed() => Err(error.into()),
            value = work => Ok(Some(value)),
        }
    }

    /// Answers lifecycle requests from now on.
    pub(super) fn serve_lifecycle(
        &self,
        listener: TcpListener,
        status: StatusSource,
        envoy: Option<EnvoyControls>,
    ) {
        let parts = LifecycleParts {
            settings: self.settings.lifecycle.clone(),
            status,
            stop: self.stop.clone(),
            envoy,
        };
        lifecycle::serve(listener, parts, &self.work.spawner());
    }

    /// The status of this process, and of its relay and its Envoys where it has them.
    pub(super) fn status(
        &self,
        relay: Option<Relay>,
        envoy: Option<watch::Receiver<Report>>,
    ) -> StatusSource {
        StatusSource {
            proxy: self.settings.proxy.clone(),
            session: self.session.clone(),
            relay,
            admin: self.settings.envoy.admin,
            envoy,
            readiness: self.readiness.clone(),
            telemetry: self.telemetry.clone(),
            counter: ConnectionCounter::default(),
        }
    }

    /// Waits for the first connection; `false` when a stop is asked for before.
    pub(super) async fn connect(&mut self) -> anyhow::Result<bool> {
        let session = self.session.clone();
        let Some(connected) = self.unless_stopped(session.connected()).await? else {
            return Ok(false);
        };
        let server = connected?.server;
        self.telemetry.stages().reached(Stage::Connect);
        tracing::info!(initial_server_address = %server, "connected to Consul server over gRPC");
        Ok(true)
    }

    /// Answers DNS in the namespace and partition given, when that is configured.
    pub(super) async fn start_dns(&self, namespace: &str, partition: &str) -> anyhow::Result<()> {
        let Some(address) = self.settings.dns else {
            tracing::info!("dns server disabled: configure the Consul DNS port to enable");
            return Ok(());
        };
        let options = DnsOptions {
            address,
            namespace: namespace.to_owned(),
            partition: partition.to_owned(),
            limits: Limits::default(),
        };
        let registry = self.telemetry.registry();
        DnsProxy::start(
            options,
            self.session.clone(),
            &self.work.spawner(),
            registry,
        )
        .await?;
        Ok(())
    }

    /// Ends what is left, the session last. A task that does not end has no one left to matter to;
    /// one that has failed is returned.
    pub(super) async fn end(self) -> Option<TaskError> {
        tracing::info!("stopping");
        if let Err(error) = self.work.stop(STOP).await {
            tracing::debug!(%error, "not everything ended by itself");
        }
        self.session.close(LOGOUT).await;
        if let Err(error) = self.connection.stop(STOP).await {
            tracing::debug!(%error, "the session did not end by itself");
        }
        self.scope.stop(STOP).await.err()?.failure
    }
}
