//! `Mesh`: settings of the whole mesh.

use super::declaration::spec;
use super::values::TLS_VERSIONS;

const ESCAPED_SLASHES: [&str; 6] = [
    "",
    "IMPLEMENTATION_SPECIFIC_DEFAULT",
    "KEEP_UNCHANGED",
    "REJECT_REQUEST",
    "UNESCAPE_AND_REDIRECT",
    "UNESCAPE_AND_FORWARD",
];
const UNDERSCORES: [&str; 4] = ["", "ALLOW", "REJECT_REQUEST", "DROP_HEADER"];

spec! {
    /// Settings of the whole mesh.
    MeshSpec {
        /// Captured traffic.
        transparent_proxy: MeshTransparentProxy,
        /// Whether services may take connections without mutual TLS.
        allow_enabling_permissive_mutual_tls(
            "allowEnablingPermissiveMutualTLS" => "AllowEnablingPermissiveMutualTLS"
        ): bool,
        /// Versions and cipher suites.
        tls("tls" => "TLS"): MeshTls,
        /// HTTP handling.
        http("http" => "HTTP"): MeshHttp,
        /// Cluster peering.
        peering: MeshPeering,
        /// Whether Envoy refuses routes to clusters that it does not know.
        validate_clusters: bool,
    }

    /// Settings for captured traffic.
    MeshTransparentProxy {
        /// Refuse connections to destinations outside the mesh.
        mesh_destinations_only: bool,
    }

    /// TLS settings by direction.
    MeshTls {
        /// For connections that proxies accept.
        incoming: MeshTlsDirection,
        /// For connections that proxies open.
        outgoing: MeshTlsDirection,
    }

    /// TLS settings of one direction; Envoy's default where one is left out.
    MeshTlsDirection {
        /// Lowest version.
        #[schemars(extend("enum" = TLS_VERSIONS))]
        tls_min_version("tlsMinVersion" => "TLSMinVersion"): String,
        /// Highest version.
        #[schemars(extend("enum" = TLS_VERSIONS))]
        tls_max_version("tlsMaxVersion" => "TLSMaxVersion"): String,
        /// Suites of TLS 1.2 and below.
        #[schemars(length(max = 64))]
        cipher_suites: Vec<String>,
    }

    /// HTTP handling.
    MeshHttp {
        /// Do not tell applications who called, in `x-forwarded-client-cert`.
        sanitize_x_forwarded_client_cert: bool,
        /// Inbound requests.
        incoming: MeshHttpDirection,
    }

    /// HTTP handling of one direction.
    MeshHttpDirection {
        /// How paths and headers are brought into one form before intentions are applied.
        request_normalization: RequestNormalization,
    }

    /// How paths and headers are brought into one form.
    RequestNormalization {
        /// Leave `.` and `..` in paths: intentions on paths can then be evaded.
        insecure_disable_path_normalization: bool,
        /// Turn `//` into `/`.
        merge_slashes: bool,
        /// What becomes of escaped slashes in paths.
        #[schemars(extend("enum" = ESCAPED_SLASHES))]
        path_with_escaped_slashes_action: String,
        /// What becomes of headers with underscores in their names.
        #[schemars(extend("enum" = UNDERSCORES))]
        headers_with_underscores_action: String,
    }

    /// Cluster peering.
    MeshPeering {
        /// Whether servers of peers talk through mesh gateways.
        peer_through_mesh_gateways: bool,
    }
}
