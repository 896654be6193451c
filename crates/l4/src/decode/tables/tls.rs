//! TLS on both sides, and secrets.

use super::core::{BOOL_VALUE, CONFIG_SOURCE, DATA_SOURCE, STRING_MATCHER};
use crate::decode::table::{Enum, Field, Kind, Message};

pub(in crate::decode) static DOWNSTREAM_TLS: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
    fields: &[
        Field::served(1, "common_tls_context", Kind::Message(&COMMON_TLS)),
        Field::served(2, "require_client_certificate", Kind::Message(&BOOL_VALUE)),
    ],
    refused: &[
        (3, "require_sni"),
        (4, "session_ticket_keys"),
        (5, "session_ticket_keys_sds_secret_config"),
        (6, "session_timeout"),
        (7, "disable_stateless_session_resumption"),
        (8, "ocsp_staple_policy"),
        (9, "full_scan_certs_on_sni_mismatch"),
        (10, "disable_stateful_session_resumption"),
        (11, "prefer_client_ciphers"),
    ],
    choices: &[],
};

pub(in crate::decode) static UPSTREAM_TLS: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
    fields: &[
        Field::served(1, "common_tls_context", Kind::Message(&COMMON_TLS)),
        Field::served(2, "sni", Kind::String),
    ],
    refused: &[
        (3, "allow_renegotiation"),
        (4, "max_session_keys"),
        (5, "enforce_rsa_key_usage"),
        (6, "auto_host_sni"),
        (7, "auto_sni_san_validation"),
    ],
    choices: &[],
};

pub(in crate::decode) static COMMON_TLS: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.CommonTlsContext",
    fields: &[
        Field::served(1, "tls_params", Kind::Message(&TLS_PARAMETERS)),
        Field::served(2, "tls_certificates", Kind::Message(&TLS_CERTIFICATE)).many(),
        Field::served(
            6,
            "tls_certificate_sds_secret_configs",
            Kind::Message(&SDS_SECRET),
        )
        .many(),
        Field::served(3, "validation_context", Kind::Message(&VALIDATION)),
        Field::served(
            7,
            "validation_context_sds_secret_config",
            Kind::Message(&SDS_SECRET),
        ),
        Field::served(
            8,
            "combined_validation_context",
            Kind::Message(&COMBINED_VALIDATION),
        ),
        Field::served(4, "alpn_protocols", Kind::String).many(),
    ],
    refused: &[
        (9, "tls_certificate_certificate_provider"),
        (10, "validation_context_certificate_provider"),
        (11, "tls_certificate_certificate_provider_instance"),
        (12, "validation_context_certificate_provider_instance"),
        (13, "custom_handshaker"),
        (14, "tls_certificate_provider_instance"),
        (15, "key_log"),
        (16, "custom_tls_certificate_selector"),
    ],
    choices: &[&[3, 7, 8]],
};

pub(in crate::decode) static COMBINED_VALIDATION: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.CommonTlsContext.CombinedCertificateValidationContext",
    fields: &[
        Field::served(1, "default_validation_context", Kind::Message(&VALIDATION)),
        Field::served(
            2,
            "validation_context_sds_secret_config",
            Kind::Message(&SDS_SECRET),
        ),
    ],
    refused: &[
        (3, "validation_context_certificate_provider"),
        (4, "validation_context_certificate_provider_instance"),
    ],
    choices: &[],
};

pub(in crate::decode) static TLS_PARAMETERS: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.TlsParameters",
    fields: &[
        Field::served(1, "tls_minimum_protocol_version", Kind::Enum(&TLS_PROTOCOL)),
        Field::served(2, "tls_maximum_protocol_version", Kind::Enum(&TLS_PROTOCOL)),
        Field::served(3, "cipher_suites", Kind::String).many(),
    ],
    refused: &[
        (4, "ecdh_curves"),
        (5, "signature_algorithms"),
        (6, "compliance_policies"),
    ],
    choices: &[],
};

pub(in crate::decode) static TLS_CERTIFICATE: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.TlsCertificate",
    fields: &[
        Field::served(1, "certificate_chain", Kind::Message(&DATA_SOURCE)),
        Field::served(2, "private_key", Kind::Message(&DATA_SOURCE)).private(),
    ],
    refused: &[
        (3, "password"),
        (4, "ocsp_staple"),
        (5, "signed_certificate_timestamp"),
        (6, "private_key_provider"),
        (7, "watched_directory"),
        (8, "pkcs12"),
        (9, "tls_params"),
    ],
    choices: &[],
};

