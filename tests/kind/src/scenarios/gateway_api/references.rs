//! What routes and listeners refer to is deleted, one object after the other: what needs it answers with an error or is
//! closed, never calls another backend or the same one in plain text, and everything else is served.

use std::process::Command;

use anyhow::{Context, anyhow, ensure};
use serde_json::{Value, json};

use super::{PORT, apply, class, delete_class, gateway, outside, rule};
use crate::cluster::{eventually, output};
use crate::namespace::Namespace;
use crate::workload::{ask, ask_until_answered};

const CLASS: &str = "references";
/// The listener for TLS.
pub(crate) const TLS_PORT: u16 = 8443;
/// The controller of a status entry that is not ours.
const OTHER: &str = "example.com/other";
/// The applications: the client, the one whose Service is deleted, and one in another namespace.
const CLIENT: &str = "refers-client";
const GONE: &str = "refers-gone";
const FAR: &str = "refers-far";

pub(super) fn what_a_gateway_refers_to_goes_away(space: &Namespace) -> anyhow::Result<()> {
    let far = Namespace::create(space.cluster, "refers-far")?;
    outside(FAR).run(&far)?;
    outside(CLIENT).run(space)?;
    outside(GONE).run(space)?;
    certificate(space)?;
    secured(space)?;
    grant(&far, &space.name)?;
    class(space, CLASS, 1)?;
    let tls = json!({
        "name": "tls", "port": TLS_PORT, "protocol": "HTTPS",
        "tls": {"certificateRefs": [{"name": "refers-tls"}]},
    });
    gateway(space, "edge", CLASS, &[tls])?;
    apply(space, "HTTPRoute", "route", &route(&far.name))?;

    // A rule with a field that is not served answers for its own requests.
    for name in ["kept", "gone", "far"] {
        ask_until_answered(space, CLIENT, &url(name))?;
    }
    answers(space, "filtered", "500")?;
    let message = condition(space, "PartiallyInvalid", "UnsupportedValue")?;
    ensure!(message.contains("filters[0]"), "{message}");
    // The backend does not speak TLS.
    answers(space, "secured", "503")?;
    other_controller(space)?;

    space.kubectl(&["delete", "configmap/refers-ca"])?;
    answers(space, "secured", "500")?;
    space.kubectl(&["delete", &format!("service/{GONE}")])?;
    answers(space, "gone", "500")?;
    condition(space, "ResolvedRefs", "BackendNotFound")?;
    far.kubectl(&["delete", "referencegrant/from-routes"])?;
    answers(space, "far", "500")?;
    ensure!(is_open(space)?, "the listener for TLS has its certificate");
    space.kubectl(&["delete", "secret/refers-tls"])?;
    eventually("the listener for TLS is closed", || {
        ensure!(!is_open(space)?, "it accepts connections");
        Ok(())
    })?;

    let answer = ask(space, CLIENT, &url("kept"))?;
    let instance = answer["instance"].as_str().unwrap_or_default();
    ensure!(instance.starts_with(CLIENT), "{answer}");
    let parents = parents(space)?;
    let is_others = |parent: &Value| parent["controllerName"] == OTHER;
    ensure!(parents.iter().any(is_others), "{parents:?}");
    delete_class(space.cluster, CLASS)?;
    far.delete()
}

fn url(path: &str) -> String {
    format!("http://edge-{CLASS}:{PORT}/{path}")
}

/// A rule for each reference.
fn route(far: &str) -> Value {
    let service = |name: &str| json!({"name": name, "port": 80});
    let mut in_far = service(FAR);
    in_far["namespace"] = json!(far);
    let mut filtered = rule("filtered", &service(CLIENT));
    let reference = json!({"group": "example.com", "kind": "Filter", "name": "none"});
    filtered["filters"] = json!([{"type": "ExtensionRef", "extensionRef": reference}]);
    json!({
        "parentRefs": [{"name": "edge", "sectionName": "http"}],
        "rules": [
            rule("kept", &service(CLIENT)),
            rule("gone", &service(GONE)),
            rule("far", &in_far),
            filtered,
            rule("secured", &service("refers-secured")),
        ],
    })
}

/// A Service of the client's pods that is called by TLS.
fn secured(space: &Namespace) -> anyhow::Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "refers-secured"},
        "spec": {
            "selector": {"app": CLIENT},
            "ports": [{"port": 80, "targetPort": crate::workload::PORT}],
        },
    });
    space.apply(&service.to_string())?;
    let policy = json!({
        "targetRefs": [{"group": "", "kind": "Service", "name": "refers-secured"}],
        "validation": {
            "hostname": "refers.example.com",
            "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "refers-ca"}],
        },
    });
    apply(space, "BackendTLSPolicy", "refers-secured", &policy)
}

