//! Runs the core: watches, calls to the API server and to the servers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use legate_gateway_api::Key;
use legate_runtime::{Backoff, Clock};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::CONTROLLER;
use super::core::{Call, Core, Ended, Subject};
use super::fronts::AllAcknowledged;
use super::infrastructure::{Installation, Manifest};
use super::kinds::Kind;
use super::rows::Request;
use super::watches::{KINDS_AGAIN, Kinds, Watches, kinds};
use crate::context::{Servers as ServerOptions, Sidecars};
use crate::inject::Cluster as Version;
use crate::leader::Lead;
use crate::servers::{Path, Servers, ServersError};
use crate::sync::cluster_uid;
use crate::sync::registration::Settings;
use crate::tenancy::Tenants;
use crate::watch::API_SERVER;

/// The field manager of what is made for gateways.
const MANAGER: &str = "legate-gateways";
/// How long the servers wait for a change before they answer. Shorter than a request may take.
const WAIT: &str = "3s";

/// The options of the driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// How gateways reach the servers.
    pub servers: ServerOptions,
    /// The image of gateways.
    pub sidecars: Sidecars,
    /// The certificates in PEM with which gateways verify servers.
    pub ca: watch::Receiver<Option<String>>,
    /// The log level of gateways.
    pub log_level: String,
    /// Whether they log JSON.
    pub log_json: bool,
    /// How pods map to namespaces of the mesh.
    pub tenants: Tenants,
    /// The clock for timestamps of conditions.
    pub clock: Clock,
}

/// Serves the Gateway API as long as `lead` holds.
///
/// # Errors
///
/// None: failures are retried.
pub async fn run(
    client: Client,
    servers: Servers,
    lead: Lead,
    options: Options,
) -> Result<(), Infallible> {
    let work = work(&client, &servers, &lead, options);
    lead.token().run_until_cancelled(work).await;
    Ok(())
}

async fn work(client: &Client, servers: &Servers, lead: &Lead, options: Options) {
    let mut ca = options.ca;
    let installation = Installation {
        sleep_hooks: version(client).await.sleep_hooks,
        ca_certs: authority(&mut ca, &options.servers).await,
        servers: options.servers,
        sidecars: options.sidecars,
        log_level: options.log_level,
        log_json: options.log_json,
    };
    let driver = Driver {
        client,
        servers,
        lead,
    };
    let settings = Settings {
        cluster: cluster_uid(client).await,
        node_meta: BTreeMap::new(),
        tenants: options.tenants,
    };
    let mut core = Core::new(CONTROLLER, settings, installation, Instant::now());
    let (mut watches, sources) = Watches::start(client);
    sources.into_iter().for_each(|source| core.start(source));
    let mut calls = FuturesUnordered::new();
    let mut listed = Box::pin(kinds_after(Duration::ZERO, client));
    let mut acknowledged = Box::pin(driver.acknowledged(None));
    let mut kinds_known = false;
    loop {
        // Without the kinds it would seem that there are no objects.
        if kinds_known {
            let text = now(&options.clock);
            for call in core.poll(Instant::now(), &text) {
                calls.push(driver.perform(call));
            }
        }
        let wake = core.wake(Instant::now());
        tokio::select! {
            (source, change) = watches.next() => {
                core.object(source, change, Instant::now());
                // All that have already arrived, so that a list is resolved once.
                while let Some((source, change)) = watches.next().now_or_never() {
                    core.object(source, change, Instant::now());
                }
            }
            Some((subject, ended)) = calls.next() => {
                core.ended(subject, ended, Instant::now(), rand::random());
            }
            kinds = &mut listed => {
                let (started, ended) = watches.set(&kinds.all);
                started.into_iter().for_each(|source| core.start(source));
                let at = Instant::now();
                ended.into_iter().for_each(|source| core.end(source, at));
                core.bundle(kinds.bundle, kinds.experimental, at);
                kinds_known = true;
                listed = Box::pin(kinds_after(KINDS_AGAIN, client));
            }
            (all, index) = &mut acknowledged => {
                core.acknowledged(all, Instant::now());
                acknowledged = Box::pin(driver.acknowledged(Some(index)));
            }
            Ok(()) = ca.changed() => {
                let pem = ca.borrow_and_update().clone();
                core.ca_certs(pem, Instant::now());
            }
            () = tokio::time::sleep_until(wake), if kinds_known => {}
        }
    }
}

