//! Collects facts from the API server and, by port-forward, from the pods of the mesh. Every request
//! has a timeout, and a failed observation is a fact, too.

use std::time::SystemTime;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, PostParams};
use kube::core::{Selector, SelectorExt};
use kube::{Api, Client, ResourceExt};
use legate_kubernetes::annotations;
use serde_json::{Value, json};

use super::facts::{
    Admission, BarePod, Facts, MeshPod, Observed, OperatorPod, ServerApi, ServerPod, Servers,
    Webhook,
};
use super::finding::Finding;
use super::mesh_pods;
use super::release::{self, Release};
use crate::kubernetes::forward::{self, Answer, Page, Port, SMALL};
use crate::kubernetes::sidecar::{self, Sidecar};
use crate::kubernetes::{PODS_AT_A_TIME, answer, pages};

/// Port of the operator's webhook in the chart.
const WEBHOOK_PORT: u16 = 8080;
const HEALTH_PORT: u16 = 9444;
/// The label of the servers in the chart.
const SERVER: &str = "server";
/// How many namespaces are tried for one that the webhook applies to.
const NAMESPACES: usize = 5;

/// Collects all facts, or returns the finding that prevents it.
///
/// # Errors
///
/// If there are several releases to choose from.
pub(super) async fn collect(
    client: &Client,
    namespace: Option<&str>,
) -> anyhow::Result<Result<Facts, Box<Finding>>> {
    let failed = |check, what: String, next: &str| Box::new(Finding::failed(check, what, next));
    let version = match answer(client.apiserver_version()).await {
        Ok(version) => version.git_version,
        Err(why) => {
            return Ok(Err(failed(
                "kubernetes",
                format!("the API server does not respond: {why}"),
                "check KUBECONFIG, --context, and the connection to the cluster with kubectl version",
            )));
        }
    };
    let deployments = match deployments(client, namespace).await {
        Ok(deployments) => deployments,
        Err(why) => {
            return Ok(Err(failed(
                "operator",
                format!("cannot search for the operator: {why}"),
                "name the namespace of the release with --namespace, or request the permission to list \
                 Deployments",
            )));
        }
    };
    let release = match release::choose(&deployments, namespace)? {
        Ok(release) => release,
        Err(finding) => return Ok(Err(Box::new(finding))),
    };
    let (operator_pods, webhook, servers, pods, bare_pods) = tokio::join!(
        operator_pods(client, &release),
        webhook(client, &release),
        servers(client, &release),
        mesh_pods(client),
        bare_pods(client),
    );
    let admission = match &webhook {
        Ok(Some(found)) => {
            let pods = pods.as_deref().unwrap_or_default();
            admission(client, &release, found, pods).await
        }
        _ => Admission::NoNamespace,
    };
    Ok(Ok(Facts {
        now: SystemTime::now(),
        version,
        release,
        operator_pods,
        webhook: webhook.map(|found| found.map(|(webhook, _)| webhook)),
        admission,
        servers,
        pods,
        bare_pods,
    }))
}

async fn deployments(client: &Client, namespace: Option<&str>) -> Observed<Vec<Deployment>> {
    let api: Api<Deployment> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let params = ListParams::default().labels(release::OPERATOR);
    pages(params, async |params| api.list(&params).await).await
}

/// Pods of a component of the release that have not ended.
async fn component(client: &Client, release: &Release, name: &str) -> Observed<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &release.namespace);
    let selector = format!("app=legate,release={},component={name}", release.label);
    let params = ListParams::default().labels(&selector);
    let mut pods = pages(params, async |params| api.list(&params).await).await?;
    pods.retain(|pod| !mesh_pods::ends(pod));
    pods.sort_by_key(ResourceExt::name_any);
    Ok(pods)
}

async fn operator_pods(client: &Client, release: &Release) -> Observed<Vec<OperatorPod>> {
    let pods = component(client, release, "operator").await?;
    let look = async |pod: Pod| {
        let name = pod.name_any();
        let at = |port| Port {
            namespace: &release.namespace,
            pod: &name,
            port,
        };
        let (readiness, shown) = tokio::join!(
            forward::get(client, at(HEALTH_PORT), "/readyz"),
            forward::get_tls(client, at(WEBHOOK_PORT), "/"),
        );
        let readiness = readiness.map(|answer| {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            (answer.status.is_success(), text)
        });
        OperatorPod {
            ready: mesh_pods::is_ready(pod.status.as_ref()),
            readiness: readiness.map_err(|error| format!("{error:#}")),
            chain: shown
                .map(|answer| answer.chain)
                .map_err(|error| format!("{error:#}")),
            name,
        }
    };
    Ok(side_by_side(pods, look).await)
}

