//! `JWTProvider`: an issuer of JSON Web Tokens, and how its tokens are verified.

use super::declaration::spec;
use super::values::{Period, rules};

const DISCOVERY_TYPES: [&str; 6] = [
    "",
    "STRICT_DNS",
    "STATIC",
    "LOGICAL_DNS",
    "EDS",
    "ORIGINAL_DST",
];

spec! {
    /// An issuer of JSON Web Tokens, and how its tokens are verified.
    JwtProviderSpec {
        /// The keys that verify signatures.
        #[schemars(required)]
        json_web_key_set("jsonWebKeySet" => "JSONWebKeySet"): JsonWebKeySet,
        /// The required issuer of tokens (`iss`).
        issuer: String,
        /// The accepted audiences (`aud`); a token must have one of them.
        #[schemars(length(max = 256))]
        audiences: Vec<String>,
        /// Where requests carry tokens. Default: Envoy's.
        #[schemars(length(max = 64))]
        locations: Vec<Location>,
        /// How the token is forwarded to the application.
        forwarding: Forwarding,
        /// Tolerated clock skew in seconds. Default 30.
        clock_skew_seconds: u32,
        /// Cache of verified tokens.
        cache_config: Cache,
    }

    /// Where a request carries its token.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.header) ? 1 : 0) + (has(self.queryParam) ? 1 : 0) + \
         (has(self.cookie) ? 1 : 0) == 1",
        "exactly one of header, queryParam and cookie is needed",
    )])))]
    Location {
        /// In a header.
        header: LocationHeader,
        /// In a query parameter.
        query_param: LocationName,
        /// In a cookie.
        cookie: LocationName,
    }

    /// A header with a token.
    LocationHeader {
        /// Its name.
        #[schemars(required, length(min = 1))]
        name: String,
        /// The prefix before the token, such as `Bearer `.
        value_prefix: String,
        /// Keep the header in the forwarded request.
        forward: bool,
    }

    /// A query parameter or cookie with a token.
    LocationName {
        /// Its name.
        #[schemars(required, length(min = 1))]
        name: String,
    }

    /// How a token is forwarded to the application.
    Forwarding {
        /// The header with the token's payload.
        #[schemars(required, length(min = 1))]
        header_name: String,
        /// Pad the payload to a multiple of four characters.
        pad_forward_payload_header: bool,
    }

    /// The keys that verify signatures.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "has(self.local) != has(self.remote)",
        "exactly one of local and remote is needed",
    )])))]
    JsonWebKeySet {
        /// Keys in this resource.
        local: LocalKeySet,
        /// Keys fetched from a server.
        remote: RemoteKeySet,
    }

    /// Keys in this resource.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.jwks) && size(self.jwks) > 0) != (has(self.filename) && size(self.filename) > 0)",
        "exactly one of jwks and filename is needed",
    )])))]
    LocalKeySet {
        /// The key set, in base64.
        jwks("jwks" => "JWKS"): String,
        /// A file on every proxy.
        filename: String,
    }

    /// Keys fetched from a server.
    RemoteKeySet {
        /// The URI of the key set.
        #[schemars(required, length(min = 1))]
        uri("uri" => "URI"): String,
        /// Request timeout in milliseconds.
        request_timeout_ms: u32,
        /// How long keys are cached. Default 5 min.
        cache_duration: Period,
        /// Fetch the keys in the background instead of before the first request.
        fetch_asynchronously: bool,
        /// Send the server's name in the TLS handshake (SNI).
        use_sni("useSNI" => "UseSNI"): bool,
        /// How failed fetches are retried.
        retry_policy: RetryPolicy,
        /// How the server is reached.
        jwks_cluster("jwksCluster" => "JWKSCluster"): KeySetCluster,
    }

    /// How failed fetches are retried.
    RetryPolicy {
        /// Maximum number of retries.
        num_retries: u32,
        /// Backoff between retries.
        retry_policy_back_off: BackOff,
    }

    /// Backoff between retries.
    BackOff {
        /// Initial interval. Default 1 s.
        base_interval: Period,
        /// Maximum interval. Default ten times the initial one.
        max_interval: Period,
    }

    /// How the key server is reached.
    KeySetCluster {
        /// How its address is discovered. Default `STRICT_DNS`.
        #[schemars(extend("enum" = DISCOVERY_TYPES))]
        discovery_type: String,
        /// How its certificate is verified.
        tls_certificates("tlsCertificates" => "TLSCertificates"): TlsCertificates,
        /// Connect timeout. Default 5 s.
        connect_timeout: Period,
    }

    /// How the key server's certificate is verified.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "has(self.caCertificateProviderInstance) != has(self.trustedCA)",
        "exactly one of caCertificateProviderInstance and trustedCA is needed",
    )])))]
    TlsCertificates {
        /// A certificate provider from Envoy's bootstrap.
        ca_certificate_provider_instance: CertificateProvider,
        /// CA certificates.
        trusted_ca("trustedCA" => "TrustedCA"): TrustedCa,
    }

    /// A certificate provider from Envoy's bootstrap.
    CertificateProvider {
        /// Its name. Default `default`.
        instance_name: String,
        /// The name of the certificate.
        certificate_name: String,
    }

    /// CA certificates.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.filename) && size(self.filename) > 0 ? 1 : 0) + \
         (has(self.environmentVariable) && size(self.environmentVariable) > 0 ? 1 : 0) + \
         (has(self.inlineString) && size(self.inlineString) > 0 ? 1 : 0) + \
         (has(self.inlineBytes) && size(self.inlineBytes) > 0 ? 1 : 0) == 1",
        "exactly one of filename, environmentVariable, inlineString and inlineBytes is needed",
    )])))]
    TrustedCa {
        /// A file on every proxy.
        filename: String,
        /// An environment variable of every Envoy.
        environment_variable: String,
        /// PEM certificates.
        inline_string: String,
        /// PEM certificates, in base64.
        #[schemars(extend("format" = "byte"))]
        inline_bytes: String,
    }

    /// Cache of verified tokens.
    Cache {
        /// Maximum number of tokens; 0 disables the cache.
        size: u32,
    }
}
