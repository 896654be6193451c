//! Conditions of access rules on the claims that the filter has stored.

use envoy_types::pb::envoy::config::rbac::v3::{Permission, Principal, permission, principal};
use envoy_types::pb::envoy::r#type::matcher::v3::metadata_matcher::{PathSegment, path_segment};
use envoy_types::pb::envoy::r#type::matcher::v3::{
    ListMatcher, MetadataMatcher, OrMatcher, StringMatcher, ValueMatcher, list_matcher,
    string_matcher, value_matcher,
};
use legate_model::{JwtProvider, JwtRequirement, RequiredClaim};
use legate_proxycfg::JwtProviders;
use value_matcher::MatchPattern;

use crate::names::JWT_AUTHN;

/// The metadata key of the claims of a provider's tokens, as in Consul.
pub(crate) fn payload(provider: &str) -> String {
    format!("jwt_payload_{provider}")
}

/// The names of required providers that do not exist.
pub(crate) fn missing<'a>(
    jwt: &'a JwtRequirement,
    providers: &'a JwtProviders,
) -> impl Iterator<Item = &'a str> {
    let names = jwt.provider_names();
    names.filter(|name| !providers.contains_key(*name))
}

/// Matches requests with a token that meets the requirement. Matches nothing if none of its
/// providers exists.
#[expect(deprecated, reason = "its successor requires Envoy 1.34")]
pub(crate) fn permission(jwt: &JwtRequirement, providers: &JwtProviders) -> Permission {
    use permission::{Rule, Set};
    let permitted = |rule| Permission { rule: Some(rule) };
    let alternative = |all: Vec<MetadataMatcher>| {
        let all = all.into_iter().map(Rule::Metadata).map(permitted);
        one_or(all.collect(), |rules| {
            permitted(Rule::AndRules(Set { rules }))
        })
    };
    let any: Vec<_> = alternatives(jwt, providers).map(alternative).collect();
    match any.is_empty() {
        true => permitted(Rule::NotRule(Box::new(permitted(Rule::Any(true))))),
        false => one_or(any, |rules| permitted(Rule::OrRules(Set { rules }))),
    }
}

/// The same as a principal, for requirements on all requests of a caller.
#[expect(deprecated, reason = "its successor requires Envoy 1.34")]
pub(crate) fn principal(jwt: &JwtRequirement, providers: &JwtProviders) -> Principal {
    use principal::{Identifier, Set};
    let identified = |identifier| Principal {
        identifier: Some(identifier),
    };
    let alternative = |all: Vec<MetadataMatcher>| {
        let all = all.into_iter().map(Identifier::Metadata).map(identified);
        one_or(all.collect(), |ids| {
            identified(Identifier::AndIds(Set { ids }))
        })
    };
    let any: Vec<_> = alternatives(jwt, providers).map(alternative).collect();
    match any.is_empty() {
        true => identified(Identifier::NotId(Box::new(identified(Identifier::Any(
            true,
        ))))),
        false => one_or(any, |ids| identified(Identifier::OrIds(Set { ids }))),
    }
}

/// The only element, or all of them combined.
fn one_or<T>(mut all: Vec<T>, together: impl FnOnce(Vec<T>) -> T) -> T {
    match all.len() {
        1 => all.remove(0),
        _ => together(all),
    }
}

/// For each existing provider, all conditions on its token.
fn alternatives<'a>(
    jwt: &'a JwtRequirement,
    providers: &'a JwtProviders,
) -> impl Iterator<Item = Vec<MetadataMatcher>> + 'a {
    jwt.providers.iter().filter_map(|required| {
        let provider = providers.get(&required.name)?;
        let claims = required.verify_claims.iter();
        let claims = claims.map(|claim| self::claim(provider, claim));
        Some([issued(provider)].into_iter().chain(claims).collect())
    })
}

/// A token of the provider is present. The issuer is checked again here, so that a changed issuer
/// takes effect at once on every connection.
fn issued(provider: &JwtProvider) -> MetadataMatcher {
    match provider.issuer.as_str() {
        "" => matcher(provider, &[], MatchPattern::PresentMatch(true)),
        issuer => matcher(provider, &["iss".to_owned()], exactly(issuer)),
    }
}

fn claim(provider: &JwtProvider, claim: &RequiredClaim) -> MetadataMatcher {
    let text = ValueMatcher {
        match_pattern: Some(exactly(&claim.value)),
    };
    let in_list = ListMatcher {
        match_pattern: Some(list_matcher::MatchPattern::OneOf(Box::new(text.clone()))),
    };
    let in_list = ValueMatcher {
        match_pattern: Some(MatchPattern::ListMatch(Box::new(in_list))),
    };
    let either = MatchPattern::OrMatch(OrMatcher {
        value_matchers: vec![text, in_list],
    });
    matcher(provider, &claim.path, either)
}

fn exactly(text: &str) -> MatchPattern {
    MatchPattern::StringMatch(StringMatcher {
        match_pattern: Some(string_matcher::MatchPattern::Exact(text.to_owned())),
        ..StringMatcher::default()
    })
}

fn matcher(provider: &JwtProvider, path: &[String], pattern: MatchPattern) -> MetadataMatcher {
    let keys = [payload(&provider.name)]
        .into_iter()
        .chain(path.iter().cloned());
    let segment = |key| PathSegment {
        segment: Some(path_segment::Segment::Key(key)),
    };
    MetadataMatcher {
        filter: JWT_AUTHN.to_owned(),
        path: keys.map(segment).collect(),
        value: Some(ValueMatcher {
            match_pattern: Some(pattern),
        }),
        ..MetadataMatcher::default()
    }
}
