//! Findings about the webhook: its configuration, its certificate, and whether the API server calls
//! it.

use std::time::SystemTime;

use legate_identity::CertificateInfo;
use legate_identity::tls::verify_server;

use super::facts::{Admission, Facts, OperatorPod, Webhook};
use super::finding::Finding;
use super::release::Release;
use super::validity::{Validity, validity};

const CONFIGURATION: &str = "webhook-configuration";
const CERTIFICATE: &str = "webhook-certificate";
const CALLED: &str = "webhook-called";

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let release = &facts.release;
    let webhook = match &facts.webhook {
        Err(why) => {
            let what = "the MutatingWebhookConfiguration";
            return vec![Finding::cannot_see(CONFIGURATION, what, why)];
        }
        Ok(None) => {
            return vec![Finding::failed(
                CONFIGURATION,
                format!(
                    "there is no MutatingWebhookConfiguration {}-operator: no pod gets a sidecar",
                    release.full_name
                ),
                "install the chart again with helm upgrade",
            )];
        }
        Ok(Some(webhook)) => webhook,
    };
    let mut findings = Vec::new();
    let name = &webhook.configuration;
    match &webhook.ca_bundle {
        None => findings.push(Finding::failed(
            CONFIGURATION,
            format!("{name} has no caBundle: the API server cannot verify the webhook"),
            restart(
                release,
                "the operator writes it: check its log, or restart it",
            ),
        )),
        Some(bundle) => {
            findings.push(Finding::ok(CONFIGURATION, format!("{name} is there")));
            let pods = facts.operator_pods.as_deref().unwrap_or_default();
            findings.extend(certificates(release, webhook, bundle, pods, facts.now));
        }
    }
    findings.push(called(release, webhook, &facts.admission));
    findings
}

fn restart(release: &Release, why: &str) -> String {
    format!(
        "{why}: kubectl rollout restart deployment/{} --namespace {}",
        release.operator, release.namespace
    )
}

/// Each operator has a certificate of its own, and the API server may reach any of them.
fn certificates(
    release: &Release,
    webhook: &Webhook,
    bundle: &str,
    pods: &[OperatorPod],
    now: SystemTime,
) -> Vec<Finding> {
    if pods.is_empty() {
        let message = "no pod of the operator presents a certificate";
        return vec![Finding::unchecked(CERTIFICATE, message)];
    }
    let judge = |pod: &OperatorPod| certificate(release, webhook, bundle, pod, now);
    let (good, bad): (Vec<Finding>, Vec<Finding>) = pods
        .iter()
        .map(judge)
        .partition(|finding| finding.outcome == super::finding::Outcome::Ok);
    // One line for all valid certificates.
    good.into_iter().take(1).chain(bad).collect()
}

fn certificate(
    release: &Release,
    webhook: &Webhook,
    bundle: &str,
    pod: &OperatorPod,
    now: SystemTime,
) -> Finding {
    let name = &pod.name;
    let chain = match &pod.chain {
        Ok(chain) => chain,
        Err(why) => {
            return Finding::cannot_see(CERTIFICATE, &format!("pod {name}'s certificate"), why);
        }
    };
    let Some(Ok(info)) = chain.first().map(|own| CertificateInfo::from_der(own)) else {
        return Finding::cannot_see(
            CERTIFICATE,
            &format!("pod {name}'s certificate"),
            "there is none",
        );
    };
    let host = &webhook.host;
    let origin = format!("the caBundle of {}", webhook.configuration);
    match validity(info.not_before, info.not_after, now) {
        Validity::Good(until) => match verify_server(chain, bundle, &origin, host, now) {
            Ok(()) => Finding::ok(CERTIFICATE, format!("valid for {host} {until}")),
            Err(error) => Finding::failed(
                CERTIFICATE,
                format!("pod {name}: {origin} does not verify its certificate for {host}: {error}"),
                restart(
                    release,
                    "the operator writes the caBundle within a minute; else restart it",
                ),
            ),
        },
        Validity::Bad(why) => Finding::failed(
            CERTIFICATE,
            format!("pod {name}: its certificate {why}"),
            restart(
                release,
                "it should have been renewed: check the operator's log, or restart it",
            ),
        ),
    }
}

/// The pod of the dry run has an annotation that the webhook refuses: the refusal proves that the
/// webhook was called.
fn called(release: &Release, webhook: &Webhook, admission: &Admission) -> Finding {
    let hook = &webhook.name;
    let check_operator = || {
        format!(
            "check the operator: kubectl get pods --namespace {} --selector component=operator",
            release.namespace
        )
    };
    match admission {
        Admission::NoNamespace => Finding::unchecked(
            CALLED,
            "no namespace is known whose pods the webhook's namespaceSelector selects",
        ),
        Admission::Failed(why) => {
            Finding::cannot_see(CALLED, "whether the API server calls the webhook", why)
        }
        Admission::Created { namespace } => Finding::failed(
            CALLED,
            format!("the API server creates pods in {namespace} without calling {hook}"),
            check_operator() + ", and at failurePolicy and the selectors of its configuration",
        ),
        Admission::Refused {
            namespace, words, ..
        } if words.contains(&format!("{hook:?} denied the request")) => Finding::ok(
            CALLED,
            format!("the API server calls {hook} for pods in {namespace}"),
        ),
        Admission::Refused { words, .. } if words.contains(hook.as_str()) => Finding::failed(
            CALLED,
            format!("the API server cannot call the webhook: {words}"),
            check_operator(),
        ),
        Admission::Refused {
            namespace,
            code: 401 | 403,
            words,
        } => Finding::unchecked(
            CALLED,
            format!("a pod in {namespace} was refused before the webhook was called: {words}"),
        ),
        Admission::Refused {
            namespace, words, ..
        } => Finding::failed(
            CALLED,
            format!("a pod in {namespace} was refused by something other than {hook}: {words}"),
            check_operator(),
        ),
    }
}
