//! Resources as readable text: decoded, without fields at their defaults, nested messages in
//! sections of their own.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};

use envoy_types::pb::envoy::config::accesslog::v3::{AccessLog, access_log};
use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::core::v3::{
    SubstitutionFormatString, TransportSocket, substitution_format_string, transport_socket,
};
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::config::listener::v3::{Listener, filter, listener_filter};
use envoy_types::pb::envoy::config::rbac::v3::rbac::Action;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::extensions::access_loggers::file::v3::{
    FileAccessLog, file_access_log,
};
use envoy_types::pb::envoy::extensions::access_loggers::stream::v3::{
    StderrAccessLog, StdoutAccessLog, stderr_access_log, stdout_access_log,
};
use envoy_types::pb::envoy::extensions::filters::http::grpc_http1_bridge::v3::Config as Bridge;
use envoy_types::pb::envoy::extensions::filters::http::grpc_stats::v3::FilterConfig;
use envoy_types::pb::envoy::extensions::filters::http::header_to_metadata::v3::Config as Metadata;
use envoy_types::pb::envoy::extensions::filters::http::jwt_authn::v3::JwtAuthentication;
use envoy_types::pb::envoy::extensions::filters::http::local_ratelimit::v3::LocalRateLimit;
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::{Rbac as HttpRbac, RbacPerRoute};
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::listener::original_dst::v3::OriginalDst;
use envoy_types::pb::envoy::extensions::filters::listener::tls_inspector::v3::TlsInspector;
use envoy_types::pb::envoy::extensions::filters::network::connection_limit::v3::ConnectionLimit;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_filter,
};
use envoy_types::pb::envoy::extensions::filters::network::rbac::v3::Rbac as NetworkRbac;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::TcpProxy;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    DownstreamTlsContext, Secret, UpstreamTlsContext,
};
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::google::protobuf::Any;
use legate_resources::{EncodedResource, ResourceSet};
use prost::{Message, Name};

/// All resources of a set.
pub(crate) fn describe(set: &ResourceSet) -> String {
    let mut out = String::new();
    for type_url in type_urls() {
        for resource in set.get(&type_url).values() {
            out.push_str(&one(resource));
        }
    }
    for warning in set.warnings() {
        writeln!(out, "# warning: {warning}").unwrap();
    }
    out
}

pub(crate) fn type_urls() -> [String; 5] {
    [
        Cluster::type_url(),
        ClusterLoadAssignment::type_url(),
        Listener::type_url(),
        RouteConfiguration::type_url(),
        Secret::type_url(),
    ]
}

/// One resource, with its name and children in the heading.
pub(crate) fn one(resource: &EncodedResource) -> String {
    let any = Any::decode(resource.body.clone()).unwrap();
    let kind = any.type_url.rsplit('.').next().unwrap();
    let mut out = format!("# {kind} {}", resource.name);
    for child in &resource.children {
        write!(out, " -> {child}").unwrap();
    }
    out.push('\n');
    message(&mut out, any);
    out.push('\n');
    out
}

