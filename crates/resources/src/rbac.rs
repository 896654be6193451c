//! Intentions as rules of Envoy's RBAC filters: for connections of TCP services, and for requests
//! of HTTP services.
//!
//! Rules without policies are never omitted, because Envoy allows everything without rules.
//!
//! Token requirements are conditions on the claims that the filter of [`crate::jwt`] stores.
//!
//! Callers are matched by [`callers`].
//!
//! The messages that contain the map of policies are declared here, because the map in Envoy's
//! generated types has no order, so that two encodings could differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::config::rbac::v3::{
    Permission, Policy, Principal, permission, principal, rbac,
};
use envoy_types::pb::envoy::config::route::v3::{HeaderMatcher, header_matcher};
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::{
    Rbac as EnvoyHttpRbac, RbacPerRoute as EnvoyHttpRbacPerRoute,
};
use envoy_types::pb::envoy::extensions::filters::network::rbac::v3::Rbac as EnvoyNetworkRbac;
use envoy_types::pb::envoy::r#type::matcher::v3::{
    PathMatcher, RegexMatcher, StringMatcher, path_matcher, string_matcher,
};
use envoy_types::pb::google::protobuf::Any;
use legate_intentions::{
    Action, Layer, PermissionRule, Permissions, Rule, Shape, SourceMatch, Token, policy,
};
use legate_model::{HttpHeaderPermission, Intention, JwtRequirement, Protocol, TrustDomain};
use legate_proxycfg::{JwtProviders, PeerCallers, Proxy, Sidecar};
use prost::{Message, Name};
use string_matcher::MatchPattern;

use crate::error::GenerateError;
use crate::jwt::claims;
use crate::rbac::callers::{Callers, identified};

mod callers;

/// The policy with all rules for connections.
const LAYER4: &str = "consul-intentions-layer4";
/// The prefix of policies for requests, one for each rule, followed by the index of the rule.
const LAYER7: &str = "consul-intentions-layer7-";
/// The policy in the listener of an HTTP service, whose rules are in the routes.
const IN_ROUTES: &str = "intentions-are-in-the-routes";
/// The policy of a gateway's rule that requires a token.
const TOKENS: &str = "tokens";
const STAT_PREFIX: &str = "connect_authz";

/// `envoy.config.rbac.v3.RBAC` with sorted policies.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Rules {
    #[prost(enumeration = "rbac::Action", tag = "1")]
    pub(crate) action: i32,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) policies: BTreeMap<String, Policy>,
}

/// `envoy.extensions.filters.http.rbac.v3.RBAC`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpRbac {
    #[prost(message, optional, tag = "1")]
    pub(crate) rules: Option<Rules>,
}

/// `envoy.extensions.filters.http.rbac.v3.RBACPerRoute`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpRbacPerRoute {
    #[prost(message, optional, tag = "2")]
    pub(crate) rbac: Option<HttpRbac>,
}

/// `envoy.extensions.filters.network.rbac.v3.RBAC`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NetworkRbac {
    #[prost(message, optional, tag = "1")]
    pub(crate) rules: Option<Rules>,
    #[prost(string, tag = "3")]
    pub(crate) stat_prefix: String,
}

/// Who may call a service.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    /// The intentions of the service, in order of precedence.
    pub(crate) intentions: &'a [Arc<Intention>],
    /// The providers of the tokens that the intentions require.
    pub(crate) providers: &'a JwtProviders,
    /// The action if no intention matches.
    pub(crate) default: Action,
    pub(crate) trust_domain: &'a TrustDomain,
    /// The peers that call it.
    pub(crate) peers: &'a PeerCallers,
}

impl<'a> Access<'a> {
    /// Who may call the service of a sidecar.
    pub(crate) fn of_sidecar(proxy: &'a Proxy, sidecar: &'a Sidecar) -> Self {
        Self {
            intentions: &sidecar.intentions,
            providers: &sidecar.jwt_providers,
            default: proxy.default_intention,
            trust_domain: &proxy.trust_domain,
            peers: &sidecar.peers,
        }
    }

