//! `jwt-provider`: an issuer of JSON Web Tokens, the keys that verify them, and their location in
//! requests. Intentions refer to providers by name. Nothing here verifies tokens.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights};
use super::jwks::JsonWebKeySet;
use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::served::field::Served::{Inside, Yes};
use crate::served::field::{REFUSED, Rows};
use crate::tenancy::TenancyName;
use crate::{meta, name};

/// Default clock skew in seconds, as in Consul.
const CLOCK_SKEW_SECONDS: u32 = 30;

/// An issuer of JSON Web Tokens, and how proxies verify its tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtProvider {
    /// Name that intentions refer to.
    pub name: String,
    /// Namespace; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// The keys that verify tokens.
    #[serde(rename = "JSONWebKeySet", skip_serializing_if = "Option::is_none")]
    pub json_web_key_set: Option<JsonWebKeySet>,
    /// Required issuer (`iss`) of tokens; empty accepts any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub issuer: String,
    /// Accepted audiences (`aud`); a token must have one of them. Empty accepts any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
    /// Where tokens are in requests. If empty, Envoy's default applies: after `Bearer ` in the
    /// `Authorization` header, or in the query parameter `access_token`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<JwtLocation>,
    /// Forwarding of claims to the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding: Option<JwtForwarding>,
    /// Tolerated clock skew in seconds for `exp` and `nbf`; 0 means 30.
    #[serde(skip_serializing_if = "is_zero")]
    pub clock_skew_seconds: u32,
    /// Cache of verified tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_config: Option<JwtCacheConfig>,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Part of entries that Consul returns. Accepted so that they can be written back, and ignored.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// Location of a token in a request; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtLocation {
    /// In a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<JwtHeader>,
    /// In a query parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_param: Option<JwtQueryParam>,
    /// In a cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<JwtCookie>,
}

/// A header with a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtHeader {
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Prefix before the token, such as `Bearer `.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value_prefix: String,
    /// Whether the header is forwarded to the application.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forward: bool,
}

/// A query parameter with a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtQueryParam {
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// A cookie with a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtCookie {
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// Forwarding of a verified token's claims to the application.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtForwarding {
    /// The header with the claims, as JSON in base64url. Values from callers are removed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub header_name: String,
    /// Whether the value is padded with `=`.
    pub pad_forward_payload_header: bool,
}

/// Cache of verified tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtCacheConfig {
    /// The maximum number of cached tokens per proxy; 0 disables the cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub size: u32,
}

