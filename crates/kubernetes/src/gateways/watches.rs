//! The watches of everything that gateways depend on, and which kinds of the Gateway API there are.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::stream::{AbortHandle, BoxStream, SelectAll, abortable, select_all};
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::cluster::{Item, Source};
use super::kinds::{GROUP, GROUPS, Kind};
use crate::annotations::MANAGED_BY;
use crate::sync::objects::Change;
use crate::watch::{WATCH, changes};

/// How often the kinds are listed: people install and update them at any time.
pub(super) const KINDS_AGAIN: Duration = Duration::from_secs(5);

const BUNDLE: &str = "gateway.networking.k8s.io/bundle-version";
const CHANNEL: &str = "gateway.networking.k8s.io/channel";

/// A change of an object.
pub(super) type Event = (Source, Change<Item>);

/// All watches, merged. The stream never ends.
pub(super) struct Watches {
    client: Client,
    events: SelectAll<BoxStream<'static, Event>>,
    kinds: Vec<(Kind, AbortHandle)>,
}

/// The kinds of the Gateway API that the cluster has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    pub(super) all: BTreeSet<Kind>,
    /// Their version, as in `v1.6.3`.
    pub(super) bundle: Option<String>,
    /// Whether they are those of the experimental channel.
    pub(super) experimental: bool,
}

impl Watches {
    /// Starts the watches of Kubernetes' own kinds, [`Source::OF_KUBERNETES`].
    pub(super) fn start(client: &Client) -> Self {
        let of_gateways = format!("{GROUP}/gateway-name");
        let all = watcher::Config::default();
        let tls = all.clone().fields("type=kubernetes.io/tls");
        let deployments = all.clone().labels(&of_gateways);
        let mesh_pods = all.clone().labels(MANAGED_BY);
        let pods: Api<PartialObjectMeta<core::Pod>> = Api::all(client.clone());
        let pods = watcher(pods, all.clone().timeout(WATCH));
        let pods = events_of(Source::Pods, pods, |one| Item::Pod(Box::new(one)));
        let events = select_all([
            watch(
                client,
                Source::Services,
                all.clone(),
                |one: core::Service| Item::Service(Box::new(one)),
            ),
            watch(
                client,
                Source::Namespaces,
                all.clone(),
                |one: core::Namespace| Item::Namespace(Box::new(one)),
            ),
            watch(client, Source::Secrets, tls, |one: core::Secret| {
                Item::Secret(Box::new(one))
            }),
            watch(
                client,
                Source::ConfigMaps,
                all.clone(),
                |one: core::ConfigMap| Item::ConfigMap(Box::new(one)),
            ),
            watch(client, Source::EndpointSlices, all, |one: EndpointSlice| {
                Item::EndpointSlice(Box::new(one))
            }),
            watch(
                client,
                Source::Deployments,
                deployments,
                |one: Deployment| Item::Deployment(Box::new(one)),
            ),
            watch(client, Source::MeshPods, mesh_pods, |one: core::Pod| {
                Item::MeshPod(Box::new(one))
            }),
            pods.boxed(),
        ]);
        Self {
            client: client.clone(),
            events,
            kinds: Vec::new(),
        }
    }

    /// The next event.
    pub(super) async fn next(&mut self) -> Event {
        match self.events.next().await {
            Some(event) => event,
            // All watches of Kubernetes' own kinds go on for ever.
            None => std::future::pending().await,
        }
    }

    /// Watches exactly these kinds. Returns those whose watch starts, and those whose watch ends.
    pub(super) fn set(&mut self, kinds: &BTreeSet<Kind>) -> (Vec<Source>, Vec<Source>) {
        let mut ended = Vec::new();
        self.kinds.retain(|(kind, watch)| {
            let stays = kinds.contains(kind);
            if !stays {
                watch.abort();
                ended.push(Source::Resources(*kind));
            }
            stays
        });
        let mut started = Vec::new();
        for kind in kinds.iter().copied() {
            if self.kinds.iter().any(|(known, _)| *known == kind) {
                continue;
            }
            let source = Source::Resources(kind);
            let api = Api::<DynamicObject>::all_with(self.client.clone(), &kind.api_resource());
            let events = watcher(api, watcher::Config::default().timeout(WATCH));
            let item = move |object| Item::Resource(kind, Box::new(object));
            let (events, handle) = abortable(events_of(source, events, item));
            self.events.push(events.boxed());
            self.kinds.push((kind, handle));
            started.push(source);
        }
        (started, ended)
    }
}

fn watch<K>(
    client: &Client,
    source: Source,
    config: watcher::Config,
    item: fn(K) -> Item,
) -> BoxStream<'static, Event>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let events = watcher(Api::<K>::all(client.clone()), config.timeout(WATCH));
    events_of(source, events, item).boxed()
}

fn events_of<K: Send + 'static>(
    source: Source,
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    item: impl Fn(K) -> Item + Send + 'static,
) -> impl Stream<Item = Event> + Send + 'static {
    changes(events, item).filter_map(move |change| {
        std::future::ready(match change {
            Ok(change) => Some((source, change)),
            Err(error) => {
                let kind = source.kind();
                tracing::warn!(kind, %error, "the watch at the API server failed: retrying");
                None
            }
        })
    })
}

/// Lists the kinds. A cluster may have only some of them, or none. A kind that was known stays as long
/// as its definition is there: an API server that starts does not list all kinds at once, and nothing
/// must be taken from gateways because of that.
pub(super) async fn kinds(client: &Client, known: &BTreeSet<Kind>) -> Result<Kinds, kube::Error> {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let mut all = BTreeSet::new();
    for (group, version) in GROUPS {
        let name = format!("{group}/{version}");
        let served = match client.list_api_group_resources(&name).await {
            Ok(list) => list.resources,
            Err(error) if is_not_there(&error) => Vec::new(),
            Err(error) => return Err(error),
        };
        for kind in Kind::ALL {
            let is_served = || served.iter().any(|one| one.name == kind.plural());
            if kind.group() == (group, version)
                && (is_served() || known.contains(&kind) && is_defined(&definitions, kind).await?)
            {
                all.insert(kind);
            }
        }
    }
    let definition = definitions
        .get_metadata_opt(&Kind::Gateway.definition())
        .await?;
    let annotations = definition.and_then(|one| one.metadata.annotations);
    let annotations = annotations.unwrap_or_default();
    Ok(Kinds {
        all,
        bundle: annotations.get(BUNDLE).cloned(),
        experimental: annotations
            .get(CHANNEL)
            .is_some_and(|is| is == "experimental"),
    })
}

async fn is_defined(
    definitions: &Api<CustomResourceDefinition>,
    kind: Kind,
) -> Result<bool, kube::Error> {
    let definition = definitions.get_metadata_opt(&kind.definition()).await?;
    Ok(definition.is_some())
}

fn is_not_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