fn message(out: &mut String, any: Any) {
    let mut nested = Vec::new();
    if any.type_url == HttpRbac::type_url() {
        return rules(out, HttpRbac::decode(&*any.value).unwrap().rules.unwrap());
    }
    if let Some(route) = decode::<RbacPerRoute>(&any) {
        return rules(out, route.rbac.unwrap().rules.unwrap());
    }
    if any.type_url == NetworkRbac::type_url() {
        let filter = NetworkRbac::decode(&*any.value).unwrap();
        writeln!(out, "stat_prefix: {}", filter.stat_prefix).unwrap();
        return rules(out, filter.rules.unwrap());
    }
    let text = if let Some(mut cluster) = decode::<Cluster>(&any) {
        let options = cluster.typed_extension_protocol_options.drain();
        nested.extend(options);
        take_socket(&mut nested, cluster.transport_socket.as_mut());
        brief(&cluster)
    } else if let Some(mut listener) = decode::<Listener>(&any) {
        take_logs(&mut nested, &mut listener.access_log);
        for filter in &mut listener.listener_filters {
            if let Some(listener_filter::ConfigType::TypedConfig(any)) = filter.config_type.take() {
                nested.push((filter.name.clone(), any));
            }
        }
        let chains = listener.filter_chains.iter_mut();
        for chain in chains.chain(listener.default_filter_chain.as_mut()) {
            for filter in &mut chain.filters {
                if let Some(filter::ConfigType::TypedConfig(any)) = filter.config_type.take() {
                    nested.push((filter.name.clone(), any));
                }
            }
            take_socket(&mut nested, chain.transport_socket.as_mut());
        }
        brief(&listener)
    } else if let Some(mut proxy) = decode::<TcpProxy>(&any) {
        take_logs(&mut nested, &mut proxy.access_log);
        brief(&proxy)
    } else if let Some(mut manager) = decode::<HttpConnectionManager>(&any) {
        take_logs(&mut nested, &mut manager.access_log);
        for filter in &mut manager.http_filters {
            if let Some(http_filter::ConfigType::TypedConfig(any)) = filter.config_type.take() {
                nested.push((filter.name.clone(), any));
            }
        }
        brief(&manager)
    } else if let Some(mut routes) = decode::<RouteConfiguration>(&any) {
        for host in &mut routes.virtual_hosts {
            for route in &mut host.routes {
                nested.extend(route.typed_per_filter_config.drain());
            }
            nested.extend(host.typed_per_filter_config.drain());
        }
        brief(&routes)
    } else if let Some(filter) = decode::<JwtAuthentication>(&any) {
        tokens(filter)
    } else {
        plain(&any)
    };
    out.push_str(&text);
    for (name, any) in nested {
        writeln!(out, "## {name}: {}", any.type_url).unwrap();
        message(out, any);
    }
}

/// The filter that verifies tokens, with sorted providers.
fn tokens(filter: JwtAuthentication) -> String {
    let mut out = String::new();
    let providers: BTreeMap<_, _> = filter.providers.iter().collect();
    for (name, provider) in providers {
        write!(out, "provider {name}: {}", brief(provider)).unwrap();
    }
    for rule in &filter.rules {
        write!(out, "rule: {}", brief(rule)).unwrap();
    }
    out
}

fn take_socket(nested: &mut Vec<(String, Any)>, socket: Option<&mut TransportSocket>) {
    let Some(socket) = socket else { return };
    if let Some(transport_socket::ConfigType::TypedConfig(any)) = socket.config_type.take() {
        nested.push((socket.name.clone(), any));
    }
}

fn take_logs(nested: &mut Vec<(String, Any)>, logs: &mut [AccessLog]) {
    for log in logs {
        if let Some(access_log::ConfigType::TypedConfig(any)) = log.config_type.take() {
            nested.push((log.name.clone(), any));
        }
    }
}

fn stream_log(format: Option<stdout_access_log::AccessLogFormat>) -> String {
    let stdout_access_log::AccessLogFormat::LogFormat(format) = format.unwrap();
    log_format(format)
}

fn error_log(format: Option<stderr_access_log::AccessLogFormat>) -> String {
    let stderr_access_log::AccessLogFormat::LogFormat(format) = format.unwrap();
    log_format(format)
}

fn file_log(log: FileAccessLog) -> String {
    let Some(file_access_log::AccessLogFormat::LogFormat(format)) = log.access_log_format else {
        panic!("{log:?}");
    };
    format!("path: {:?}\n{}", log.path, log_format(format))
}

/// A JSON object with sorted keys.
fn log_format(mut format: SubstitutionFormatString) -> String {
    let Some(substitution_format_string::Format::JsonFormat(object)) = &mut format.format else {
        return brief(&format);
    };
    let fields = object.fields.drain().collect::<BTreeMap<_, _>>();
    fields
        .into_iter()
        .map(|(key, value)| format!("{key}: {}", brief(&value.kind.unwrap())))
        .collect()
}

