//! Applied to every HTTP request before and after its endpoint: blocked paths, networks and web pages that may
//! write, rate limits, the audit log, traces, and response headers. ACL permissions are checked by the endpoints.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode};
use legate_model::Tenancy;
use percent_encoding::percent_decode_str;

use super::browser::Browsers;
use super::call::token_in;
use super::connections::{Peer, Transport};
use super::params::Params;
use crate::acl::Rights;
use crate::api_error::ApiError;
use crate::audit::{Asked, Audit, Event};
use crate::operations::HttpPolicy;
use crate::rates::{Rates, TOO_MANY};
use crate::telemetry::{Traced, Traces};

/// Path prefixes exempt from rate limits, as in Consul: requests about the agent itself, its health, and
/// operator interventions. Also what the proxies of other datacenters need, which is one request a change.
const NOT_COUNTED: [&str; 5] = [
    "/v1/agent/",
    "/v1/internal/legate/servers/range",
    "/v1/operator/autopilot/",
    "/v1/operator/raft/",
    "/v1/status/",
];

/// POST endpoints that only read.
const ASKED_BY_POST: [&str; 9] = [
    "/v1/acl/templated-policy/preview/",
    "/v1/agent/connect/authorize",
    "/v1/discovery-chain/",
    "/v1/internal/acl/authorize",
    "/v1/internal/legate/servers/ca/roots",
    "/v1/internal/legate/servers/dns",
    "/v1/internal/legate/servers/query",
    "/v1/internal/legate/servers/range",
    "/v1/internal/legate/servers/replication",
];

const DEFAULT_POLICY: HeaderName = HeaderName::from_static("x-consul-default-acl-policy");
const TRANSLATES: HeaderName = HeaderName::from_static("x-consul-translate-addresses");

/// The guard of the API. Clones share it.
#[derive(Clone)]
pub(crate) struct Guard {
    pub(crate) policy: Arc<HttpPolicy>,
    pub(crate) browsers: Arc<Browsers>,
    pub(crate) rates: Rates,
    pub(crate) audit: Audit,
    pub(crate) traces: Traces,
    pub(crate) rights: Rights,
    /// The default ACL policy, for a response header.
    pub(crate) default_policy: &'static str,
    /// Whether addresses of other datacenters are translated, for a response header.
    pub(crate) translates: bool,
}

/// A request that was admitted, or rejected at once.
pub(super) struct Passing {
    pub(super) refusal: Option<Response>,
    /// Its audit log entry, if the log is enabled.
    event: Option<Event>,
    is_write: bool,
    traced: Option<Traced>,
}

impl Guard {
    /// Processes a request before its endpoint.
    pub(super) fn enter<B>(&self, request: &Request<B>, client: Peer) -> Passing {
        let (method, path) = (request.method(), request.uri().path());
        let is_write = is_write(method, path);
        let event = self.audit.is_on().then(|| {
            let asked = Asked {
                method,
                path,
                headers: request.headers(),
                client: client.address.to_string(),
            };
            self.audit.event(&self.rights, &self.token(request), &asked)
        });
        if is_write && let Some(event) = &event {
            self.audit.begin(event);
        }
        Passing {
            refusal: self.refusal(request, client),
            event,
            is_write,
            traced: self.traces.begin(method, path, request.headers()),
        }
    }

    /// Processes the response. `tenancy` is the request's, if it was read.
    pub(super) fn leave(
        &self,
        passing: Passing,
        tenancy: Option<Tenancy>,
        response: &mut Response,
    ) {
        let headers = response.headers_mut();
        headers.insert(
            DEFAULT_POLICY,
            HeaderValue::from_static(self.default_policy),
        );
        // Another datacenter may have answered.
        headers.remove(TRANSLATES);
        if self.translates {
            headers.insert(TRANSLATES, HeaderValue::from_static("true"));
        }
        name_methods(headers);
        for (name, value) in &self.policy.response_headers {
            if !headers.contains_key(name) {
                headers.insert(name, value.clone());
            }
        }
        let status = response.status();
        let denied = matches!(status, StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED);
        if let Some(event) = &passing.event
            && (passing.is_write || denied)
        {
            self.audit.end(event, tenancy.as_ref(), status);
        }
        self.traces.end(passing.traced, status);
    }

    fn refusal<B>(&self, request: &Request<B>, client: Peer) -> Option<Response> {
        let (method, path) = (request.method(), request.uri().path());
        let refused = |text: &str| ApiError::new(StatusCode::FORBIDDEN, text).into_response();
        if client.transport == Transport::Server {
            // The server that accepted it has checked who may ask what; the load is here.
            return self.over_limit(method, path);
        }
        if is_below(path, &self.policy.block_endpoints) {
            return Some(refused("Endpoint is blocked by agent configuration"));
        }
        // As in Consul, every method but these counts as a write here, even for POST endpoints that only read.
        let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let networks = &self.policy.allow_write_from;
        let address = client.address.ip().to_canonical();
        if !reads && !networks.is_empty() && !networks.iter().any(|one| one.contains(&address)) {
            return Some(refused("Access is restricted"));
        }
        if !reads && let Err(refused) = self.browsers.check(request.headers(), client.transport) {
            return Some(refused.into_response());
        }
        self.over_limit(method, path)
    }

    /// The answer to a request beyond the rate limits.
    fn over_limit(&self, method: &Method, path: &str) -> Option<Response> {
        let counted = !NOT_COUNTED.iter().any(|kind| path.starts_with(kind));
        let too_much = counted && self.rates.refuse(is_write(method, path), path);
        too_much.then(|| ApiError::new(StatusCode::TOO_MANY_REQUESTS, TOO_MANY).into_response())
    }

    /// The token of the request.
    fn token<B>(&self, request: &Request<B>) -> String {
        let params = Params::parse(request.uri()).unwrap_or_default();
        let in_url = params.get("token").filter(|token| !token.is_empty());
        let token = in_url.map_or_else(|| token_in(request.headers()), ToOwned::to_owned);
        match token.is_empty() {
            true => self.rights.default_token(),
            false => token,
        }
    }
}

/// Whether the decoded path begins with one of these. Decoded, because the endpoints decode it too.
fn is_below(path: &str, beginnings: &[String]) -> bool {
    if beginnings.is_empty() {
        return false;
    }
    let path: Vec<u8> = percent_decode_str(path).collect();
    let mut beginnings = beginnings.iter();
    beginnings.any(|beginning| path.starts_with(beginning.as_bytes()))
}

/// Whether a request is a write.
fn is_write(method: &Method, path: &str) -> bool {
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => false,
        Method::POST => !ASKED_BY_POST
            .iter()
            .any(|question| path.starts_with(question)),
        _ => true,
    }
}

/// Formats the `Allow` header like Consul: `OPTIONS` first, without `HEAD`.
fn name_methods(headers: &mut HeaderMap) {
    let Some(allowed) = headers.get(ALLOW).and_then(|value| value.to_str().ok()) else {
        return;
    };
    let of_path = allowed
        .split(',')
        .filter(|method| !matches!(*method, "HEAD" | "OPTIONS"));
    let all: Vec<_> = std::iter::once("OPTIONS").chain(of_path).collect();
    if let Ok(value) = HeaderValue::try_from(all.join(",")) {
        headers.insert(ALLOW, value);
    }
}
