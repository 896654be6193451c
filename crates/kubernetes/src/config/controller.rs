//! Watches the resources of every kind, and reconciles each on change and all of them periodically.
//! Runs on the leader only.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use kube::core::DynamicObject;
use kube::runtime::controller::{self, Config, Controller};
use kube::runtime::watcher;
use kube::{Api, Client};
use legate_runtime::{CancellationToken, Clock, Spawner};
use tokio::sync::watch;

use super::kinds::{KINDS, Kind};
use super::metrics::ConfigMetrics;
use super::reconcile::{Context, reconcile, retry};
use crate::leader::Lead;
use crate::servers::Servers;
use crate::tenancy::Tenants;

/// How many resources of a kind are reconciled concurrently.
const CONCURRENCY: u16 = 2;

/// The settings of the controllers.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The servers' datacenter, recorded in entries as that of their owner.
    pub datacenter: String,
    /// How resources map to namespaces of the mesh.
    pub tenants: Tenants,
    /// The clock for timestamps of conditions.
    pub clock: Clock,
    /// The metrics of the controllers.
    pub metrics: ConfigMetrics,
}

/// Starts a controller for each kind in the scope of `spawner`, which ends with `lead`.
pub fn start(
    kubernetes: &Client,
    servers: &Servers,
    settings: &Settings,
    lead: &Lead,
    spawner: &Spawner,
) {
    for kind in &KINDS {
        let (kubernetes, servers) = (kubernetes.clone(), servers.clone());
        let (settings, lead, stop) = (settings.clone(), lead.clone(), spawner.token());
        spawner.spawn(format!("{} resources", kind.name), async move {
            run(kind, kubernetes, servers, settings, lead, stop).await
        });
    }
}

async fn run(
    kind: &'static Kind,
    kubernetes: Client,
    servers: Servers,
    settings: Settings,
    lead: Lead,
    stop: CancellationToken,
) -> Result<(), Stopped> {
    let api_resource = kind.api_resource();
    let api = Api::<DynamicObject>::all_with(kubernetes.clone(), &api_resource);
    let (again, all) = watch::channel(());
    let all = stream::unfold(all, |mut all| async {
        all.changed().await.ok()?;
        Some(((), all))
    });
    let controller = Controller::new_with(api, watcher::Config::default(), api_resource.clone())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .reconcile_all_on(all)
        .graceful_shutdown_on(stop.clone().cancelled_owned());
    let context = Context {
        kind,
        api_resource,
        kubernetes,
        servers,
        datacenter: settings.datacenter,
        tenants: settings.tenants,
        lead,
        clock: settings.clock,
        metrics: settings.metrics,
        resources: controller.store(),
        attempts: std::sync::Mutex::default(),
        again,
    };
    let context = Arc::new(context);
    controller
        .run(reconcile, retry, Arc::clone(&context))
        .for_each(|result| {
            match result {
                // The reconciler has already logged the error or recorded it in the condition.
                Ok(_) | Err(controller::Error::ReconcilerFailed(..)) => {}
                Err(controller::Error::ObjectNotFound(gone)) => {
                    context.forget(&(gone.namespace.unwrap_or_default(), gone.name));
                }
                Err(error) => {
                    let kind = kind.name;
                    tracing::warn!(kind, %error, "cannot watch resources: retrying");
                }
            }
            std::future::ready(())
        })
        .await;
    // Without leadership nothing is retried.
    context.metrics.failing(kind.name, 0);
    match stop.is_cancelled() {
        true => Ok(()),
        false => Err(Stopped),
    }
}

/// The controller ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("it stopped watching")]
struct Stopped;
