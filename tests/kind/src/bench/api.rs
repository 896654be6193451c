//! Access to the API server, and through it to the servers' catalog and the operators' metrics.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::mesh::RELEASE;

/// The deadline for a change of the catalog.
const LIMIT: Duration = Duration::from_secs(60);

/// The API server, with a token for the catalog.
pub(super) struct Api {
    pub(super) client: Client,
    token: String,
}

/// The resources of an operator's process.
#[derive(Clone, Copy)]
pub(super) struct Usage {
    /// Memory in MiB.
    pub(super) resident: f64,
    /// CPU time in seconds since the start.
    pub(super) processor: f64,
}

impl Api {
    /// Connects to the cluster of `KUBECONFIG`.
    pub(super) async fn connect() -> anyhow::Result<Self> {
        let client = Client::try_default().await?;
        let secrets: kube::Api<Secret> = kube::Api::namespaced(client.clone(), RELEASE);
        let name = format!("{RELEASE}-bootstrap-acl-token");
        let secret = secrets.get(&name).await?;
        let token = secret.data.and_then(|mut data| data.remove("token"));
        let token = token.with_context(|| format!("the Secret {name} has no token"))?;
        let token = String::from_utf8(token.0)?;
        Ok(Self { client, token })
    }

    pub(super) fn pods(&self, namespace: &str) -> kube::Api<Pod> {
        kube::Api::namespaced(self.client.clone(), namespace)
    }

    /// A response of the servers' HTTP API with its index, which differs from `after`.
    pub(super) async fn catalog(
        &self,
        path: &str,
        after: Option<&str>,
    ) -> anyhow::Result<(Value, String)> {
        let mut url = format!(
            "/api/v1/namespaces/{RELEASE}/services/https:{RELEASE}-server:8501/proxy/v1/{path}"
        );
        if let Some(index) = after {
            url += &format!("?index={index}&wait=10s");
        }
        let request = Request::get(url).header("X-Consul-Token", &self.token);
        let answer = self.client.send(request.body(Body::empty())?).await?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        ensure!(
            head.status.is_success(),
            "{path}: {}: {}",
            head.status,
            String::from_utf8_lossy(&body)
        );
        let index = head.headers.get("X-Consul-Index");
        let index = index.context("the answer has an index")?.to_str()?;
        Ok((serde_json::from_slice(&body)?, index.to_owned()))
    }

    /// The time at which the catalog first had this state.
    pub(super) async fn catalog_shows(
        &self,
        path: &str,
        shows: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Instant> {
        let seen = async {
            let mut index = None;
            loop {
                let (answer, next) = self.catalog(path, index.as_deref()).await?;
                if shows(&answer) {
                    return Ok(Instant::now());
                }
                index = Some(next);
            }
        };
        let seen = timeout(LIMIT, seen).await;
        seen.with_context(|| format!("{path}: not within {} s", LIMIT.as_secs()))?
    }

    /// The leading operator's pod, and those of the others.
    pub(super) async fn operators(&self) -> anyhow::Result<(String, Vec<String>)> {
        let leases: kube::Api<Lease> = kube::Api::namespaced(self.client.clone(), RELEASE);
        let lease = leases.get(&format!("{RELEASE}-operator")).await?;
        let leader = lease.spec.and_then(|spec| spec.holder_identity);
        let leader = leader.context("an operator holds the Lease")?;
        let operators = ListParams::default().labels("component=operator");
        let pods = self.pods(RELEASE).list(&operators).await?;
        let live = pods
            .items
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let names = live.filter_map(|pod| pod.metadata.name);
        let (leaders, others): (Vec<_>, Vec<_>) = names.partition(|name| *name == leader);
        ensure!(!leaders.is_empty(), "{leader} holds the Lease and is gone");
        Ok((leader, others))
    }

    /// The usage from the operator's metrics.
    pub(super) async fn usage(&self, operator: &str) -> anyhow::Result<Usage> {
        let url = format!("/api/v1/namespaces/{RELEASE}/pods/{operator}:9444/proxy/metrics");
        let request = Request::get(url).body(Vec::new())?;
        let text = self.client.request_text(request).await?;
        let value = |name: &str| -> anyhow::Result<f64> {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            let value = value.with_context(|| format!("{operator} does not tell {name}"))?;
            Ok(value.trim().parse()?)
        };
        Ok(Usage {
            resident: value("process_resident_memory_bytes ")? / 1024.0 / 1024.0,
            processor: value("process_cpu_seconds_total ")?,
        })
    }

    /// Waits until a pod is deleted or has succeeded.
    pub(super) async fn ended(&self, namespace: &str, name: &str) -> anyhow::Result<()> {
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            let pod = self.pods(namespace).get_opt(name).await?;
            let Some(pod) = pod else { return Ok(()) };
            match pod.status.and_then(|status| status.phase).as_deref() {
                Some("Succeeded") => return Ok(()),
                Some("Failed") => bail!("the pod {name} has failed"),
                _ => sleep(Duration::from_millis(200)).await,
            }
        }
        bail!("the pod {name}: not ended within {} s", LIMIT.as_secs())
    }
}
