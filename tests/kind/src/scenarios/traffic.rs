//! Traffic between services: explicit upstreams, transparent proxying, intentions.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{
    App, Load, ask, ask_until_answered, ask_until_refused, assert_caller, intend, resource,
    speaks_http,
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "upstreams_are_reached_by_mutual_tls",
        run: upstreams_are_reached_by_mutual_tls,
    },
    Scenario {
        name: "services_are_reached_by_their_names",
        run: services_are_reached_by_their_names,
    },
    Scenario {
        name: "intentions_allow_and_deny",
        run: intentions_allow_and_deny,
    },
    Scenario {
        name: "a_refused_resource_says_why",
        run: a_refused_resource_says_why,
    },
    Scenario {
        name: "pods_without_envoy_serve_tcp",
        run: pods_without_envoy_serve_tcp,
    },
    Scenario {
        name: "envoy_takes_over_in_a_pod_under_load",
        run: envoy_takes_over_in_a_pod_under_load,
    },
];

/// The status of the sidecar of an application.
fn status(space: &Namespace, app: &str) -> anyhow::Result<Value> {
    // The chart sets the port.
    ask(space, app, "http://127.0.0.1:20600/status")
}

fn upstreams_are_reached_by_mutual_tls(space: &Namespace) -> anyhow::Result<()> {
    speaks_http(space, "named-api")?;
    intend(space, "named-web", "named-api", "allow")?;
    let plain = |name| App::new(name).annotation("transparent-proxy", "false");
    plain("named-api").run(space)?;
    let web = plain("named-web").annotation("connect-service-upstreams", "named-api:1234");
    web.run(space)?;
    let answer = ask_until_answered(space, "named-web", "http://127.0.0.1:1234/")?;
    assert_caller(&answer, "named-web")
}

fn services_are_reached_by_their_names(space: &Namespace) -> anyhow::Result<()> {
    speaks_http(space, "seen-api")?;
    intend(space, "seen-web", "seen-api", "allow")?;
    App::new("seen-api").run(space)?;
    App::new("seen-web").run(space)?;
    for name in [
        "seen-api".to_owned(),
        format!("seen-api.{}.svc.cluster.local", space.name),
        "seen-api.virtual.consul".to_owned(),
    ] {
        let answer = ask_until_answered(space, "seen-web", &format!("http://{name}/"))?;
        assert_caller(&answer, "seen-web").context(name)?;
    }
    // Clients outside of the mesh are refused on the sidecar's port and on the application's.
    let outside = App::new("seen-outside").annotation("connect-inject", "false");
    outside.run(space)?;
    let refused = ask(space, "seen-outside", "http://seen-api/");
    ensure!(refused.is_err(), "{refused:?}");
    Ok(())
}

fn intentions_allow_and_deny(space: &Namespace) -> anyhow::Result<()> {
    speaks_http(space, "judged-api")?;
    App::new("judged-api").run(space)?;
    App::new("judged-web")
        .annotation("connect-service-upstreams", "judged-api:1234")
        .run(space)?;
    let url = "http://127.0.0.1:1234/";
    // With ACLs the default is to deny.
    ask_until_refused(space, "judged-web", url)?;
    intend(space, "judged-web", "judged-api", "allow")?;
    ask_until_answered(space, "judged-web", url)?;
    intend(space, "judged-web", "judged-api", "deny")?;
    ask_until_refused(space, "judged-web", url)?;
    space.kubectl(&["delete", "serviceintentions/judged-api"])?;
    let wildcard = json!({
        "destination": {"name": "judged-api"},
        "sources": [{"name": "*", "action": "allow"}],
    });
    space.apply(&resource("ServiceIntentions", "judged-wildcard", &wildcard))?;
    ask_until_answered(space, "judged-web", url).map(|_| ())
}

fn a_refused_resource_says_why(space: &Namespace) -> anyhow::Result<()> {
    // Only the servers can check that this service's protocol has no paths.
    let permission = json!({"action": "allow", "http": {"pathPrefix": "/"}});
    let spec = json!({
        "destination": {"name": "refused-api"},
        "sources": [{"name": "refused-web", "permissions": [permission]}],
    });
    space.apply(&resource("ServiceIntentions", "refused-api", &spec))?;
    let message = refusal(space, "serviceintentions/refused-api")?;
    ensure!(message.contains("protocol"), "{message}");
    // It is retried, and the condition reports success.
    speaks_http(space, "refused-api")?;
    space.wait("serviceintentions/refused-api", "condition=Synced")
}

