//! Selects the sidecar of a command: finds the pod and its dataplane.

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};

use crate::kubernetes::sidecar::Sidecar;
use crate::kubernetes::{Cluster, answer};

/// Selects a pod.
#[derive(Debug, Args)]
pub(super) struct Target {
    #[command(flatten)]
    cluster: Cluster,
    /// The pod: NAME, or NAMESPACE/NAME. With `status --http-addr` the proxy: PROXY-ID, or NODE/PROXY-ID
    #[arg(value_name = "POD")]
    pub(super) pod: String,
    /// Namespace of the pod; default: that of the kubeconfig's context. With --http-addr: namespace of the
    /// proxy in the mesh
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(super) namespace: Option<String>,
}

/// A pod with its sidecar.
pub(super) struct PodSidecar {
    pub(super) client: Client,
    pub(super) sidecar: Sidecar,
}

impl Target {
    /// Finds the pod's sidecar.
    ///
    /// # Errors
    ///
    /// If the pod does not exist, or has no sidecar.
    pub(super) async fn find(&self) -> anyhow::Result<PodSidecar> {
        let (namespace, name) = parse(&self.pod, self.namespace.as_deref())?;
        let client = self.cluster.client().await?;
        let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let pod = answer(pods.get(&name)).await.map_err(anyhow::Error::msg)?;
        let sidecar = Sidecar::of(&pod).with_context(|| {
            format!(
                "pod {name} in {namespace} has no sidecar: add the annotation \
                 consul.hashicorp.com/connect-inject=true and recreate the pod"
            )
        })?;
        Ok(PodSidecar { client, sidecar })
    }
}

/// Parses the name of a pod with an optional namespace: `NAME`, `pod/NAME` as printed by kubectl, or
/// `NAMESPACE/NAME` as printed by `legate check`.
fn parse(pod: &str, namespace: Option<&str>) -> anyhow::Result<(Option<String>, String)> {
    let own = |text: &str| text.to_owned();
    match pod.split_once('/') {
        None => Ok((namespace.map(own), own(pod))),
        Some(("pod" | "pods", name)) => Ok((namespace.map(own), own(name))),
        Some((named, name)) if namespace.is_none_or(|given| given == named) => {
            Ok((Some(own(named)), own(name)))
        }
        Some((named, _)) => bail!(
            "{pod} is a pod of {named}, and --namespace names {}: remove one of them",
            namespace.unwrap_or_default()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_with_or_without_its_namespace() {
        let of = |pod: &str, namespace: Option<&str>| parse(pod, namespace).unwrap();
        assert_eq!(of("web", None), (None, "web".to_owned()));
        assert_eq!(
            of("web", Some("shop")),
            (Some("shop".to_owned()), "web".to_owned())
        );
        assert_eq!(of("pod/web", None), (None, "web".to_owned()));
        assert_eq!(
            of("shop/web", None),
            (Some("shop".to_owned()), "web".to_owned())
        );
        assert_eq!(of("shop/web", Some("shop")).1, "web");
        let error = parse("shop/web", Some("other")).unwrap_err();
        assert!(
            error.to_string().contains("--namespace names other"),
            "{error}"
        );
    }
}
