//! What of Consul's configuration is not served, and why. The first part of a key decides.

const GOSSIP: &str = "there is no gossip and no RPC among agents; servers share their state \
                      through etcd (legate-server --etcd-endpoints)";
const WAN: &str = "a server serves one datacenter, and federation is not part of it";
const RAFT: &str = "there is no Raft: the state is in memory, in a file or in etcd";
const UI: &str = "there is no web interface";
const LOG_FILE: &str = "the log is written to standard error; whoever starts the agent keeps it";
const SCRIPTS: &str = "checks that run a command are not run";
const ENTERPRISE: &str = "it belongs to Consul Enterprise";
const TELEMETRY: &str = "metrics are read at /v1/agent/metrics?format=prometheus, always";

/// Beginnings of keys, each with the reason.
const REASONS: &[(&str, &str)] = &[
    ("advertise_addr_wan", WAN),
    ("advertise_wan", WAN),
    ("advertise_reconnect_timeout", GOSSIP),
    (
        "acl.tokens",
        "an agent has no token of its own but acl.tokens.initial_management",
    ),
    ("audit", ENTERPRISE),
    ("auto_config", GOSSIP),
    ("auto_encrypt", GOSSIP),
    ("auto_reload_config", "files are read once, at the start"),
    ("autopilot", RAFT),
    ("connect.enable_mesh_gateway_wan_federation", WAN),
    ("enable_local_script_checks", SCRIPTS),
    ("enable_script_checks", SCRIPTS),
    ("enable_syslog", LOG_FILE),
    ("encrypt", GOSSIP),
    ("gossip_", GOSSIP),
    ("join", GOSSIP),
    ("license_path", ENTERPRISE),
    ("log_file", LOG_FILE),
    ("log_rotate", LOG_FILE),
    ("non_voting_server", ENTERPRISE),
    ("partition", ENTERPRISE),
    ("peering", "cluster peering is not served"),
    ("performance", RAFT),
    ("ports.serf", GOSSIP),
    ("ports.server", GOSSIP),
    ("primary_gateway", WAN),
    ("protocol", GOSSIP),
    ("raft_", RAFT),
    ("read_replica", ENTERPRISE),
    ("reconnect_timeout", GOSSIP),
    ("recursor", "DNS answers for the mesh only"),
    ("rejoin", GOSSIP),
    ("retry_interval", GOSSIP),
    ("retry_join_wan", WAN),
    ("retry_join", GOSSIP),
    ("retry_max", GOSSIP),
    ("segment", ENTERPRISE),
    ("serf_", GOSSIP),
    ("server_port", GOSSIP),
    ("start_join", GOSSIP),
    ("telemetry", TELEMETRY),
    ("tls.internal_rpc", GOSSIP),
    ("translate_wan_addrs", WAN),
    ("ui", UI),
    (
        "watches",
        "programs are not started; blocking queries wait for changes",
    ),
];

/// Flags of `consul agent` that are neither served nor refused for a reason of their own.
const FLAGS: &[&str] = &[
    "allow-write-http-from",
    "alt-domain",
    "check_output_max_size",
    "config-format",
    "default-query-time",
    "disable-host-node-id",
    "disable-keyring-file",
    "domain",
    "max-query-time",
    "node-id",
    "pid-file",
    "syslog",
];

/// Why a key of the configuration is not served.
pub(super) fn key(key: &str) -> &'static str {
    let key = key.to_ascii_lowercase();
    let reason = REASONS.iter().find(|(start, _)| key.starts_with(start));
    reason.map_or(
        "it is no setting of an agent, or one that has no meaning here; docs/agent.md has those \
         that there are",
        |(_, reason)| reason,
    )
}

/// Why a flag of Consul's is not served. `None` for one that is, or that nobody has.
pub(super) fn flag(flag: &str) -> Option<&'static str> {
    if FLAGS.contains(&flag) {
        return Some("docs/agent.md has the flags that there are");
    }
    let key = flag.replace('-', "_");
    let reason = REASONS.iter().find(|(start, _)| key.starts_with(start));
    reason.map(|(_, reason)| *reason)
}
