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
        /// Settings for captured traffic.
        transparent_proxy: MeshTransparentProxy,
        /// Whether services may accept connections without mutual TLS.
        allow_enabling_permissive_mutual_tls(
            "allowEnablingPermissiveMutualTLS" => "AllowEnablingPermissiveMutualTLS"
        ): bool,
        /// TLS versions and cipher suites.
        tls("tls" => "TLS"): MeshTls,
        /// HTTP handling.
        http("http" => "HTTP"): MeshHttp,
        /// Cluster peering.
        peering: MeshPeering,
        /// Whether Envoy rejects routes to unknown clusters.
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

    /// TLS settings of one direction. Default: Envoy's.
    MeshTlsDirection {
        /// Minimum TLS version.
        #[schemars(extend("enum" = TLS_VERSIONS))]
        tls_min_version("tlsMinVersion" => "TLSMinVersion"): String,
        /// Maximum TLS version.
        #[schemars(extend("enum" = TLS_VERSIONS))]
        tls_max_version("tlsMaxVersion" => "TLSMaxVersion"): String,
        /// Cipher suites for TLS 1.2 and below.
        #[schemars(length(max = 64))]
        cipher_suites: Vec<String>,
    }

    /// HTTP handling.
    MeshHttp {
        /// Omit the caller's identity (`x-forwarded-client-cert`) from requests to applications.
        sanitize_x_forwarded_client_cert: bool,
        /// Inbound requests.
        incoming: MeshHttpDirection,
    }

    /// HTTP handling of one direction.
    MeshHttpDirection {
        /// How paths and headers are normalized before intentions are evaluated.
        request_normalization: RequestNormalization,
    }

    /// How paths and headers are normalized.
    RequestNormalization {
        /// Keep `.` and `..` in paths. Intentions on paths can then be bypassed.
        insecure_disable_path_normalization: bool,
        /// Replace `//` by `/`.
        merge_slashes: bool,
        /// The treatment of escaped slashes in paths.
        #[schemars(extend("enum" = ESCAPED_SLASHES))]
        path_with_escaped_slashes_action: String,
        /// The treatment of headers with underscores in their names.
        #[schemars(extend("enum" = UNDERSCORES))]
        headers_with_underscores_action: String,
    }

    /// Cluster peering.
    MeshPeering {
        /// Whether servers of peers communicate through mesh gateways.
        peer_through_mesh_gateways: bool,
    }
}