    /// The network filter with the intentions, for a service of this protocol. Rules for requests
    /// deny the connection.
    pub(crate) fn connections(
        self,
        protocol: Protocol,
        warnings: &mut Vec<String>,
    ) -> Result<Any, GenerateError> {
        let of_requests = |one: &&Arc<Intention>| !one.permissions.is_empty() || one.jwt.is_some();
        warnings.extend(self.intentions.iter().filter(of_requests).map(|one| {
            format!(
                "the intention of source {:?} refuses every connection: it looks into requests, and \
                 the service speaks {protocol}; set Protocol to http, http2 or grpc in its \
                 service-defaults",
                one.source_name
            )
        }));
        let filter = NetworkRbac {
            rules: Some(self.rules(Layer::L4)?),
            stat_prefix: STAT_PREFIX.to_owned(),
        };
        Ok(message::<EnvoyNetworkRbac>(&filter))
    }

    /// The intentions for requests, as the routes' override of the filter's config.
    pub(crate) fn requests(self, warnings: &mut Vec<String>) -> Result<Any, GenerateError> {
        warnings.extend(self.without_provider());
        let rules = Some(self.rules(Layer::L7)?);
        let route = HttpRbacPerRoute {
            rbac: Some(HttpRbac { rules }),
        };
        Ok(message::<EnvoyHttpRbacPerRoute>(&route))
    }

    /// The HTTP filter with the intentions, for user-written listeners.
    pub(crate) fn filter(self, warnings: &mut Vec<String>) -> Result<Any, GenerateError> {
        warnings.extend(self.without_provider());
        let rules = Some(self.rules(Layer::L7)?);
        Ok(message::<EnvoyHttpRbac>(&HttpRbac { rules }))
    }

    /// Warnings about intentions that require tokens of providers that do not exist.
    fn without_provider(self) -> BTreeSet<String> {
        let providers = self.providers;
        let report = |intention: &Intention, name: &str| {
            format!(
                "the intention of source {:?} accepts no token of {name:?}: there is no jwt-provider of \
                 that name, so requests that need its token are refused; create it",
                intention.source().to_string()
            )
        };
        let of_intention = |one: &'_ Arc<Intention>| {
            let permissions = one.permissions.iter().filter_map(|one| one.jwt.as_ref());
            let all = one.jwt.iter().chain(permissions);
            let missing = all.flat_map(|jwt| claims::missing(jwt, providers));
            missing.map(|name| report(one, name)).collect::<Vec<_>>()
        };
        self.intentions.iter().flat_map(of_intention).collect()
    }

    fn rules(self, layer: Layer) -> Result<Rules, GenerateError> {
        let policy = policy(self.intentions, self.default, layer);
        let callers = Callers {
            trust_domain: self.trust_domain,
            peers: self.peers,
            layer,
            action: policy.filter_action,
        };
        rules(&policy, &callers, self.providers)
    }
}

/// The HTTP filter that denies all requests. Its only policy matches nothing. It documents in
/// Envoy's configuration that there are rules, and where.
pub(crate) fn no_requests() -> Any {
    let nobody = Policy {
        permissions: vec![everything()],
        principals: vec![identified(principal::Identifier::NotId(Box::new(
            identified(principal::Identifier::Any(true)),
        )))],
        ..Policy::default()
    };
    let rules = Some(Rules {
        action: rbac::Action::Allow.into(),
        policies: BTreeMap::from([(IN_ROUTES.to_owned(), nobody)]),
    });
    message::<EnvoyHttpRbac>(&HttpRbac { rules })
}

/// The HTTP filter without rules, for listeners whose rules are in routes.
pub(crate) fn without_rules() -> Any {
    message::<EnvoyHttpRbac>(&HttpRbac { rules: None })
}

