//! The cost of many Gateways, routes, Services and endpoints of the Gateway API: the operator's memory, its CPU time for
//! one change, and the time from an edit until it is served.
//!
//! The pods of the many Gateways are never scheduled. One more Gateway has a proxy.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::api::Api;
use super::figures::{self, Sample};
use crate::cluster::Cluster;
use crate::namespace::Namespace;
use crate::scenarios::delete_class;

const GATEWAYS: usize = 100;
const ROUTES: usize = 2_000;
/// Each has a route.
const SERVICES: usize = ROUTES;
const ENDPOINTS: usize = 5;
const RULES: usize = 4;
/// The number of changes of each kind, and of routes that are changed at once.
const CHANGES: usize = 50;
const ROLLOUT: usize = 1_000;
/// The number of concurrent requests to the API server.
const AT_A_TIME: usize = 16;
/// The deadline until the operator has seen something.
const LIMIT: Duration = Duration::from_secs(300);
/// The polling interval, which is the precision of times.
const LOOK: Duration = Duration::from_millis(20);
/// The idle time before memory and CPU time are read.
const QUIET: Duration = Duration::from_secs(5);
/// The time between changes of endpoints, so that each is resolved alone.
const APART: Duration = Duration::from_millis(200);
const CONTROLLER: &str = "legate/gateway-controller";
/// The class of the Gateways without proxies, and of the one with a proxy.
const CLASSES: [&str; 2] = ["bench", "bench-served"];

/// Measures and prints the tables.
pub(super) async fn measure(cluster: &Cluster, api: &Api) -> anyhow::Result<()> {
    let space = Namespace::create(cluster, "bench-gateways")?;
    let bench = Bench {
        api,
        namespace: space.name.clone(),
    };
    let measured = bench.all().await;
    let classes = CLASSES.map(|name| delete_class(cluster, name));
    let removed = space.delete().and(classes.into_iter().collect());
    measured.and(removed)
}

struct Bench<'a> {
    api: &'a Api,
    namespace: String,
}

