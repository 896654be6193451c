//! The rules of HTTPRoutes and GRPCRoutes.

use std::time::Duration;

use legate_filter::re2;
use legate_routes::{
    Action, Match, Origin, PathMatch, Retry, Rewrite, Rule, TextMatch, Timeouts, ValueMatch,
    WeightedBackend, quoted, spread,
};

use super::backend::{Collected, RouteContext};
use super::consul;
use super::filters::{self, header_name, is_path, required, unserved};
use super::route::Route;
use crate::duration;
use crate::object::Object;
use crate::types::{
    GrpcFilter, GrpcMatch, GrpcRoute, GrpcRule, HttpBackend, HttpFilter, HttpMatch, HttpRoute,
    HttpRule, HttpTimeouts, RetryPolicy, TypedPath, TypedValue,
};

/// A rule for one condition. The one with the greater rank is tried first.
#[derive(Clone)]
pub(super) struct Ranked {
    pub(super) rank: [usize; 5],
    pub(super) rule: Rule,
}

/// What a rule asks for; an error is what of it is not served.
type Outcome = Result<Rule, String>;

/// The rules of an HTTPRoute, in the order of its spec.
pub(super) fn http(
    context: &RouteContext<'_>,
    object: &Object<HttpRoute>,
    collected: &mut Collected,
) -> Vec<Ranked> {
    let rules = object.spec.rules.iter().enumerate().map(|(index, rule)| {
        let path = format!("rules[{index}]");
        let made = match object.unserved_in(&path) {
            Some(path) => Err(format!("{path} is not served")),
            None => http_rule(context, (index, rule), collected),
        };
        let matches = rule.matches.iter().map(http_match).collect();
        (index, made, matches)
    });
    let rules: Vec<_> = rules.collect();
    finish(context, rules, collected)
}

/// The rules of a GRPCRoute, in the order of its spec.
pub(super) fn grpc(
    context: &RouteContext<'_>,
    object: &Object<GrpcRoute>,
    collected: &mut Collected,
) -> Vec<Ranked> {
    let rules = object.spec.rules.iter().enumerate().map(|(index, rule)| {
        let path = format!("rules[{index}]");
        let made = match object.unserved_in(&path) {
            Some(path) => Err(format!("{path} is not served")),
            None => grpc_rule(context, (index, rule), collected),
        };
        let matches = rule.matches.iter().map(grpc_match).collect();
        (index, made, matches)
    });
    let rules: Vec<_> = rules.collect();
    finish(context, rules, collected)
}

/// One condition of a rule, its rank, and what of it is not served: the rest of it still says which
/// requests the rule is about.
struct Condition {
    matched: Match,
    rank: [usize; 5],
    unserved: Option<String>,
}

/// A rule for each condition. What is not served is an answer.
fn finish(
    context: &RouteContext<'_>,
    rules: Vec<(usize, Outcome, Vec<Condition>)>,
    collected: &mut Collected,
) -> Vec<Ranked> {
    let mut all = Vec::new();
    let none = rules.is_empty();
    for (index, made, mut matches) in rules {
        if matches.is_empty() {
            matches.push(Condition {
                matched: Match::default(),
                rank: [PREFIX, 1, 0, 0, 0],
                unserved: None,
            });
        }
        let needs_prefix = made.as_ref().is_ok_and(needs_prefix);
        let wrong = matches.iter().find_map(|one| match &one.matched.path {
            _ if one.unserved.is_some() => one.unserved.clone(),
            PathMatch::Exact(path) | PathMatch::Regex(path) if needs_prefix => {
                let message = "replacePrefixMatch: there is no prefix in the condition";
                Some(format!("{message} {path:?}"))
            }
            path => {
                let rule = made.as_ref().ok()?;
                consul::replaces_more(context.lookup.world, rule, path)
            }
        });
        let whole = context.route.unserved.clone();
        let reason = whole.or_else(|| made.as_ref().err().cloned()).or(wrong);
        if let Some(reason) = &reason {
            collected
                .report
                .unserved
                .push(format!("rules[{index}]: {reason}"));
        }
        collected.report.is_served |= reason.is_none();
        let rule = match (made, reason) {
            (Ok(rule), None) => rule,
            _ => answer(context, index),
        };
        all.extend(matches.into_iter().map(|one| Ranked {
            rank: one.rank,
            rule: Rule {
                matched: one.matched,
                ..rule.clone()
            },
        }));
    }
    if none {
        // Rules that cannot be read could be about every request.
        match &context.route.unserved {
            Some(reason) => collected.report.unserved.push(reason.clone()),
            None => collected.report.is_served = true,
        }
        let rule = answer(context, 0);
        let rank = [PREFIX, 1, 0, 0, 0];
        all.push(Ranked { rank, rule });
    }
    all
}

