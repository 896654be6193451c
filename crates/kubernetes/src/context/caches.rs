//! Caches of Kubernetes objects, kept up to date by watches. Admission and controllers read them
//! without requests to the API server.

use std::convert::Infallible;
use std::fmt::Debug;
use std::hash::Hash;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use legate_runtime::{Readiness, Spawner};
use serde::de::DeserializeOwned;

/// Objects that several components read.
#[derive(Debug, Clone)]
pub struct Caches {
    /// Every Service.
    pub services: Store<Service>,
    /// Every Namespace.
    pub namespaces: Store<Namespace>,
}

impl Caches {
    /// Starts the watches in the scope of `spawner`.
    pub fn start(client: &Client, readiness: &Readiness, spawner: &Spawner) -> Caches {
        Caches {
            services: watch("services", Api::all(client.clone()), readiness, spawner),
            namespaces: watch("namespaces", Api::all(client.clone()), readiness, spawner),
        }
    }
}

/// Caches all objects of one kind until the scope of `spawner` ends. The component `name` is ready
/// after the first complete list; a broken watch is restarted, and the objects stay cached.
pub fn watch<K>(
    name: &'static str,
    api: Api<K>,
    readiness: &Readiness,
    spawner: &Spawner,
) -> Store<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
{
    let (store, writer) = reflector::store();
    let ready = readiness.register(name);
    let stop = spawner.token();
    let filled = store.clone();
    spawner.spawn(name, async move {
        let events = watcher(api, watcher::Config::default())
            .modify(|object: &mut K| {
                // Managed fields take half of an object's size and are not used.
                object.managed_fields_mut().clear();
            })
            .default_backoff()
            .reflect(writer);
        tokio::pin!(events);
        let mut listed = false;
        while let Some(event) = stop.run_until_cancelled(events.next()).await {
            match event {
                Some(Ok(_)) if !listed => {
                    listed = futures_util::FutureExt::now_or_never(filled.wait_until_ready())
                        .is_some_and(|ready| ready.is_ok());
                    if listed {
                        ready.ready();
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::warn!(kind = name, %error, "the watch at the API server failed: retrying");
                    if !listed {
                        ready.pending(format!("the API server cannot list them: {error}"));
                    }
                }
                None => break,
            }
        }
        ready.remove();
        Ok::<_, Infallible>(())
    });
    store
}
