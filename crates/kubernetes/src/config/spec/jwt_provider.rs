//! `JWTProvider`: who issues JSON Web Tokens, and how they are checked.

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
    /// Who issues JSON Web Tokens, and how they are checked.
    JwtProviderSpec {
        /// The keys that tokens are signed with.
        #[schemars(required)]
        json_web_key_set("jsonWebKeySet" => "JSONWebKeySet"): JsonWebKeySet,
        /// What tokens say about who issued them (`iss`).
        issuer: String,
        /// Whom tokens are for (`aud`); one of these has to be among a token's.
        #[schemars(length(max = 256))]
        audiences: Vec<String>,
        /// Where requests carry tokens; Envoy's default where it is left out.
        #[schemars(length(max = 64))]
        locations: Vec<Location>,
        /// How the application gets the token.
        forwarding: Forwarding,
        /// By how much clocks may differ, in seconds; 30 where it is left out.
        clock_skew_seconds: u32,
        /// Memory of tokens that were checked.
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
        /// What stands before the token, such as `Bearer `.
        value_prefix: String,
        /// Leave the header in the request.
        forward: bool,
    }

    /// A query parameter or cookie with a token.
    LocationName {
        /// Its name.
        #[schemars(required, length(min = 1))]
        name: String,
    }

    /// How the application gets a token.
    Forwarding {
        /// The header that the token's claims are written to.
        #[schemars(required, length(min = 1))]
        header_name: String,
        /// Pad the value to a multiple of four characters.
        pad_forward_payload_header: bool,
    }

    /// The keys that tokens are signed with.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "has(self.local) != has(self.remote)",
        "exactly one of local and remote is needed",
    )])))]
    JsonWebKeySet {
        /// Given here.
        local: LocalKeySet,
        /// From a server.
        remote: RemoteKeySet,
    }

    /// Keys that are given.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.jwks) && size(self.jwks) > 0) != (has(self.filename) && size(self.filename) > 0)",
        "exactly one of jwks and filename is needed",
    )])))]
    LocalKeySet {
        /// The key set, in base64.
        jwks("jwks" => "JWKS"): String,
        /// A file that every proxy has.
        filename: String,
    }

    /// Keys from a server.
    RemoteKeySet {
        /// Where they are.
        #[schemars(required, length(min = 1))]
        uri("uri" => "URI"): String,
        /// Longest time for the request, in milliseconds.
        request_timeout_ms: u32,
        /// How long keys are kept; 5 min where it is left out.
        cache_duration: Period,
        /// Do not wait for the keys before the first request.
        fetch_asynchronously: bool,
        /// Name the server in the TLS handshake.
        use_sni("useSNI" => "UseSNI"): bool,
        /// How often the request is tried again.
        retry_policy: RetryPolicy,
        /// How the server is reached.
        jwks_cluster("jwksCluster" => "JWKSCluster"): KeySetCluster,
    }

    /// How often a request is tried again.
    RetryPolicy {
        /// How often.
        num_retries: u32,
        /// How long it waits between.
        retry_policy_back_off: BackOff,
    }

    /// How long retries wait.
    BackOff {
        /// Before the first; 1 s where it is left out.
        base_interval: Period,
        /// At most; ten times the first where it is left out.
        max_interval: Period,
    }

    /// How the server of keys is reached.
    KeySetCluster {
        /// How its address is found; `STRICT_DNS` where it is left out.
        #[schemars(extend("enum" = DISCOVERY_TYPES))]
        discovery_type: String,
        /// What its certificate is checked with.
        tls_certificates("tlsCertificates" => "TLSCertificates"): TlsCertificates,
        /// Longest time to connect; 5 s where it is left out.
        connect_timeout: Period,
    }

    /// What the certificate of the server of keys is checked with.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "has(self.caCertificateProviderInstance) != has(self.trustedCA)",
        "exactly one of caCertificateProviderInstance and trustedCA is needed",
    )])))]
    TlsCertificates {
        /// A provider that Envoy's bootstrap configures.
        ca_certificate_provider_instance: CertificateProvider,
        /// Certificates of authorities.
        trusted_ca("trustedCA" => "TrustedCA"): TrustedCa,
    }

    /// A provider of certificates that Envoy's bootstrap configures.
    CertificateProvider {
        /// Its name; `default` where it is left out.
        instance_name: String,
        /// Which of its certificates.
        certificate_name: String,
    }

    /// Certificates of authorities.
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "(has(self.filename) && size(self.filename) > 0 ? 1 : 0) + \
         (has(self.environmentVariable) && size(self.environmentVariable) > 0 ? 1 : 0) + \
         (has(self.inlineString) && size(self.inlineString) > 0 ? 1 : 0) + \
         (has(self.inlineBytes) && size(self.inlineBytes) > 0 ? 1 : 0) == 1",
        "exactly one of filename, environmentVariable, inlineString and inlineBytes is needed",
    )])))]
    TrustedCa {
        /// A file that every proxy has.
        filename: String,
        /// An environment variable that every Envoy has.
        environment_variable: String,
        /// The certificates in PEM.
        inline_string: String,
        /// The certificates in PEM, in base64.
        #[schemars(extend("format" = "byte"))]
        inline_bytes: String,
    }

    /// Memory of tokens that were checked.
    Cache {
        /// How many; 0 means none.
        size: u32,
    }
}
