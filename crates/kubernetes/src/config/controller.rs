//! Watches the resources of every kind and looks at each that changed, and at all of them from time
//! to time. Runs where this operator leads.

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

/// How many resources of a kind are looked at at a time.
const CONCURRENCY: u16 = 2;

/// What the controllers work with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The servers' datacenter: entries are marked as its operator's.
    pub datacenter: String,
    /// Which namespaces of the mesh entries stand in.
    pub tenants: Tenants,
    /// Where the time of conditions comes from.
    pub clock: Clock,
    /// What is counted.
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
                // What a resource failed with stands in its condition, or was logged already.
                Ok(_) | Err(controller::Error::ReconcilerFailed(..)) => {}
                Err(controller::Error::ObjectNotFound(gone)) => {
                    context.forget(&(gone.namespace.unwrap_or_default(), gone.name));
                }
                Err(error) => {
                    let kind = kind.name;
                    tracing::warn!(kind, %error, "cannot watch resources: trying again");
                }
            }
            std::future::ready(())
        })
        .await;
    // Who does not lead tries nothing again.
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
