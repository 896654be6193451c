//! Findings about the servers: they respond, agree with each other, have valid certificates, and use
//! images of one version.

use std::collections::BTreeMap;

use legate_identity::CertificateInfo;

use super::datacenters;
use super::facts::{Facts, ServerApi, ServerPod, Servers};
use super::finding::Finding;
use super::release::Release;
use super::validity::{Validity, validity};
use crate::kubernetes::forward::is_no_way;

const SERVERS: &str = "servers";
const CERTIFICATE: &str = "server-certificate";
const AGREEMENT: &str = "server-agreement";
const VERSIONS: &str = "versions";

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    match &facts.servers {
        Err(why) => vec![Finding::cannot_see(SERVERS, "the servers", why)],
        Ok(Servers::External(host)) => vec![Finding::unchecked(
            SERVERS,
            format!(
                "they are outside of the release, at {host}: not checked from here; whether sidecars \
                 are connected to them is checked below"
            ),
        )],
        Ok(Servers::InCluster { replicas, pods }) => {
            let mut findings = reached(&facts.release, *replicas, pods);
            findings.extend(agreement(pods));
            findings.extend(certificates(facts, pods));
            findings.extend(datacenters::findings(pods));
            findings.extend(versions(&facts.release, pods));
            findings
        }
    }
}

fn answers(pods: &[ServerPod]) -> impl Iterator<Item = (&ServerPod, &ServerApi)> {
    pods.iter().filter_map(|pod| match &pod.api {
        Some(Ok(api)) => Some((pod, api)),
        _ => None,
    })
}

fn reached(release: &Release, replicas: i32, pods: &[ServerPod]) -> Vec<Finding> {
    let space = &release.namespace;
    let mut findings = Vec::new();
    if replicas == 0 || pods.len() < usize::try_from(replicas).unwrap_or_default() {
        let set = format!("statefulset/{}-server", release.full_name);
        findings.push(Finding::failed(
            SERVERS,
            format!(
                "{} of {replicas} pods of {set} in {space} are there",
                pods.len()
            ),
            format!("see why with kubectl describe {set} --namespace {space}"),
        ));
    }
    for pod in pods {
        let name = &pod.name;
        let (message, next) = match &pod.api {
            Some(Ok(_)) => continue,
            None => (
                format!("pod {name} is not ready"),
                format!("see why with kubectl describe pod {name} --namespace {space}"),
            ),
            Some(Err(why)) if is_no_way(why) => {
                findings.push(Finding::cannot_see(SERVERS, &format!("pod {name}"), why));
                continue;
            }
            Some(Err(why)) => (
                format!("pod {name} is ready, but does not respond: {why}"),
                format!("read its log: kubectl logs {name} --namespace {space}"),
            ),
        };
        findings.push(Finding::failed(SERVERS, message, next));
    }
    if findings.is_empty() {
        let message = format!("{0} of {0} servers in {space} answer", pods.len());
        findings.push(Finding::ok(SERVERS, message));
    }
    findings
}

/// Servers of one mesh have the same trust domain and active root.
fn agreement(pods: &[ServerPod]) -> Option<Finding> {
    let mut views: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (pod, api) in answers(pods) {
        let view = (api.trust_domain.as_str(), api.active_root.as_str());
        views.entry(view).or_default().push(&pod.name);
    }
    if let [(domain, _)] = views.keys().collect::<Vec<_>>()[..] {
        let message = format!("trust domain {domain}, one root certificate");
        return Some(Finding::ok(AGREEMENT, message));
    }
    let views: Vec<String> = views
        .iter()
        .map(|((domain, root), pods)| format!("{}: {domain}, root {root}", pods.join(" and ")))
        .collect();
    (!views.is_empty()).then(|| {
        Finding::failed(
            AGREEMENT,
            format!("servers belong to different meshes: {}", views.join("; ")),
            "let all servers of the release share one state: server.etcd.endpoints for several \
             servers, or server.replicas=1",
        )
    })
}

fn certificates(facts: &Facts, pods: &[ServerPod]) -> Vec<Finding> {
    let release = &facts.release;
    let mut good = None;
    let mut findings = Vec::new();
    for (pod, api) in answers(pods) {
        let Some(own) = api.chain.first() else {
            continue;
        };
        let info = match CertificateInfo::from_der(own) {
            Ok(info) => info,
            Err(error) => {
                let what = format!("the certificate of pod {}", pod.name);
                findings.push(Finding::cannot_see(CERTIFICATE, &what, &error.to_string()));
                continue;
            }
        };
        match validity(info.not_before, info.not_after, facts.now) {
            Validity::Good(until) => good = Some(format!("valid {until}")),
            Validity::Bad(why) => findings.push(Finding::failed(
                CERTIFICATE,
                format!("pod {}: its certificate {why}", pod.name),
                format!(
                    "renew the Secret that the pod mounts (the operator does it for \
                     {0}-server-cert), then kubectl rollout restart statefulset/{0}-server \
                     --namespace {1}",
                    release.full_name, release.namespace
                ),
            )),
        }
    }
    if let Some(good) = good.filter(|_| findings.is_empty()) {
        findings.push(Finding::ok(CERTIFICATE, good));
    }
    findings
}

/// The tag of an image, unless it has a digest.
fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next().unwrap_or_default();
    let (_, tag) = name.rsplit_once(':')?;
    // A colon before a slash separates the port of a registry.
    (!tag.contains('/')).then_some(tag)
}

/// Images of one release have the same tag.
fn versions(release: &Release, pods: &[ServerPod]) -> Option<Finding> {
    let mut images = vec![("operator", release.image.as_str())];
    images.extend(pods.iter().map(|pod| ("server", pod.image.as_str())));
    images.push(("sidecars", &release.dataplane_image));
    images.dedup();
    let mut tags = BTreeMap::new();
    for (part, image) in images {
        match tag(image) {
            Some(tag) => tags.entry(tag).or_insert_with(Vec::new).push(part),
            None => {
                let message = format!("image {image} has no tag to compare");
                return Some(Finding::unchecked(VERSIONS, message));
            }
        }
    }
    let said: Vec<String> = tags
        .iter()
        .map(|(tag, parts)| format!("{} {tag}", parts.join(" and ")))
        .collect();
    Some(match tags.len() {
        1 => {
            let tag = tags.keys().next().copied().unwrap_or_default();
            Finding::ok(
                VERSIONS,
                format!("all images of the release have the tag {tag}"),
            )
        }
        _ => Finding::warning(
            VERSIONS,
            format!("images of different versions: {}", said.join(", ")),
            "set global.image, global.imageK8S and global.imageConsulDataplane to one version with \
             helm upgrade, and wait until the pods are replaced",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags() {
        assert_eq!(tag("localhost/legate-server:test"), Some("test"));
        assert_eq!(tag("registry:5000/legate-server:1.2"), Some("1.2"));
        assert_eq!(tag("registry:5000/legate-server"), None);
        assert_eq!(tag("legate-server@sha256:00"), None);
        assert_eq!(tag("legate-server:1.2@sha256:00"), Some("1.2"));
    }
}
