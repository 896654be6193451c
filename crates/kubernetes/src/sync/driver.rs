//! Watches, calls and events: everything of the catalog's keeping that waits for somebody.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::stream::{BoxStream, FuturesUnordered, select_all};
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1 as k8s;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use legate_runtime::{Backoff, BackoffPolicy};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::catalog::{self, NodeState, SYNTHETIC};
use super::core::{Core, Ended, Job, Notice, Outcome};
use super::difference::Call;
use super::facts::{Key, Node, Pod, Service};
use super::objects::Change;
use super::tokens;
use super::wanted::Settings;
use crate::annotations::{MANAGED_BY, MANAGED_BY_LEGATE};
use crate::leader::Lead;
use crate::servers::{Path, Servers, ServersError};

/// How long one watch lasts. A connection that died without a word is noticed soon after.
const WATCH: u32 = 60;

/// Between two attempts to reach the API server, at most.
const API_SERVER: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(200),
    multiplier: 2.0,
    jitter: 0.3,
    cap: Duration::from_secs(5),
};

/// Events that wait to be written; further ones are left out.
const EVENTS: usize = 1_000;
/// Events that are written at a time.
const EVENTS_AT_A_TIME: usize = 4;

/// What the driver works with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The operator's name in events.
    pub reporter: String,
    /// Meta of every node.
    pub node_meta: std::collections::BTreeMap<String, String>,
    /// The sidecars' auth method, whose tokens are removed with their pods.
    pub auth_method: Option<String>,
}

/// Keeps the catalog in step with the pods as long as `lead` holds.
///
/// # Errors
///
/// None: what fails is tried again.
pub async fn run(
    client: Client,
    servers: Servers,
    lead: Lead,
    options: Options,
) -> Result<(), std::convert::Infallible> {
    let work = work(client, servers, &lead, options);
    lead.token().run_until_cancelled(work).await;
    Ok(())
}

async fn work(client: Client, servers: Servers, lead: &Lead, options: Options) {
    let settings = Settings {
        cluster: cluster_uid(&client).await,
        node_meta: options.node_meta,
    };
    let reporter = Reporter::from(options.reporter);
    let mut events = Events::new(Recorder::new(client.clone(), reporter));
    let driver = Driver {
        client: &client,
        servers: &servers,
        lead,
        auth_method: options.auth_method.as_deref(),
        cluster: settings.cluster.clone(),
    };
    let mut core = Core::new(settings, driver.auth_method.is_some(), Instant::now());
    let mut objects = objects(&client);
    let mut jobs = FuturesUnordered::new();
    loop {
        events.add(core.take_notices());
        for job in core.poll(Instant::now()) {
            jobs.push(driver.perform(job));
        }
        tokio::select! {
            Some(object) = objects.next() => {
                object.apply(&mut core);
                // What has arrived already is taken over first: a list costs one look.
                while let Some(Some(object)) = objects.next().now_or_never() {
                    object.apply(&mut core);
                }
            }
            Some(ended) = jobs.next() => core.ended(ended, Instant::now(), rand::random()),
            () = events.written() => {}
            () = tokio::time::sleep_until(core.wake()) => {}
        }
    }
}

/// The uid of `kube-system`, by which clusters are told apart.
async fn cluster_uid(client: &Client) -> String {
    let mut backoff = Backoff::new(API_SERVER);
    let namespaces: Api<k8s::Namespace> = Api::all(client.clone());
    loop {
        match namespaces.get_metadata("kube-system").await {
            Ok(namespace) => return namespace.metadata.uid.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "cannot read the namespace kube-system");
                tokio::time::sleep(backoff.next(rand::random())).await;
            }
        }
    }
}

/// A change of an object of some kind.
enum Object {
    Pod(Change<Pod>),
    Service(Change<Service>),
    Node(Change<Node>),
}

impl Object {
    fn apply(self, core: &mut Core) {
        match self {
            Object::Pod(change) => core.pod(change),
            Object::Service(change) => core.service(change),
            Object::Node(change) => core.node(change),
        }
    }
}

/// All watches together. They never end.
fn objects(client: &Client) -> impl futures_util::Stream<Item = Object> + Unpin {
    let config = watcher::Config::default().timeout(WATCH);
    let label = format!("{MANAGED_BY}={MANAGED_BY_LEGATE}");
    let pods = watcher(Api::all(client.clone()), config.clone().labels(&label));
    let services = watcher(Api::all(client.clone()), config.clone());
    let nodes: Api<PartialObjectMeta<k8s::Node>> = Api::all(client.clone());
    let nodes = watcher(nodes, config);
    let pods: BoxStream<'static, Object> = changes("pods", pods, Pod::of, Object::Pod);
    let services = changes("services", services, Service::of, Object::Service);
    let nodes = changes("nodes", nodes, Node::of, Object::Node);
    select_all([pods, services, nodes])
}