/// Whether a rule replaces the beginning of the path that its condition has.
fn needs_prefix(rule: &Rule) -> bool {
    let redirected = match &rule.action {
        Action::Redirect(redirect) => redirect.path.as_ref(),
        Action::Forward(_) | Action::Answer(_) => None,
    };
    let paths = [rule.rewrite.as_ref(), redirected];
    let mut paths = paths.into_iter().flatten();
    paths.any(|path| matches!(path, Rewrite::Segments(_)))
}

fn answer(context: &RouteContext<'_>, index: usize) -> Rule {
    Rule::plain(
        origin(context.route, index),
        Action::Answer(context.unusable()),
    )
}

fn origin(route: &Route<'_>, rule: usize) -> Origin {
    Origin {
        route: route.name(),
        rule,
    }
}

fn http_rule(
    context: &RouteContext<'_>,
    (index, written): (usize, &HttpRule),
    collected: &mut Collected,
) -> Outcome {
    let mut rule = answer(context, index);
    let mut redirect = None;
    for (at, filter) in written.filters.iter().enumerate() {
        let path = format!("filters[{at}]");
        http_filter(
            context,
            (&mut rule, &mut redirect),
            (filter, &path),
            collected,
        )?;
    }
    if redirect.is_some() && (rule.rewrite.is_some() || rule.host_rewrite.is_some()) {
        return Err("filters: a redirect and a rewrite exclude each other".to_owned());
    }
    retries(&mut rule, written.retry.as_ref())?;
    timeouts(&mut rule, written.timeouts.as_ref())?;
    let forwarded = forward(context, &written.backend_refs, collected)?;
    rule.action = redirect.map_or(forwarded, Action::Redirect);
    consul::unserved(context.lookup.world, &rule)?;
    Ok(rule)
}

fn http_filter(
    context: &RouteContext<'_>,
    (rule, redirect): (&mut Rule, &mut Option<legate_routes::Redirect>),
    (filter, path): (&HttpFilter, &str),
    collected: &mut Collected,
) -> Result<(), String> {
    let path = |field: &str| format!("{path}.{field}");
    match filter.r#type.as_str() {
        "RequestHeaderModifier" => {
            let path = path("requestHeaderModifier");
            let own = required(filter.request_header_modifier.as_ref(), &path)?;
            rule.request = rule.request.then(&filters::headers(own, &path)?);
        }
        "ResponseHeaderModifier" => {
            let path = path("responseHeaderModifier");
            let own = required(filter.response_header_modifier.as_ref(), &path)?;
            rule.response = rule.response.then(&filters::headers(own, &path)?);
        }
        "RequestMirror" => {
            let path = path("requestMirror");
            let own = required(filter.request_mirror.as_ref(), &path)?;
            rule.mirrors
                .extend(filters::mirror(context, own, collected, &path)?);
        }
        "RequestRedirect" => {
            let path = path("requestRedirect");
            let own = required(filter.request_redirect.as_ref(), &path)?;
            *redirect = Some(filters::redirect(context, own, &path)?);
        }
        "URLRewrite" => {
            let path = path("urlRewrite");
            let own = required(filter.url_rewrite.as_ref(), &path)?;
            filters::rewrite(rule, own, &path)?;
        }
        "CORS" => {
            let path = path("cors");
            let own = required(filter.cors.as_ref(), &path)?;
            rule.cors = Some(filters::cors(own, &path)?);
        }
        other => return Err(unserved(&path("type"), other)),
    }
    Ok(())
}

fn grpc_rule(
    context: &RouteContext<'_>,
    (index, written): (usize, &GrpcRule),
    collected: &mut Collected,
) -> Outcome {
    let mut rule = answer(context, index);
    for (at, filter) in written.filters.iter().enumerate() {
        // The filters of a GRPCRoute are some of those of an HTTPRoute.
        let GrpcFilter {
            r#type,
            request_header_modifier,
            response_header_modifier,
            request_mirror,
        } = filter.clone();
        let filter = HttpFilter {
            r#type,
            request_header_modifier,
            response_header_modifier,
            request_mirror,
            ..HttpFilter::default()
        };
        let path = format!("filters[{at}]");
        http_filter(context, (&mut rule, &mut None), (&filter, &path), collected)?;
    }
    rule.action = forward(context, &written.backend_refs, collected)?;
    Ok(rule)
}