/// Processes items with limited concurrency; results keep their order.
async fn side_by_side<T, R>(items: Vec<T>, look: impl AsyncFn(T) -> R) -> Vec<R> {
    let look = &look;
    let all = stream::iter(items).map(|item| look(item));
    all.buffered(PODS_AT_A_TIME).collect().await
}

/// The webhook and its configuration.
async fn webhook(
    client: &Client,
    release: &Release,
) -> Observed<Option<(Webhook, MutatingWebhook)>> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = format!("{}-operator", release.full_name);
    let Some(found) = answer(api.get_opt(&configuration)).await? else {
        return Ok(None);
    };
    let Some(hook) = found.webhooks.unwrap_or_default().into_iter().next() else {
        return Ok(None);
    };
    let bundle = hook.client_config.ca_bundle.as_ref();
    let bundle = bundle.map(|bundle| String::from_utf8_lossy(&bundle.0).into_owned());
    let service = hook.client_config.service.as_ref();
    let webhook = Webhook {
        configuration,
        name: hook.name.clone(),
        ca_bundle: bundle.filter(|bundle| !bundle.is_empty()),
        host: service.map_or_else(String::new, |service| {
            format!("{}.{}.svc", service.name, service.namespace)
        }),
    };
    Ok(Some((webhook, hook)))
}

/// Creates a pod that the webhook refuses, as a dry run without any effect.
async fn admission(
    client: &Client,
    release: &Release,
    (_, hook): &(Webhook, MutatingWebhook),
    pods: &[MeshPod],
) -> Admission {
    let mut candidates = vec![release.namespace.clone()];
    for pod in pods {
        if candidates.len() < NAMESPACES && !candidates.contains(&pod.namespace) {
            candidates.push(pod.namespace.clone());
        }
    }
    for namespace in candidates {
        match selects(client, hook, &namespace).await {
            Ok(true) => return dry_run(client, namespace).await,
            Ok(false) => {}
            Err(why) => return Admission::Failed(why),
        }
    }
    Admission::NoNamespace
}

async fn selects(client: &Client, hook: &MutatingWebhook, namespace: &str) -> Observed<bool> {
    let Some(selector) = hook.namespace_selector.clone() else {
        return Ok(true);
    };
    let selector = Selector::try_from(selector).map_err(|error| error.to_string())?;
    if selector.selects_all() {
        return Ok(true);
    }
    let api: Api<Namespace> = Api::all(client.clone());
    let found = answer(api.get(namespace)).await?;
    Ok(selector.matches(found.labels()))
}

async fn dry_run(client: &Client, namespace: String) -> Admission {
    let refused = format!("{}connect-inject", annotations::PREFIX);
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "legate-check",
            "annotations": {refused: "legate-check"},
        },
        "spec": {"containers": [{"name": "check", "image": "legate-check"}]},
    });
    let pod: Pod = match serde_json::from_value(pod) {
        Ok(pod) => pod,
        Err(error) => return Admission::Failed(error.to_string()),
    };
    let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    // The API server's own timeout for the webhook comes first.
    let created = answer(async {
        match api.create(&params, &pod).await {
            Err(kube::Error::Api(status)) => Ok(Err(status)),
            other => other.map(Ok),
        }
    });
    match created.await {
        Ok(Ok(_)) => Admission::Created { namespace },
        Ok(Err(status)) => Admission::Refused {
            namespace,
            code: status.code,
            words: status.message.clone(),
        },
        Err(why) => Admission::Failed(why),
    }
}

/// The only release of the cluster, and the pods of its servers.
///
/// # Errors
///
/// If there is not exactly one release, or the user has no permission to see it.
pub(in crate::kubernetes) async fn server_pods(
    client: &Client,
) -> anyhow::Result<(Release, Vec<Pod>)> {
    let deployments = deployments(client, None)
        .await
        .map_err(anyhow::Error::msg)?;
    let release = release::choose(&deployments, None)?;
    let release = release.map_err(|finding| anyhow::Error::msg(finding.message))?;
    let pods = component(client, &release, SERVER).await;
    Ok((release, pods.map_err(anyhow::Error::msg)?))
}

