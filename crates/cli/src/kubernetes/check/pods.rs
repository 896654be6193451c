//! Findings about pods with sidecars, and about pods that lack one.

use serde_json::Value;

use super::facts::{BarePod, Facts, MeshPod};
use super::finding::Finding;
use super::validity::{Validity, validity};
use crate::kubernetes::forward::is_no_way;

const INJECTED: &str = "pods-injected";
const READY: &str = "pods-ready";
const CONNECTED: &str = "proxies-connected";
const CONFIGURED: &str = "proxies-configured";
const CERTIFICATES: &str = "proxy-certificates";
const VERSIONS: &str = "sidecar-versions";

/// How many pods are listed by one check, which limits the output if all fail.
const NAMED: usize = 20;

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = match &facts.bare_pods {
        Err(why) => vec![Finding::cannot_see(INJECTED, "pods", why)],
        Ok(pods) => {
            let release = &facts.release.namespace;
            let bad = pods.iter().map(|pod| bare(pod, release)).collect();
            one_or_all(INJECTED, bad, "no pod lacks a requested sidecar")
        }
    };
    let pods = match &facts.pods {
        Err(why) => {
            findings.push(Finding::cannot_see(READY, "pods with sidecars", why));
            return findings;
        }
        Ok(pods) if pods.is_empty() => {
            let none = "no pod has a sidecar yet";
            findings.push(Finding::ok(READY, none));
            return findings;
        }
        Ok(pods) => pods,
    };
    type Judge<'a> = dyn Fn(&MeshPod) -> Option<Finding> + 'a;
    let mut each = |check, judge: &Judge<'_>, good: &str| {
        let bad = pods.iter().filter_map(judge).collect();
        findings.extend(one_or_all(check, bad, good));
    };
    let count = pods.len();
    each(
        READY,
        &ready,
        &format!("{count} of {count} pods with a sidecar are ready"),
    );
    each(
        CONNECTED,
        &connected,
        "every proxy is connected to a server",
    );
    each(CONFIGURED, &configured, "every proxy has its configuration");
    let lasts = |pod: &MeshPod| certificate(pod, facts);
    each(CERTIFICATES, &lasts, "no certificate renewal is overdue");
    let image = &facts.release.dataplane_image;
    let same = |pod: &MeshPod| version(pod, image);
    each(VERSIONS, &same, &format!("all run {image}"));
    findings
}

/// The line for success, or the first lines about failures.
fn one_or_all(check: &'static str, mut bad: Vec<Finding>, good: &str) -> Vec<Finding> {
    if bad.is_empty() {
        return vec![Finding::ok(check, good)];
    }
    if bad.len() > NAMED {
        let more = bad.split_off(NAMED);
        // The worst of the remaining findings determines the outcome of their line.
        let failed = more
            .iter()
            .find(|finding| finding.outcome == super::finding::Outcome::Failed);
        let sample = failed.or(more.first()).cloned();
        bad.extend(sample.map(|sample| Finding {
            message: format!("and {} more pods, such as {}", more.len(), sample.message),
            ..sample
        }));
    }
    bad
}

/// How to recreate the pods.
fn again(namespace: &str, name: &str, owner: Option<&str>) -> String {
    match owner {
        Some(owner) => format!("kubectl rollout restart {owner} --namespace {namespace}"),
        None => format!("delete pod {name} in {namespace} and create it again"),
    }
}

fn bare(pod: &BarePod, release: &str) -> Finding {
    let (namespace, name) = (&pod.namespace, &pod.name);
    let asks = format!("{namespace}/{name} requests a sidecar and has none");
    if namespace == release || namespace == "kube-system" || namespace == "kube-public" {
        let next = format!("run it in another namespace: pods of {namespace} never get a sidecar");
        return Finding::failed(INJECTED, asks, next);
    }
    Finding::failed(
        INJECTED,
        format!("{asks}: the webhook was not called when it was created, or skipped it"),
        again(namespace, name, pod.owner.as_deref())
            + "; if that does not help, check connectInject.k8sDenyNamespaces and namespaceSelector",
    )
}

