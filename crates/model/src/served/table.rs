//! Field table rows of all types but config entries, whose rows are defined with their kind.

use super::field::Served::{self, Inside, Keys, RefusedExcept, ReportedExcept, Yes};
use super::field::{REFUSED, REPORTED, Rows};
use crate::extension;

const KIND: Served = ReportedExcept(&["connect-proxy"]);

/// Keys of `Proxy.Config` that the server uses to build resources, or the dataplane to build Envoy's
/// bootstrap.
pub(crate) const PROXY_CONFIG: Served = Keys(&[
    "balance_inbound_connections",
    "bind_address",
    "bind_port",
    "local_connect_timeout_ms",
    "local_idle_timeout_ms",
    "local_request_timeout_ms",
    "max_inbound_connections",
    "protocol",
    "xds_fetch_timeout_ms",
    "envoy_listener_tracing_json",
    "envoy_local_cluster_json",
    "envoy_public_listener_json",
    "envoy_bootstrap_json_tpl",
    "envoy_dogstatsd_url",
    "envoy_extra_static_clusters_json",
    "envoy_extra_static_listeners_json",
    "envoy_extra_stats_sinks_json",
    "envoy_prometheus_bind_addr",
    "envoy_stats_bind_addr",
    "envoy_stats_config_json",
    "envoy_stats_flush_interval",
    "envoy_stats_tags",
    "envoy_statsd_url",
    "envoy_tracing_json",
]);

/// Keys of an upstream's `Config`.
const UPSTREAM_CONFIG: Served = Keys(&[
    "balance_outbound_connections",
    "connect_timeout_ms",
    "envoy_cluster_json",
    "envoy_listener_json",
    "limits",
    "passive_health_check",
    "protocol",
]);

