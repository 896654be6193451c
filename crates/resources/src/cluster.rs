//! The clusters of the proxy's application and of its upstreams.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::{
    CircuitBreakers, Cluster, OutlierDetection, circuit_breakers, cluster,
};
use envoy_types::pb::envoy::config::core::v3::{Http1ProtocolOptions, Http2ProtocolOptions};
use envoy_types::pb::envoy::extensions::clusters::aggregate::v3::ClusterConfig as AggregateConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::{
    HttpProtocolOptions, http_protocol_options,
};
use envoy_types::pb::envoy::r#type::v3::Percent;
use envoy_types::pb::google::protobuf::UInt32Value;
use legate_discovery_chain::Target;
use legate_model::{Protocol, ServiceInstance, ServiceName, SpiffeId, TrustDomain};
use legate_proxycfg::{Destination, Instances, Proxy, ResolvedChain};

use crate::balancing::Balancing;
use crate::custom;
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::endpoint;
use crate::error::{GenerateError, MAX_SERVER_NAME};
use crate::gateway::external::{self, Discovery};
use crate::listener::Bind;
use crate::listener::exposed::PathHttp;
use crate::memo::Memo;
use crate::names::{self, HTTP_OPTIONS, LOCAL_APP, ORIGINAL_DESTINATION};
use crate::retry;
use crate::settings::{CLUSTER_JSON, LOCAL_CLUSTER_JSON, Limits, Outliers, ProxySettings};
use crate::tls::{self, Servers, TlsSettings};
use crate::upstream::{ClusterKind, ClusterPlan, UpstreamPlan};

/// The connect timeout for destinations outside the mesh, as in Consul.
const ORIGINAL_DESTINATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The connect timeout for instances that are dialled directly, as in Consul.
const PASSTHROUGH_TIMEOUT: Duration = Duration::from_secs(5);

/// The connect timeout for terminating gateways, as in Consul.
const DESTINATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The HTTP version that Envoy uses with the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LocalHttp {
    Http1,
    Http2,
    /// The version of the downstream request.
    AsCaller,
}

#[derive(Hash)]
struct LocalInput<'a> {
    name: &'a str,
    target: Bind,
    connect_timeout: Duration,
    http: LocalHttp,
    max_connections: u32,
}

/// The cluster of the proxy's application.
pub(crate) fn local_app(
    memo: &Memo,
    instance: &ServiceInstance,
    protocol: Protocol,
    settings: &ProxySettings,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    if let Some(text) = &settings.local_cluster {
        return written(memo, text, warnings);
    }
    let port = instance.proxy.local_service_port;
    // Applications behind a gRPC listener may also serve HTTP/1 health checks.
    let http = match protocol.is_http2() {
        true => LocalHttp::AsCaller,
        false => LocalHttp::Http1,
    };
    local(memo, instance, settings, (LOCAL_APP, port), http)
}

/// The cluster of the application as a user wrote it.
fn written(
    memo: &Memo,
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let made = memo.get(&(LOCAL_CLUSTER_JSON, text), |(setting, text)| {
        let cluster: Cluster = custom::read(setting, text)?;
        Ok(custom::resource(&cluster.name, &cluster, &[]))
    })?;
    if *made.name != *LOCAL_APP {
        warnings.push(format!(
            "Proxy.Config: the cluster in {LOCAL_CLUSTER_JSON} is named {:?}; listeners that are not \
             written by users lead to {LOCAL_APP:?}",
            made.name
        ));
    }
    Ok(made)
}

/// The cluster of another port of the application than the registered one.
pub(crate) fn application(
    memo: &Memo,
    instance: &ServiceInstance,
    settings: &ProxySettings,
    port: u16,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let name = names::application_cluster(port);
    // Its connections are passed on as they are.
    local(memo, instance, settings, (&name, port), LocalHttp::Http1)
}

