//! `legate check` and `legate proxy`: a healthy mesh is reported healthy, and failures are named.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::legate;
use crate::mesh;
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{App, ask_until_answered, intend, speaks_http};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "check_names_what_is_broken",
        run: check_names_what_is_broken,
    },
    Scenario {
        name: "check_shows_proxies",
        run: check_shows_proxies,
    },
];

const WEBHOOK: &str = "mutatingwebhookconfiguration/legate-operator";

fn check_names_what_is_broken(space: &Namespace) -> anyhow::Result<()> {
    App::new("checked").run(space)?;
    // Remains of other scenarios disappear meanwhile.
    eventually("a healthy mesh is named healthy", || {
        let (healthy, findings) = legate::check()?;
        let well = |finding: &legate::Finding| finding.outcome == "ok";
        ensure!(healthy && findings.iter().all(well), "{findings:#?}");
        ensure!(findings.iter().any(|it| it.check == "proxy-certificates"));
        Ok(())
    })?;
    let text = legate::output(&["check"])?;
    ensure!(text.starts_with("ok    kubernetes: "), "{text}");
    ensure!(text.ends_with("The mesh is healthy.\n"), "{text}");

    an_application_that_is_never_ready(space)?;
    a_wrong_ca_bundle(space)?;
    an_operator_that_is_away(space)
}

fn an_application_that_is_never_ready(space: &Namespace) -> anyhow::Result<()> {
    let never = json!({"exec": {"command": ["/none"]}});
    let app = App::new("checked-never").container("readinessProbe", never);
    space.apply(&app.manifests().to_string())?;
    eventually("an application that is never ready is named", || {
        legate::fails("pods-ready", "container app is not ready")
    })?;
    space.kubectl(&["delete", "deployment", "checked-never"])?;
    Ok(())
}

/// The operator restores the correct bundle within a minute.
fn a_wrong_ca_bundle(space: &Namespace) -> anyhow::Result<()> {
    let cluster = space.cluster;
    let read = || cluster.json(&["get", WEBHOOK]);
    let right = read()?["webhooks"][0]["clientConfig"]["caBundle"].clone();
    // Another CA of this cluster.
    let release = mesh::namespace(cluster);
    let other = release.json(&["get", "secret", "legate-ca-cert"])?;
    let other = other["data"]["tls.crt"].clone();
    ensure!(other.is_string() && other != right, "{other}");
    let path = "/webhooks/0/clientConfig/caBundle";
    eventually("a wrong caBundle is named", || {
        let patch = json!([{"op": "replace", "path": path, "value": other}]).to_string();
        cluster.kubectl(&["patch", WEBHOOK, "--type=json", "--patch", &patch])?;
        legate::fails("webhook-certificate", "does not verify")
    })?;
    let patch = json!([{"op": "replace", "path": path, "value": right}]).to_string();
    cluster.kubectl(&["patch", WEBHOOK, "--type=json", "--patch", &patch])?;
    Ok(())
}

/// Also covers a pod that was created while the webhook was disabled.
fn an_operator_that_is_away(space: &Namespace) -> anyhow::Result<()> {
    let cluster = space.cluster;
    let release = mesh::namespace(cluster);
    let scale = |replicas: u32| {
        let replicas = format!("--replicas={replicas}");
        release.kubectl(&["scale", "deployment/legate-operator", &replicas])
    };
    let policy = |policy: &str| {
        let path = "/webhooks/0/failurePolicy";
        let patch = json!([{"op": "replace", "path": path, "value": policy}]).to_string();
        cluster.kubectl(&["patch", WEBHOOK, "--type=json", "--patch", &patch])
    };
    scale(0)?;
    let outcome = eventually("an operator that is away is named", || {
        legate::fails("operator", "scaled to 0")?;
        legate::fails("webhook-called", "cannot call the webhook")
    })
    .and_then(|()| policy("Ignore").map(|_| ()))
    .and_then(|()| {
        eventually("a webhook that is not called is named", || {
            legate::fails("webhook-called", "without calling")
        })
    })
    .and_then(|()| App::new("checked-bare").run(space));
    // Restores the mesh, whatever the result.
    policy("Fail")?;
    scale(2)?;
    release.rolled_out("deployment/legate-operator")?;
    outcome?;
    eventually("a pod without its sidecar is named", || {
        legate::fails("pods-injected", "checked-bare")
    })?;
    space.kubectl(&["delete", "deployment", "checked-bare", "--wait"])?;
    eventually("all is well again", || {
        let (healthy, findings) = legate::check()?;
        ensure!(healthy, "{findings:#?}");
        Ok(())
    })
}

