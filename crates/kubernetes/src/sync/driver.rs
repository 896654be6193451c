//! Runs the core: watches, calls and events of the catalog sync.

use std::fmt::Debug;

use futures_util::stream::{BoxStream, FuturesUnordered, select_all};
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1 as k8s;
use kube::core::PartialObjectMeta;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use legate_model::{DEFAULT_TENANCY, EVERY_TENANCY};
use legate_runtime::{Backoff, Clock};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::catalog::{self, NodeState, SYNTHETIC};
use super::core::{Core, Ended, Job, Outcome};
use super::difference::Call;
use super::events::Events;
use super::facts::{Key, Node, Pod, Service};
use super::metrics::{self, ResetSizes, SyncMetrics, WATCHES};
use super::objects::Change;
use super::registration::Settings;
use super::tokens;
use crate::annotations::{MANAGED_BY, MANAGED_BY_LEGATE};
use crate::leader::Lead;
use crate::servers::{Path, Servers, ServersError};
use crate::tenancy::Tenants;
use crate::watch::{API_SERVER, WATCH, changes as changes_of};

/// The options of the driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// The operator's name in events.
    pub reporter: String,
    /// The mark of the installation on its pods.
    pub installation: String,
    /// Meta of every node.
    pub node_meta: std::collections::BTreeMap<String, String>,
    /// How pods map to namespaces of the mesh.
    pub tenants: Tenants,
    /// Whether the cluster's Gateway API is served.
    pub gateway_api: bool,
    /// The sidecars' auth method, whose tokens are removed with their pods.
    pub auth_method: Option<String>,
    /// The auth method of the chart's own pods, such as gateways. Their tokens are removed likewise.
    pub component_auth_method: Option<String>,
    /// The metrics of the sync.
    pub metrics: SyncMetrics,
    /// The clock for timestamps in metrics.
    pub clock: Clock,
}

/// Synchronizes the catalog with the pods as long as `lead` holds.
///
/// # Errors
///
/// None: failures are retried.
pub async fn run(
    client: Client,
    servers: Servers,
    lead: Lead,
    options: Options,
) -> Result<(), std::convert::Infallible> {
    let _reset = ResetSizes(options.metrics.clone());
    let work = work(client, servers, &lead, options);
    lead.token().run_until_cancelled(work).await;
    Ok(())
}