/// The reason in a resource's condition.
fn refusal(space: &Namespace, resource: &str) -> anyhow::Result<String> {
    eventually(&format!("{resource} is refused"), || {
        let resource = space.json(&["get", resource])?;
        let conditions = resource["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let refused = conditions.find(|is| is["type"] == "Synced" && is["status"] == "False");
        let message = refused.and_then(|condition| condition["message"].as_str());
        message.map(str::to_owned).context(resource.to_string())
    })
}

/// Names, virtual addresses and intentions are those of any other pod; the sidecar has no Envoy.
fn pods_without_envoy_serve_tcp(space: &Namespace) -> anyhow::Result<()> {
    let app = |name| App::new(name).annotation("sidecar-proxy-kind", "builtin");
    let upstreams: Vec<_> = (0..10)
        .map(|n| format!("small-other-{n}:{}", 3000 + n))
        .collect();
    app("small-api")
        .annotation("connect-service-upstreams", &upstreams.join(","))
        .run(space)?;
    app("small-web").run(space)?;
    let url = "http://small-api/";
    ask_until_refused(space, "small-web", url)?;
    intend(space, "small-web", "small-api", "allow")?;
    ask_until_answered(space, "small-web", url)?;
    // One with an Envoy is called and calls as well.
    App::new("large-api").run(space)?;
    App::new("large-web").run(space)?;
    intend(space, "small-web", "large-api", "allow")?;
    ask_until_answered(space, "small-web", "http://large-api/")?;
    intend(space, "large-web", "small-api", "allow")?;
    ask_until_answered(space, "large-web", url)?;
    space.kubectl(&["delete", "serviceintentions/small-api"])?;
    ask_until_refused(space, "small-web", url)?;

    let sidecar = "consul-dataplane";
    let status = status(space, "small-api")?;
    ensure!(status["built_in"]["listeners"].is_array(), "{status}");
    ensure!(status["envoy"].is_null(), "{status}");
    let [small, large] = ["small-api", "large-api"].map(|app| working_set(space, app, sidecar));
    println!(
        "         working set of the sidecar: {} KiB, with Envoy {} KiB",
        small? / 1024,
        large? / 1024
    );
    let [small, large] = ["small-api", "large-api"].map(|app| ready_after(space, app, sidecar));
    println!(
        "         ready {} ms after its start, with Envoy {} ms",
        small?, large?
    );
    Ok(())
}

/// With the seccomp profile of the runtime, which the injector sets.
fn envoy_takes_over_in_a_pod_under_load(space: &Namespace) -> anyhow::Result<()> {
    // With the transparent proxy, an intention of another scenario for all callers may need Envoy, too.
    App::new("changed-api")
        .annotation("sidecar-proxy-kind", "auto")
        .annotation("transparent-proxy", "false")
        .annotation("connect-service-upstreams", "changed-other:1234")
        .run(space)?;
    intend(space, "changed-load", "changed-api", "allow")?;
    let load = Load::start(space, "changed-load", "http://changed-api/")?;
    let choice = || Ok::<_, anyhow::Error>(status(space, "changed-api")?["choice"].clone());
    let before = choice()?;
    ensure!(before["serves"] == "builtin", "{before}");
    ensure!(before["cannot_change"].is_null(), "{before}");
    speaks_http(space, "changed-other")?;
    eventually("Envoy has taken over", || {
        let choice = choice()?;
        let done = choice["serves"] == "envoy" && choice["changing"] == false;
        ensure!(done, "{choice}");
        Ok(())
    })?;
    load.without_failure()?;
    load.reset()?;
    eventually("Envoy has answered", || {
        let seen = load.without_failure()?;
        ensure!(seen.answers.values().sum::<u64>() > 100, "{seen:?}");
        Ok(())
    })
}

/// The milliseconds between the start of a sidecar and its readiness, which it logs.
fn ready_after(space: &Namespace, app: &str, sidecar: &str) -> anyhow::Result<u32> {
    let (label, container) = (
        format!("--selector=app={app}"),
        format!("--container={sidecar}"),
    );
    let log = space.kubectl(&["logs", &label, &container, "--tail=-1"])?;
    let line = log.lines().find(|line| line.contains("ready: listen"));
    let times = line.context("it has logged its start")?;
    let (_, time) = times
        .rsplit_once("ready ")
        .context("its start has an end")?;
    let (time, _) = time.split_once(" ms").context("in milliseconds")?;
    Ok(time.parse()?)
}

/// The working set of a container in the only pod of an application, in bytes, as the kubelet sees it.
fn working_set(space: &Namespace, app: &str, container: &str) -> anyhow::Result<u64> {
    let pods = space.pods(&format!("app={app}"))?;
    let pod = pods.first().context("the pod runs")?;
    let node = space.json(&["get", "pod", pod])?;
    let node = node["spec"]["nodeName"].as_str().context("it has a node")?;
    let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
    eventually("the kubelet has measured the container", || {
        let summary: Value = serde_json::from_str(&space.kubectl(&["get", "--raw", &path])?)?;
        let pods = summary["pods"].as_array().into_iter().flatten();
        let mut own = pods.filter(|one| one["podRef"]["name"] == **pod);
        let containers = own.next().and_then(|pod| pod["containers"].as_array());
        let mut containers = containers.into_iter().flatten();
        let container = containers.find(|one| one["name"] == *container);
        let used = container.and_then(|one| one["memory"]["workingSetBytes"].as_u64());
        used.context("it has no memory yet")
    })
}
