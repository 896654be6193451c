//! Runs the core: watches, calls to the API server and to the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use legate_gateway_api::Key;
use legate_runtime::{Backoff, Clock};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::CONTROLLER;
use super::cluster::Source;
use super::core::{Call, Core, Ended, Subject};
use super::entries;
use super::fronts::AllAcknowledged;
use super::infrastructure::Manifest;
use super::kinds::Kind;
use super::rights::Rights;
use super::rows::Request;
use super::stored::Stored;
use super::watches::{KINDS_AGAIN, Kinds, Watches, kinds};
use crate::inject::{Installation, Published};
use crate::leader::Lead;
use crate::servers::{Path, Servers, ServersError};
use crate::sync::cluster_uid;
use crate::sync::registration::Settings;
use crate::watch::API_SERVER;

/// The field manager of what is made for gateways.
const MANAGER: &str = "legate-gateways";
/// How long the servers wait for a change before they answer. Shorter than a request may take.
const WAIT: &str = "3s";

/// The kinds of what is made for gateways: version, name and plural.
const KINDS: [(&str, &str, &str); 4] = [
    ("v1", "Service", "services"),
    ("apps/v1", "Deployment", "deployments"),
    ("v1", "ConfigMap", "configmaps"),
    ("v1", "ServiceAccount", "serviceaccounts"),
];

const NOT_LEADING: &str = "this operator is no longer the leader";

/// The options of the driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// The settings of pods.
    pub installation: Published,
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
    let mut published = options.installation;
    let Some(installation) = usable(&mut published).await else {
        // The operator is stopping.
        return;
    };
    let driver = Driver {
        client,
        servers,
        lead,
    };
    let settings = Settings {
        cluster: cluster_uid(client).await,
        node_meta: BTreeMap::new(),
        tenants: installation.tenants(),
        installation: installation.mark(),
        gateway_api: true,
    };
    let mut core = Core::new(CONTROLLER, settings, installation, Instant::now());
    let mut watches = Watches::start(client);
    for source in Source::OF_KUBERNETES {
        core.start(source);
    }
    let mut calls = FuturesUnordered::new();
    let mut listed = Box::pin(kinds_after(Duration::ZERO, client, BTreeSet::new()));
    let mut report = Box::pin(driver.report(None));
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
                listed = Box::pin(kinds_after(KINDS_AGAIN, client, kinds.all));
            }
            read = &mut report => {
                match &read {
                    Report::Legate(all, _) => core.acknowledged(all.clone(), Instant::now()),
                    Report::Consul(all, _) => core.stored(all.clone(), Instant::now()),
                }
                report = Box::pin(driver.report(Some(read)));
            }
            Ok(()) = published.changed() => {
                if let Some(installation) = published.borrow_and_update().clone() {
                    core.installation(installation, Instant::now());
                }
            }
            () = tokio::time::sleep_until(wake), if kinds_known => {}
        }
    }
}

fn now(clock: &Clock) -> String {
    let now = Timestamp::try_from(clock.now()).unwrap_or_default();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The installation, as soon as pods can verify the servers. `None` if it ends before.
async fn usable(published: &mut Published) -> Option<Arc<Installation>> {
    let known =
        |one: &Option<Arc<Installation>>| one.as_ref().is_some_and(|one| one.knows_servers());
    let installation = published.wait_for(known).await.ok()?;
    installation.clone()
}

/// The kinds after a delay, from those that were there before.
async fn kinds_after(delay: Duration, client: &Client, known: BTreeSet<Kind>) -> Kinds {
    tokio::time::sleep(delay).await;
    let mut backoff = Backoff::new(API_SERVER);
    loop {
        match kinds(client, &known).await {
            Ok(kinds) => return kinds,
            Err(error) => {
                tracing::warn!(%error, "cannot list the kinds of the Gateway API: retrying");
                tokio::time::sleep(backoff.next(rand::random())).await;
            }
        }
    }
}

/// What the servers report of gateways, with its index in their state.
enum Report {
    /// What proxies have acknowledged.
    Legate(AllAcknowledged, u64),
    /// The entries of Consul's servers.
    Consul(Stored, Indexes),
}

/// The index of the entries of each kind.
type Indexes = [u64; entries::KINDS.len()];

/// A path whose answer waits for a change after an index.
fn after(path: Path, index: u64) -> Path {
    path.with("index", &index.to_string()).with("wait", WAIT)
}

struct Driver<'a> {
    client: &'a Client,
    servers: &'a Servers,
    lead: &'a Lead,
}

