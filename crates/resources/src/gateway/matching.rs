//! Conditions on requests, as Envoy has them.

use envoy_types::pb::envoy::config::route::v3::{
    HeaderMatcher, QueryParameterMatcher, RouteMatch, header_matcher, query_parameter_matcher,
    route_match,
};
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use legate_routes::{Match, PathMatch, TextMatch, ValueMatch};

use crate::chain_route;

/// The conditions of a rule.
pub(super) fn request(matched: &Match) -> RouteMatch {
    use route_match::PathSpecifier;
    let path = match &matched.path {
        PathMatch::Exact(path) => PathSpecifier::Path(path.clone()),
        PathMatch::Prefix(path) => PathSpecifier::Prefix(path.clone()),
        PathMatch::Segments(path) => PathSpecifier::PathSeparatedPrefix(path.clone()),
        PathMatch::Regex(regex) => PathSpecifier::SafeRegex(chain_route::regex(regex)),
    };
    let mut headers: Vec<_> = matched.headers.iter().map(header).collect();
    if let Some(method) = &matched.method {
        let exactly = pattern(&TextMatch::Regex(method.clone()));
        headers.push(HeaderMatcher {
            name: ":method".to_owned(),
            header_match_specifier: exactly.map(chain_route::text),
            ..HeaderMatcher::default()
        });
    }
    RouteMatch {
        path_specifier: Some(path),
        headers,
        query_parameters: matched.query.iter().map(parameter).collect(),
        ..RouteMatch::default()
    }
}

/// `None` for any text.
pub(super) fn pattern(value: &TextMatch) -> Option<MatchPattern> {
    Some(match value {
        TextMatch::Present => return None,
        TextMatch::Exact(text) => MatchPattern::Exact(text.clone()),
        TextMatch::Prefix(text) => MatchPattern::Prefix(text.clone()),
        TextMatch::Suffix(text) => MatchPattern::Suffix(text.clone()),
        TextMatch::Regex(text) => MatchPattern::SafeRegex(chain_route::regex(text)),
    })
}

fn header(matched: &ValueMatch) -> HeaderMatcher {
    let present = header_matcher::HeaderMatchSpecifier::PresentMatch(true);
    let specifier = pattern(&matched.value).map_or(present, chain_route::text);
    HeaderMatcher {
        name: matched.name.clone(),
        header_match_specifier: Some(specifier),
        ..HeaderMatcher::default()
    }
}

fn parameter(matched: &ValueMatch) -> QueryParameterMatcher {
    use query_parameter_matcher::QueryParameterMatchSpecifier::{PresentMatch, StringMatch};
    let specifier = pattern(&matched.value).map_or(PresentMatch(true), |pattern| {
        StringMatch(chain_route::string(pattern))
    });
    QueryParameterMatcher {
        name: matched.name.clone(),
        query_parameter_match_specifier: Some(specifier),
    }
}