impl Bench<'_> {
    async fn all(&self) -> anyhow::Result<()> {
        sleep(QUIET).await;
        let idle = self.usage().await?;
        self.classes().await?;
        self.apply(
            "Gateway",
            "served",
            gateway(CLASSES[1], "served.example.com"),
        )
        .await?;
        self.programmed("served", 1).await?;

        let start = Instant::now();
        self.create().await?;
        let created = start.elapsed();
        self.all_routes_have_a_status().await?;
        let known = start.elapsed();
        sleep(QUIET).await;
        let full = self.usage().await?;
        figures::head(
            &format!(
                "{GATEWAYS} Gateways, {ROUTES} HTTPRoutes of {RULES} rules, {SERVICES} Services, {} endpoints",
                SERVICES * ENDPOINTS
            ),
            &["value"],
        );
        let rows = [
            ("operator before, MiB", idle.resident, 1),
            ("operator with all, MiB", full.resident, 1),
            ("created, s", created.as_secs_f64(), 1),
            (
                "all statuses written, s after the first object",
                known.as_secs_f64(),
                1,
            ),
            (
                "CPU s of the operator for that",
                full.processor - idle.processor,
                2,
            ),
        ];
        for (label, value, decimals) in rows {
            figures::row(label, &[Some(value)], decimals);
        }

        figures::head(
            &format!("{CHANGES} changes, one at a time"),
            &["CPU ms of the operator", "ms, median", "ms, p99"],
        );
        let (cost, times) = self.routes().await?;
        row("a route, until its status", cost, Some(&times));
        let cost = self.endpoints().await?;
        row("an endpoint", cost, None);
        let (cost, times) = self.edits().await?;
        row("a Gateway, until it is programmed", cost, Some(&times));
        let times = self.edits_in_a_rollout().await?;
        figures::head(
            &format!("While {ROLLOUT} routes change"),
            &["ms, median", "ms, most"],
        );
        let values = [times.median(), times.most()];
        figures::row("a Gateway, until it is programmed", &values, 0);
        Ok(())
    }

    async fn usage(&self) -> anyhow::Result<super::api::Usage> {
        let (leader, _) = self.api.operators().await?;
        self.api.usage(&leader).await
    }

    async fn classes(&self) -> anyhow::Result<()> {
        for (name, selector) in CLASSES
            .into_iter()
            .zip([json!({"bench": "none"}), json!({})])
        {
            let config = json!({"serviceType": "ClusterIP", "nodeSelector": selector});
            self.apply("GatewayClassConfig", name, config).await?;
            let parameters = json!({
                "group": "consul.hashicorp.com", "kind": "GatewayClassConfig", "name": name,
            });
            let class = json!({"controllerName": CONTROLLER, "parametersRef": parameters});
            self.apply("GatewayClass", name, class).await?;
        }
        Ok(())
    }

    /// Creates everything, what others refer to first.
    async fn create(&self) -> anyhow::Result<()> {
        let service = |number: usize| async move {
            let name = format!("service-{number}");
            let ports = json!([{"port": 80, "targetPort": 8080}]);
            self.apply("Service", &name, json!({"ports": ports}))
                .await?;
            self.post("EndpointSlice", &slice(&name, number, 0)).await
        };
        self.concurrently(SERVICES, service).await?;
        let gateways = |number: usize| async move {
            let host = format!("*.g{number}.example.com");
            let name = format!("gateway-{number}");
            self.apply("Gateway", &name, gateway(CLASSES[0], &host))
                .await
                .map(drop)
        };
        self.concurrently(GATEWAYS, gateways).await?;
        let routes = |number: usize| async move {
            let name = format!("route-{number}");
            self.apply("HTTPRoute", &name, route(number, "first"))
                .await
                .map(drop)
        };
        self.concurrently(ROUTES, routes).await
    }

    async fn concurrently<F: Future<Output = anyhow::Result<()>>>(
        &self,
        count: usize,
        one: impl Fn(usize) -> F,
    ) -> anyhow::Result<()> {
        let all = stream::iter(0..count).map(one);
        all.buffer_unordered(AT_A_TIME).try_collect().await
    }

    async fn all_routes_have_a_status(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        let routes = self.objects("HTTPRoute");
        let mut known = 0;
        while start.elapsed() < LIMIT {
            let all = routes.list(&kube::api::ListParams::default()).await?;
            let has_status = |route: &&DynamicObject| observed(route).is_some();
            known = all.items.iter().filter(has_status).count();
            if known == ROUTES {
                return Ok(());
            }
            sleep(Duration::from_secs(1)).await;
        }
        bail!(
            "{known} of {ROUTES} routes have a status after {} s",
            LIMIT.as_secs()
        )
    }

    /// Changes routes, one after the other.
    async fn routes(&self) -> anyhow::Result<(f64, Sample)> {
        let before = self.usage().await?;
        let mut times = Sample::default();
        for number in 0..CHANGES {
            let name = format!("route-{number}");
            let start = Instant::now();
            let changed = self.apply("HTTPRoute", &name, route(number, "second"));
            let generation = changed.await?.metadata.generation;
            self.until(start, "HTTPRoute", &name, |route| {
                observed(route) == generation
            })
            .await?;
            times.add(milliseconds(start.elapsed()));
        }
        Ok((self.cost(before.processor, CHANGES).await?, times))
    }

    /// Replaces endpoints, one after the other.
    async fn endpoints(&self) -> anyhow::Result<f64> {
        let before = self.usage().await?;
        for number in 0..CHANGES {
            let name = format!("service-{number}");
            let slice = slice(&name, number, 1);
            let patch = Patch::Merge(json!({"endpoints": slice["endpoints"]}));
            let slices = self.objects("EndpointSlice");
            slices.patch(&name, &PatchParams::default(), &patch).await?;
            sleep(APART).await;
        }
        self.cost(before.processor, CHANGES).await
    }

    /// Changes the Gateway with a proxy.
    async fn edits(&self) -> anyhow::Result<(f64, Sample)> {
        let before = self.usage().await?;
        let mut times = Sample::default();
        for number in 0..CHANGES {
            times.add(self.edit(&format!("edit-{number}.example.com")).await?);
        }
        Ok((self.cost(before.processor, CHANGES).await?, times))
    }

    async fn edits_in_a_rollout(&self) -> anyhow::Result<Sample> {
        let rollout = self.concurrently(ROLLOUT, |number| async move {
            let name = format!("route-{number}");
            let changed = self.apply("HTTPRoute", &name, route(number, "third"));
            changed.await.map(drop)
        });
        let mut rollout = std::pin::pin!(rollout);
        let mut times = Sample::default();
        let mut number = 0;
        loop {
            number += 1;
            let host = format!("rollout-{number}.example.com");
            let mut edit = std::pin::pin!(self.edit(&host));
            tokio::select! {
                time = &mut edit => times.add(time?),
                done = &mut rollout => {
                    done?;
                    times.add(edit.await?);
                    return Ok(times);
                }
            }
        }
    }

    /// Milliseconds from an edit until a proxy serves it.
    async fn edit(&self, host: &str) -> anyhow::Result<f64> {
        let start = Instant::now();
        let spec = gateway(CLASSES[1], host);
        let generation = self
            .apply("Gateway", "served", spec)
            .await?
            .metadata
            .generation;
        self.programmed("served", generation.context("it has a generation")?)
            .await?;
        Ok(milliseconds(start.elapsed()))
    }

    async fn programmed(&self, name: &str, generation: i64) -> anyhow::Result<()> {
        let is_programmed = |gateway: &DynamicObject| {
            let conditions = gateway.data["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|condition| {
                condition["type"] == "Programmed"
                    && condition["status"] == "True"
                    && condition["observedGeneration"] == generation
            })
        };
        self.until(Instant::now(), "Gateway", name, is_programmed)
            .await
    }

    async fn until(
        &self,
        start: Instant,
        kind: &str,
        name: &str,
        reached: impl Fn(&DynamicObject) -> bool,
    ) -> anyhow::Result<()> {
        let objects = self.objects(kind);
        let mut last = String::new();
        while start.elapsed() < LIMIT {
            let object = objects.get(name).await?;
            if reached(&object) {
                return Ok(());
            }
            last.clear();
            write!(last, "{}", object.data["status"])?;
            sleep(LOOK).await;
        }
        bail!("{kind} {name}: not within {} s: {last}", LIMIT.as_secs())
    }

    /// CPU milliseconds of the operator for each of `count` changes, once it is idle.
    async fn cost(&self, before: f64, count: usize) -> anyhow::Result<f64> {
        sleep(QUIET).await;
        let after = self.usage().await?;
        ensure!(after.processor >= before, "another operator leads by now");
        let count = u32::try_from(count)?;
        Ok((after.processor - before) * 1000.0 / f64::from(count))
    }

    /// Applies an object with this `spec`.
    async fn apply(&self, kind: &str, name: &str, spec: Value) -> anyhow::Result<DynamicObject> {
        let (resource, _) = resource(kind);
        let object = json!({
            "apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        let parameters = PatchParams::apply("legate-bench").force();
        let applied = self.objects(kind);
        let applied = applied
            .patch(name, &parameters, &Patch::Apply(&object))
            .await;
        applied.with_context(|| format!("{kind} {name}"))
    }

    async fn post(&self, kind: &str, object: &Value) -> anyhow::Result<()> {
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let objects = self.objects(kind);
        objects.create(&PostParams::default(), &object).await?;
        Ok(())
    }

    fn objects(&self, kind: &str) -> kube::Api<DynamicObject> {
        let client = self.api.client.clone();
        match resource(kind) {
            (resource, true) => kube::Api::namespaced_with(client, &self.namespace, &resource),
            (resource, false) => kube::Api::all_with(client, &resource),
        }
    }
}

/// The resource of a kind, and whether it is in namespaces.
fn resource(kind: &str) -> (ApiResource, bool) {
    let (group, version) = match kind {
        "Service" => ("", "v1"),
        "EndpointSlice" => ("discovery.k8s.io", "v1"),
        "GatewayClassConfig" => ("consul.hashicorp.com", "v1alpha1"),
        _ => ("gateway.networking.k8s.io", "v1"),
    };
    let is_in_namespaces = !kind.starts_with("GatewayClass");
    let kind = GroupVersionKind::gvk(group, version, kind);
    (ApiResource::from_gvk(&kind), is_in_namespaces)
}

fn gateway(class: &str, host: &str) -> Value {
    json!({
        "gatewayClassName": class,
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP", "hostname": host}],
    })
}

/// A route of a Gateway to a Service, with a header by which it differs from what it was.
fn route(number: usize, version: &str) -> Value {
    let gateway = number % GATEWAYS;
    let header = json!([{"name": "x-version", "value": version}]);
    let filter = json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": header}});
    let rules: Vec<Value> = (0..RULES)
        .map(|rule| {
            json!({
                "matches": [{"path": {"type": "PathPrefix", "value": format!("/{rule}")}}],
                "filters": [filter],
                "backendRefs": [{"name": format!("service-{number}"), "port": 80}],
            })
        })
        .collect();
    json!({
        "parentRefs": [{"name": format!("gateway-{gateway}")}],
        "hostnames": [format!("r{number}.g{gateway}.example.com")],
        "rules": rules,
    })
}

/// The endpoints of a Service without pods; those of each version have other addresses.
fn slice(service: &str, number: usize, version: usize) -> Value {
    let endpoints: Vec<Value> = (0..ENDPOINTS)
        .map(|endpoint| {
            let [high, low] = u16::try_from(number * ENDPOINTS + endpoint)
                .unwrap_or_default()
                .to_be_bytes();
            let address = format!("10.{}.{high}.{low}", 128 + version);
            json!({"addresses": [address], "conditions": {"ready": true}})
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

/// The generation that the first condition of a route's status is about.
fn observed(route: &DynamicObject) -> Option<i64> {
    route.data["status"]["parents"][0]["conditions"][0]["observedGeneration"].as_i64()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn row(label: &str, cost: f64, times: Option<&Sample>) {
    let median = times.and_then(Sample::median);
    let slowest = times.and_then(|times| times.percentile(99));
    figures::row(label, &[Some(cost), median, slowest], 1);
}