fn check_shows_proxies(space: &Namespace) -> anyhow::Result<()> {
    speaks_http(space, "shown-api")?;
    intend(space, "shown-web", "shown-api", "allow")?;
    App::new("shown-api").run(space)?;
    App::new("shown-web").run(space)?;
    ask_until_answered(space, "shown-web", "http://shown-api/")?;
    let pods = space.pods("app=shown-web")?;
    let pod = pods.first().context("there is a pod")?.as_str();
    let here = ["-n", space.name.as_str()];
    let proxy = |words: &[&str]| legate::json(&[&["proxy"], words].concat());

    let list = proxy(&[&["list"], &here[..]].concat())?;
    let rows = list.as_array().context("a list")?;
    let row = rows
        .iter()
        .find(|row| row["name"] == pod)
        .context("the pod is there")?;
    ensure!(rows.len() == 2, "{list}");
    for (field, value) in [
        ("service", json!("shown-web")),
        ("ready", json!(true)),
        ("session", json!("connected")),
        ("configured", json!(true)),
    ] {
        ensure!(row[field] == value, "{field}: {row}");
    }
    let text = legate::output(&["proxy", "list", "-A"])?;
    let header = text.lines().next().unwrap_or_default();
    ensure!(
        header.starts_with("NAMESPACE") && text.contains(pod),
        "{text}"
    );

    status(space, pod)?;
    config(space, pod)?;
    let plain = legate::output(&["proxy", "status", "legate-server-0", "-n", mesh::RELEASE]);
    let error = plain.err().context("a server has no sidecar")?;
    ensure!(format!("{error:#}").contains("has no sidecar"), "{error:#}");
    Ok(())
}

fn status(space: &Namespace, pod: &str) -> anyhow::Result<()> {
    let named = format!("{}/{pod}", space.name);
    let text = legate::output(&["proxy", "status", &named])?;
    for part in [
        "is ready",
        "connected",
        "spiffe://",
        "svc/shown-web",
        "public_listener",
        "shown-api",
    ] {
        ensure!(text.contains(part), "{part} is not in {text}");
    }
    let document = legate::json(&["proxy", "status", &named])?;
    ensure!(document["status"]["ready"] == true, "{document}");
    let listeners = document["listeners"].as_array();
    ensure!(listeners.is_some_and(|all| all.len() >= 2), "{document}");
    // Without a token the server refuses, and everything else is shown.
    for part in ["server: pod legate-server-", "403", "CONSUL_HTTP_TOKEN"] {
        ensure!(text.contains(part), "{part} is not in {text}");
    }
    let token = mesh::token(space.cluster)?;
    let words = ["proxy", "status", &named, "--token", token.trim()];
    eventually("the server says that the proxy is in sync", || {
        let document = legate::json(&words)?;
        ensure!(document["server"]["InSync"] == true, "{document}");
        let upstreams = document["server"]["Upstreams"].to_string();
        ensure!(upstreams.contains("shown-api"), "{document}");
        Ok(())
    })?;
    let text = legate::output(&words)?;
    for part in ["\nserver\n", "in sync: yes", "  UPSTREAM"] {
        ensure!(text.contains(part), "{part:?} is not in {text}");
    }
    Ok(())
}

fn config(space: &Namespace, pod: &str) -> anyhow::Result<()> {
    let named = format!("{}/{pod}", space.name);
    for (part, said) in [
        ("clusters", "shown-api"),
        ("endpoints", "shown-api"),
        ("listeners", "public_listener"),
        ("secrets", "certificate"),
    ] {
        let text = legate::output(&["proxy", "config", &named, part])?;
        ensure!(text.contains(said), "{part}: {text}");
        let document = legate::json(&["proxy", "config", &named, part])?;
        let configs = document["configs"].as_array();
        ensure!(
            configs.is_some_and(|all| all.len() == 1),
            "{part}: {document}"
        );
    }
    let all = legate::output(&["proxy", "config", &named])?;
    ensure!(all.contains("CLUSTER") && all.contains("SECRET"), "{all}");
    let document: Value = legate::json(&["proxy", "config", &named, "all"])?;
    let text = document.to_string();
    ensure!(
        text.contains("private_key") && !text.contains("PRIVATE KEY"),
        "{text}"
    );
    Ok(())
}
