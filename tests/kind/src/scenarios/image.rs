//! The node, and scenarios without chart and injector.

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::scenarios::contract::{USER, app, pod};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "the_node_is_ready_and_answers_names",
        run: the_node_is_ready_and_answers_names,
    },
    Scenario {
        name: "a_pod_redirects_its_traffic_with_one_capability",
        run: a_pod_redirects_its_traffic_with_one_capability,
    },
];

fn the_node_is_ready_and_answers_names(space: &Namespace) -> anyhow::Result<()> {
    let nodes = space.cluster.json(&["get", "nodes"])?;
    let nodes = nodes["items"].as_array().context("nodes are a list")?;
    for node in nodes {
        let conditions = node["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let ready = conditions.any(|is| is["type"] == "Ready" && is["status"] == "True");
        ensure!(ready, "{node}");
    }
    space.apply(&pod("app", json!({}), &[app(&["serve", "--name=app"])]).to_string())?;
    space.kubectl(&[
        "expose",
        "pod/app",
        "--name=by-name",
        "--port=80",
        "--target-port=8080",
    ])?;
    space.wait("pod/app", "condition=Ready")?;
    let by_name = ["mesh-app", "get", "--retry=30", "http://by-name/"];
    let answer: Value = serde_json::from_str(&space.exec("app", "app", &by_name)?)?;
    ensure!(answer["instance"] == "app", "{answer}");
    Ok(())
}

/// The init container for redirection, with two servers under the sidecar's user instead of a
/// sidecar: one on the port for outbound connections, the other on the port for inbound ones.
fn a_pod_redirects_its_traffic_with_one_capability(space: &Namespace) -> anyhow::Result<()> {
    let config = json!({
        "ProxyUserID": USER.to_string(),
        "ProxyInboundPort": 20000,
        "ProxyOutboundPort": 15001,
        "ExcludeInboundPorts": ["8081"],
    });
    let redirect = json!({
        "name": "mesh-redirect",
        "image": "localhost/legate-k8s:test",
        "imagePullPolicy": "Never",
        "args": ["redirect"],
        "env": [{"name": "CONSUL_REDIRECT_TRAFFIC_CONFIG", "value": config.to_string()}],
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        },
    });
    let proxy = |name: &str, port: u16| {
        let mut proxy = app(&["serve", "--name", name, "--port", &port.to_string()]);
        proxy["name"] = json!(name);
        proxy["securityContext"]["runAsUser"] = json!(USER);
        proxy
    };
    let containers = [
        proxy("inbound", 20000),
        proxy("outbound", 15001),
        app(&["serve", "--name=app", "--port=8081"]),
    ];
    let pod_of = pod(
        "redirected",
        json!({"initContainers": [redirect]}),
        &containers,
    );
    space.apply(&pod_of.to_string())?;
    let other = pod("other", json!({}), &[app(&["serve", "--name=other"])]);
    space.apply(&other.to_string())?;
    space.wait("pod/redirected", "condition=Ready")?;
    space.wait("pod/other", "condition=Ready")?;
    let address =
        |pod: &str| space.kubectl(&["get", "pod", pod, "--output=jsonpath={.status.podIP}"]);
    let (redirected, other) = (address("redirected")?, address("other")?);
    for (from, container, url, expected) in [
        (
            "redirected",
            "app",
            format!("http://{other}:8080/"),
            "outbound",
        ),
        // The sidecar's own connections are not redirected.
        (
            "redirected",
            "outbound",
            format!("http://{other}:8080/"),
            "other",
        ),
        (
            "redirected",
            "app",
            "http://127.0.0.1:8081/".to_owned(),
            "app",
        ),
        (
            "other",
            "app",
            format!("http://{redirected}:8080/"),
            "inbound",
        ),
        ("other", "app", format!("http://{redirected}:8081/"), "app"),
    ] {
        let answer = space.exec(from, container, &["mesh-app", "get", &url])?;
        let answer: Value = serde_json::from_str(&answer)?;
        ensure!(
            answer["instance"] == expected,
            "{from} {container} {url}: {answer}"
        );
    }
    Ok(())
}
