//! Runs the core: watches, calls to the API server and to the servers.

use std::collections::BTreeMap;
use std::convert::Infallible;

use futures_util::stream::{BoxStream, FuturesUnordered, SelectAll, select_all};
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::core::DynamicObject;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use legate_model::Secret as Token;
use legate_runtime::Clock;
use legate_runtime::metrics::{self, IntGaugeVec, Opts, Registry};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::TOKEN_LABEL;
use super::core::{Call, Core, Ended, Item, Source, What};
use super::decision::Step;
use super::kinds::{Kind, SecretSpec};
use super::object::{Key, Object};
use super::secret::{DIGEST_ANNOTATION, OWNER_ANNOTATION, SecretFact, digest, owner};
use super::servers::FROM_KUBERNETES;
use super::status::{Outcome, Reason};
use crate::config::FINALIZER;
use crate::config::entry::SOURCE;
use crate::config::kinds::{GROUP, VERSION};
use crate::leader::Lead;
use crate::servers::{Path, Servers, ServersError};
use crate::sync::objects::Change;
use crate::watch::{WATCH, changes};

/// Every namespace, in [`Options::namespaces`].
const EVERY: &str = "*";
const NOT_LEADING: &str = "this operator is no longer the leader";

/// The options of the driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// The operator's name in events.
    pub reporter: String,
    /// The Kubernetes namespaces whose objects are served; `*` is all.
    pub namespaces: Vec<String>,
    /// The clock for timestamps of conditions.
    pub clock: Clock,
    /// The metrics.
    pub metrics: PeeringMetrics,
}

/// The number of objects that are not synced.
#[derive(Clone, Debug)]
pub struct PeeringMetrics(IntGaugeVec);

impl PeeringMetrics {
    /// Registers it.
    ///
    /// # Errors
    ///
    /// If it is registered already.
    pub fn register(registry: &Registry) -> Result<PeeringMetrics, metrics::Error> {
        let options = Opts::new(
            "legate_k8s_peering_not_synced",
            "PeeringAcceptors and PeeringDialers whose token was not made or used, by kind.",
        );
        let gauge = IntGaugeVec::new(options, &["kind"])?;
        registry.register(Box::new(gauge.clone()))?;
        Ok(PeeringMetrics(gauge))
    }

    fn set(&self, kind: Kind, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.0.with_label_values(&[kind.as_str()]).set(count);
    }
}

/// Serves PeeringAcceptors and PeeringDialers as long as `lead` holds.
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
    let metrics = options.metrics.clone();
    let work = work(&client, &servers, &lead, options);
    lead.token().run_until_cancelled(work).await;
    for kind in Kind::ALL {
        metrics.set(kind, 0);
    }
    Ok(())
}