impl Driver<'_> {
    /// What the servers report of gateways, once it may differ from what they reported before.
    async fn report(&self, before: Option<Report>) -> Report {
        let mut backoff = Backoff::new(API_SERVER);
        loop {
            let read = match &before {
                None => self.first_report().await,
                Some(Report::Legate(_, index)) => self.acknowledged(Some(*index)).await,
                Some(Report::Consul(all, indexes)) => self.entries_after(all, indexes).await,
            };
            match read {
                Ok(report) => return report,
                Err(error) => {
                    tracing::warn!(%error, "cannot read what the servers know of gateways: retrying");
                    tokio::time::sleep(backoff.next(rand::random())).await;
                }
            }
        }
    }

    /// Consul's servers do not know the path of Legate's.
    async fn first_report(&self) -> Result<Report, ServersError> {
        match self.acknowledged(None).await {
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => {}
            other => return other,
        }
        let (mut all, mut indexes) = (Stored::default(), Indexes::default());
        for (kind, name) in entries::KINDS.iter().enumerate() {
            let path = Path::of(["config", name]);
            (all[kind], indexes[kind]) = self.servers.get_indexed(&path).await?;
        }
        Ok(Report::Consul(all, indexes))
    }

    /// What proxies have acknowledged.
    async fn acknowledged(&self, index: Option<u64>) -> Result<Report, ServersError> {
        let path = Path::of(["internal", "legate", "gateways", "status"]);
        let path = match index {
            Some(index) => after(path, index),
            None => path,
        };
        let (all, index) = self.servers.get_indexed(&path).await?;
        Ok(Report::Legate(all, index))
    }

    /// The entries, once those of a kind may have changed.
    async fn entries_after(&self, all: &Stored, indexes: &Indexes) -> Result<Report, ServersError> {
        let reads = entries::KINDS.iter().zip(indexes).map(|(name, index)| {
            let path = after(Path::of(["config", name]), *index);
            Box::pin(async move { self.servers.get_indexed(&path).await })
        });
        let (read, kind, _) = select_all(reads).await;
        let (mut all, mut indexes) = (all.clone(), *indexes);
        (all[kind], indexes[kind]) = read?;
        Ok(Report::Consul(all, indexes))
    }

    async fn perform(&self, call: Call) -> (Subject, Ended) {
        let subject = call.subject();
        if !self.lead.holds() {
            return (subject, Ended::Failed(NOT_LEADING.to_owned()));
        }
        let outcome = match call {
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
                uid,
                manifests,
            } => {
                let applied = self.apply((&gateway, &uid), &manifests).await;
                ended(applied, &gateway, Ended::Applied(manifests))
            }
            Call::Remove { gateway, uid, name } => {
                let removed = self.remove((&gateway, &uid), &name).await;
                ended(removed, &gateway, Ended::Removed)
            }
            Call::Rows {
                service,
                requests,
                rows,
            } => {
                let written = self.rows(&service, requests).await;
                let written =
                    written.map_err(|error| format!("cannot write what it serves: {error}"));
                ended(written, &service, Ended::Rows(rows))
            }
            Call::Entries {
                service,
                requests,
                digests,
                rights,
            } => {
                let written = match requests {
                    Ok(requests) => self.entries(requests, rights).await.map_err(|error| {
                        format!("cannot write the config entries of the gateway: {error}")
                    }),
                    Err(reason) => Err(reason),
                };
                ended(written, &service, Ended::Entries(digests))
            }
            Call::RemoveRows { service } => {
                let path = Path::of(["internal", "legate", "gateway", &service]);
                let removed = self.servers.delete(&path).await.map(drop);
                let removed =
                    removed.map_err(|error| format!("cannot remove what it served: {error}"));
                ended(removed, &service, Ended::RowsRemoved)
            }
        };
        (subject, outcome)
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
        let api = self.api(&resource, &key.namespace);
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
                Ended::Failed(error.to_string())
            }
        }
    }

    async fn apply(
        &self,
        (gateway, uid): (&Key, &str),
        manifests: &[Manifest],
    ) -> Result<(), String> {
        for manifest in manifests {
            let (kind, name) = (manifest.kind, manifest.name());
            let resource = resource(manifest.version, kind, manifest.plural);
            let api = self.api(&resource, &gateway.namespace);
            let failed = |error| format!("cannot apply the {kind} {name}: {error}");
            let there = api.get_metadata_opt(name).await.map_err(failed)?;
            if there
                .as_ref()
                .is_some_and(|there| !belongs_to(&there.metadata, uid))
            {
                return Err(format!(
                    "the {kind} {name} exists and does not belong to this Gateway: delete it, or name \
                     the Gateway differently"
                ));
            }
            if !self.lead.holds() {
                return Err(NOT_LEADING.to_owned());
            }
            let mut body = manifest.body.clone();
            body["apiVersion"] = json!(manifest.version);
            body["kind"] = json!(kind);
            // Somebody may have taken the name meanwhile: then nothing is overwritten.
            let options = PatchParams {
                force: there.is_some(),
                ..PatchParams::apply(MANAGER)
            };
            let applied = api.patch(name, &options, &Patch::Apply(&body)).await;
            applied.map_err(failed)?;
        }
        Ok(())
    }

    async fn remove(&self, (gateway, uid): (&Key, &str), name: &str) -> Result<(), String> {
        for (version, kind, plural) in KINDS {
            let api = self.api(&resource(version, kind, plural), &gateway.namespace);
            let failed = |error| format!("cannot delete the {kind} {name}: {error}");
            let there = api.get_metadata_opt(name).await.map_err(failed)?;
            let own = there.filter(|there| belongs_to(&there.metadata, uid));
            let Some(own) = own.and_then(|own| own.metadata.uid) else {
                continue;
            };
            if !self.lead.holds() {
                return Err(NOT_LEADING.to_owned());
            }
            let options = DeleteParams::background().preconditions(Preconditions {
                uid: Some(own),
                resource_version: None,
            });
            match api.delete(name, &options).await {
                Ok(_) => {}
                Err(kube::Error::Api(error)) if error.code == 404 => {}
                Err(error) => return Err(failed(error)),
            }
        }
        tracing::info!(%gateway, name, "removed what it had under another class");
        Ok(())
    }

    async fn rows(&self, service: &str, requests: Vec<Request>) -> Result<(), ServersError> {
        for request in requests {
            let segments = ["internal", "legate", "gateway", service];
            let path = Path::of(segments.into_iter().chain(request.part));
            self.servers.put_json::<Value>(&path, &request.body).await?;
        }
        Ok(())
    }

    async fn entries(
        &self,
        requests: Vec<entries::Request>,
        rights: Option<Rights>,
    ) -> Result<(), ServersError> {
        if let Some(rights) = rights {
            rights.write(self.servers).await?;
        }
        for request in requests {
            match request {
                entries::Request::Put(body) => {
                    let path = Path::of(["config"]);
                    self.servers.put_json::<Value>(&path, &body).await?;
                }
                entries::Request::Delete(kind, name) => {
                    let path = Path::of(["config", kind, &name]);
                    self.servers.delete(&path).await?;
                }
            }
        }
        Ok(())
    }

    /// The namespace of objects without one is empty.
    fn api(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        let client = self.client.clone();
        match namespace {
            "" => Api::all_with(client, resource),
            namespace => Api::namespaced_with(client, namespace, resource),
        }
    }
}

/// How a call for a gateway has ended.
fn ended(outcome: Result<(), String>, gateway: &impl fmt::Display, done: Ended) -> Ended {
    match outcome {
        Ok(()) => done,
        Err(reason) => {
            tracing::warn!(%gateway, "{reason}; retrying");
            Ended::Failed(reason)
        }
    }
}

/// Whether a Gateway with this uid is the owner of an object.
fn belongs_to(metadata: &ObjectMeta, uid: &str) -> bool {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.uid == uid && owner.controller == Some(true))
}

fn resource(version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = GroupVersionKind::gvk(group, version, kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