/// The cluster of the exposed paths of one port of the application.
pub(crate) fn exposed(
    memo: &Memo,
    instance: &ServiceInstance,
    settings: &ProxySettings,
    local_path_port: u16,
    paths: PathHttp,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let name = names::exposed_cluster(local_path_port);
    let http = match paths {
        PathHttp::Http1 => LocalHttp::Http1,
        PathHttp::Http2 => LocalHttp::Http2,
        PathHttp::Both => LocalHttp::AsCaller,
    };
    local(memo, instance, settings, (&name, local_path_port), http)
}

fn local(
    memo: &Memo,
    instance: &ServiceInstance,
    settings: &ProxySettings,
    (name, port): (&str, u16),
    http: LocalHttp,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = LocalInput {
        name,
        target: local_target(instance, port)?,
        connect_timeout: settings.local_connect_timeout,
        http,
        max_connections: settings.max_inbound_connections,
    };
    memo.get(&input, |input| {
        Ok(encode::resource(input.name, &build_local(input), &[]))
    })
}

fn local_target(instance: &ServiceInstance, port: u16) -> Result<Bind, GenerateError> {
    let proxy = &instance.proxy;
    if !proxy.local_service_socket_path.is_empty() {
        return Ok(Bind::pipe(&proxy.local_service_socket_path));
    }
    Bind::socket(
        "Proxy.LocalServiceAddress",
        &proxy.local_service_address,
        port,
    )
}

fn build_local(input: &LocalInput<'_>) -> Cluster {
    let mut cluster = Cluster {
        name: input.name.to_owned(),
        cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(
            cluster::DiscoveryType::Static.into(),
        )),
        connect_timeout: Some(proto_duration(input.connect_timeout)),
        load_assignment: Some(endpoint::single(input.name, &input.target)),
        ..Cluster::default()
    };
    if input.max_connections > 0 {
        cluster.circuit_breakers = Some(breakers(circuit_breakers::Thresholds {
            max_connections: number(Some(input.max_connections)),
            ..circuit_breakers::Thresholds::default()
        }));
    }
    match input.http {
        LocalHttp::Http1 => {}
        LocalHttp::Http2 => set_http_options(&mut cluster, http2_only()),
        LocalHttp::AsCaller => {
            let same = http_protocol_options::UseDownstreamHttpConfig {
                http_protocol_options: Some(Http1ProtocolOptions::default()),
                http2_protocol_options: Some(Http2ProtocolOptions::default()),
                ..http_protocol_options::UseDownstreamHttpConfig::default()
            };
            set_http_options(
                &mut cluster,
                http_protocol_options::UpstreamProtocolOptions::UseDownstreamProtocolConfig(same),
            );
        }
    }
    cluster
}

#[derive(Hash)]
struct UpstreamInput<'a> {
    name: &'a str,
    sni: &'a str,
    servers: Servers,
    discovery: Discovery<'a>,
    connect_timeout: Duration,
    http2: bool,
    balancing: Balancing,
    limits: Option<&'a Limits>,
    outliers: &'a Outliers,
    tls: &'a TlsSettings,
    fetch_timeout: Option<Duration>,
}

#[derive(Hash)]
struct FailoverInput<'a> {
    name: &'a str,
    members: &'a [String],
    connect_timeout: Duration,
}

/// Who may answer for a target; `None` if that is not known.
fn servers(proxy: &Proxy, target: &Target) -> Option<Servers> {
    match target.peer.as_str() {
        "" => {
            let service = target.service_name();
            let identity = identity(&proxy.trust_domain, &service, &target.datacenter);
            Some(Servers::of_mesh(identity))
        }
        peer => Servers::of_peer(peer, &target.peer_identities),
    }
}

