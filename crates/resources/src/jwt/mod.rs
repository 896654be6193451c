//! JSON Web Tokens that intentions require.
//!
//! The filter here verifies the tokens of a request and stores their claims as metadata, by
//! provider. It refuses nothing. The access rules in the routes check the claims ([`claims`]) and
//! refuse requests. So a changed requirement changes only routes, and closes no connection, while a
//! changed provider changes the listener. If claims are missing for any reason, such as a
//! connection with the previous filter, the rules deny the request.

pub(crate) mod claims;
pub(crate) mod keys;

use std::collections::BTreeMap;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{
    DataSource, HttpUri, RetryPolicy, data_source, http_uri,
};
use envoy_types::pb::envoy::config::route::v3::{RouteMatch, route_match};
use envoy_types::pb::envoy::extensions::filters::http::jwt_authn::v3::{
    JwksAsyncFetch, JwtAuthentication as EnvoyJwtAuthentication, JwtCacheConfig,
    JwtHeader as EnvoyJwtHeader, JwtProvider as EnvoyJwtProvider, JwtRequirement,
    JwtRequirementAndList, JwtRequirementOrList, RemoteJwks as EnvoyRemoteJwks, RequirementRule,
    jwt_provider, jwt_requirement, requirement_rule,
};
use envoy_types::pb::google::protobuf::{Any, Empty, UInt32Value};
use jwt_provider::JwksSourceSpecifier;
use jwt_requirement::RequiresType;
use legate_model::{JwksRetryPolicy, JwtProvider, LocalJwks, RemoteJwks};
use legate_proxycfg::JwtProviders;
use prost::{Message, Name};

use crate::duration::{self, proto_duration};
use crate::error::GenerateError;
use crate::names;

/// The default timeout of requests for keys.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// `envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication` with sorted providers, so that
/// its encoding is deterministic.
#[derive(Clone, PartialEq, Message)]
struct JwtAuthentication {
    #[prost(btree_map = "string, message", tag = "1")]
    providers: BTreeMap<String, EnvoyJwtProvider>,
    #[prost(message, repeated, tag = "2")]
    rules: Vec<RequirementRule>,
}

/// The filter that verifies tokens of these providers; `None` without providers.
pub(crate) fn filter(providers: &JwtProviders) -> Result<Option<Any>, GenerateError> {
    let mut built = BTreeMap::new();
    for provider in providers.values() {
        built.insert(provider.name.clone(), envoy_provider(provider)?);
    }
    if built.is_empty() {
        return Ok(None);
    }
    let everything = route_match::PathSpecifier::Prefix("/".to_owned());
    let rule = RequirementRule {
        r#match: Some(RouteMatch {
            path_specifier: Some(everything),
            ..RouteMatch::default()
        }),
        requirement_type: Some(requirement_rule::RequirementType::Requires(all(built
            .keys()
            .map(|name| verified_if_there(name))
            .collect()))),
    };
    let filter = JwtAuthentication {
        providers: built,
        rules: vec![rule],
    };
    Ok(Some(Any {
        type_url: EnvoyJwtAuthentication::type_url(),
        value: filter.encode_to_vec(),
    }))
}

/// Verifies a token of the provider if there is one, but never refuses the request.
fn verified_if_there(provider: &str) -> JwtRequirement {
    let named = RequiresType::ProviderName(provider.to_owned());
    let anything = RequiresType::AllowMissingOrFailed(Empty {});
    let requirements = [named, anything].map(requires).into();
    requires(RequiresType::RequiresAny(JwtRequirementOrList {
        requirements,
    }))
}

fn all(mut requirements: Vec<JwtRequirement>) -> JwtRequirement {
    match requirements.len() {
        1 => requirements.remove(0),
        _ => requires(RequiresType::RequiresAll(JwtRequirementAndList {
            requirements,
        })),
    }
}

fn requires(what: RequiresType) -> JwtRequirement {
    JwtRequirement {
        requires_type: Some(what),
    }
}

