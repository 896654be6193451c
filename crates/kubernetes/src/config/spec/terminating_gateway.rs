//! `TerminatingGateway`: services outside the mesh that a terminating gateway serves.

use super::declaration::{Spec, spec};
use super::values::{FreeMap, rules};

spec! {
    /// Services outside the mesh that a terminating gateway serves.
    TerminatingGatewaySpec {
        /// The services.
        #[schemars(length(max = 1024))]
        services: Vec<LinkedService>,
        /// Not supported: gateways are not deployed from this resource.
        deployment: FreeMap,
    }

    /// A service outside the mesh.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.certFile) && size(self.certFile) > 0) == \
         (has(self.keyFile) && size(self.keyFile) > 0)",
        "certFile and keyFile must be set together",
    )])))]
    LinkedService {
        /// Its namespace.
        namespace: String,
        /// Its name, or `*`.
        name: String,
        /// File with CA certificates that verify the service.
        ca_file("caFile" => "CAFile"): String,
        /// File with the gateway's client certificate.
        cert_file: String,
        /// File with the key of the client certificate.
        key_file: String,
        /// SNI of connections to the service.
        sni("sni" => "SNI"): String,
        /// Keep the host name of requests.
        disable_auto_host_rewrite: bool,
        /// Not supported: certificates are files of the gateway's pod.
        secret_ref: SecretRef,
    }

    /// A Secret with certificates.
    SecretRef {
        /// Its name.
        name: String,
    }
}

impl Spec for TerminatingGatewaySpec {
    fn not_served(&self) -> Option<String> {
        if self.deployment.is_some() {
            return Some(
                "spec.deployment is not supported: gateways are not deployed from this resource; \
                 configure them in the chart's values and remove the field"
                    .into(),
            );
        }
        let services = self.services.iter().flatten();
        let index = services
            .enumerate()
            .find_map(|(i, service)| service.secret_ref.as_ref().map(|_| i))?;
        Some(format!(
            "spec.services[{index}].secretRef is not supported: mount the Secret in the gateway's pod \
             and name its files in caFile, certFile and keyFile"
        ))
    }
}