/// A cluster of an upstream. Its endpoints are a separate resource with the same name, except those at host names.
pub(crate) fn upstream(
    memo: &Memo,
    plan: &UpstreamPlan<'_>,
    cluster: &ClusterPlan<'_>,
    tls: &TlsSettings,
    fetch_timeout: Option<Duration>,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let (target, balancer) = match &cluster.kind {
        ClusterKind::Target(target, balancer) => (target, balancer),
        ClusterKind::Failover(members) => return failover(memo, cluster, members),
    };
    let Some(servers) = servers(plan.proxy, target) else {
        warnings.push(format!(
            "upstream {}: it is not known how service {} of peer {} is reached, so that nothing is sent there; see the \
             peering, its trust bundle, and what the peer exports",
            plan.id, target.service, target.peer
        ));
        return unreachable(memo, &cluster.name, cluster.connect_timeout);
    };
    if let Some(text) = &plan.settings.cluster {
        return written_upstream(memo, plan, (target, servers), tls, text);
    }
    let input = UpstreamInput {
        name: &cluster.name,
        sni: &target.sni,
        servers,
        discovery: match names_of(&plan.upstream.resolved, target) {
            Some(instances) => Discovery::of_peer(&plan.id, instances, warnings),
            None => Discovery::Endpoints,
        },
        connect_timeout: cluster.connect_timeout,
        http2: plan.protocol().is_http2(),
        balancing: Balancing::of(*balancer),
        limits: plan.settings.limits.as_ref(),
        outliers: &plan.settings.outliers,
        tls,
        fetch_timeout,
    };
    made_upstream(memo, &input)
}

/// The instances of a target of a peer, if some have host names: they are part of the cluster.
pub(crate) fn names_of<'a>(resolved: &'a ResolvedChain, target: &Target) -> Option<&'a Instances> {
    if target.peer.is_empty() {
        return None;
    }
    let instances = resolved.instances(&target.id)?;
    external::has_names(instances).then_some(&**instances)
}

fn made_upstream(
    memo: &Memo,
    input: &UpstreamInput<'_>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.get(input, |input| {
        let cluster = build_upstream(input);
        let waits_for = input.discovery.waits_for(input.name);
        Ok(encode::resource(input.name, &cluster, waits_for.as_slice()))
    })
}

/// Whether a target has no endpoints of its own: it is not known who may answer for it.
pub(crate) fn is_unreachable(target: &Target) -> bool {
    !target.peer.is_empty() && target.peer_identities.is_empty()
}

#[derive(Hash)]
struct UnreachableInput<'a> {
    name: &'a str,
    connect_timeout: Duration,
}

/// The cluster of a target of which it is not known who may answer for it: it opens no connection, so that others take
/// over if there are some, and requests fail otherwise.
fn unreachable(
    memo: &Memo,
    name: &str,
    connect_timeout: Duration,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = UnreachableInput {
        name,
        connect_timeout,
    };
    memo.get(&input, |input| {
        let mut cluster = Cluster {
            name: input.name.to_owned(),
            alt_stat_name: input.name.to_owned(),
            connect_timeout: Some(proto_duration(input.connect_timeout)),
            ..Cluster::default()
        };
        Discovery::Nowhere.set(&mut cluster, None);
        Ok(encode::resource(input.name, &cluster, &[]))
    })
}

/// The cluster of one address of a service outside the mesh. Its endpoints are the gateways, whose
/// certificates have the identity of that service.
pub(crate) fn destination(
    memo: &Memo,
    proxy: &Proxy,
    destination: &Destination,
    name: &str,
    tls: &TlsSettings,
    fetch_timeout: Option<Duration>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    if name.len() > MAX_SERVER_NAME {
        return Err(GenerateError::LongServerName(name.to_owned()));
    }
    let input = UpstreamInput {
        name,
        sni: name,
        servers: Servers::of_mesh(identity(
            &proxy.trust_domain,
            &ServiceName::new(&proxy.id.tenancy, &destination.name),
            &proxy.datacenter,
        )),
        discovery: Discovery::Endpoints,
        connect_timeout: DESTINATION_TIMEOUT,
        http2: destination.protocol.is_http2(),
        balancing: Balancing::default(),
        limits: None,
        outliers: &Outliers::default(),
        tls,
        fetch_timeout,
    };
    made_upstream(memo, &input)
}