fn envoy_provider(provider: &JwtProvider) -> Result<EnvoyJwtProvider, GenerateError> {
    let mut made = EnvoyJwtProvider {
        issuer: provider.issuer.clone(),
        audiences: provider.audiences.clone(),
        forward: provider.forwards_tokens(),
        payload_in_metadata: claims::payload(&provider.name),
        clock_skew_seconds: provider.clock_skew_seconds,
        jwks_source_specifier: Some(keys_of(provider)?),
        ..EnvoyJwtProvider::default()
    };
    for location in &provider.locations {
        if let Some(header) = &location.header {
            made.from_headers.push(EnvoyJwtHeader {
                name: header.name.clone(),
                value_prefix: header.value_prefix.clone(),
            });
        }
        let param = location.query_param.iter().map(|param| param.name.clone());
        made.from_params.extend(param);
        let cookie = location.cookie.iter().map(|cookie| cookie.name.clone());
        made.from_cookies.extend(cookie);
    }
    if let Some(forwarding) = &provider.forwarding {
        made.forward_payload_header = forwarding.header_name.clone();
        made.pad_forward_payload_header = forwarding.pad_forward_payload_header;
    }
    let cache = provider.cache_config.as_ref();
    made.jwt_cache_config = cache
        .filter(|cache| cache.size > 0)
        .map(|cache| JwtCacheConfig {
            jwt_cache_size: cache.size,
            ..JwtCacheConfig::default()
        });
    Ok(made)
}

fn keys_of(provider: &JwtProvider) -> Result<JwksSourceSpecifier, GenerateError> {
    let keys = provider.json_web_key_set.as_ref();
    let made = match keys.map(|keys| (&keys.local, &keys.remote)) {
        Some((Some(local), None)) => local_keys(local).map(JwksSourceSpecifier::LocalJwks),
        Some((None, Some(remote))) => {
            let remote = remote_keys(&provider.name, remote);
            remote.map(JwksSourceSpecifier::RemoteJwks)
        }
        _ => None,
    };
    made.ok_or_else(|| GenerateError::JwtKeys(provider.name.clone()))
}

fn local_keys(local: &LocalJwks) -> Option<DataSource> {
    let specifier = match local.filename.as_str() {
        "" => data_source::Specifier::InlineString(local.key_set()?),
        file => data_source::Specifier::Filename(file.to_owned()),
    };
    Some(DataSource {
        specifier: Some(specifier),
        ..DataSource::default()
    })
}

fn remote_keys(provider: &str, remote: &RemoteJwks) -> Option<EnvoyRemoteJwks> {
    remote.server()?;
    let timeout = match remote.request_timeout_ms {
        0 => REQUEST_TIMEOUT,
        millis => Duration::from_millis(millis.into()),
    };
    let uri = HttpUri {
        uri: remote.uri.clone(),
        timeout: Some(proto_duration(timeout)),
        http_upstream_type: Some(http_uri::HttpUpstreamType::Cluster(names::jwks_cluster(
            provider,
        ))),
    };
    let cache = Some(remote.cache_duration).filter(|time| !time.is_zero());
    Some(EnvoyRemoteJwks {
        http_uri: Some(uri),
        cache_duration: cache.map(proto_duration),
        async_fetch: Some(JwksAsyncFetch {
            fast_listener: remote.fetch_asynchronously,
            ..JwksAsyncFetch::default()
        }),
        retry_policy: remote.retry_policy.as_ref().map(retry_policy),
    })
}

fn retry_policy(policy: &JwksRetryPolicy) -> RetryPolicy {
    let back_off = policy.retry_policy_back_off.as_ref();
    let back_off = back_off.filter(|back_off| !back_off.base_interval.is_zero());
    let pauses = back_off.map(|back_off| {
        let max = Some(back_off.max_interval).filter(|time| !time.is_zero());
        duration::back_off(back_off.base_interval, max)
    });
    RetryPolicy {
        retry_back_off: pauses,
        num_retries: Some(UInt32Value {
            value: policy.num_retries,
        }),
        ..RetryPolicy::default()
    }
}
