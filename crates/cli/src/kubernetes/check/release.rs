//! Finds the installation of the chart among the Deployments with the operator's labels.

use anyhow::bail;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

use super::finding::Finding;
use crate::kubernetes::sidecar::flag;

/// Labels of the operator's Deployment in the chart.
pub(super) const OPERATOR: &str = "app=legate,component=operator";

/// An installation, as derived from its operator's Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kubernetes) struct Release {
    pub(in crate::kubernetes) namespace: String,
    /// Prefix of all object names.
    pub(in crate::kubernetes) full_name: String,
    /// The Deployment.
    pub(super) operator: String,
    /// The configured, available and up-to-date numbers of operators.
    pub(super) replicas: i32,
    pub(super) available: i32,
    pub(super) updated: i32,
    /// Image of the operator.
    pub(super) image: String,
    /// Image of the sidecars that it injects.
    pub(super) dataplane_image: String,
    /// The servers' address, from the operator's flags.
    pub(super) server_host: String,
    /// Whether TLS is used to connect to them.
    pub(super) tls: bool,
    /// The label `release` of all pods of the installation.
    pub(super) label: String,
}

impl Release {
    /// Derives the release from a Deployment.
    pub(super) fn of(deployment: &Deployment) -> Release {
        let operator = deployment.name_any();
        let spec = deployment.spec.as_ref();
        let pod = spec.and_then(|spec| spec.template.spec.as_ref());
        let container = pod.and_then(|pod| pod.containers.first());
        let arguments = container.and_then(|container| container.args.as_deref());
        let arguments = arguments.unwrap_or_default();
        let text = |name| flag(arguments, name).unwrap_or_default().to_owned();
        let full_name = flag(arguments, "full-name");
        let full_name = full_name.or_else(|| operator.strip_suffix("-operator"));
        let status = deployment.status.as_ref();
        let count = |of: fn(&k8s_openapi::api::apps::v1::DeploymentStatus) -> Option<i32>| {
            status.and_then(of).unwrap_or(0)
        };
        Release {
            namespace: deployment.namespace().unwrap_or_default(),
            full_name: full_name.unwrap_or(&operator).to_owned(),
            replicas: spec.and_then(|spec| spec.replicas).unwrap_or(1),
            available: count(|status| status.available_replicas),
            updated: count(|status| status.updated_replicas),
            image: container
                .and_then(|container| container.image.clone())
                .unwrap_or_default(),
            dataplane_image: text("dataplane-image"),
            server_host: text("server-addresses"),
            tls: arguments
                .iter()
                .any(|it| it == "--tls" || it == "--tls=true"),
            label: deployment
                .labels()
                .get("release")
                .cloned()
                .unwrap_or_default(),
            operator,
        }
    }
}

/// The release among the Deployments with the operator's labels in `namespace`, or in all
/// namespaces; a finding if there is none.
///
/// # Errors
///
/// If there are several; the error lists them.
pub(super) fn choose(
    deployments: &[Deployment],
    namespace: Option<&str>,
) -> anyhow::Result<Result<Release, Finding>> {
    let place = match namespace {
        Some(namespace) => format!("namespace {namespace}"),
        None => "any namespace".to_owned(),
    };
    match deployments {
        [] => Ok(Err(Finding::failed(
            "operator",
            format!("no Deployment with the labels {OPERATOR} in {place}"),
            "install the chart (helm install), or name the namespace of its release with \
             --namespace",
        ))),
        [one] => Ok(Ok(Release::of(one))),
        several => {
            let names: Vec<String> = several
                .iter()
                .map(|one| format!("{}/{}", one.namespace().unwrap_or_default(), one.name_any()))
                .collect();
            bail!(
                "several releases of the chart in {place}: {}; choose one with --namespace",
                names.join(", ")
            )
        }
    }
}