/// All request types with all their fields.
#[rustfmt::skip] // One row a line.
pub(super) const TABLE: &[Rows] = &[
    // Catalog and agent.
    ("RegisterRequest", &[
        (Yes, "Datacenter ID Node Address TaggedAddresses NodeMeta SkipNodeUpdate"),
        (Inside, "Service Check Checks Locality"),
        (REFUSED, "PeerName"),
        (Yes, "Partition"),
    ]),
    // Consul accepts an address and ignores it as well.
    ("DeregisterRequest", &[
        (Yes, "Datacenter Node Address ServiceID CheckID"),
        (REFUSED, "PeerName"),
        (Yes, "Namespace Partition"),
    ]),
    ("ServiceInstance", &[
        (KIND, "Kind"),
        (Yes, "ID Service Tags Address Meta Port SocketPath EnableTagOverride CreateIndex ModifyIndex"),
        (Inside, "TaggedAddresses Weights Proxy Connect Locality"),
        (REFUSED, "PeerName"),
        (Yes, "Namespace Partition"),
    ]),
    ("ServiceDefinition", &[
        (KIND, "Kind"),
        (Yes, "ID Name Service Tags Address Meta Port SocketPath EnableTagOverride"),
        (Inside, "TaggedAddresses Check Checks Weights Proxy Connect Locality"),
        (REPORTED, "Token"),
        (Yes, "Namespace Partition"),
    ]),
    ("ChainOverrides", &[(Yes, "OverrideProtocol OverrideConnectTimeout"), (Inside, "OverrideMeshGateway")]),
    ("ConnectDefinition", &[(Yes, "Native"), (Inside, "SidecarService")]),
    ("ServiceConnect", &[(Yes, "Native")]),
    ("Locality", &[(Yes, "Region Zone")]),
    ("PrioritizeByLocality", &[(Yes, "Mode")]),
    ("ServiceAddress", &[(Yes, "Address Port")]),
    ("Weights", &[(Yes, "Passing Warning")]),
    ("HealthCheck", &[
        (Yes, "Node CheckID Name Status Notes Output ServiceID ServiceName ServiceTags Type Interval Timeout ExposedPort CreateIndex ModifyIndex"),
        (Inside, "Definition"),
        (REFUSED, "PeerName"),
        (Yes, "Namespace Partition"),
    ]),
    // The owner of a catalog check runs it: the catalog stores and returns its definition.
    ("CheckDefinition", &[
        (Yes, "HTTP TLSServerName TLSSkipVerify Header Method Body DisableRedirects TCP TCPUseTLS UDP H2PING H2PingUseTLS OSService ScriptArgs DockerContainerID Shell GRPC GRPCUseTLS AliasNode AliasService TTL Interval OutputMaxSize Timeout DeregisterCriticalServiceAfter"),
    ]),
    // The server runs the checks that are registered with its agent API.
    ("CheckType", &[
        (Yes, "CheckID ID Name Status Notes HTTP TCP UDP GRPC H2PING ScriptArgs Args DockerContainerID Shell AliasNode AliasService TTL DeregisterCriticalServiceAfter Interval Timeout Header Method Body DisableRedirects TLSServerName TLSSkipVerify GRPCUseTLS TCPUseTLS H2PingUseTLS SuccessBeforePassing FailuresBeforeWarning FailuresBeforeCritical OutputMaxSize ServiceID"),
        (REFUSED, "OSService"),
        (REPORTED, "Token ProxyHTTP ProxyGRPC"),
        (Yes, "Namespace Partition"),
    ]),
    ("ConnectProxy", &[
        (Yes, "DestinationServiceName DestinationServiceID LocalServiceAddress LocalServicePort LocalServiceSocketPath Mode"),
        (PROXY_CONFIG, "Config"),
        (Inside, "Upstreams MeshGateway Expose TransparentProxy AccessLogs"),
        // As in Consul, those of config entries replace them.
        (REPORTED, "EnvoyExtensions"),
    ]),
    // The server refuses datacenters other than its own.
    ("Upstream", &[
        (REFUSED, "DestinationPeer"),
        (Yes, "DestinationNamespace DestinationPartition"),
        (Yes, "DestinationType DestinationName Datacenter LocalBindAddress LocalBindPort LocalBindSocketPath LocalBindSocketMode"),
        (UPSTREAM_CONFIG, "Config"),
        (Inside, "MeshGateway"),
    ]),
    ("EnvoyExtension", &[
        (RefusedExcept(extension::SERVED), "Name"),
        (Yes, "Required Arguments"),
        // Consul does not evaluate them either.
        (REPORTED, "ConsulVersion EnvoyVersion"),
    ]),
    ("AccessLogs", &[(Yes, "Enabled DisableListenerLogs Type Path JSONFormat TextFormat")]),
    ("MeshGateway", &[(ReportedExcept(&["none"]), "Mode")]),
    ("Expose", &[(Yes, "Checks"), (Inside, "Paths")]),
    ("ExposePath", &[(Yes, "ListenerPort Path LocalPathPort Protocol ParsedFromCheck")]),
    ("TransparentProxy", &[(Yes, "OutboundListenerPort DialedDirectly")]),
    ("AssignVirtualIps", &[(Yes, "Datacenter Service ManualVIPs"), (Yes, "Namespace Partition")]),
    // Some are from Consul's oldest versions and have no effect there either.
    ("Intention", &[
        (REFUSED, "ID SourcePeer SourceSamenessGroup"),
        (Yes, "Description SourceName DestinationName SourceType Action Meta Precedence DefaultAddr DefaultPort CreatedAt UpdatedAt Hash CreateIndex ModifyIndex"),
        (Yes, "SourceNS DestinationNS SourcePartition DestinationPartition"),
        (Inside, "Permissions JWT"),
    ]),
    ("IntentionPermission", &[(Yes, "Action"), (Inside, "HTTP JWT")]),
    ("JwtRequirement", &[(Inside, "Providers")]),
    ("RequiredProvider", &[(Yes, "Name"), (Inside, "VerifyClaims")]),
    ("RequiredClaim", &[(Yes, "Path Value")]),
    ("HttpPermission", &[(Yes, "PathExact PathPrefix PathRegex Methods"), (Inside, "Header")]),
    ("HttpHeaderPermission", &[(Yes, "Name Present Exact Prefix Suffix Contains Regex Invert IgnoreCase")]),
    ("ConnectAuthorize", &[(Yes, "Target ClientCertURI ClientCertSerial"), (Yes, "Namespace Partition")]),
    // Access control.
    ("Token", &[
        (Yes, "AccessorID SecretID Description Local AuthMethod AuthMethodNamespace ExpirationTTL ExpirationTime CreateTime Hash CreateIndex ModifyIndex"),
        (Inside, "Policies Roles ServiceIdentities NodeIdentities TemplatedPolicies"),
        (Yes, "Namespace Partition"),
    ]),
    ("PolicyLink", &[(Yes, "ID Name")]),
    ("RoleLink", &[(Yes, "ID Name")]),
    ("Policy", &[
        (Yes, "ID Name Description Rules Datacenters Hash CreateIndex ModifyIndex"),
        (Yes, "Namespace Partition"),
    ]),
    ("Role", &[
        (Yes, "ID Name Description Hash CreateIndex ModifyIndex"),
        (Inside, "Policies ServiceIdentities NodeIdentities TemplatedPolicies"),
        (Yes, "Namespace Partition"),
    ]),
    ("TemplatedPolicy", &[(Yes, "TemplateID TemplateName Datacenters"), (Inside, "TemplateVariables")]),
    ("TemplateVariables", &[(Yes, "name")]),
    ("ServiceIdentity", &[(Yes, "ServiceName Datacenters")]),
    ("NodeIdentity", &[(Yes, "NodeName Datacenter")]),
    // There is one datacenter, so a token that is valid in it is valid in all.
    ("AuthMethod", &[
        (Yes, "Name Type DisplayName Description MaxTokenTTL TokenLocality Config CreateIndex ModifyIndex"),
        (Inside, "NamespaceRules"),
        (Yes, "Namespace Partition"),
    ]),
    ("NamespaceRule", &[(Yes, "Selector BindNamespace")]),
    ("BindingRule", &[
        (Yes, "ID Description AuthMethod Selector BindType BindName CreateIndex ModifyIndex"),
        (Inside, "BindVars"),
        (Yes, "Namespace Partition"),
    ]),
    // Queries may name other datacenters, of which there are none here.
    ("PreparedQuery", &[(Yes, "ID Name Session Token CreateIndex ModifyIndex"), (Inside, "Template Service DNS")]),
    ("QueryTemplate", &[(Yes, "Type Regexp RemoveEmptyTags")]),
    ("ServiceQuery", &[
        (Yes, "Service OnlyPassing IgnoreCheckIDs Near Tags NodeMeta ServiceMeta Connect Namespace Partition"),
        (Inside, "Failover"),
        (REFUSED, "SamenessGroup Peer"),
    ]),
    ("QueryFailover", &[(REPORTED, "NearestN Datacenters"), (Inside, "Targets")]),
    ("QueryFailoverTarget", &[(REPORTED, "Datacenter"), (REFUSED, "Peer"), (Yes, "Namespace Partition")]),
    ("QueryDns", &[(Yes, "TTL")]),
    // Namespaces and partitions. There is no gossip.
    ("Namespace", &[(Yes, "Name Description Meta DeletedAt Partition CreateIndex ModifyIndex"), (Inside, "ACLs")]),
    ("NamespaceAcls", &[(Inside, "PolicyDefaults RoleDefaults")]),
    ("Partition", &[(Yes, "Name Description DisableGossip DeletedAt CreateIndex ModifyIndex")]),
    // Sessions and transactions.
    ("SessionRequest", &[
        (Yes, "ID Name Node LockDelay Behavior TTL NodeChecks Checks CreateIndex ModifyIndex"),
        (Inside, "ServiceChecks"),
        (Yes, "Namespace Partition"),
    ]),
    ("ServiceCheck", &[(Yes, "ID Namespace")]),
    ("Operation", &[(Inside, "KV Node Service Check Session")]),
    ("KvOperation", &[(Yes, "Verb Key Value Flags Index Session"), (Yes, "Namespace Partition")]),
    ("NodeOperation", &[(Yes, "Verb"), (Inside, "Node")]),
    ("NodeOperand", &[
        (Yes, "ID Node Address Datacenter TaggedAddresses Meta CreateIndex ModifyIndex"),
        (Inside, "Locality"),
        (REFUSED, "PeerName"),
        (Yes, "Partition"),
    ]),
    ("ServiceOperation", &[(Yes, "Verb Node"), (Inside, "Service")]),
    ("CheckOperation", &[(Yes, "Verb"), (Inside, "Check")]),
    ("SessionOperation", &[(Yes, "Verb"), (Inside, "Session")]),
    ("SessionOperand", &[(Yes, "ID"), (Yes, "Namespace Partition")]),
    // Coordinates. There are no network segments.
    ("NodeCoordinate", &[(Yes, "Node"), (REFUSED, "Segment"), (Yes, "Partition"), (Inside, "Coord")]),
    ("Coordinate", &[(Yes, "Vec Error Adjustment Height")]),
    // Autopilot never acts on servers here.
    ("AutopilotConfiguration", &[
        (Yes, "CreateIndex ModifyIndex"),
        (REPORTED, "CleanupDeadServers LastContactThreshold MaxTrailingLogs MinQuorum ServerStabilizationTime RedundancyZoneTag DisableUpgradeMigration UpgradeVersionTag"),
    ]),
    // Peerings are stored; no other cluster is called or accepted.
    ("GeneratePeeringToken", &[(REPORTED, "PeerName"), (Yes, "Meta ServerExternalAddresses"), (Yes, "Partition")]),
    ("EstablishPeering", &[(REPORTED, "PeerName"), (Yes, "PeeringToken Meta"), (Yes, "Partition")]),
    // The mesh CA. The keys of `Config` belong to the provider.
    ("CaConfiguration", &[(Yes, "Provider Config State ForceWithoutCrossSigning CreateIndex ModifyIndex")]),
];
