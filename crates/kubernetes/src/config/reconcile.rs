//! Reconciles one resource with its entry in the servers, and reports the outcome in the resource's
//! status.
//!
//! Decisions are made in [`super::decision`]. Of the resource only the finalizer and the status are
//! patched.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{self, Event, finalizer};
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt};
use legate_model::{DEFAULT_TENANCY, EVERY_TENANCY};
use legate_runtime::Clock;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::attempts::{Attempts, Key, Version, key};
use super::decision::{self, Reason, Removal, Write};
use super::entry::{self, Entry, Place};
use super::kinds::Kind;
use super::metrics::ConfigMetrics;
use super::status::{Outcome, SYNCED, Status};
use crate::leader::Lead;
use crate::servers::{Path, Servers, ServersError};
use crate::tenancy::Tenants;

/// Delays the deletion of a resource until its entry is deleted in the servers. Consul's integration
/// has the same.
pub const FINALIZER: &str = "finalizers.consul.hashicorp.com";
/// How often an unchanged resource is compared with the servers.
pub const COMPARE_EVERY: Duration = Duration::from_secs(3600);
/// The deadline for reconciling one resource: a few requests to servers and API server.
const TIME: Duration = Duration::from_secs(30);

/// State shared by all resources of a kind.
pub(super) struct Context {
    pub(super) kind: &'static Kind,
    pub(super) api_resource: ApiResource,
    pub(super) kubernetes: Client,
    pub(super) servers: Servers,
    pub(super) datacenter: String,
    pub(super) tenants: Tenants,
    pub(super) lead: Lead,
    pub(super) clock: Clock,
    pub(super) metrics: ConfigMetrics,
    /// Cache of all resources of the kind.
    pub(super) resources: Store<DynamicObject>,
    pub(super) attempts: Mutex<Attempts>,
    /// Triggers a reconciliation of every resource of the kind.
    pub(super) again: watch::Sender<()>,
}