/// A rule that allows requests with a token alone, as the override of a route.
pub(crate) fn with_only(token: &JwtRequirement, providers: &JwtProviders) -> Any {
    let policy = Policy {
        permissions: vec![claims::permission(token, providers)],
        principals: vec![identified(principal::Identifier::Any(true))],
        ..Policy::default()
    };
    let rules = Some(Rules {
        action: rbac::Action::Allow.into(),
        policies: BTreeMap::from([(TOKENS.to_owned(), policy)]),
    });
    let route = HttpRbacPerRoute {
        rbac: Some(HttpRbac { rules }),
    };
    message::<EnvoyHttpRbacPerRoute>(&route)
}

/// Encodes one of the messages above with Envoy's type.
fn message<Known: Name>(message: &impl Message) -> Any {
    Any {
        type_url: Known::type_url(),
        value: message.encode_to_vec(),
    }
}

fn rules(
    policy: &legate_intentions::Policy,
    callers: &Callers<'_>,
    providers: &JwtProviders,
) -> Result<Rules, GenerateError> {
    let mut policies = BTreeMap::new();
    let mut connections = Vec::new();
    for (
        index,
        Rule {
            source,
            token,
            permissions,
        },
    ) in policy.rules.iter().enumerate()
    {
        // Of no caller: nobody is allowed.
        let Some(caller) = callers.matching(source) else {
            continue;
        };
        let caller = with_token(caller, token, providers);
        match permissions {
            Permissions::All => connections.push(caller),
            Permissions::List(list) => {
                let requests = list.iter().map(|rule| request(rule, source, providers));
                let policy = Policy {
                    permissions: requests.collect::<Result<_, _>>()?,
                    principals: vec![caller],
                    ..Policy::default()
                };
                policies.insert(format!("{LAYER7}{index}"), policy);
            }
        }
    }
    if !connections.is_empty() {
        let policy = Policy {
            permissions: vec![everything()],
            principals: connections,
            ..Policy::default()
        };
        policies.insert(LAYER4.to_owned(), policy);
    }
    let action = match policy.filter_action {
        Action::Allow => rbac::Action::Allow,
        Action::Deny => rbac::Action::Deny,
    };
    Ok(Rules {
        action: action.into(),
        policies,
    })
}

/// Matches the caller with the rule's token requirement.
fn with_token(caller: Principal, token: &Token, providers: &JwtProviders) -> Principal {
    let has = |jwt: &JwtRequirement| claims::principal(jwt, providers);
    let token = match token {
        Token::Any => return caller,
        Token::Valid(jwt) => has(jwt),
        Token::Invalid(jwt) => identified(principal::Identifier::NotId(Box::new(has(jwt)))),
    };
    let ids = vec![caller, token];
    identified(principal::Identifier::AndIds(principal::Set { ids }))
}

/// Quotes a text for a regular expression.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // RE2 accepts a backslash before any ASCII punctuation. The dash needs no escape outside
        // brackets and is frequent in names.
        if c.is_ascii_punctuation() && c != '-' && c != '_' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Matches the requests of a permission, except those of other permissions.
fn request(
    rule: &PermissionRule,
    source: &SourceMatch,
    providers: &JwtProviders,
) -> Result<Permission, GenerateError> {
    let mut all = conditions(&rule.shape, source)?;
    let has = |jwt: &JwtRequirement| claims::permission(jwt, providers);
    match &rule.token {
        Token::Any => {}
        Token::Valid(jwt) => all.push(has(jwt)),
        Token::Invalid(jwt) => all.push(permitted(permission::Rule::NotRule(Box::new(has(jwt))))),
    }
    for other in &rule.except {
        let other = Box::new(both(conditions(other, source)?));
        all.push(permitted(permission::Rule::NotRule(other)));
    }
    Ok(both(all))
}

