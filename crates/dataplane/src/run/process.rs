//! State shared by the stages of the process, and the steps that both modes have in common.

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

/// Time limit for stopping everything but the session.
const STOP: Duration = Duration::from_secs(3);

/// Time limit for closing the session. The logout has its own limit of 5 s.
const LOGOUT: Duration = Duration::from_secs(6);

/// State that the stages of the process share.
pub(super) struct Process {
    pub(super) settings: Settings,
    pub(super) stop: StopSender,
    pub(super) signals: Signals,
    pub(super) telemetry: Telemetry,
    pub(super) readiness: Readiness,
    pub(super) session: Session,
    /// The root scope: any task failure reaches it. Stopped last.
    pub(super) scope: Scope,
    /// Tasks that serve Envoy and clients; stopped before the session.
    pub(super) work: Scope,
    /// Tasks of the session.
    pub(super) connection: Scope,
}

impl Process {
    /// Waits for `work`. `None` if a stop is requested first.
    ///
    /// # Errors
    /// When a task fails first.
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

    /// Starts the lifecycle server.
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

    /// The status source of this process; `relay` and `envoy` are `None` in DNS mode.
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
            built_in: None,
            choice: None,
        }
    }

    /// Waits for the first connection; `false` if a stop is requested first.
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

    /// Starts the DNS proxy for the given namespace and partition if it is configured.
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

    /// Stops everything that is left, the session last. Tasks that do not stop in time are ignored.
    /// Returns the failure of a task, if there was one.
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
