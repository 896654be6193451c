//! `jwt-provider`: an issuer of JSON Web Tokens, the keys that verify them, and their location in
//! requests. Intentions refer to providers by name. Nothing here verifies tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use super::jwks::JsonWebKeySet;
use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::schema;
use crate::{meta, name};

/// Default clock skew in seconds, as in Consul.
const CLOCK_SKEW_SECONDS: u32 = 30;

entry! {
    /// An issuer of JSON Web Tokens, and how proxies verify its tokens.
    #[derive(JsonSchema)]
    #[schemars(extend("required" = ["JSONWebKeySet"]))]
    pub struct JwtProvider {
        /// Name that intentions refer to.
        pub name: String,
        /// The keys that verify tokens.
        #[serde(rename = "JSONWebKeySet", skip_serializing_if = "Option::is_none")]
        pub json_web_key_set: Option<JsonWebKeySet>,
        /// Required issuer (`iss`) of tokens; empty accepts any.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub issuer: String,
        /// Accepted audiences (`aud`); a token must have one of them. Empty accepts any.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(max = 256))]
        pub audiences: Vec<String>,
        /// Where tokens are in requests. If empty, Envoy's default applies: after `Bearer ` in the
        /// `Authorization` header, or in the query parameter `access_token`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(max = 64))]
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
    }
}

/// Location of a token in a request; exactly one field is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "(has(self.header) ? 1 : 0) + (has(self.queryParam) ? 1 : 0) + (has(self.cookie) ? 1 : 0) \
         == 1",
        "exactly one of header, queryParam and cookie is needed",
    ),
]))]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["Name"]))]
pub struct JwtHeader {
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1))]
    pub name: String,
    /// Prefix before the token, such as `Bearer `.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value_prefix: String,
    /// Whether the header is forwarded to the application.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forward: bool,
}

/// A query parameter with a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["Name"]))]
pub struct JwtQueryParam {
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1))]
    pub name: String,
}

/// A cookie with a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["Name"]))]
pub struct JwtCookie {
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1))]
    pub name: String,
}

/// Forwarding of a verified token's claims to the application.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["HeaderName"]))]
pub struct JwtForwarding {
    /// The header with the claims, as JSON in base64url. Values from callers are removed.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1))]
    pub header_name: String,
    /// Whether the value is padded with `=`.
    pub pad_forward_payload_header: bool,
}

/// Cache of verified tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtCacheConfig {
    /// The maximum number of cached tokens per proxy; 0 disables the cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub size: u32,
}

impl Entry for JwtProvider {
    const RIGHTS: EntryRights = EntryRights::JwtProvider;

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