impl Entry for JwtProvider {
    const RIGHTS: EntryRights = EntryRights::JwtProvider;
    const SERVED: &'static [Rows] = &[
        (
            "JwtProvider",
            &[
                (
                    Yes,
                    "Name Issuer Audiences ClockSkewSeconds Meta Hash CreateIndex ModifyIndex",
                ),
                (Yes, "Namespace Partition"),
                (Inside, "JSONWebKeySet Locations Forwarding CacheConfig"),
            ],
        ),
        ("JsonWebKeySet", &[(Inside, "Local Remote")]),
        ("LocalJwks", &[(Yes, "JWKS Filename")]),
        (
            "RemoteJwks",
            &[
                (
                    Yes,
                    "URI RequestTimeoutMs CacheDuration FetchAsynchronously UseSNI",
                ),
                (Inside, "RetryPolicy JWKSCluster"),
            ],
        ),
        (
            "JwksRetryPolicy",
            &[(Yes, "NumRetries"), (Inside, "RetryPolicyBackOff")],
        ),
        ("JwksBackOff", &[(Yes, "BaseInterval MaxInterval")]),
        (
            "JwksCluster",
            &[
                (Yes, "DiscoveryType ConnectTimeout"),
                (Inside, "TLSCertificates"),
            ],
        ),
        (
            "JwksTlsCertificates",
            &[
                (REFUSED, "CaCertificateProviderInstance"),
                (Inside, "TrustedCA"),
            ],
        ),
        (
            "JwksTrustedCa",
            &[(Yes, "Filename EnvironmentVariable InlineString InlineBytes")],
        ),
        ("JwtLocation", &[(Inside, "Header QueryParam Cookie")]),
        ("JwtHeader", &[(Yes, "Name ValuePrefix Forward")]),
        ("JwtQueryParam", &[(Yes, "Name")]),
        ("JwtCookie", &[(Yes, "Name")]),
        (
            "JwtForwarding",
            &[(Yes, "HeaderName PadForwardPayloadHeader")],
        ),
        ("JwtCacheConfig", &[(Yes, "Size")]),
    ];

    fn name(&self) -> &str {
        &self.name
    }

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_jwt_provider(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)?;
        let Some(keys) = &self.json_web_key_set else {
            return Err(Invalid::new("JSONWebKeySet", "JSONWebKeySet is required"));
        };
        keys.validate()
            .map_err(|error| error.within("JSONWebKeySet"))?;
        for (i, location) in self.locations.iter().enumerate() {
            location
                .validate()
                .map_err(|error| error.within(format_args!("Locations[{i}]")))?;
        }
        self.validate_forwards()?;
        if let Some(forwarding) = &self.forwarding {
            if forwarding.header_name.is_empty() {
                return Err(Invalid::new(
                    "Forwarding.HeaderName",
                    "Header name required for forwarding config",
                ));
            }
            validate_header("Forwarding.HeaderName", &forwarding.header_name)?;
        }
        Ok(())
    }

    fn normalise(&mut self) {
        if self.clock_skew_seconds == 0 {
            self.clock_skew_seconds = CLOCK_SKEW_SECONDS;
        }
    }
}

impl JwtProvider {
    /// Whether headers with tokens are forwarded to the application.
    pub fn forwards_tokens(&self) -> bool {
        let mut headers = self.locations.iter().filter_map(|at| at.header.as_ref());
        headers.any(|header| header.forward)
    }

    /// Envoy supports only one value for all headers of a provider.
    fn validate_forwards(&self) -> Result<(), Invalid> {
        let headers = self.locations.iter().enumerate();
        let mut forwards = headers.filter_map(|(i, at)| Some((i, at.header.as_ref()?.forward)));
        let Some((first, answer)) = forwards.next() else {
            return Ok(());
        };
        match forwards.find(|(_, other)| *other != answer) {
            None => Ok(()),
            Some((i, _)) => Err(Invalid::new(
                format!("Locations[{i}].Header.Forward"),
                format!(
                    "it differs from Locations[{first}].Header.Forward: a proxy forwards all \
                     headers of a provider or none; make two providers of it"
                ),
            )),
        }
    }
}

impl JwtLocation {
    fn validate(&self) -> Result<(), Invalid> {
        let places = match (&self.header, &self.query_param, &self.cookie) {
            (Some(header), None, None) => ("Header", "header", &header.name),
            (None, Some(param), None) => ("QueryParam", "query param", &param.name),
            (None, None, Some(cookie)) => ("Cookie", "cookie", &cookie.name),
            _ => {
                return Err(Invalid::new(
                    "Header",
                    "must set exactly one of: JWT location header, query param or cookie",
                ));
            }
        };
        let (field, what, name) = places;
        let path = format!("{field}.Name");
        if name.is_empty() {
            let reason = format!("JWT location {what} name must be specified");
            return Err(Invalid::new(path, reason));
        }
        if let Some(header) = &self.header {
            validate_header(&path, name)?;
            if header.value_prefix.contains(['\0', '\r', '\n']) {
                return Err(Invalid::new(
                    "Header.ValuePrefix",
                    "a header's value cannot contain line breaks",
                ));
            }
        }
        Ok(())
    }
}

fn validate_header(field: &str, name: &str) -> Result<(), Invalid> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.chars().all(token) {
        return Ok(());
    }
    Err(Invalid::new(
        field,
        format!("{name:?} is not the name of a header"),
    ))
}