/// The cluster that fails over between others in order. See [`crate::upstream`].
fn failover(
    memo: &Memo,
    cluster: &ClusterPlan<'_>,
    members: &[String],
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = FailoverInput {
        name: &cluster.name,
        members,
        connect_timeout: cluster.connect_timeout,
    };
    memo.get(&input, |input| {
        Ok(encode::resource(input.name, &build_failover(input), &[]))
    })
}

fn build_failover(input: &FailoverInput<'_>) -> Cluster {
    let config = AggregateConfig {
        clusters: input.members.to_vec(),
    };
    Cluster {
        name: input.name.to_owned(),
        alt_stat_name: input.name.to_owned(),
        cluster_discovery_type: Some(cluster::ClusterDiscoveryType::ClusterType(
            cluster::CustomClusterType {
                name: "envoy.clusters.aggregate".to_owned(),
                typed_config: Some(encode::any(&config)),
            },
        )),
        lb_policy: cluster::LbPolicy::ClusterProvided.into(),
        connect_timeout: Some(proto_duration(input.connect_timeout)),
        // The retry limit applies here, the other limits in the members.
        circuit_breakers: Some(upstream_breakers(None)),
        ..Cluster::default()
    }
}

/// The cluster of an upstream as a user wrote it, with TLS towards the mesh.
fn written_upstream(
    memo: &Memo,
    plan: &UpstreamPlan<'_>,
    (target, servers): (&Target, Servers),
    tls: &TlsSettings,
    text: &str,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = (CLUSTER_JSON, text, tls, &target.sni, servers);
    memo.get(&input, |(_, text, tls, sni, servers)| {
        let written = crate::upstream::written(memo, &plan.upstream.upstream, text);
        let mut cluster = Cluster::clone((*written).as_ref().map_err(Clone::clone)?);
        cluster.transport_socket = Some(tls::upstream_to(tls, sni, servers));
        // Matches would take precedence over the socket set above.
        cluster.transport_socket_matches.clear();
        let name = cluster.name.clone();
        Ok(custom::resource(&name, &cluster, &[&name]))
    })
}

fn build_upstream(input: &UpstreamInput<'_>) -> Cluster {
    let balancing = cluster::CommonLbConfig {
        // Never send requests to unhealthy instances, even if most are unhealthy.
        healthy_panic_threshold: Some(Percent { value: 0.0 }),
        // Envoy would use an instance for up to a second after it has ejected it, and so would all retries.
        update_merge_window: Some(proto_duration(Duration::ZERO)),
        ..cluster::CommonLbConfig::default()
    };
    let mut cluster = Cluster {
        name: input.name.to_owned(),
        alt_stat_name: input.name.to_owned(),
        connect_timeout: Some(proto_duration(input.connect_timeout)),
        common_lb_config: Some(balancing),
        circuit_breakers: Some(upstream_breakers(input.limits)),
        outlier_detection: Some(outliers(input.outliers)),
        transport_socket: Some(tls::upstream_to(input.tls, input.sni, &input.servers)),
        ..Cluster::default()
    };
    input.discovery.set(&mut cluster, input.fetch_timeout);
    input.balancing.apply(&mut cluster);
    if input.http2 {
        set_http_options(&mut cluster, http2_only());
    }
    cluster
}

#[derive(Hash)]
struct PassthroughInput<'a> {
    name: String,
    sni: &'a str,
    identity: String,
    connect_timeout: Duration,
    tls: &'a TlsSettings,
}

