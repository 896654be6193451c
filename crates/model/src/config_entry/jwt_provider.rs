//! `jwt-provider`: who issues JSON Web Tokens, with which keys proxies verify them, and where
//! requests carry them. Intentions name providers; nothing here verifies a token.

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

/// By how many seconds clocks may differ where nothing is said. Consul's.
const CLOCK_SKEW_SECONDS: u32 = 30;

/// Who issues JSON Web Tokens, and how proxies verify them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtProvider {
    /// By which intentions name it.
    pub name: String,
    /// The namespace that it is in; empty for `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition that it is in; empty for `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// The keys that tokens are signed with.
    #[serde(rename = "JSONWebKeySet", skip_serializing_if = "Option::is_none")]
    pub json_web_key_set: Option<JsonWebKeySet>,
    /// What tokens say about who issued them (`iss`); any where it is empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub issuer: String,
    /// Whom tokens are for (`aud`): one of these is among a token's. Anybody where it is empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
    /// Where requests carry tokens. Without any: after `Bearer ` in the header `Authorization`, or
    /// in the query parameter `access_token`, which is Envoy's default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<JwtLocation>,
    /// How the application gets what a token says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding: Option<JwtForwarding>,
    /// By how many seconds clocks may differ when `exp` and `nbf` are checked; 30 for 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub clock_skew_seconds: u32,
    /// Memory of tokens that were verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_config: Option<JwtCacheConfig>,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
    /// Written by Consul when it shows an entry, so that one can be copied from there; not used.
    #[serde(skip_serializing)]
    pub hash: IgnoredAny,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// Where a request carries a token; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtLocation {
    /// In a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<JwtHeader>,
    /// In a parameter of the query.
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
    /// What stands before the token, such as `Bearer `.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value_prefix: String,
    /// Whether the application gets the header as well.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forward: bool,
}

/// A parameter of the query with a token.
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

/// How the application gets what a verified token says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtForwarding {
    /// The header that has the token's claims, as JSON in base64url. Callers cannot set it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub header_name: String,
    /// Whether the value is padded with `=`.
    pub pad_forward_payload_header: bool,
}

/// Memory of tokens that were verified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtCacheConfig {
    /// How many tokens a proxy keeps; none for 0.
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
    /// Whether the application gets the headers that tokens are in.
    pub fn forwards_tokens(&self) -> bool {
        let mut headers = self.locations.iter().filter_map(|at| at.header.as_ref());
        headers.any(|header| header.forward)
    }

    /// Envoy has one answer for all headers of a provider.
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