fn now(clock: &Clock) -> String {
    let now = Timestamp::try_from(clock.now()).unwrap_or_default();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The servers' authority, as soon as it is known.
async fn authority(
    ca: &mut watch::Receiver<Option<String>>,
    servers: &ServerOptions,
) -> Option<String> {
    let expected = servers.http.tls && (servers.managed_ca || servers.http.ca_certs.is_some());
    if !expected {
        return None;
    }
    match ca.wait_for(Option::is_some).await {
        Ok(pem) => pem.clone(),
        // It never changes.
        Err(_) => None,
    }
}

async fn version(client: &Client) -> Version {
    let mut backoff = Backoff::new(API_SERVER);
    loop {
        match client.apiserver_version().await {
            Ok(version) => return Version::of_version(&version.major, &version.minor),
            Err(error) => {
                tracing::warn!(%error, "cannot read the API server's version: retrying");
                tokio::time::sleep(backoff.next(rand::random())).await;
            }
        }
    }
}

async fn kinds_after(delay: Duration, client: &Client) -> Kinds {
    tokio::time::sleep(delay).await;
    let mut backoff = Backoff::new(API_SERVER);
    loop {
        match kinds(client).await {
            Ok(kinds) => return kinds,
            Err(error) => {
                tracing::warn!(%error, "cannot list the kinds of the Gateway API: retrying");
                tokio::time::sleep(backoff.next(rand::random())).await;
            }
        }
    }
}

struct Driver<'a> {
    client: &'a Client,
    servers: &'a Servers,
    lead: &'a Lead,
}