async fn work(client: Client, servers: Servers, lead: &Lead, options: Options) {
    let settings = Settings {
        cluster: cluster_uid(&client).await,
        node_meta: options.node_meta,
        tenants: options.tenants,
        installation: options.installation,
        gateway_api: options.gateway_api,
    };
    let reporter = Reporter::from(options.reporter);
    let metrics = options.metrics;
    let recorder = Recorder::new(client.clone(), reporter);
    let mut events = Events::new(recorder, metrics.clone());
    let driver = Driver {
        client: &client,
        servers: &servers,
        lead,
        auth_method: options.auth_method.as_deref(),
        component_auth_method: options.component_auth_method.as_deref(),
        cluster: settings.cluster.clone(),
        tenants: settings.tenants.clone(),
        metrics: &metrics,
    };
    let mut core = Core::new(settings, driver.auth_method.is_some(), Instant::now());
    let mut objects = objects(&client, &metrics);
    let mut jobs = FuturesUnordered::new();
    loop {
        events.add(core.take_notices());
        for job in core.poll(Instant::now()) {
            jobs.push(driver.perform(job));
        }
        metrics.sizes(core.sizes());
        metrics.lags(core.take_lags());
        if core.take_compared() {
            metrics.compared(options.clock.now());
        }
        tokio::select! {
            Some(object) = objects.next() => {
                object.apply(&mut core);
                // Applies all objects that have already arrived, so that a list costs one poll.
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

/// The uid of `kube-system`, which identifies the cluster.
pub(crate) async fn cluster_uid(client: &Client) -> String {
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

/// A change of an object.
enum Object {
    Pod(Change<Pod>),
    Service(Change<Service>),
    Node(Change<Node>),
}

impl Object {
    fn apply(self, core: &mut Core) {
        let now = Instant::now();
        match self {
            Object::Pod(change) => core.pod(change, now),
            Object::Service(change) => core.service(change, now),
            Object::Node(change) => core.node(change, now),
        }
    }
}

/// All watches, merged. The stream never ends.
fn objects(
    client: &Client,
    metrics: &SyncMetrics,
) -> impl futures_util::Stream<Item = Object> + Unpin + use<> {
    let [of_pods, of_services, of_nodes] = WATCHES;
    let config = watcher::Config::default().timeout(WATCH);
    let label = format!("{MANAGED_BY}={MANAGED_BY_LEGATE}");
    let pods = watcher(Api::all(client.clone()), config.clone().labels(&label));
    let services = watcher(Api::all(client.clone()), config.clone());
    let nodes: Api<PartialObjectMeta<k8s::Node>> = Api::all(client.clone());
    let nodes = watcher(nodes, config);
    let pods = changes(of_pods, metrics, pods, Pod::of, Object::Pod);
    let services = changes(of_services, metrics, services, Service::of, Object::Service);
    let nodes = changes(of_nodes, metrics, nodes, Node::of, Object::Node);
    select_all([pods, services, nodes])
}

fn changes<K, T>(
    kind: &'static str,
    metrics: &SyncMetrics,
    watch: impl futures_util::Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    of: fn(K) -> T,
    object: fn(Change<T>) -> Object,
) -> BoxStream<'static, Object>
where
    K: Send + 'static,
    T: 'static,
{
    let metrics = metrics.clone();
    let changes = changes_of(watch, of);
    let changes = changes.filter_map(move |change| {
        std::future::ready(match change {
            Ok(change) => Some(object(change)),
            Err(error) => {
                metrics.watch_failed(kind);
                tracing::warn!(kind, %error, "the watch at the API server failed: retrying");
                None
            }
        })
    });
    changes.boxed()
}

struct Driver<'a> {
    client: &'a Client,
    servers: &'a Servers,
    lead: &'a Lead,
    auth_method: Option<&'a str>,
    component_auth_method: Option<&'a str>,
    cluster: String,
    tenants: Tenants,
    metrics: &'a SyncMetrics,
}

impl Driver<'_> {
    async fn perform(&self, job: Job) -> Ended {
        match job {
            Job::ListNodes => {
                let nodes = self.counted("list_nodes", self.list_nodes().await);
                Ended::Nodes(nodes.map_err(logged))
            }
            Job::ReadNode(name) => {
                let read = self.counted("read_node", self.read_node(&name).await);
                Ended::Node(name, read.map_err(logged))
            }
            Job::RemoveNode(name) => {
                let removed = self.counted("remove_node", self.remove_node(&name).await);
                Ended::Removed(name, removed.map_err(logged).unwrap_or_default())
            }
            Job::Pod(key, calls) => {
                let results = self.pod(&key, calls).await;
                Ended::Pod(key, results)
            }
            Job::SweepTokens(live) => {
                let sidecars = self.auth_method.map(|name| self.method(name));
                let components = self
                    .component_auth_method
                    .map(|name| self.component_method(name));
                for method in sidecars.iter().chain(&components) {
                    let swept = tokens::sweep(method, self.client, &live, self.lead).await;
                    if let Err(error) = swept {
                        tracing::warn!(%error, "cannot search for tokens of deleted pods");
                    }
                }
                Ended::Swept
            }
        }
    }

    /// Counts the outcome of a call.
    fn counted<T>(&self, call: &str, made: Result<T, ServersError>) -> Result<T, ServersError> {
        let ended = match &made {
            Ok(_) => metrics::Ended::Done,
            Err(error) if error.refusal().is_some() => metrics::Ended::Refused,
            Err(_) => metrics::Ended::Unavailable,
        };
        self.metrics.called(call, ended);
        made
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
        Ok(self.state(&node, &checks))
    }

    fn state(&self, node: &Value, checks: &Value) -> Option<NodeState> {
        catalog::read(&self.cluster, node, checks, self.tenants.has_namespaces())
    }

    fn method<'m>(&'m self, name: &'m str) -> tokens::Method<'m> {
        tokens::Method {
            servers: self.servers,
            name,
            namespace: self.tenants.login_namespace(),
        }
    }

    fn component_method<'m>(&'m self, name: &'m str) -> tokens::Method<'m> {
        tokens::Method {
            namespace: self.tenants.has_namespaces().then_some(DEFAULT_TENANCY),
            ..self.method(name)
        }
    }

    async fn described(&self, name: &str) -> Result<(Value, Value), ServersError> {
        let checks = Path::of(["health", "node", name]);
        let (node, checks) = match self.tenants.has_namespaces() {
            false => (Path::of(["catalog", "node", name]), checks),
            // The other endpoint lists instances by id, which need not be unique across namespaces.
            true => (
                Path::of(["catalog", "node-services", name]).with("ns", EVERY_TENANCY),
                checks.with("ns", EVERY_TENANCY),
            ),
        };
        tokio::try_join!(self.servers.get_json(&node), self.servers.get_json(&checks))
    }

    /// Reads the node again first, because others may have registered something since.
    async fn remove_node(&self, name: &str) -> Result<bool, ServersError> {
        let (node, checks) = self.described(name).await?;
        let state = self.state(&node, &checks);
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
                false => {
                    let not_made = metrics::Ended::NotLeading;
                    self.metrics.called(name(&call), not_made);
                    Outcome::Unreachable("this operator is no longer the leader".to_owned())
                }
            };
            match &outcome {
                Outcome::Done => tracing::debug!(pod = %key, ?call, "done"),
                Outcome::Unserved => {}
                Outcome::Refused(text) => {
                    tracing::warn!(pod = %key, reason = text, call = name(&call), "the servers refused");
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
        let counted = |made| self.counted(name(call), made);
        let made = match call {
            Call::Namespace(name) => counted(servers.ensure_namespace(name, &self.tenants).await),
            Call::Register(wanted) => counted(servers.register(&wanted.body).await),
            Call::Checks { body, .. } => counted(servers.register(body).await),
            Call::Deregister { node, id } => {
                let mut body = json!({"Node": node, "ServiceID": id.id});
                if let Some(namespace) = id.in_namespace() {
                    body["Namespace"] = namespace.into();
                }
                counted(servers.deregister(&body).await)
            }
            Call::VirtualIp(virtual_ip) => {
                let addresses = [virtual_ip.address.as_str()];
                let namespace = Some(virtual_ip.namespace.as_str());
                let namespace = namespace.filter(|name| !name.is_empty());
                let set = servers
                    .set_virtual_ips(&virtual_ip.service, namespace, &addresses)
                    .await;
                match set.as_ref().err().and_then(ServersError::status) {
                    // Consul before 1.16 lacks the endpoint; that is no refusal.
                    Some(status) if [404, 405, 501].contains(&status.as_u16()) => {
                        return Outcome::Unserved;
                    }
                    _ => counted(set),
                }
            }
            Call::RemoveTokens {
                service,
                namespace,
                pod,
                uid,
            } => match self.auth_method {
                Some(method) => {
                    let method = self.method(method);
                    let removed = tokens::remove_of(&method, namespace, service, pod, uid).await;
                    let removed = counted(removed);
                    if let Err(error) = removed {
                        // The next sweep removes them.
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

/// The name of a call for logs and metrics.
fn name(call: &Call) -> &'static str {
    match call {
        Call::Namespace(_) => "namespace",
        Call::Register(_) => "register",
        Call::Checks { .. } => "checks",
        Call::VirtualIp(_) => "virtual_ip",
        Call::Deregister { .. } => "deregister",
        Call::RemoveTokens { .. } => "remove_tokens",
    }
}

fn logged(error: ServersError) -> String {
    tracing::warn!(%error, "cannot read the catalog: retrying");
    error.to_string()
}
