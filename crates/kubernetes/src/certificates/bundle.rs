//! The `caBundle` of the webhook's configuration, with which the API server verifies the webhook.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

/// The CA bundle could not be published.
#[derive(Debug, thiserror::Error)]
pub(super) enum BundleError {
    /// The API server returned an error.
    #[error("the MutatingWebhookConfiguration {name} cannot be {what}: {source}")]
    Api {
        /// The configuration's name.
        name: String,
        /// The failed operation.
        what: &'static str,
        /// The API server's error.
        source: Box<kube::Error>,
    },
    /// The configuration does not exist; the chart creates it.
    #[error("there is no MutatingWebhookConfiguration {name}: install the chart, which has it")]
    Missing {
        /// The configuration's name.
        name: String,
    },
}

/// Writes `bundle` to every webhook of the configuration that has another one. Nothing else is
/// changed.
///
/// # Errors
/// [`BundleError`].
pub(super) async fn publish(
    configurations: &Api<MutatingWebhookConfiguration>,
    name: &str,
    bundle: &str,
) -> Result<(), BundleError> {
    let api = |what| {
        let name = name.to_owned();
        move |source| BundleError::Api {
            name,
            what,
            source: Box::new(source),
        }
    };
    let found = configurations.get_opt(name).await.map_err(api("read"))?;
    let found = found.ok_or_else(|| BundleError::Missing {
        name: name.to_owned(),
    })?;
    let bundle = ByteString(bundle.as_bytes().to_owned());
    let webhooks = found.webhooks.unwrap_or_default();
    let others: Vec<_> = webhooks
        .iter()
        .filter(|webhook| webhook.client_config.ca_bundle.as_ref() != Some(&bundle))
        .map(|webhook| json!({ "name": webhook.name, "clientConfig": { "caBundle": bundle } }))
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    // Webhooks are merged by name, so that fields left out here stay. The patch includes the
    // resource version, so that concurrent changes cause a conflict and are read first.
    let patch = json!({
        "metadata": { "resourceVersion": found.metadata.resource_version },
        "webhooks": others,
    });
    let parameters = PatchParams::default();
    configurations
        .patch(name, &parameters, &Patch::Strategic(patch))
        .await
        .map_err(api("patched"))?;
    tracing::info!(configuration = name, "the webhook's CA has been published");
    Ok(())
}