impl Driver<'_> {
    /// What proxies have acknowledged, with its index, if that is another one.
    async fn acknowledged(&self, index: Option<u64>) -> (AllAcknowledged, u64) {
        let mut backoff = Backoff::new(API_SERVER);
        let path = Path::of(["internal", "legate", "gateways", "status"]);
        let path = match index {
            Some(index) => path.with("index", &index.to_string()).with("wait", WAIT),
            None => path,
        };
        loop {
            match self.servers.get_indexed(&path).await {
                Ok(answer) => return answer,
                Err(error) => {
                    tracing::warn!(%error, "cannot read what gateways have acknowledged: retrying");
                    tokio::time::sleep(backoff.next(rand::random())).await;
                }
            }
        }
    }

    async fn perform(&self, call: Call) -> (Subject, Ended) {
        let subject = call.subject();
        if !self.lead.holds() {
            return (subject, Ended::Failed);
        }
        let ended = match call {
            Call::Status {
                kind,
                key,
                uid,
                resource_version,
                change,
            } => {
                let version = (uid.as_str(), resource_version.as_str());
                self.status(kind, &key, version, change).await
            }
            Call::Apply {
                gateway,
                manifests,
                is_known,
            } => self.apply(&gateway, manifests, is_known).await,
            Call::Remove { gateway, name } => self.remove(&gateway, &name).await,
            Call::Rows {
                service,
                requests,
                rows,
            } => match self.rows(&service, requests).await {
                Ok(()) => Ended::Rows(rows),
                Err(error) => {
                    tracing::warn!(gateway = service, %error, "cannot write what it serves: retrying");
                    Ended::Failed
                }
            },
            Call::RemoveRows { service } => {
                let path = Path::of(["internal", "legate", "gateway", &service]);
                match self.servers.delete(&path).await {
                    Ok(_) => Ended::RowsRemoved,
                    Err(error) => {
                        tracing::warn!(gateway = service, %error, "cannot remove what it served: retrying");
                        Ended::Failed
                    }
                }
            }
        };
        (subject, ended)
    }

    async fn status(
        &self,
        kind: Kind,
        key: &Key,
        (uid, resource_version): (&str, &str),
        change: Value,
    ) -> Ended {
        // Lists of entries are replaced as a whole, so the version must be the one that was read.
        let patch = Patch::Merge(json!({
            "metadata": {"uid": uid, "resourceVersion": resource_version},
            "status": change,
        }));
        let resource = kind.api_resource();
        let api = self.api(&resource, kind.is_of_cluster().then_some(""), key);
        match api
            .patch_status(&key.name, &PatchParams::default(), &patch)
            .await
        {
            Ok(object) => Ended::Status {
                before: resource_version.to_owned(),
                object: Some(Box::new(object)),
            },
            Err(kube::Error::Api(error)) if error.code == 404 => Ended::Status {
                before: resource_version.to_owned(),
                object: None,
            },
            Err(error) => {
                if is_conflict(&error) {
                    tracing::debug!(kind = kind.as_str(), %key, "the status has changed meanwhile");
                } else {
                    tracing::warn!(kind = kind.as_str(), %key, %error, "cannot write the status: retrying");
                }
                Ended::Failed
            }
        }
    }

    async fn apply(&self, gateway: &Key, manifests: Vec<Manifest>, is_known: bool) -> Ended {
        for manifest in &manifests {
            if !self.lead.holds() {
                return Ended::Failed;
            }
            let mut body = manifest.body.clone();
            body["apiVersion"] = json!(manifest.version);
            body["kind"] = json!(manifest.kind);
            let name = body["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            // Before it is known that an object is the gateway's, others' fields stay as they are.
            let options = PatchParams {
                force: is_known,
                ..PatchParams::apply(MANAGER)
            };
            let resource = resource(manifest.version, manifest.kind, manifest.plural);
            let api = self.api(&resource, None, gateway);
            if let Err(error) = api.patch(&name, &options, &Patch::Apply(&body)).await {
                tracing::warn!(%gateway, kind = manifest.kind, name, %error, "cannot apply: retrying");
                return Ended::Failed;
            }
        }
        Ended::Applied(manifests)
    }

    async fn remove(&self, gateway: &Key, name: &str) -> Ended {
        for (version, kind, plural) in [
            ("v1", "Service", "services"),
            ("apps/v1", "Deployment", "deployments"),
            ("v1", "ConfigMap", "configmaps"),
            ("v1", "ServiceAccount", "serviceaccounts"),
        ] {
            let api = self.api(&resource(version, kind, plural), None, gateway);
            match api.delete(name, &DeleteParams::background()).await {
                Ok(_) => {}
                Err(kube::Error::Api(error)) if error.code == 404 => {}
                Err(error) => {
                    tracing::warn!(%gateway, kind, name, %error, "cannot delete: retrying");
                    return Ended::Failed;
                }
            }
        }
        tracing::info!(%gateway, "removed what was made for it: it is of another class");
        Ended::Removed
    }

    async fn rows(&self, service: &str, requests: Vec<Request>) -> Result<(), ServersError> {
        for request in requests {
            let segments = ["internal", "legate", "gateway", service];
            let path = Path::of(segments.into_iter().chain(request.part));
            self.servers.put_json::<Value>(&path, &request.body).await?;
        }
        Ok(())
    }

    /// `cluster` is set for objects without a namespace.
    fn api(&self, resource: &ApiResource, cluster: Option<&str>, key: &Key) -> Api<DynamicObject> {
        let client = self.client.clone();
        match cluster {
            Some(_) => Api::all_with(client, resource),
            None => Api::namespaced_with(client, &key.namespace, resource),
        }
    }
}

fn resource(version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = GroupVersionKind::gvk(group, version, kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