fn object(pod: &MeshPod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn logs(pod: &MeshPod) -> String {
    format!(
        "read its log: kubectl logs {} --namespace {} --container consul-dataplane",
        pod.name, pod.namespace
    )
}

fn ready(pod: &MeshPod) -> Option<Finding> {
    let describe = format!(
        "see why with kubectl describe pod {} --namespace {}",
        pod.name, pod.namespace
    );
    let (message, next) = if let Some(why) = &pod.sidecar_waits {
        (format!("its sidecar is not running: {why}"), describe)
    } else if !pod.sidecar_ready {
        let status = format!(
            "see what is missing with legate proxy status {} --namespace {}",
            pod.name, pod.namespace
        );
        ("its sidecar is not ready".to_owned(), status)
    } else if !pod.unready.is_empty() {
        let containers = pod.unready.join(", ");
        (format!("container {containers} is not ready"), describe)
    } else if !pod.ready {
        ("it is not ready".to_owned(), describe)
    } else {
        return None;
    };
    Some(Finding::failed(
        READY,
        format!("{}: {message}", object(pod)),
        next,
    ))
}

fn text<'a>(document: &'a Value, path: &str) -> Option<&'a str> {
    document.pointer(path).and_then(Value::as_str)
}

fn connected(pod: &MeshPod) -> Option<Finding> {
    // A sidecar that is not running is already reported as not ready.
    let document = match pod.status.as_ref()? {
        Ok(document) => document,
        Err(why) if is_no_way(why) => {
            return Some(Finding::cannot_see(CONNECTED, &object(pod), why));
        }
        Err(why) => {
            return Some(Finding::failed(
                CONNECTED,
                format!("{}: its sidecar cannot be queried: {why}", object(pod)),
                logs(pod),
            ));
        }
    };
    let state = text(document, "/session/state").unwrap_or("unknown");
    if state == "connected" {
        return None;
    }
    let why = text(document, "/session/last_error/error").unwrap_or("no server has responded yet");
    Some(Finding::failed(
        CONNECTED,
        format!(
            "{}: not connected to a server ({state}): {why}",
            object(pod)
        ),
        "make sure that the servers are running and that the pod can reach their gRPC port (see the checks \
         of servers above, and NetworkPolicies)",
    ))
}

fn configured(pod: &MeshPod) -> Option<Finding> {
    let document = match pod.status.as_ref()? {
        Ok(document) => document,
        Err(why) if is_no_way(why) => {
            return Some(Finding::cannot_see(CONFIGURED, &object(pod), why));
        }
        // Already reported as not connected.
        Err(_) => return None,
    };
    let missing = text(document, "/relay/missing").map(str::to_owned);
    let missing = missing.or_else(|| {
        let ready = document["ready"] == Value::Bool(true);
        let components = document["components"].as_array();
        let mut components = components.into_iter().flatten();
        let reason = components.find_map(|component| {
            // Without a server a proxy continues to serve with its current configuration.
            let counts = component["name"] != "session" && component["state"] != "ready";
            counts.then(|| component["reason"].as_str()).flatten()
        });
        reason.filter(|_| !ready).map(str::to_owned)
    })?;
    Some(Finding::failed(
        CONFIGURED,
        format!("{}: {missing}", object(pod)),
        format!(
            "see its progress with legate proxy status {} --namespace {}",
            pod.name, pod.namespace
        ),
    ))
}

fn certificate(pod: &MeshPod, facts: &Facts) -> Option<Finding> {
    if let Some(Err(why)) = &pod.status
        && is_no_way(why)
    {
        return Some(Finding::cannot_see(CERTIFICATES, &object(pod), why));
    }
    let leaves = match pod.leaves.as_ref()? {
        Ok(leaves) => leaves,
        Err(why) => return Some(Finding::cannot_see(CERTIFICATES, &object(pod), why)),
    };
    let bad = leaves.iter().find_map(|leaf| {
        match validity(leaf.not_before, leaf.not_after, facts.now) {
            Validity::Good(_) => None,
            Validity::Bad(why) => Some(why),
        }
    })?;
    Some(Finding::failed(
        CERTIFICATES,
        format!("{}: its certificate {bad}", object(pod)),
        format!(
            "make sure that it is connected to a server, which renews it, then restart it: {}",
            again(&pod.namespace, &pod.name, pod.owner.as_deref())
        ),
    ))
}

fn version(pod: &MeshPod, image: &str) -> Option<Finding> {
    if pod.image == image {
        return None;
    }
    Some(Finding::warning(
        VERSIONS,
        format!("{} runs {}, new pods get {image}", object(pod), pod.image),
        again(&pod.namespace, &pod.name, pod.owner.as_deref()),
    ))
}