async fn servers(client: &Client, release: &Release) -> Observed<Servers> {
    let api: Api<StatefulSet> = Api::namespaced(client.clone(), &release.namespace);
    let set = format!("{}-server", release.full_name);
    let Some(set) = answer(api.get_opt(&set)).await? else {
        return Ok(Servers::External(release.server_host.clone()));
    };
    let pods = component(client, release, SERVER).await?;
    let look = async |pod: Pod| {
        let name = pod.name_any();
        let ready = mesh_pods::is_ready(pod.status.as_ref());
        let api = match ready {
            true => Some(server(client, release, &name).await),
            false => None,
        };
        let spec = pod.spec.unwrap_or_default();
        let container = spec.containers.into_iter().next();
        ServerPod {
            image: container.and_then(|it| it.image).unwrap_or_default(),
            api: api.map(|api| api.map_err(|error| format!("{error:#}"))),
            name,
        }
    };
    Ok(Servers::InCluster {
        replicas: set.spec.and_then(|spec| spec.replicas).unwrap_or(1),
        pods: side_by_side(pods, look).await,
    })
}

/// Gets a page of the HTTP API of a server's pod.
///
/// # Errors
///
/// If the pod is unreachable or does not respond in time.
pub(in crate::kubernetes) async fn ask_server(
    client: &Client,
    release: &Release,
    pod: &str,
    page: Page<'_>,
) -> anyhow::Result<Answer> {
    let at = |port| Port {
        namespace: &release.namespace,
        pod,
        port,
    };
    match release.tls {
        true => forward::get_tls(client, at(8501), page).await,
        false => forward::get(client, at(8500), page).await,
    }
}

/// Reads the pages that require no token.
async fn server(client: &Client, release: &Release, pod: &str) -> anyhow::Result<ServerApi> {
    let path = "/v1/connect/ca/roots";
    let answer = ask_server(client, release, pod, path.into()).await?;
    anyhow::ensure!(
        answer.status.is_success(),
        "{path}: {}: {}",
        answer.status,
        String::from_utf8_lossy(&answer.body).trim()
    );
    let roots: Value = serde_json::from_slice(&answer.body)?;
    let text = |name: &str| roots[name].as_str().unwrap_or_default().to_owned();
    Ok(ServerApi {
        chain: answer.chain,
        trust_domain: text("TrustDomain"),
        active_root: text("ActiveRootID"),
        status: status(client, release, pod).await?,
    })
}

/// What a server says of other datacenters. With ACLs this takes a token, which there is not here.
async fn status(
    client: &Client,
    release: &Release,
    pod: &str,
) -> anyhow::Result<Result<Value, String>> {
    let names = "/v1/catalog/datacenters";
    let names = ask_server(client, release, pod, names.into()).await?;
    let names: Vec<String> = serde_json::from_slice(&names.body).unwrap_or_default();
    if names.len() < 2 {
        return Ok(Ok(Value::Null));
    }
    let path = "/v1/internal/legate/status";
    let answer = ask_server(client, release, pod, path.into()).await?;
    Ok(match answer.status.as_u16() {
        200 => Ok(serde_json::from_slice(&answer.body)?),
        403 => {
            Err("it takes a token with agent:read: see legate members -wan -detailed".to_owned())
        }
        status => Err(format!("{path}: {status}")),
    })
}

async fn mesh_pods(client: &Client) -> Observed<Vec<MeshPod>> {
    let api: Api<Pod> = Api::all(client.clone());
    let params = ListParams::default().labels(&sidecar::selector());
    let pods = pages(params, async |params| api.list(&params).await).await?;
    let look = async |pod: Pod| {
        let mut facts = mesh_pods::mesh_pod(&pod)?;
        if let Some(sidecar) = Sidecar::of(&pod).filter(|_| mesh_pods::sidecar_runs(&pod)) {
            let status = sidecar.status(client).await;
            if let Ok(document) = &status {
                let certs = sidecar.admin(client, Some(document), "/certs", SMALL).await;
                let leaves = certs.map(|certs| sidecar::leaves(&certs));
                facts.leaves = Some(leaves.map_err(|error| format!("{error:#}")));
            }
            facts.status = Some(status.map_err(|error| format!("{error:#}")));
        }
        Some(facts)
    };
    let facts = side_by_side(pods, look).await;
    Ok(facts.into_iter().flatten().collect())
}

async fn bare_pods(client: &Client) -> Observed<Vec<BarePod>> {
    let api: Api<Pod> = Api::all(client.clone());
    let params = ListParams::default()
        .labels(&format!("!{}", annotations::STATUS))
        .fields("status.phase!=Succeeded,status.phase!=Failed");
    let pods = pages(params, async |params| api.list_metadata(&params).await).await?;
    Ok(pods
        .iter()
        .filter_map(|pod| mesh_pods::bare_pod(&pod.metadata))
        .collect())
}