pub(in crate::decode) static VALIDATION: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext",
    fields: &[
        Field::served(1, "trusted_ca", Kind::Message(&DATA_SOURCE)),
        Field::served(
            15,
            "match_typed_subject_alt_names",
            Kind::Message(&SAN_MATCHER),
        )
        .many(),
        Field::served(
            12,
            "custom_validator_config",
            Kind::Message(&CUSTOM_VALIDATOR),
        ),
    ],
    refused: &[
        (2, "verify_certificate_hash"),
        (3, "verify_certificate_spki"),
        (6, "require_signed_certificate_timestamp"),
        (7, "crl"),
        (8, "allow_expired_certificate"),
        (9, "match_subject_alt_names"),
        (10, "trust_chain_verification"),
        (11, "watched_directory"),
        (13, "ca_certificate_provider_instance"),
        (14, "only_verify_leaf_cert_crl"),
        (16, "max_verify_depth"),
        (17, "system_root_certs"),
        (18, "suppress_client_ca_list"),
    ],
    choices: &[],
};

pub(in crate::decode) static SAN_MATCHER: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.SubjectAltNameMatcher",
    fields: &[
        Field::served(1, "san_type", Kind::Enum(&SAN_TYPE)),
        Field::served(2, "matcher", Kind::Message(&STRING_MATCHER)),
    ],
    refused: &[(3, "oid")],
    choices: &[],
};

pub(in crate::decode) static SPIFFE: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig",
    fields: &[Field::served(1, "trust_domains", Kind::Message(&TRUST_DOMAIN)).many()],
    refused: &[(2, "trust_bundles")],
    choices: &[],
};

pub(in crate::decode) static TRUST_DOMAIN: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig.TrustDomain",
    fields: &[
        Field::served(1, "name", Kind::String),
        Field::served(2, "trust_bundle", Kind::Message(&DATA_SOURCE)),
    ],
    refused: &[(3, "workload_trust_domain")],
    choices: &[],
};

pub(in crate::decode) static SDS_SECRET: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig",
    fields: &[
        Field::served(1, "name", Kind::String),
        Field::served(2, "sds_config", Kind::Message(&CONFIG_SOURCE)),
    ],
    refused: &[],
    choices: &[],
};

pub(in crate::decode) static SECRET: Message = Message {
    name: "envoy.extensions.transport_sockets.tls.v3.Secret",
    fields: &[
        Field::served(1, "name", Kind::String),
        Field::served(2, "tls_certificate", Kind::Message(&TLS_CERTIFICATE)),
        Field::served(4, "validation_context", Kind::Message(&VALIDATION)),
    ],
    refused: &[(3, "session_ticket_keys"), (5, "generic_secret")],
    choices: &[&[2, 4]],
};

pub(in crate::decode) static TLS_PROTOCOL: Enum = Enum {
    name: "envoy.extensions.transport_sockets.tls.v3.TlsParameters.TlsProtocol",
    values: &[
        (0, "TLS_AUTO"),
        (1, "TLSv1_0"),
        (2, "TLSv1_1"),
        (3, "TLSv1_2"),
        (4, "TLSv1_3"),
    ],
};

pub(in crate::decode) static SAN_TYPE: Enum = Enum {
    name: "envoy.extensions.transport_sockets.tls.v3.SubjectAltNameMatcher.SanType",
    values: &[
        (0, "SAN_TYPE_UNSPECIFIED"),
        (1, "EMAIL"),
        (2, "DNS"),
        (3, "URI"),
        (4, "IP_ADDRESS"),
        (5, "OTHER_NAME"),
    ],
};

pub(in crate::decode) static CUSTOM_VALIDATOR: Message = Message {
    name: "envoy.config.core.v3.TypedExtensionConfig",
    fields: &[
        // Only the type of the configuration decides, as in Envoy.
        Field::harmless(1, "name", Kind::String),
        Field::served(2, "typed_config", Kind::Any(&[&SPIFFE])),
    ],
    refused: &[],
    choices: &[],
};