fn conditions(shape: &Shape, source: &SourceMatch) -> Result<Vec<Permission>, GenerateError> {
    let http = &shape.http;
    let paths = [
        (
            &http.path_exact,
            MatchPattern::Exact as fn(String) -> MatchPattern,
        ),
        (&http.path_prefix, MatchPattern::Prefix),
        (&http.path_regex, |text| MatchPattern::SafeRegex(re2(text))),
    ];
    let mut all: Vec<Permission> = paths
        .into_iter()
        .filter(|(text, _)| !text.is_empty())
        .map(|(text, pattern)| {
            let matcher = StringMatcher {
                match_pattern: Some(pattern(text.clone())),
                ..StringMatcher::default()
            };
            permitted(permission::Rule::UrlPath(PathMatcher {
                rule: Some(path_matcher::Rule::Path(matcher)),
            }))
        })
        .collect();
    for condition in &http.header {
        let header = header(condition, shape.refused).ok_or_else(|| {
            GenerateError::EmptyHeaderCondition {
                source_name: source.name.as_deref().unwrap_or("*").to_owned(),
                header: condition.name.clone(),
            }
        })?;
        all.push(permitted(permission::Rule::Header(header)));
    }
    if !http.methods.is_empty() {
        let methods: Vec<String> = http.methods.iter().map(|method| quoted(method)).collect();
        let method = text_header(":method", regex(methods.join("|")));
        all.push(permitted(permission::Rule::Header(method)));
    }
    Ok(all)
}

/// A condition on a header; `None` without an operator. In Envoy an absent header does not match
/// any condition on its value, not even an inverted one, unless the matcher treats it as empty.
fn header(condition: &HttpHeaderPermission, refused: bool) -> Option<HeaderMatcher> {
    let mut matcher = if condition.present {
        HeaderMatcher {
            name: condition.name.clone(),
            header_match_specifier: Some(header_matcher::HeaderMatchSpecifier::PresentMatch(true)),
            ..HeaderMatcher::default()
        }
    } else {
        let patterns = [
            (
                &condition.exact,
                MatchPattern::Exact as fn(String) -> MatchPattern,
            ),
            (&condition.prefix, MatchPattern::Prefix),
            (&condition.suffix, MatchPattern::Suffix),
            (&condition.contains, MatchPattern::Contains),
            (&condition.regex, |text| MatchPattern::SafeRegex(re2(text))),
        ];
        let (text, pattern) = patterns.into_iter().find(|(text, _)| !text.is_empty())?;
        let text = StringMatcher {
            ignore_case: condition.ignore_case,
            match_pattern: Some(pattern(text.clone())),
        };
        HeaderMatcher {
            treat_missing_header_as_empty: refused && condition.invert,
            ..text_header(&condition.name, text)
        }
    };
    matcher.invert_match = condition.invert;
    Some(matcher)
}

fn text_header(name: &str, text: StringMatcher) -> HeaderMatcher {
    HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(header_matcher::HeaderMatchSpecifier::StringMatch(text)),
        ..HeaderMatcher::default()
    }
}

/// Requests that meet all conditions; every request without conditions.
fn both(mut conditions: Vec<Permission>) -> Permission {
    match conditions.len() {
        0 => everything(),
        1 => conditions.remove(0),
        _ => permitted(permission::Rule::AndRules(permission::Set {
            rules: conditions,
        })),
    }
}

fn everything() -> Permission {
    permitted(permission::Rule::Any(true))
}

fn permitted(rule: permission::Rule) -> Permission {
    Permission { rule: Some(rule) }
}

fn regex(text: String) -> StringMatcher {
    StringMatcher {
        match_pattern: Some(MatchPattern::SafeRegex(re2(text))),
        ..StringMatcher::default()
    }
}

fn re2(regex: String) -> RegexMatcher {
    RegexMatcher {
        regex,
        ..RegexMatcher::default()
    }
}