async fn work(client: &Client, servers: &Servers, lead: &Lead, options: Options) {
    let driver = Driver {
        client,
        servers,
        lead,
        recorder: Recorder::new(client.clone(), Reporter::from(options.reporter)),
    };
    let every = options.namespaces.iter().any(|name| name == EVERY);
    let scopes: Vec<Option<&str>> = match every {
        true => vec![None],
        false => options.namespaces.iter().map(|it| Some(&**it)).collect(),
    };
    let mut core = Core::new(scopes.len());
    let mut watches = watches(client, &scopes);
    let mut calls = FuturesUnordered::new();
    loop {
        for call in core.poll(Instant::now(), &now(&options.clock)) {
            calls.push(driver.perform(call));
        }
        for kind in Kind::ALL {
            options.metrics.set(kind, core.not_synced(kind));
        }
        let wake = core.wake(Instant::now());
        tokio::select! {
            Some((scope, source, change)) = watches.next() => {
                core.changed(scope, source, change);
                // All that have already arrived.
                while let Some(Some((scope, source, change))) = watches.next().now_or_never() {
                    core.changed(scope, source, change);
                }
            }
            Some((call, ended)) = calls.next() => core.ended(&call, ended, Instant::now()),
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}

fn now(clock: &Clock) -> String {
    let now = Timestamp::try_from(clock.now()).unwrap_or_default();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

type Watched = (usize, Source, Change<Item>);

/// The watches of objects and labelled Secrets in each namespace, or in all. They go on for ever.
fn watches(client: &Client, scopes: &[Option<&str>]) -> SelectAll<BoxStream<'static, Watched>> {
    let scopes = scopes.iter().enumerate();
    let all = scopes.flat_map(|(scope, namespace)| {
        Source::ALL.map(|source| {
            let config = watcher::Config::default().timeout(WATCH);
            let events = match source {
                Source::Objects(kind) => {
                    let api = objects(client, kind, *namespace);
                    let item = move |it| Item::Object(Box::new(Object::of(kind, &it)));
                    changes(watcher(api, config), item).boxed()
                }
                Source::Secrets => {
                    let api = match namespace {
                        Some(namespace) => Api::namespaced(client.clone(), namespace),
                        None => Api::<Secret>::all(client.clone()),
                    };
                    let config = config.labels(&format!("{TOKEN_LABEL}=true"));
                    let item = |it| Item::Secret(Box::new(SecretFact::of(&it)));
                    changes(watcher(api, config), item).boxed()
                }
            };
            let events = events.filter_map(move |change| {
                std::future::ready(match change {
                    Ok(change) => Some((scope, source, change)),
                    Err(error) => {
                        let what = match source {
                            Source::Objects(kind) => kind.as_str(),
                            Source::Secrets => "Secret",
                        };
                        tracing::warn!(kind = what, %error, "the watch at the API server failed: retrying");
                        None
                    }
                })
            });
            events.boxed()
        })
    });
    select_all(all)
}

fn objects(client: &Client, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = kind.api_resource();
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

struct Driver<'a> {
    client: &'a Client,
    servers: &'a Servers,
    lead: &'a Lead,
    recorder: Recorder,
}

/// The answer to `POST /v1/peering/token`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Generated {
    peering_token: Token,
}

impl Driver<'_> {
    async fn perform(&self, call: Call) -> (Call, Ended) {
        let ended = match &call.what {
            What::Step(step) => self.step(&call, step).await,
            What::Status { change, notice } => self.status(&call, change, notice.as_ref()).await,
        };
        (call, ended.unwrap_or_else(Ended::Failed))
    }

    fn must_lead(&self) -> Result<(), Outcome> {
        match self.lead.holds() {
            true => Ok(()),
            false => Err(Outcome::Unknown(Reason::Servers, NOT_LEADING.to_owned())),
        }
    }

    async fn step(&self, call: &Call, step: &Step) -> Result<Ended, Outcome> {
        let (kind, key) = &call.id;
        let peering = Path::of(["peering", &key.name]);
        match step {
            Step::ReadPeering => {
                let read = self.servers.find_json(&peering).await;
                read.map(Ended::Peering)
                    .map_err(refused("reading the peering"))
            }
            Step::ReadSecret(key) => {
                let read = self.secrets(key).get_opt(&key.name).await;
                let read = read.map_err(failed(format!("reading the Secret {key}")))?;
                Ok(Ended::Secret(read.map(|it| SecretFact::of(&it))))
            }
            Step::Hold => {
                let held = call.finalizers.iter().map(String::as_str);
                self.finalizers(call, held.chain([FINALIZER]).collect())
                    .await
            }
            Step::Release => {
                let others = call.finalizers.iter().map(String::as_str);
                let others = others.filter(|name| *name != FINALIZER).collect();
                self.finalizers(call, others).await
            }
            Step::DeletePeering => {
                self.must_lead()?;
                let deleted = self.servers.delete(&peering).await;
                deleted.map_err(refused("deleting the peering"))?;
                tracing::info!(kind = kind.as_str(), %key, "deleted the peering");
                Ok(Ended::Done)
            }
            Step::DeleteSecret { key, uid } => self.delete_secret(key, uid).await,
            Step::Generate {
                secret, recorded, ..
            } => self.generate(call, secret, *recorded).await,
            Step::Establish { secret, .. } => self.establish(call, secret).await,
        }
    }

    fn secrets(&self, key: &Key) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    /// Makes a token and stores it. Whoever has an earlier token of the peering cannot use it any more, and a cluster
    /// that is connected stays so.
    async fn generate(
        &self,
        call: &Call,
        spec: &SecretSpec,
        recorded: bool,
    ) -> Result<Ended, Outcome> {
        let (kind, key) = &call.id;
        let of_secret = Key::new(&key.namespace, &spec.name);
        let secrets = self.secrets(&of_secret);
        let there = secrets.get_opt(&spec.name).await;
        let there = there.map_err(failed(format!("reading the Secret {of_secret}")))?;
        if let Some(there) = &there
            && !SecretFact::of(there).belongs_to(&call.uid, recorded)
        {
            let text = format!("the Secret {of_secret} belongs to somebody else");
            return Err(Outcome::Refused(Reason::SecretTaken, text));
        }
        self.must_lead()?;
        let body = json!({ "PeerName": key.name, "Meta": { SOURCE: FROM_KUBERNETES } });
        let path = Path::of(["peering", "token"]);
        let made = self.servers.post_json::<Generated>(&path, &body).await;
        let token = made.map_err(refused("making a token"))?.peering_token;
        self.must_lead()?;
        let is_new = there.is_none();
        let secret = with_token(there.unwrap_or_default(), call, (spec, &token));
        let options = PostParams::default();
        let written = match is_new {
            true => secrets.create(&options, &secret).await,
            false => secrets.replace(&spec.name, &options, &secret).await,
        };
        let written = written.map_err(failed(format!("writing the Secret {of_secret}")))?;
        tracing::info!(kind = kind.as_str(), %key, secret = %of_secret, "made a token");
        Ok(Ended::Generated(SecretFact::of(&written)))
    }

    async fn establish(&self, call: &Call, spec: &SecretSpec) -> Result<Ended, Outcome> {
        let (kind, key) = &call.id;
        let of_secret = Key::new(&key.namespace, &spec.name);
        let read = self.secrets(&of_secret).get_opt(&spec.name).await;
        let secret = read.map_err(failed(format!("reading the Secret {of_secret}")))?;
        let token = secret
            .as_ref()
            .and_then(|it| it.data.as_ref()?.get(&spec.key));
        let token = token.and_then(|token| std::str::from_utf8(&token.0).ok());
        let (Some(secret), Some(token)) = (&secret, token) else {
            let text = format!(
                "the Secret {of_secret} has no token in the key {:?}",
                spec.key
            );
            return Err(Outcome::Refused(Reason::SecretMissing, text));
        };
        self.must_lead()?;
        let body = json!({
            "PeerName": key.name,
            "PeeringToken": token.trim(),
            "Meta": { SOURCE: FROM_KUBERNETES },
        });
        let path = Path::of(["peering", "establish"]);
        let used = self.servers.post_json::<Value>(&path, &body).await;
        used.map_err(refused("using the token"))?;
        tracing::info!(kind = kind.as_str(), %key, secret = %of_secret, "used the token");
        Ok(Ended::Established(SecretFact::of(secret)))
    }

    async fn delete_secret(&self, key: &Key, uid: &str) -> Result<Ended, Outcome> {
        self.must_lead()?;
        let options = DeleteParams::background().preconditions(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        });
        match self.secrets(key).delete(&key.name, &options).await {
            Ok(_) => {
                tracing::info!(secret = %key, "deleted the Secret of a token");
                Ok(Ended::Done)
            }
            Err(error) if is(&error, 404) => Ok(Ended::Done),
            Err(error) => Err(failed(format!("deleting the Secret {key}"))(error)),
        }
    }

    async fn finalizers(&self, call: &Call, names: Vec<&str>) -> Result<Ended, Outcome> {
        self.must_lead()?;
        let patch = Patch::Merge(json!({ "metadata": {
            "uid": call.uid, "resourceVersion": call.resource_version, "finalizers": names,
        }}));
        let (kind, key) = &call.id;
        let api = objects(self.client, *kind, Some(&key.namespace));
        let patched = api.patch(&key.name, &PatchParams::default(), &patch).await;
        patched_or(patched.map(drop), "changing the finalizers")
    }

    async fn status(
        &self,
        call: &Call,
        change: &Value,
        notice: Option<&(Reason, String)>,
    ) -> Result<Ended, Outcome> {
        self.must_lead()?;
        let (kind, key) = &call.id;
        // Conditions are replaced as a whole, so the version must be the one that was read.
        let patch = Patch::Merge(json!({
            "metadata": { "uid": call.uid, "resourceVersion": call.resource_version },
            "status": change,
        }));
        let api = objects(self.client, *kind, Some(&key.namespace));
        let options = PatchParams::default();
        let patched = api.patch_status(&key.name, &options, &patch).await;
        let written = patched.is_ok();
        let ended = patched_or(patched.map(drop), "writing the status");
        if let Err(outcome) = &ended {
            tracing::warn!(kind = kind.as_str(), %key, ?outcome, "cannot write the status: retrying");
        }
        match notice.filter(|_| written) {
            None if written => tracing::info!(kind = kind.as_str(), %key, "the status has changed"),
            None => {}
            Some((reason, message)) => {
                let reason = reason.as_str();
                tracing::warn!(kind = kind.as_str(), %key, reason, "not synced: {message}");
                self.event(call, reason, message).await;
            }
        }
        ended
    }

    /// Writes an event. Nothing depends on it.
    async fn event(&self, call: &Call, reason: &str, message: &str) {
        // The API server refuses longer notes.
        const LONGEST: usize = 1000;
        let (kind, key) = &call.id;
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(message.chars().take(LONGEST).collect()),
            action: "Peer".to_owned(),
            secondary: None,
        };
        let object = ObjectReference {
            api_version: Some(format!("{GROUP}/{VERSION}")),
            kind: Some(kind.as_str().to_owned()),
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            uid: Some(call.uid.clone()),
            ..ObjectReference::default()
        };
        if let Err(error) = self.recorder.publish(&event, &object).await {
            tracing::debug!(%error, "cannot write an event");
        }
    }
}

