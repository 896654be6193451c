//! `builtin/ext-authz`: an external service authorizes requests, or connections without HTTP.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{
    ApiVersion, GrpcService as ProtoGrpcService, HeaderValue as ProtoHeaderValue, HttpUri,
    grpc_service, http_uri,
};
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::extensions::filters::http::ext_authz::v3::{
    AuthorizationRequest as ProtoRequest, AuthorizationResponse as ProtoResponse, BufferSettings,
    ExtAuthz as HttpExtAuthz, HttpService as ProtoHttpService, ext_authz,
};
use envoy_types::pb::envoy::extensions::filters::network::ext_authz::v3::ExtAuthz as NetworkExtAuthz;
use envoy_types::pb::envoy::r#type::matcher::v3::{
    ListStringMatcher, RegexMatcher, StringMatcher as ProtoStringMatcher,
    string_matcher::MatchPattern,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use legate_model::extension::{
    AuthorizationRequest, AuthorizationResponse, Direction, ExtAuthz, ExtAuthzConfig, GrpcService,
    HeaderValue, HttpService, StringMatcher,
};

use super::filters;
use super::part_id::PartId;
use crate::duration::proto_duration;
use crate::encode;
use crate::listener::{http_filter, network_filter};

/// The default timeout of authorization over HTTP, the same as Envoy's over gRPC.
const TIMEOUT: Duration = Duration::from_millis(200);

/// The metadata namespace with the caller's identity.
const CALLER: &str = "consul";

/// Adds the filter to every chain of the listener. If the application speaks HTTP, a chain without
/// HTTP is the plain-text chain of permissive mode, which stays unchanged.
pub(super) fn change(
    authz: &ExtAuthz,
    required: bool,
    cluster: &str,
    place: PartId<'_>,
    listener: &mut Listener,
) -> Result<(), String> {
    let options = &authz.insert_options;
    let filter = http(&authz.config, required, cluster);
    let with_requests = filters::each_manager(listener, |manager| {
        filters::insert(&mut manager.http_filters, filter.clone(), options)
    })?;
    if with_requests > 0 && place.direction() == Direction::Inbound {
        return Ok(());
    }
    for chain in filters::chains(listener) {
        if filters::change_manager(chain, &mut |_| Ok(()))? {
            continue;
        }
        let Some(service) = &authz.config.grpc_service else {
            return Err(
                "HttpService decides about requests, and here are none: use GrpcService".to_owned(),
            );
        };
        let config = NetworkExtAuthz {
            stat_prefix: stat_prefix(&authz.config),
            grpc_service: Some(grpc(service, cluster)),
            failure_mode_allow: !required,
            include_peer_certificate: authz.config.include_peer_certificate,
            transport_api_version: ApiVersion::V3.into(),
            ..NetworkExtAuthz::default()
        };
        let filter = network_filter("envoy.filters.network.ext_authz", encode::any(&config));
        filters::insert(&mut chain.filters, filter, options)?;
    }
    Ok(())
}

fn stat_prefix(config: &ExtAuthzConfig) -> String {
    match config.stat_prefix.as_str() {
        "" => "response".to_owned(),
        prefix => prefix.to_owned(),
    }
}

fn http(
    config: &ExtAuthzConfig,
    required: bool,
    cluster: &str,
) -> envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter {
    let by_grpc = config.grpc_service.as_ref();
    let by_grpc = by_grpc.map(|service| ext_authz::Services::GrpcService(grpc(service, cluster)));
    let by_http = config.http_service.as_ref();
    let by_http =
        by_http.map(|service| ext_authz::Services::HttpService(http_service(service, cluster)));
    let namespaces = config.metadata_context_namespaces.iter().cloned();
    let body = config.with_request_body.as_ref();
    let filter = HttpExtAuthz {
        services: by_grpc.or(by_http),
        stat_prefix: stat_prefix(config),
        transport_api_version: ApiVersion::V3.into(),
        metadata_context_namespaces: namespaces.chain([CALLER.to_owned()]).collect(),
        // A required extension fails closed.
        failure_mode_allow: !required,
        clear_route_cache: config.clear_route_cache,
        include_peer_certificate: config.include_peer_certificate,
        bootstrap_metadata_labels_key: config.bootstrap_metadata_labels_key.clone(),
        status_on_error: config.status_on_error.map(|code| HttpStatus {
            code: i32::try_from(code).unwrap_or_default(),
        }),
        with_request_body: body.map(|body| BufferSettings {
            max_request_bytes: body.max_request_bytes,
            allow_partial_message: body.allow_partial_message,
            pack_as_bytes: body.pack_as_bytes,
        }),
        ..HttpExtAuthz::default()
    };
    http_filter("envoy.filters.http.ext_authz", encode::any(&filter))
}