/// A Secret with a certificate, and a ConfigMap with the same one as an authority.
pub(crate) fn certificate(space: &Namespace) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (key, certificate) = (file("tls.key"), file("tls.crt"));
    let mut openssl = Command::new("openssl");
    openssl
        .args(["req", "-x509", "-newkey", "ec", "-noenc", "-days", "2"])
        .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-subj", "/CN=refers.example.com"])
        .args(["-addext", "subjectAltName=DNS:refers.example.com"])
        .args(["-keyout", &key, "-out", &certificate]);
    output(&mut openssl, "")?;
    let (key, file) = (format!("--key={key}"), format!("--cert={certificate}"));
    space.kubectl(&["create", "secret", "tls", "refers-tls", &key, &file])?;
    let file = format!("--from-file=ca.crt={certificate}");
    space.kubectl(&["create", "configmap", "refers-ca", &file])?;
    Ok(())
}

/// Lets routes of a namespace refer to Services of `far`.
fn grant(far: &Namespace, from: &str) -> anyhow::Result<()> {
    let grant = json!({
        "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": from}],
        "to": [{"group": "", "kind": "Service"}],
    });
    apply(far, "ReferenceGrant", "from-routes", &grant)
}

/// Adds the status entry of another controller.
fn other_controller(space: &Namespace) -> anyhow::Result<()> {
    let entry = json!({
        "controllerName": OTHER,
        "parentRef": {"name": "other"},
        "conditions": [{
            "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    let patch = json!([{"op": "add", "path": "/status/parents/-", "value": entry}]);
    let patch = format!("--patch={patch}");
    let words = ["patch", "httproute/route", "--subresource=status"];
    space.kubectl(&[&words[..], &["--type=json", &patch]].concat())?;
    Ok(())
}

fn parents(space: &Namespace) -> anyhow::Result<Vec<Value>> {
    let route = space.json(&["get", "httproute/route"])?;
    let parents = route["status"]["parents"].as_array();
    Ok(parents.context("the route has a status")?.clone())
}

/// Waits until a condition of the route has a reason; returns its message.
fn condition(space: &Namespace, kind: &str, reason: &str) -> anyhow::Result<String> {
    eventually(&format!("{kind} is {reason}"), || {
        let parents = parents(space)?;
        let own = parents.iter().filter(|one| one["controllerName"] != OTHER);
        let mut conditions = own.flat_map(|one| one["conditions"].as_array().into_iter().flatten());
        let found = conditions.find(|one| one["type"] == kind && one["reason"] == reason);
        let message = found.and_then(|one| one["message"].as_str());
        message
            .map(str::to_owned)
            .with_context(|| format!("{parents:?}"))
    })
}

/// Waits until requests are answered with this status. Until then only their own backend may answer, if they have one.
fn answers(space: &Namespace, path: &str, status: &str) -> anyhow::Result<()> {
    let backend = match path {
        "gone" => Some(GONE),
        "far" => Some(FAR),
        // It would be called in plain text, or the filter would be left out.
        _ => None,
    };
    let expected = format!("error: {status} ");
    let wrong = eventually(&format!("/{path} is answered with {status}"), || match ask(
        space,
        CLIENT,
        &url(path),
    ) {
        Ok(answer) => {
            let instance = answer["instance"].as_str().unwrap_or_default();
            match backend {
                Some(name) if instance.starts_with(name) => Err(anyhow!("{answer}")),
                _ => Ok(Some(answer)),
            }
        }
        Err(error) if format!("{error:#}").contains(&expected) => Ok(None),
        Err(error) => Err(error),
    })?;
    match wrong {
        None => Ok(()),
        Some(answer) => Err(anyhow!("/{path} must not be answered by this: {answer}")),
    }
}

/// Whether the listener for TLS accepts connections.
fn is_open(space: &Namespace) -> anyhow::Result<bool> {
    let url = format!("http://edge-{CLASS}:{TLS_PORT}/");
    match ask(space, CLIENT, &url) {
        Ok(answer) => Err(anyhow!("it is served without TLS: {answer}")),
        Err(error) => Ok(!format!("{error:#}").contains("cannot connect")),
    }
}