/// The cluster for the instance to which a captured connection was sent.
pub(crate) fn passthrough(
    memo: &Memo,
    plan: &UpstreamPlan<'_>,
    tls: &TlsSettings,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let definition = &plan.upstream.upstream;
    let sni = names::upstream_sni(plan.proxy, definition);
    let datacenter = names::datacenter(plan.proxy, definition);
    let input = PassthroughInput {
        name: names::passthrough_cluster(&sni),
        sni: &sni,
        identity: identity(
            &plan.proxy.trust_domain,
            &names::service(plan.proxy, definition),
            datacenter,
        ),
        connect_timeout: PASSTHROUGH_TIMEOUT,
        tls,
    };
    memo.get(&input, |input| {
        let cluster = Cluster {
            transport_socket: Some(tls::upstream(input.tls, input.sni, &input.identity)),
            ..to_original_destination(&input.name, input.connect_timeout)
        };
        Ok(encode::resource(&input.name, &cluster, &[]))
    })
}

/// The cluster for captured connections to destinations outside the mesh.
pub(crate) fn original_destination(memo: &Memo) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = (ORIGINAL_DESTINATION, ORIGINAL_DESTINATION_TIMEOUT);
    memo.get(&input, |(name, timeout)| {
        let cluster = to_original_destination(name, *timeout);
        Ok(encode::resource(name, &cluster, &[]))
    })
}

fn to_original_destination(name: &str, connect_timeout: Duration) -> Cluster {
    Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(
            cluster::DiscoveryType::OriginalDst.into(),
        )),
        lb_policy: cluster::LbPolicy::ClusterProvided.into(),
        connect_timeout: Some(proto_duration(connect_timeout)),
        ..Cluster::default()
    }
}

/// The SPIFFE id that the certificates of instances must have.
pub(crate) fn identity(
    trust_domain: &TrustDomain,
    service: &ServiceName,
    datacenter: &str,
) -> String {
    let identity = SpiffeId::Service {
        trust_domain: trust_domain.clone(),
        tenancy: service.tenancy.clone(),
        datacenter: datacenter.to_owned(),
        service: service.name.as_ref().to_owned(),
    };
    identity.to_string()
}

pub(crate) fn http2_only() -> http_protocol_options::UpstreamProtocolOptions {
    use http_protocol_options::explicit_http_config::ProtocolConfig;
    let explicit = http_protocol_options::ExplicitHttpConfig {
        protocol_config: Some(ProtocolConfig::Http2ProtocolOptions(
            Http2ProtocolOptions::default(),
        )),
    };
    http_protocol_options::UpstreamProtocolOptions::ExplicitHttpConfig(explicit)
}

/// Sets the only key of the map, so that its order does not matter.
pub(crate) fn set_http_options(
    cluster: &mut Cluster,
    protocol: http_protocol_options::UpstreamProtocolOptions,
) {
    let options = HttpProtocolOptions {
        upstream_protocol_options: Some(protocol),
        ..HttpProtocolOptions::default()
    };
    cluster
        .typed_extension_protocol_options
        .insert(HTTP_OPTIONS.to_owned(), encode::any(&options));
}

fn upstream_breakers(limits: Option<&Limits>) -> CircuitBreakers {
    breakers(circuit_breakers::Thresholds {
        max_connections: limits.and_then(|limits| number(limits.max_connections)),
        max_pending_requests: limits.and_then(|limits| number(limits.max_pending_requests)),
        max_requests: limits.and_then(|limits| number(limits.max_concurrent_requests)),
        max_retries: number(Some(retry::AT_A_TIME)),
        ..circuit_breakers::Thresholds::default()
    })
}

fn breakers(thresholds: circuit_breakers::Thresholds) -> CircuitBreakers {
    CircuitBreakers {
        thresholds: vec![thresholds],
        ..CircuitBreakers::default()
    }
}

fn outliers(outliers: &Outliers) -> OutlierDetection {
    OutlierDetection {
        interval: outliers.interval.map(proto_duration),
        consecutive_5xx: number(outliers.max_failures),
        enforcing_consecutive_5xx: number(outliers.enforcing_consecutive_5xx),
        max_ejection_percent: number(outliers.max_ejection_percent),
        base_ejection_time: outliers.base_ejection_time.map(proto_duration),
        ..OutlierDetection::default()
    }
}

fn number(value: Option<u32>) -> Option<UInt32Value> {
    value.map(|value| UInt32Value { value })
}
