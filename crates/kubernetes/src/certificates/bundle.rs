//! The `caBundle` of the webhook's configuration: what the API server verifies the webhook by.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

/// The API server does not verify the webhook by our CA.
#[derive(Debug, thiserror::Error)]
pub(super) enum BundleError {
    /// The API server.
    #[error("the MutatingWebhookConfiguration {name} cannot be {what}: {source}")]
    Api {
        /// The object.
        name: String,
        /// What was asked for.
        what: &'static str,
        /// What the API server says.
        source: Box<kube::Error>,
    },
    /// The chart makes it.
    #[error("there is no MutatingWebhookConfiguration {name}: install the chart, which has it")]
    Missing {
        /// The object.
        name: String,
    },
}

/// Writes `bundle` wherever the configuration has another one. Nothing else is changed.
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
    // Webhooks are distinguished by their names, and what is not named here stays. With the version
    // that was read, so that a change that came meanwhile is looked at first.
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