/// A gRPC service in a cluster.
pub(super) fn grpc(service: &GrpcService, cluster: &str) -> ProtoGrpcService {
    let to = grpc_service::EnvoyGrpc {
        cluster_name: cluster.to_owned(),
        authority: service.authority.clone(),
        ..grpc_service::EnvoyGrpc::default()
    };
    ProtoGrpcService {
        target_specifier: Some(grpc_service::TargetSpecifier::EnvoyGrpc(to)),
        timeout: service.target.timeout().map(proto_duration),
        initial_metadata: headers(&service.initial_metadata),
        ..ProtoGrpcService::default()
    }
}

fn http_service(service: &HttpService, cluster: &str) -> ProtoHttpService {
    ProtoHttpService {
        server_uri: Some(HttpUri {
            // Envoy ignores the host of the URI and uses the cluster.
            uri: cluster.to_owned(),
            http_upstream_type: Some(http_uri::HttpUpstreamType::Cluster(cluster.to_owned())),
            timeout: Some(proto_duration(service.target.timeout().unwrap_or(TIMEOUT))),
        }),
        path_prefix: service.path_prefix.clone(),
        authorization_request: request(&service.authorization_request),
        authorization_response: response(&service.authorization_response),
        ..ProtoHttpService::default()
    }
}

#[expect(
    deprecated,
    reason = "supported by all Envoy versions that Consul supports, unlike its successor"
)]
fn request(request: &AuthorizationRequest) -> Option<ProtoRequest> {
    let says = *request != AuthorizationRequest::default();
    says.then(|| ProtoRequest {
        allowed_headers: matchers(&request.allowed_headers),
        headers_to_add: headers(&request.headers_to_add),
    })
}

fn response(response: &AuthorizationResponse) -> Option<ProtoResponse> {
    let says = *response != AuthorizationResponse::default();
    says.then(|| ProtoResponse {
        allowed_upstream_headers: matchers(&response.allowed_upstream_headers),
        allowed_upstream_headers_to_append: matchers(&response.allowed_upstream_headers_to_append),
        allowed_client_headers: matchers(&response.allowed_client_headers),
        allowed_client_headers_on_success: matchers(&response.allowed_client_headers_on_success),
        dynamic_metadata_from_headers: matchers(&response.dynamic_metadata_from_headers),
    })
}

fn headers(headers: &[HeaderValue]) -> Vec<ProtoHeaderValue> {
    let header = |header: &HeaderValue| ProtoHeaderValue {
        key: header.key.clone(),
        value: header.value.clone(),
        ..ProtoHeaderValue::default()
    };
    headers.iter().map(header).collect()
}

fn matchers(matchers: &[StringMatcher]) -> Option<ListStringMatcher> {
    let patterns: Vec<_> = matchers.iter().map(matcher).collect();
    (!patterns.is_empty()).then_some(ListStringMatcher { patterns })
}

fn matcher(matcher: &StringMatcher) -> ProtoStringMatcher {
    let text = |text: &String| (!text.is_empty()).then(|| text.clone());
    let by_regex = || {
        let regex = text(&matcher.safe_regex)?;
        Some(MatchPattern::SafeRegex(RegexMatcher {
            regex,
            ..RegexMatcher::default()
        }))
    };
    let pattern = text(&matcher.contains)
        .map(MatchPattern::Contains)
        .or_else(|| text(&matcher.exact).map(MatchPattern::Exact))
        .or_else(|| text(&matcher.prefix).map(MatchPattern::Prefix))
        .or_else(by_regex)
        .or_else(|| text(&matcher.suffix).map(MatchPattern::Suffix));
    ProtoStringMatcher {
        // Envoy refuses the flag for regular expressions.
        ignore_case: matcher.ignore_case && matcher.safe_regex.is_empty(),
        match_pattern: pattern,
    }
}