/// Where requests go: an answer if there is nowhere.
fn forward(
    context: &RouteContext<'_>,
    backends: &[HttpBackend],
    collected: &mut Collected,
) -> Result<Action, String> {
    let mut shares = Vec::new();
    for (at, written) in backends.iter().enumerate() {
        let mut backend = WeightedBackend::only(context.target(&written.backend, collected));
        for (index, filter) in written.filters.iter().enumerate() {
            let path = format!("backendRefs[{at}].filters[{index}]");
            match filter.r#type.as_str() {
                "RequestHeaderModifier" => {
                    let path = format!("{path}.requestHeaderModifier");
                    let own = required(filter.request_header_modifier.as_ref(), &path)?;
                    backend.request = backend.request.then(&filters::headers(own, &path)?);
                }
                "ResponseHeaderModifier" => {
                    let path = format!("{path}.responseHeaderModifier");
                    let own = required(filter.response_header_modifier.as_ref(), &path)?;
                    backend.response = backend.response.then(&filters::headers(own, &path)?);
                }
                other => return Err(unserved(&format!("{path}.type"), other)),
            }
        }
        shares.push((written.weight.unwrap_or(1), backend));
    }
    let shares = spread(shares);
    Ok(match shares.is_empty() {
        true => Action::Answer(context.unusable()),
        false => Action::Forward(shares),
    })
}

fn limit(text: Option<&String>, path: &str) -> Result<Option<Duration>, String> {
    let read = |text: &String| duration::parse(text).ok_or_else(|| unserved(path, text));
    text.map(read).transpose()
}

/// Timeouts, after retries: without them the only try has the shorter one.
fn timeouts(rule: &mut Rule, written: Option<&HttpTimeouts>) -> Result<(), String> {
    let Some(written) = written else {
        return Ok(());
    };
    let request = limit(written.request.as_ref(), "timeouts.request")?;
    let one_try = limit(written.backend_request.as_ref(), "timeouts.backendRequest")?;
    let one_try = one_try.filter(|time| !time.is_zero());
    rule.timeouts = match &rule.retry {
        Some(_) => Timeouts {
            request,
            one_try,
            idle: None,
        },
        None => {
            let own = request.filter(|time| !time.is_zero());
            let shorter = match (own, one_try) {
                (Some(request), Some(one_try)) => Some(request.min(one_try)),
                (one, other) => one.or(other),
            };
            Timeouts {
                request: shorter.or(request),
                ..Timeouts::default()
            }
        }
    };
    Ok(())
}

fn retries(rule: &mut Rule, written: Option<&RetryPolicy>) -> Result<(), String> {
    let Some(written) = written else {
        return Ok(());
    };
    let mut codes = written.codes.iter();
    if let Some(other) = codes.find(|code| !(400..600).contains(*code)) {
        return Err(unserved("retry.codes", other));
    }
    rule.retry = Some(Retry {
        count: written.attempts,
        pause: limit(written.backoff.as_ref(), "retry.backoff")?,
        conditions: Vec::new(),
        statuses: written.codes.clone(),
        on_connect_failure: true,
        of_unseen: true,
    });
    Ok(())
}

/// The kinds of conditions on paths, in the order in which they are tried. Expressions have no place
/// in the API's order: after whole paths, since a rule for all paths would leave them nothing.
const EXACT: usize = 2;
const REGEX: usize = 1;
const PREFIX: usize = 0;

fn http_match(written: &HttpMatch) -> Condition {
    let mut wrong = None;
    let path = path(written.path.as_ref()).unwrap_or_else(|reason| {
        wrong = Some(reason);
        PathMatch::default()
    });
    let kind = match &path {
        PathMatch::Exact(_) => EXACT,
        PathMatch::Regex(_) => REGEX,
        PathMatch::Prefix(_) | PathMatch::Segments(_) => PREFIX,
    };
    let is_method = |method: &String| method.bytes().all(|byte| byte.is_ascii_uppercase());
    let method = written.method.clone();
    if let Some(other) = method.as_ref().filter(|method| !is_method(method)) {
        wrong = Some(unserved("matches.method", other));
    }
    let mut matched = Match {
        path,
        method: method.filter(is_method),
        ..Match::default()
    };
    for header in &written.headers {
        match header_match(header, "matches.headers") {
            Ok(one) => add(&mut matched.headers, one),
            Err(reason) => wrong = wrong.or(Some(reason)),
        }
    }
    for parameter in &written.query_params {
        match value(parameter, "matches.queryParams") {
            Ok(one) => add(&mut matched.query, one),
            Err(reason) => wrong = wrong.or(Some(reason)),
        }
    }
    Condition {
        rank: [
            kind,
            matched.path.text().len(),
            usize::from(matched.method.is_some()),
            matched.headers.len(),
            matched.query.len(),
        ],
        matched,
        unserved: wrong,
    }
}

/// Of several conditions on one name, the first counts.
fn add(all: &mut Vec<ValueMatch>, one: ValueMatch) {
    if !all.iter().any(|known| known.name == one.name) {
        all.push(one);
    }
}