/// A Secret with the token, which belongs to the object. Other labels and annotations stay.
fn with_token(there: Secret, call: &Call, (spec, token): (&SecretSpec, &Token)) -> Secret {
    let (_, key) = &call.id;
    let bytes = token.expose().as_bytes();
    let mut metadata = ObjectMeta {
        name: Some(spec.name.clone()),
        namespace: Some(key.namespace.clone()),
        ..there.metadata
    };
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(TOKEN_LABEL.to_owned(), "true".to_owned());
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(DIGEST_ANNOTATION.to_owned(), digest(bytes));
    let owner = owner(&call.uid, &spec.name);
    annotations.insert(OWNER_ANNOTATION.to_owned(), owner);
    let data = BTreeMap::from([(spec.key.clone(), ByteString(bytes.to_owned()))]);
    Secret {
        metadata,
        data: Some(data),
        ..there
    }
}

/// An object that has changed or is gone meanwhile is looked at again.
fn patched_or(patched: Result<(), kube::Error>, doing: &str) -> Result<Ended, Outcome> {
    match patched {
        Ok(()) => Ok(Ended::Done),
        Err(error) if is(&error, 404) || is(&error, 409) => Ok(Ended::Done),
        Err(error) => Err(failed(doing.to_owned())(error)),
    }
}

fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The outcome for an error of the API server.
fn failed(doing: String) -> impl FnOnce(kube::Error) -> Outcome {
    move |error| {
        let text = format!("{doing}: {error}");
        match error {
            kube::Error::Api(status) if (400..500).contains(&status.code) => {
                Outcome::Refused(Reason::Kubernetes, text)
            }
            _ => Outcome::Unknown(Reason::Kubernetes, text),
        }
    }
}

/// The outcome for an error of the servers.
fn refused(doing: &str) -> impl FnOnce(ServersError) -> Outcome {
    move |error| match error.refusal() {
        Some(text) => Outcome::Refused(Reason::Servers, format!("{doing}: {text}")),
        None => Outcome::Unknown(Reason::Servers, format!("{doing}: {error}")),
    }
}
