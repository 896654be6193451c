//! The rules of an `http-route`.

use std::sync::Arc;
use std::time::Duration;

use legate_model::{
    ApiGatewayListener, HeaderModifiers, HttpRoute, HttpRouteFilters, HttpRouteHeaders,
    HttpRouteMatch, HttpRouteRule, HttpRouteService, HttpRouteValueMatch, JwtRequirement,
    ServiceName,
};
use legate_routes::{
    Action, Match, Origin, PathMatch, Retry, Rewrite, Rule, Target, TextMatch, Timeouts,
    ValueMatch, WeightedBackend, spread,
};

use super::listener;

/// The status of requests for a route that cannot be served.
const UNUSABLE: u16 = 500;

/// The rules of a route on a listener: one for each condition, in the order of the entry. If the
/// route is not bound, all requests for it are refused.
pub(super) fn rules(
    listener: &ApiGatewayListener,
    (name, route): (&ServiceName, &HttpRoute),
    bound: bool,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (place, written) in route.rules.iter().enumerate() {
        let origin = Origin {
            route: name.clone(),
            rule: place,
        };
        let rule = match bound {
            true => rule(listener, origin, written),
            false => Rule::plain(origin, Action::Answer(UNUSABLE)),
        };
        let mut conditions: Vec<_> = written.matches.iter().map(matched).collect();
        if conditions.is_empty() {
            conditions.push(Match::default());
        }
        let last = conditions.pop();
        let each = conditions.into_iter().map(|matched| Rule {
            matched,
            ..rule.clone()
        });
        rules.extend(each);
        rules.extend(last.map(|matched| Rule { matched, ..rule }));
    }
    rules
}

fn rule(listener: &ApiGatewayListener, origin: Origin, written: &HttpRouteRule) -> Rule {
    let filters = &written.filters;
    let required = listener::token(listener.overrides.as_ref());
    let default = listener::token(listener.defaults.as_ref());
    let token = |own: Option<&JwtRequirement>| required.or(own).map(|one| Arc::new(one.clone()));
    let mut rule = Rule {
        request: headers(&filters.headers),
        response: headers(&written.response_filters.headers),
        ..Rule::plain(origin.clone(), Action::Answer(UNUSABLE))
    };
    match written.services.as_slice() {
        [] => return rule,
        [only] => {
            // The filters of the only service hold for the whole rule.
            let own = &only.filters;
            rule.request = rule.request.then(&headers(&own.headers));
            rule.response = rule.response.then(&headers(&only.response_filters.headers));
            rule.token = token(own.jwt.as_ref().or(filters.jwt.as_ref()).or(default));
            set(&mut rule, own, filters);
            let target = Target::Service(service(&origin.route, only));
            rule.action = Action::Forward(vec![WeightedBackend::only(target)]);
        }
        several => {
            rule.token = token(filters.jwt.as_ref().or(default));
            set(&mut rule, filters, filters);
            let backends = several.iter().map(|one| {
                let backend = WeightedBackend {
                    request: headers(&one.filters.headers),
                    response: headers(&one.response_filters.headers),
                    token: token(one.filters.jwt.as_ref()),
                    ..WeightedBackend::only(Target::Service(service(&origin.route, one)))
                };
                (one.weight.max(1), backend)
            });
            rule.action = Action::Forward(spread(backends.collect()));
        }
    }
    rule
}

/// Sets what the first filters have, or else the others.
fn set(rule: &mut Rule, first: &HttpRouteFilters, others: &HttpRouteFilters) {
    let rewrite = first.url_rewrite.as_ref().or(others.url_rewrite.as_ref());
    let rewrite = rewrite.filter(|rewrite| !rewrite.path.is_empty());
    rule.rewrite = rewrite.map(|rewrite| Rewrite::Matched(rewrite.path.clone()));
    let limit = |time: Duration| Some(time).filter(|time| !time.is_zero());
    if let Some(filter) = first
        .timeout_filter
        .as_ref()
        .or(others.timeout_filter.as_ref())
    {
        rule.timeouts = Timeouts {
            request: limit(filter.request_timeout),
            idle: limit(filter.idle_timeout),
            one_try: None,
        };
    }
    let retry = first.retry_filter.as_ref().or(others.retry_filter.as_ref());
    rule.retry = retry.map(|filter| Retry {
        count: Some(filter.num_retries).filter(|count| *count > 0),
        pause: None,
        conditions: filter.retry_on.clone(),
        statuses: filter.retry_on_status_codes.clone(),
        on_connect_failure: filter.retry_on_connect_failure,
        of_unseen: false,
    });
}

fn service(route: &ServiceName, service: &HttpRouteService) -> ServiceName {
    let tenancy = route
        .tenancy
        .resolve(&service.partition, &service.namespace);
    ServiceName::new(&tenancy, &service.name)
}

fn headers(filters: &[HttpRouteHeaders]) -> HeaderModifiers {
    let all = filters.iter().map(HttpRouteHeaders::modifiers);
    all.fold(HeaderModifiers::default(), |all, one| all.then(&one))
}

fn matched(written: &HttpRouteMatch) -> Match {
    let path = written.path.value.clone();
    Match {
        path: match written.path.r#match.as_str() {
            "exact" => PathMatch::Exact(path),
            "prefix" => PathMatch::Prefix(path),
            "regex" => PathMatch::Regex(path),
            _ => PathMatch::default(),
        },
        method: Some(written.method.clone()).filter(|method| !method.is_empty()),
        headers: written.headers.iter().map(value).collect(),
        query: written.query.iter().map(value).collect(),
    }
}

fn value(written: &HttpRouteValueMatch) -> ValueMatch {
    let value = written.value.clone();
    ValueMatch {
        name: written.name.clone(),
        value: match written.r#match.as_str() {
            "exact" => TextMatch::Exact(value),
            "prefix" => TextMatch::Prefix(value),
            "suffix" => TextMatch::Suffix(value),
            "regex" => TextMatch::Regex(value),
            _ => TextMatch::Present,
        },
    }
}