/// Why a resource has to be retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    /// The servers refused; the condition has the reason.
    #[error("{0}")]
    Refused(String),
    /// The servers were unreachable; the condition has the reason.
    #[error("{0}")]
    Unknown(String),
    #[error("the entry was changed concurrently")]
    Changed,
    #[error("this operator is no longer the leader")]
    NotLeading,
    #[error("the API server: {0}")]
    Kubernetes(#[from] kube::Error),
    #[error("cannot change the finalizers: {0}")]
    Finalizer(#[source] Box<finalizer::Error<Failed>>),
    #[error("it took longer than {} s", TIME.as_secs())]
    Slow,
}

/// Reconciles one resource, unless its backoff has not passed yet.
pub(super) async fn reconcile(
    resource: Arc<DynamicObject>,
    context: Arc<Context>,
) -> Result<Action, Failed> {
    let (key, version) = (key(&resource), Version::of(&resource));
    let now = Instant::now();
    if let Some(wait) = context.attempts().wait(&key, &version, now) {
        return Ok(Action::requeue(wait));
    }
    let (kind, metrics) = (context.kind.name, &context.metrics);
    let timer = metrics.seconds(kind).start_timer();
    let looked = look(resource, &context).await;
    timer.observe_duration();
    let result = match &looked {
        Ok(_) => {
            context.attempts().done(&key);
            metrics.failing(kind, context.attempts().len());
            "done"
        }
        Err(Failed::Refused(_)) => "refused",
        Err(_) => "failed",
    };
    metrics.reconciled(kind, result);
    looked
}

async fn look(resource: Arc<DynamicObject>, context: &Context) -> Result<Action, Failed> {
    context.must_lead()?;
    let namespace = resource.namespace().unwrap_or_default();
    let api = Api::namespaced_with(
        context.kubernetes.clone(),
        &namespace,
        &context.api_resource,
    );
    let work = finalizer(&api, FINALIZER, resource, |event| async {
        match event {
            Event::Apply(resource) => context.apply(&api, &resource).await,
            Event::Cleanup(resource) => context.remove(&api, &resource).await,
        }
    });
    match tokio::time::timeout(TIME, work).await {
        Err(_) => Err(Failed::Slow),
        Ok(Err(finalizer::Error::ApplyFailed(error) | finalizer::Error::CleanupFailed(error))) => {
            Err(error)
        }
        // The resource was deleted concurrently and needs no further work.
        Ok(Err(finalizer::Error::RemoveFinalizer(error))) if is_gone(&error) => {
            Ok(Action::await_change())
        }
        Ok(Err(error)) => Err(Failed::Finalizer(Box::new(error))),
        Ok(Ok(action)) => Ok(action),
    }
}

/// Schedules the retry of a failed resource.
pub(super) fn retry(resource: Arc<DynamicObject>, error: &Failed, context: Arc<Context>) -> Action {
    if !matches!(error, Failed::Refused(_) | Failed::Unknown(_)) {
        let (kind, namespace) = (context.kind.name, resource.namespace());
        tracing::warn!(kind, namespace, name = resource.name_any(), %error, "trying again");
    }
    let version = Version::of(&resource);
    let now = Instant::now();
    let (wait, failing) = {
        let mut attempts = context.attempts();
        let wait = attempts.failed(key(&resource), version, now);
        (wait, attempts.len())
    };
    context.metrics.failing(context.kind.name, failing);
    Action::requeue(wait)
}

impl Context {
    fn attempts(&self) -> std::sync::MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the state of a deleted resource.
    pub(super) fn forget(&self, key: &Key) {
        let mut attempts = self.attempts();
        attempts.done(key);
        self.metrics.failing(self.kind.name, attempts.len());
    }

    /// Checked before every write, because this process may have been suspended.
    fn must_lead(&self) -> Result<(), Failed> {
        match self.lead.holds() {
            true => Ok(()),
            false => Err(Failed::NotLeading),
        }
    }

    async fn apply(
        &self,
        api: &Api<DynamicObject>,
        resource: &DynamicObject,
    ) -> Result<Action, Failed> {
        let outcome = self.write(resource).await?;
        self.tell(api, resource, &outcome).await?;
        match outcome {
            Outcome::Synced { .. } => Ok(Action::requeue(COMPARE_EVERY)),
            Outcome::Refused(_, message) => Err(Failed::Refused(message)),
            Outcome::Unknown(_, message) => Err(Failed::Unknown(message)),
        }
    }

    /// Writes the resource's entry to the servers, if that is permitted.
    async fn write(&self, resource: &DynamicObject) -> Result<Outcome, Failed> {
        let made = entry::entry(self.kind, resource, &self.datacenter, &self.tenants);
        let entry = match made {
            Ok(entry) => entry,
            Err(message) => return Ok(Outcome::Refused(Reason::Invalid, message)),
        };
        let namespace = entry.namespace.as_deref();
        let place = Place {
            namespace: entry.namespace.clone(),
            name: entry.name.clone(),
        };
        if let Some(message) = self.older(resource, &place) {
            return Ok(Outcome::Refused(Reason::Duplicate, message));
        }
        let read = self
            .servers
            .config_entry(entry.kind, &entry.name, namespace);
        let found = match read.await {
            Ok(found) => found,
            Err(error) => return Ok(outcome("reading the config entry", &error)),
        };
        let migrate = decision::may_migrate(resource);
        let written = match decision::write(&entry, found.as_ref(), &self.datacenter, migrate) {
            Write::Refuse(reason, message) => return Ok(Outcome::Refused(reason, message)),
            Write::Keep => false,
            Write::Put { index } => {
                self.must_lead()?;
                if index == 0
                    && let Err(error) = self.ensure_namespace(namespace).await
                {
                    return Ok(outcome("creating the namespace of the entry", &error));
                }
                match self.put(&entry, index).await {
                    Ok(true) => true,
                    Ok(false) => return Err(Failed::Changed),
                    Err(error) => return Ok(outcome("writing the config entry", &error)),
                }
            }
        };
        self.give_virtual_ip(resource, &entry).await?;
        Ok(Outcome::Synced { written })
    }

    /// Creates the entry's namespace, except for `*`, which is not a namespace, and `default`, which
    /// always exists.
    async fn ensure_namespace(&self, namespace: Option<&str>) -> Result<(), ServersError> {
        match namespace.filter(|name| ![DEFAULT_TENANCY, EVERY_TENANCY].contains(name)) {
            Some(name) => self.servers.ensure_namespace(name, &self.tenants).await,
            None => Ok(()),
        }
    }

    /// Returns `false` if the entry was changed since it was read.
    async fn put(&self, entry: &Entry, index: u64) -> Result<bool, ServersError> {
        let path = Path::of(["config"]).with("cas", &index.to_string());
        let path = path.in_namespace(entry.namespace.as_deref());
        self.servers.put_json(&path, &entry.body).await
    }

    async fn remove(
        &self,
        api: &Api<DynamicObject>,
        resource: &DynamicObject,
    ) -> Result<Action, Failed> {
        let done = Ok(Action::await_change());
        // A resource without a place was never written.
        let Some(place) = entry::place(self.kind, resource, &self.tenants) else {
            return done;
        };
        if self.others(resource, &place).next().is_some() {
            // The entry is still defined by the next oldest resource, which now overwrites it.
            self.attempts().forget();
            self.again.send_replace(());
            return done;
        }
        let (name, namespace) = (&place.name, place.namespace.as_deref());
        let read = self
            .servers
            .config_entry(self.kind.entry.as_str(), name, namespace);
        let found = match read.await {
            Ok(found) => found,
            Err(error) if is_unknown_kind(&error) => return done,
            Err(error) => return self.keep(api, resource, &error).await,
        };
        let Removal::Delete { index } = decision::removal(found.as_ref(), &self.datacenter) else {
            return done;
        };
        self.must_lead()?;
        match self.delete(&place, index).await {
            Ok(true) => done,
            Ok(false) => Err(Failed::Changed),
            Err(error) => self.keep(api, resource, &error).await,
        }
    }

    /// Returns `false` if the entry was changed since it was read.
    async fn delete(&self, place: &Place, index: u64) -> Result<bool, ServersError> {
        let path = Path::of(["config", self.kind.entry.as_str(), place.name.as_str()]);
        let path = path.with("cas", &index.to_string());
        let path = path.in_namespace(place.namespace.as_deref());
        let answer = self.servers.request(Method::DELETE, &path, None).await?;
        if answer.status != StatusCode::OK {
            return Err(ServersError::Refused {
                method: Method::DELETE,
                url: path.to_string(),
                status: answer.status,
                text: answer.text(),
            });
        }
        Ok(answer.text() != "false")
    }

    /// Reports why a deleted resource still exists.
    async fn keep(
        &self,
        api: &Api<DynamicObject>,
        resource: &DynamicObject,
        error: &ServersError,
    ) -> Result<Action, Failed> {
        let outcome = outcome("removing the config entry", error);
        self.tell(api, resource, &outcome).await?;
        Err(match outcome {
            Outcome::Refused(..) => Failed::Refused(error.to_string()),
            _ => Failed::Unknown(error.to_string()),
        })
    }

    /// Other resources with the same entry that are not being deleted.
    fn others(
        &self,
        resource: &DynamicObject,
        place: &Place,
    ) -> impl Iterator<Item = Arc<DynamicObject>> {
        let all = self.resources.state().into_iter();
        all.filter(move |other| {
            other.uid() != resource.uid()
                && other.metadata.deletion_timestamp.is_none()
                && entry::place(self.kind, other, &self.tenants).as_ref() == Some(place)
        })
    }

    /// The reason not to write the resource, if an older one defines the same entry.
    fn older(&self, resource: &DynamicObject, place: &Place) -> Option<String> {
        let others: Vec<_> = self.others(resource, place).collect();
        let all = others.iter().map(Arc::as_ref).chain([resource]);
        let oldest = decision::oldest(all).filter(|oldest| oldest.uid() != resource.uid())?;
        let why = match self.tenants.mirror_prefix() {
            None => ", because an entry's name does not include the Kubernetes namespace",
            Some(_) => "",
        };
        Some(format!(
            "{} {}/{} is older and defines the same config entry, {:?}: only that one is written{why}",
            self.kind.name,
            oldest.namespace().unwrap_or_default(),
            oldest.name_any(),
            place.name,
        ))
    }

    /// Assigns the address of the Kubernetes Service of the same name to the service, so that the
    /// entry applies to captured traffic before an instance is registered.
    async fn give_virtual_ip(&self, resource: &DynamicObject, entry: &Entry) -> Result<(), Failed> {
        if !self.kind.virtual_ip || entry.name.contains('*') {
            return Ok(());
        }
        let namespace = resource.namespace().unwrap_or_default();
        let services: Api<Service> = Api::namespaced(self.kubernetes.clone(), &namespace);
        let service = services.get_opt(&entry.name).await?;
        let address = service.and_then(|service| service.spec?.cluster_ip);
        // Headless Services have no address; the field is `None`.
        let Some(address) = address.filter(|it| it.parse::<std::net::IpAddr>().is_ok()) else {
            return Ok(());
        };
        self.must_lead()?;
        let own = self.tenants.namespace(&namespace);
        // A Service represents a service of its own namespace only.
        if entry.namespace != own {
            return Ok(());
        }
        let addresses = [address.as_str()];
        let given = (self.servers).set_virtual_ips(&entry.name, own.as_deref(), &addresses);
        if let Err(error) = given.await {
            // The entry itself is written, and the service gets its address with its first instance.
            tracing::warn!(service = entry.name, %error, "failed to assign a virtual IP to the service");
        }
        Ok(())
    }

    /// Writes the status if it has changed.
    async fn tell(
        &self,
        api: &Api<DynamicObject>,
        resource: &DynamicObject,
        outcome: &Outcome,
    ) -> Result<(), Failed> {
        let status: Status = match &resource.data["status"] {
            Value::Null => Status::default(),
            status => serde_json::from_value(status.clone()).unwrap_or_default(),
        };
        let now = Timestamp::try_from(self.clock.now()).unwrap_or_default();
        let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let Some(status) = status.after(outcome, &now) else {
            return Ok(());
        };
        let (kind, namespace, name) = (self.kind.name, resource.namespace(), resource.name_any());
        match outcome {
            Outcome::Synced { .. } => tracing::info!(kind, namespace, name, "synced"),
            Outcome::Refused(reason, message) | Outcome::Unknown(reason, message) => {
                let reason = reason.as_str();
                tracing::warn!(kind, namespace, name, reason, "not synced: {message}");
            }
        }
        self.must_lead()?;
        let patch = Patch::Merge(json!({ "status": with_others(status, resource) }));
        match api
            .patch_status(&name, &PatchParams::default(), &patch)
            .await
        {
            Err(error) if !is_gone(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// The status with the conditions of other writers unchanged, including fields that this version
/// does not have.
fn with_others(status: Status, resource: &DynamicObject) -> Value {
    let there = resource.data["status"]["conditions"].as_array();
    let others = there.into_iter().flatten().cloned();
    let others = others.filter(|condition| condition["type"] != SYNCED);
    let ours = status.conditions.into_iter();
    let ours = ours.filter(|condition| condition.r#type == SYNCED);
    let conditions: Vec<Value> = others.chain(ours.map(|it| json!(it))).collect();
    json!({ "conditions": conditions, "lastSyncedTime": status.last_synced_time })
}

/// The outcome of a resource for an error of the servers.
fn outcome(doing: &str, error: &ServersError) -> Outcome {
    match error.refusal() {
        Some(text) => Outcome::Refused(Reason::Servers, format!("{doing}: {text}")),
        None => Outcome::Unknown(Reason::Servers, format!("{doing}: {error}")),
    }
}

/// Whether the servers do not support entries of this kind, so that there is none to delete.
fn is_unknown_kind(error: &ServersError) -> bool {
    error
        .refusal()
        .is_some_and(|text| text.contains("invalid config entry kind"))
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