fn regex(text: &str, path: &str) -> Result<String, String> {
    match re2::validate(text) {
        Ok(()) if text.is_empty() => Err(unserved(path, text)),
        Ok(()) => Ok(text.to_owned()),
        Err(reason) => Err(format!("{path}: {text:?} is not an expression: {reason}")),
    }
}

fn path(written: Option<&TypedPath>) -> Result<PathMatch, String> {
    const PATH: &str = "matches.path";
    let Some(written) = written else {
        return Ok(PathMatch::default());
    };
    let value = written.value.as_deref().unwrap_or("/");
    let kind = written.r#type.as_deref().unwrap_or("PathPrefix");
    if kind != "RegularExpression" && !is_path(value) {
        return Err(unserved(&format!("{PATH}.value"), value));
    }
    match kind {
        "Exact" => Ok(PathMatch::Exact(value.to_owned())),
        "PathPrefix" => Ok(match value.trim_end_matches('/') {
            "" => PathMatch::default(),
            segments => PathMatch::Segments(segments.to_owned()),
        }),
        "RegularExpression" => Ok(PathMatch::Regex(regex(value, PATH)?)),
        other => Err(unserved(&format!("{PATH}.type"), other)),
    }
}

fn header_match(written: &TypedValue, path: &str) -> Result<ValueMatch, String> {
    // A condition on `Host` is none on this header, which HTTP/2 does not have.
    let name = match written.name.eq_ignore_ascii_case("host") {
        true => ":authority".to_owned(),
        false => header_name(&written.name, path)?,
    };
    Ok(ValueMatch {
        name,
        ..value(written, path)?
    })
}

fn value(written: &TypedValue, path: &str) -> Result<ValueMatch, String> {
    const LONGEST: usize = 1024;
    if !(1..=LONGEST).contains(&written.name.len()) {
        return Err(unserved(&format!("{path}.name"), &written.name));
    }
    let text = written.value.clone();
    let value = match written.r#type.as_deref().unwrap_or("Exact") {
        "Exact" => TextMatch::Exact(text),
        "RegularExpression" => TextMatch::Regex(regex(&text, path)?),
        other => return Err(unserved(&format!("{path}.type"), other)),
    };
    Ok(ValueMatch {
        name: written.name.clone(),
        value,
    })
}

fn grpc_match(written: &GrpcMatch) -> Condition {
    let mut wrong = None;
    let method = written.method.clone().unwrap_or_default();
    let path = grpc_path(
        method.r#type.as_deref().unwrap_or("Exact"),
        method.service.as_deref().filter(|name| !name.is_empty()),
        method.method.as_deref().filter(|name| !name.is_empty()),
    );
    let path = path.unwrap_or_else(|reason| {
        wrong = Some(reason);
        PathMatch::default()
    });
    let mut headers = Vec::new();
    for header in &written.headers {
        match header_match(header, "matches.headers") {
            Ok(one) => add(&mut headers, one),
            Err(reason) => wrong = wrong.or(Some(reason)),
        }
    }
    let length = |name: &Option<String>| name.as_ref().map_or(0, String::len);
    Condition {
        rank: [
            length(&method.service),
            length(&method.method),
            headers.len(),
            0,
            0,
        ],
        matched: Match {
            path,
            headers,
            ..Match::default()
        },
        unserved: wrong,
    }
}

fn grpc_path(kind: &str, service: Option<&str>, method: Option<&str>) -> Result<PathMatch, String> {
    const ANY: &str = "[^/]+";
    let is_part = |text: &&str| is_path(&format!("/{text}"));
    let mut parts = service.into_iter().chain(method);
    if let Some(odd) = parts.find(|part| kind == "Exact" && !is_part(part)) {
        return Err(unserved("matches.method", odd));
    }
    match (kind, service, method) {
        ("Exact" | "RegularExpression", None, None) => Ok(PathMatch::default()),
        ("Exact", Some(service), Some(method)) => {
            Ok(PathMatch::Exact(format!("/{service}/{method}")))
        }
        ("Exact", Some(service), None) => Ok(PathMatch::Prefix(format!("/{service}/"))),
        ("Exact", None, Some(method)) => Ok(PathMatch::Regex(format!("/{ANY}/{}", quoted(method)))),
        ("RegularExpression", service, method) => {
            // Each part is an expression of its own: with `|` in it, it stays one part.
            let part = |text: Option<&str>| match text {
                Some(text) => regex(text, "matches.method").map(|text| format!("(?:{text})")),
                None => Ok(ANY.to_owned()),
            };
            Ok(PathMatch::Regex(format!(
                "/{}/{}",
                part(service)?,
                part(method)?
            )))
        }
        (other, ..) => Err(unserved("matches.method.type", other)),
    }
}