fn plain(any: &Any) -> String {
    None.or_else(|| decode::<ClusterLoadAssignment>(any).map(|m| brief(&m)))
        .or_else(|| decode::<Secret>(any).map(|m| brief(&m)))
        .or_else(|| decode::<UpstreamTlsContext>(any).map(|m| brief(&m)))
        .or_else(|| decode::<DownstreamTlsContext>(any).map(|m| brief(&m)))
        .or_else(|| decode::<HttpProtocolOptions>(any).map(|m| brief(&m)))
        .or_else(|| decode::<StdoutAccessLog>(any).map(|m| stream_log(m.access_log_format)))
        .or_else(|| decode::<StderrAccessLog>(any).map(|m| error_log(m.access_log_format)))
        .or_else(|| decode::<FileAccessLog>(any).map(file_log))
        .or_else(|| decode::<ConnectionLimit>(any).map(|m| brief(&m)))
        .or_else(|| decode::<Router>(any).map(|m| brief(&m)))
        .or_else(|| decode::<OriginalDst>(any).map(|m| brief(&m)))
        .or_else(|| decode::<TlsInspector>(any).map(|m| brief(&m)))
        .or_else(|| decode::<FilterConfig>(any).map(|m| brief(&m)))
        .or_else(|| decode::<Bridge>(any).map(|m| brief(&m)))
        .or_else(|| decode::<LocalRateLimit>(any).map(|m| brief(&m)))
        .or_else(|| decode::<Metadata>(any).map(|m| brief(&m)))
        .unwrap_or_else(|| panic!("no decoder for {}", any.type_url))
}

fn decode<M: Message + Name + Default>(any: &Any) -> Option<M> {
    (any.type_url == M::type_url()).then(|| M::decode(&*any.value).unwrap())
}

/// Policies sorted by name, the order in which Envoy evaluates them.
fn rules(out: &mut String, rules: envoy_types::pb::envoy::config::rbac::v3::Rbac) {
    writeln!(out, "action: {:?}", Action::try_from(rules.action).unwrap()).unwrap();
    for (name, policy) in rules.policies.into_iter().collect::<BTreeMap<_, _>>() {
        write!(out, "policy {name}: {}", brief(&policy)).unwrap();
    }
}

/// The debug form as an indented outline, without empty values.
fn brief(message: &impl Debug) -> String {
    let text = format!("{message:#?}");
    let mut lines = text.lines().map(str::trim);
    let mut out = String::new();
    for node in block(&mut lines) {
        node.write(&mut out, 0);
    }
    out
}

/// One line of the debug form, with the lines inside its brackets.
struct Node {
    text: String,
    open: Option<char>,
    inside: Vec<Node>,
}

fn block<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<Node> {
    let mut nodes = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with(['}', ')', ']']) {
            break;
        }
        let line = line.trim_end_matches(',');
        let open = line.chars().last().filter(|last| "{([".contains(*last));
        nodes.push(Node {
            text: line.trim_end_matches(['{', '(', '[', ' ']).to_owned(),
            inside: open.map_or_else(Vec::new, |_| block(lines)),
            open,
        });
    }
    nodes
}

impl Node {
    fn write(self, out: &mut String, depth: usize) {
        const NOTHING: [&str; 6] = [": None", ": []", ": {}", ": 0", ": false", ": \"\""];
        let mut node = self;
        // A value with one line inside is written on that line.
        while node.open == Some('(') && node.inside.len() == 1 {
            let inner = node.inside.remove(0);
            let outer = node.text.trim_end_matches("Some").trim_end();
            let text = format!("{outer} {}", inner.text).trim().to_owned();
            node = Node { text, ..inner };
        }
        if node.open.is_none() && NOTHING.iter().any(|nothing| node.text.ends_with(nothing)) {
            return;
        }
        writeln!(out, "{}{}", "  ".repeat(depth), node.text).unwrap();
        for inner in node.inside {
            inner.write(out, depth + 1);
        }
    }
}