fn changes<K, T>(
    kind: &'static str,
    watch: impl futures_util::Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    of: fn(K) -> T,
    object: fn(Change<T>) -> Object,
) -> BoxStream<'static, Object>
where
    K: Send + 'static,
    T: 'static,
{
    let changes = watch.backoff(WatchBackoff(Backoff::new(API_SERVER)));
    let changes = changes.filter_map(move |event| {
        std::future::ready(match event {
            Ok(event) => Some(object(match event {
                watcher::Event::Init => Change::Begin,
                watcher::Event::InitApply(it) => Change::Listed(of(it)),
                watcher::Event::InitDone => Change::Complete,
                watcher::Event::Apply(it) => Change::Applied(of(it)),
                watcher::Event::Delete(it) => Change::Gone(of(it)),
            })),
            Err(error) => {
                tracing::warn!(kind, %error, "the API server's watch failed: trying again");
                None
            }
        })
    });
    changes.boxed()
}

/// The delays between attempts to watch.
#[derive(Debug)]
struct WatchBackoff(Backoff);

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.0.next(rand::random()))
    }
}

impl kube::runtime::utils::Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0.reset();
    }
}

struct Driver<'a> {
    client: &'a Client,
    servers: &'a Servers,
    lead: &'a Lead,
    auth_method: Option<&'a str>,
    cluster: String,
}

impl Driver<'_> {
    async fn perform(&self, job: Job) -> Ended {
        match job {
            Job::ListNodes => Ended::Nodes(self.list_nodes().await.map_err(told)),
            Job::ReadNode(name) => {
                let read = self.read_node(&name).await;
                Ended::Node(name, read.map_err(told))
            }
            Job::RemoveNode(name) => {
                let removed = self.remove_node(&name).await;
                Ended::Removed(name, removed.map_err(told).unwrap_or_default())
            }
            Job::Pod(key, calls) => {
                let results = self.pod(&key, calls).await;
                Ended::Pod(key, results)
            }
            Job::SweepTokens(live) => {
                if let Some(method) = self.auth_method {
                    let swept =
                        tokens::sweep(self.servers, self.client, method, &live, self.lead).await;
                    if let Err(error) = swept {
                        tracing::warn!(%error, "cannot look for tokens that pods have left behind");
                    }
                }
                Ended::Swept
            }
        }
    }

    async fn list_nodes(&self) -> Result<Vec<String>, ServersError> {
        let path = Path::of(["catalog", "nodes"]).with("node-meta", &format!("{SYNTHETIC}:true"));
        let nodes: Option<Vec<Value>> = self.servers.get_json(&path).await?;
        let nodes = nodes.unwrap_or_default();
        let names = nodes.iter().filter_map(|node| node.get("Node")?.as_str());
        Ok(names.map(str::to_owned).collect())
    }

    async fn read_node(&self, name: &str) -> Result<Option<NodeState>, ServersError> {
        let (node, checks) = self.described(name).await?;
        Ok(catalog::read(&self.cluster, &node, &checks))
    }

    async fn described(&self, name: &str) -> Result<(Value, Value), ServersError> {
        let (node, checks) = (
            Path::of(["catalog", "node", name]),
            Path::of(["health", "node", name]),
        );
        tokio::try_join!(self.servers.get_json(&node), self.servers.get_json(&checks))
    }

    /// Looks once more before: others may have registered something since.
    async fn remove_node(&self, name: &str) -> Result<bool, ServersError> {
        let (node, checks) = self.described(name).await?;
        let state = catalog::read(&self.cluster, &node, &checks);
        let unused = state.is_some_and(|state| state.removable && state.instances.is_empty());
        if !unused || !self.lead.holds() {
            return Ok(false);
        }
        self.servers.deregister(&json!({"Node": name})).await?;
        Ok(true)
    }

    async fn pod(&self, key: &Key, calls: Vec<Call>) -> Vec<(Call, Outcome)> {
        let mut results = Vec::new();
        let mut refused = false;
        for call in calls {
            if refused && call.adds() {
                continue;
            }
            let outcome = match self.lead.holds() {
                true => self.call(&call).await,
                false => Outcome::Unreachable("this operator does not lead any more".to_owned()),
            };
            match &outcome {
                Outcome::Done => tracing::debug!(pod = %key, ?call, "done"),
                Outcome::Unserved => {}
                Outcome::Refused(text) => {
                    tracing::warn!(pod = %key, reason = text, call = name(&call), "the servers refuse");
                }
                Outcome::Unreachable(text) => {
                    tracing::warn!(pod = %key, reason = text, call = name(&call), "trying again");
                }
            }
            let unreachable = matches!(outcome, Outcome::Unreachable(_));
            // A proxy works without its virtual IP.
            let optional = matches!(call, Call::VirtualIp(_));
            refused |= matches!(outcome, Outcome::Refused(_)) && !optional;
            results.push((call, outcome));
            if unreachable {
                break;
            }
        }
        results
    }

    async fn call(&self, call: &Call) -> Outcome {
        let servers = self.servers;
        let made = match call {
            Call::Register(wanted) => servers.register(&wanted.body).await,
            Call::Checks { body, .. } => servers.register(body).await,
            Call::Deregister { node, id } => {
                let body = json!({"Node": node, "ServiceID": id});
                servers.deregister(&body).await
            }
            Call::VirtualIp(virtual_ip) => {
                let addresses = [virtual_ip.address.as_str()];
                let set = servers
                    .set_virtual_ips(&virtual_ip.service, &addresses)
                    .await;
                match set.as_ref().err().and_then(ServersError::status) {
                    // Consul before 1.16.
                    Some(status) if [404, 405, 501].contains(&status.as_u16()) => {
                        return Outcome::Unserved;
                    }
                    _ => set,
                }
            }
            Call::RemoveTokens { service, pod, uid } => match self.auth_method {
                Some(method) => {
                    let removed = tokens::remove_of(servers, method, service, pod, uid).await;
                    if let Err(error) = removed {
                        // The next sweep finds them.
                        tracing::warn!(%pod, %error, "cannot remove the tokens of a pod");
                    }
                    Ok(())
                }
                None => Ok(()),
            },
        };
        match made {
            Ok(()) => Outcome::Done,
            Err(error) => match error.refusal() {
                Some(text) => Outcome::Refused(text.to_owned()),
                None => Outcome::Unreachable(error.to_string()),
            },
        }
    }
}

