//! Derives findings from facts, in order of dependency. Pure.

use super::facts::{Facts, Observed, OperatorPod};
use super::finding::Finding;
use super::release::Release;
use super::{pods, servers, webhook};

/// All findings.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(
        "kubernetes",
        format!("the API server answers: {}", facts.version),
    )];
    findings.extend(operator(&facts.release, &facts.operator_pods));
    findings.extend(webhook::findings(facts));
    findings.extend(servers::findings(facts));
    findings.extend(pods::findings(facts));
    findings
}

fn operator(release: &Release, pods: &Observed<Vec<OperatorPod>>) -> Vec<Finding> {
    const CHECK: &str = "operator";
    let object = format!("deployment/{}", release.operator);
    let space = &release.namespace;
    if release.replicas == 0 {
        return vec![Finding::failed(
            CHECK,
            format!("{object} in {space} is scaled to 0: no pod gets a sidecar"),
            format!("kubectl scale {object} --namespace {space} --replicas=2"),
        )];
    }
    let mut findings = Vec::new();
    if release.available < release.replicas {
        findings.push(Finding::failed(
            CHECK,
            format!(
                "{} of {} pods of {object} in {space} are available",
                release.available, release.replicas
            ),
            format!("see why with kubectl describe {object} --namespace {space}"),
        ));
    }
    match pods {
        Err(why) => findings.push(Finding::cannot_see(CHECK, "the operator's pods", why)),
        Ok(pods) => findings.extend(pods.iter().filter_map(|pod| unready(release, pod))),
    }
    if release.updated < release.replicas {
        findings.push(Finding::warning(
            CHECK,
            format!("{object} in {space} is being rolled out"),
            format!("kubectl rollout status {object} --namespace {space}"),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            CHECK,
            format!("{object} in {space} is available: {}", release.available),
        ));
    }
    findings
}

/// The finding of an operator that reports itself not ready.
fn unready(release: &Release, pod: &OperatorPod) -> Option<Finding> {
    let (what, why) = match &pod.readiness {
        Ok((true, _)) => return None,
        Ok((false, why)) => ("is not ready", why.trim().replace('\n', "; ")),
        Err(why) => ("does not respond at /readyz", why.clone()),
    };
    // The kubelet has seen it ready, so the problem is the connection from here.
    if pod.ready && pod.readiness.is_err() {
        return Some(Finding::cannot_see(
            "operator",
            &format!("pod {}", pod.name),
            &why,
        ));
    }
    Some(Finding::failed(
        "operator",
        format!("pod {} {what}: {why}", pod.name),
        format!(
            "read its log: kubectl logs {} --namespace {}",
            pod.name, release.namespace
        ),
    ))
}
