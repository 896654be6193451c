//! `TerminatingGateway`: which services outside the mesh a terminating gateway leads to.

use super::declaration::{Spec, spec};
use super::values::{FreeMap, rules};

spec! {
    /// Which services outside the mesh a terminating gateway leads to.
    TerminatingGatewaySpec {
        /// The services.
        #[schemars(length(max = 1024))]
        services: Vec<LinkedService>,
        /// Not served: gateways are not deployed from this resource.
        deployment: FreeMap,
    }

    /// A service outside the mesh.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.certFile) && size(self.certFile) > 0) == \
         (has(self.keyFile) && size(self.keyFile) > 0)",
        "certFile and keyFile are given together",
    )])))]
    LinkedService {
        /// Its namespace.
        namespace: String,
        /// Its name, or `*`.
        name: String,
        /// File with the certificates of authorities that its own is checked with.
        ca_file("caFile" => "CAFile"): String,
        /// File with the certificate that the gateway shows it.
        cert_file: String,
        /// File with the key of that certificate.
        key_file: String,
        /// Server name in the TLS handshake.
        sni("sni" => "SNI"): String,
        /// Leave the host name of requests as it is.
        disable_auto_host_rewrite: bool,
        /// Not served: certificates are files of the gateway's pod.
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
                "spec.deployment is not served: gateways are not deployed from this resource; \
                 configure them in the chart's values and remove the field"
                    .into(),
            );
        }
        let services = self.services.iter().flatten();
        let index = services
            .enumerate()
            .find_map(|(i, service)| service.secret_ref.as_ref().map(|_| i))?;
        Some(format!(
            "spec.services[{index}].secretRef is not served: mount the Secret in the gateway's pod \
             and name its files in caFile, certFile and keyFile"
        ))
    }
}