/// A call in one word, for the log.
fn name(call: &Call) -> &'static str {
    match call {
        Call::Register(_) => "register",
        Call::Checks { .. } => "checks",
        Call::VirtualIp(_) => "virtual IP",
        Call::Deregister { .. } => "deregister",
        Call::RemoveTokens { .. } => "remove tokens",
    }
}

fn told(error: ServersError) -> String {
    tracing::warn!(%error, "cannot read the catalog: trying again");
    error.to_string()
}

/// Events on pods, written a few at a time.
struct Events {
    recorder: Recorder,
    waiting: VecDeque<Notice>,
    writing: FuturesUnordered<futures_util::future::BoxFuture<'static, ()>>,
}

impl Events {
    fn new(recorder: Recorder) -> Events {
        Events {
            recorder,
            waiting: VecDeque::new(),
            writing: FuturesUnordered::new(),
        }
    }

    fn add(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            tracing::warn!(pod = %notice.pod, reason = notice.reason.reason, "{}", notice.reason.message);
            if self.waiting.len() < EVENTS {
                self.waiting.push_back(notice);
            }
        }
        while self.writing.len() < EVENTS_AT_A_TIME {
            let Some(notice) = self.waiting.pop_front() else {
                return;
            };
            let recorder = self.recorder.clone();
            self.writing.push(write(recorder, notice).boxed());
        }
    }

    /// Waits until one is written; for ever where there is none.
    async fn written(&mut self) {
        if self.writing.next().await.is_none() {
            std::future::pending().await
        }
    }
}

async fn write(recorder: Recorder, notice: Notice) {
    // Longer notes are refused by the API server.
    const LONGEST: usize = 1000;
    let note: String = notice.reason.message.chars().take(LONGEST).collect();
    let event = Event {
        type_: EventType::Warning,
        reason: notice.reason.reason.to_owned(),
        note: Some(note),
        action: "Register".to_owned(),
        secondary: None,
    };
    let pod = k8s::ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(notice.pod.name),
        namespace: Some(notice.pod.namespace),
        uid: Some(notice.uid),
        ..k8s::ObjectReference::default()
    };
    if let Err(error) = recorder.publish(&event, &pod).await {
        tracing::debug!(%error, "cannot write an event");
    }
}
