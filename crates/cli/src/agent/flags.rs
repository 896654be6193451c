//! The command line of `consul agent`: Go's flags, with one or two dashes, `-flag value` or
//! `-flag=value`. A flag sets a key of the configuration and overrides the files.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;
use serde_json::{Map, Value, json};

use super::config::merge;

/// The flags of `legate agent`.
#[derive(Debug, Default, Args)]
pub(crate) struct Flags {
    /// Development mode: state in memory, and gRPC also without TLS, on 8502
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    pub(crate) dev: bool,
    /// Run a server; required without -dev, because client agents are not supported
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    server: Option<bool>,
    /// Directory with *.hcl and *.json files, read in order of their names; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) config_dir: Vec<PathBuf>,
    /// File to read, *.hcl or *.json, or a directory; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) config_file: Vec<PathBuf>,
    /// Configuration in HCL, read after the files; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) hcl: Vec<String>,
    /// Directory for the state; with -dev the state is in memory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Name of the datacenter [default: dc1]
    #[arg(long, value_name = "NAME")]
    datacenter: Option<String>,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Metadata of this node, KEY:VALUE; may be repeated
    #[arg(long, value_name = "KEY:VALUE")]
    node_meta: Vec<String>,
    /// Address of the HTTP, gRPC and DNS listeners [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// Address of this node in the catalog, unless -advertise is set
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Address of this node in the catalog [default: that of -bind]
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<String>,
    /// Port of the HTTP API; -1 disables it [default: 8500]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    http_port: Option<i64>,
    /// Port of the HTTP API with TLS; -1 disables it [default: -1]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    https_port: Option<i64>,
    /// Port of the gRPC API; -1 disables it [default: 8502 with -dev, else -1]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    grpc_port: Option<i64>,
    /// Port of the gRPC API with TLS; -1 disables it [default: 8503]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    grpc_tls_port: Option<i64>,
    /// Port of DNS; -1 disables it [default: 8600]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    dns_port: Option<i64>,
    /// Number of servers: one
    #[arg(long, value_name = "NUMBER")]
    bootstrap_expect: Option<i64>,
    /// The same as -bootstrap-expect 1
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    bootstrap: Option<bool>,
    /// Format of all files, whatever their names: hcl or json
    #[arg(long, value_name = "FORM")]
    pub(crate) config_format: Option<String>,
    /// Domain of DNS names [default: consul]
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// Alternative domain of DNS names [default: none]
    #[arg(long, value_name = "NAME")]
    alt_domain: Option<String>,
    /// Upstream DNS server for other domains; may be repeated [default: none]
    #[arg(long, value_name = "ADDRESS")]
    recursor: Vec<String>,
    /// Id of this node, a UUID [default: random, stored with the state]
    #[arg(long, value_name = "ID")]
    node_id: Option<String>,
    /// File with the process id while the agent runs
    #[arg(long, value_name = "FILE")]
    pid_file: Option<String>,
    /// Default wait time of blocking queries [default: 5m]
    #[arg(long, value_name = "TIME")]
    default_query_time: Option<String>,
    /// Maximum wait time of blocking queries [default: 10m]
    #[arg(long, value_name = "TIME")]
    max_query_time: Option<String>,
    /// Network allowed to write over HTTP, such as 10.0.0.0/8; may be repeated [default: all]
    #[arg(long, value_name = "NETWORK")]
    allow_write_http_from: Vec<String>,
    /// Maximum stored output of a check, in bytes [default: 4096]
    #[arg(long, value_name = "BYTES", alias = "check_output_max_size")]
    check_output_max_size: Option<u64>,
    /// Enable script checks from any source
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    enable_script_checks: Option<bool>,
    /// Enable script checks from files
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    enable_local_script_checks: Option<bool>,
    /// Reload the files when one of them changes
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    auto_reload_config: Option<bool>,
    /// Additional file for the log
    #[arg(long, value_name = "FILE")]
    log_file: Option<String>,
    /// Rotate the log file at this size [default: never]
    #[arg(long, value_name = "BYTES")]
    log_rotate_bytes: Option<i64>,
    /// Rotate the log file after this time [default: 24h]
    #[arg(long, value_name = "TIME")]
    log_rotate_duration: Option<String>,
    /// Number of rotated log files to keep; 0 keeps all, -1 none [default: 0]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    log_rotate_max_files: Option<i64>,
    /// Minimum log level: trace, debug, info, warn or error [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Log JSON objects instead of text
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    log_json: Option<bool>,
    /// OTLP/HTTP endpoint for traces and metrics, such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
    #[command(flatten)]
    wan: WanFlags,
    #[command(flatten)]
    without_effect: WithoutEffect,
}

/// Flags about servers of other datacenters.
#[derive(Debug, Default, Args)]
struct WanFlags {
    /// Port for servers of other datacenters, if tls.internal_rpc has a certificate; -1 disables it [default: 8300]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    server_port: Option<i64>,
    /// Address of this node for other datacenters [default: that of -advertise]
    #[arg(long, value_name = "ADDRESS")]
    advertise_wan: Option<String>,
    /// Server of another datacenter to join; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    retry_join_wan: Vec<String>,
    /// Mesh gateway of the primary datacenter, as HOST:PORT, if servers are reached through gateways; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    primary_gateway: Vec<String>,
    /// The same as -retry-join-wan
    #[arg(long, value_name = "ADDRESS", hide = true)]
    join_wan: Vec<String>,
    /// Time between two attempts to join [default: 30s]
    #[arg(long, value_name = "TIME")]
    retry_interval_wan: Option<String>,
    /// Number of attempts to join; 0 means no limit [default: 0]
    #[arg(long, value_name = "NUMBER")]
    retry_max_wan: Option<i64>,
}

impl WanFlags {
    fn settings(&self) -> Value {
        json!({
            "ports": { "server": self.server_port },
            "advertise_addr_wan": self.advertise_wan,
            "primary_gateways": lists(&self.primary_gateway),
            "retry_interval_wan": self.retry_interval_wan,
            "retry_join_wan": lists(&self.retry_join_wan),
            "retry_max_wan": self.retry_max_wan,
            "start_join_wan": lists(&self.join_wan),
        })
    }
}

/// Flags of `consul agent` without effect here; they are reported like their keys.
#[derive(Debug, Default, Args)]
struct WithoutEffect {
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), hide = true)]
    disable_host_node_id: Option<bool>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), hide = true)]
    disable_keyring_file: Option<bool>,
    #[arg(long, hide = true)]
    encrypt: Option<String>,
    #[arg(long, hide = true)]
    join: Vec<String>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), hide = true)]
    non_voting_server: Option<bool>,
    #[arg(long, hide = true, allow_hyphen_values = true)]
    protocol: Option<i64>,
    #[arg(long, hide = true, allow_hyphen_values = true)]
    raft_protocol: Option<i64>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), hide = true)]
    read_replica: Option<bool>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), hide = true)]
    rejoin: Option<bool>,
    #[arg(long, hide = true)]
    retry_interval: Option<String>,
    #[arg(long, hide = true)]
    retry_join: Vec<String>,
    #[arg(long, hide = true, allow_hyphen_values = true)]
    retry_max: Option<i64>,
    #[arg(long, hide = true)]
    segment: Option<String>,
    #[arg(long, hide = true)]
    serf_lan_allowed_cidrs: Vec<String>,
    #[arg(long, hide = true)]
    serf_lan_bind: Option<String>,
    #[arg(long, hide = true, allow_hyphen_values = true)]
    serf_lan_port: Option<i64>,
    #[arg(long, hide = true)]
    serf_wan_allowed_cidrs: Vec<String>,
    #[arg(long, hide = true)]
    serf_wan_bind: Option<String>,
    #[arg(long, hide = true, allow_hyphen_values = true)]
    serf_wan_port: Option<i64>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), hide = true)]
    syslog: Option<bool>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), hide = true)]
    ui: Option<bool>,
    #[arg(long, hide = true)]
    ui_content_path: Option<String>,
    #[arg(long, hide = true)]
    ui_dir: Option<String>,
}

/// The format of a file, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Hcl,
    Json,
}

impl Flags {
    /// The format of all files, if the command line sets it.
    ///
    /// # Errors
    /// If the format is unknown.
    pub(super) fn form(&self) -> anyhow::Result<Option<Form>> {
        match self.config_format.as_deref() {
            None | Some("") => Ok(None),
            Some("hcl") => Ok(Some(Form::Hcl)),
            Some("json") => Ok(Some(Form::Json)),
            Some(other) => anyhow::bail!("-config-format={other:?} must be hcl or json"),
        }
    }

    /// The settings of the flags, as a configuration.
    ///
    /// # Errors
    /// If a value is malformed.
    pub(super) fn settings(&self) -> anyhow::Result<Value> {
        let meta: anyhow::Result<Map<String, Value>> = self
            .node_meta
            .iter()
            .map(|pair| match pair.split_once(':') {
                Some((key, value)) => Ok((key.to_owned(), Value::from(value))),
                None => anyhow::bail!("-node-meta {pair:?} must be KEY:VALUE"),
            })
            .collect();
        let mut settings = json!({
            "server": self.server,
            "data_dir": self.data_dir,
            "datacenter": self.datacenter,
            "node_name": self.node,
            "node_id": self.node_id,
            "node_meta": meta?,
            "client_addr": self.client,
            "bind_addr": self.bind,
            "advertise_addr": self.advertise,
            "alt_domain": self.alt_domain,
            "auto_reload_config": self.auto_reload_config,
            "bootstrap": self.bootstrap,
            "bootstrap_expect": self.bootstrap_expect,
            "check_output_max_size": self.check_output_max_size,
            "default_query_time": self.default_query_time,
            "domain": self.domain,
            "enable_local_script_checks": self.enable_local_script_checks,
            "enable_script_checks": self.enable_script_checks,
            "http_config": { "allow_write_http_from": lists(&self.allow_write_http_from) },
            "log_file": self.log_file,
            "log_json": self.log_json,
            "log_level": self.log_level,
            "log_rotate_bytes": self.log_rotate_bytes,
            "log_rotate_duration": self.log_rotate_duration,
            "log_rotate_max_files": self.log_rotate_max_files,
            "max_query_time": self.max_query_time,
            "pid_file": self.pid_file,
            "recursors": lists(&self.recursor),
            "telemetry": { "otlp_endpoint": self.otlp_endpoint },
            "ports": {
                "http": self.http_port,
                "https": self.https_port,
                "grpc": self.grpc_port,
                "grpc_tls": self.grpc_tls_port,
                "dns": self.dns_port,
            },
        });
        merge(&mut settings, self.wan.settings());
        merge(&mut settings, self.without_effect.settings());
        Ok(settings)
    }
}

/// A list, if it is not empty.
fn lists(list: &[String]) -> Option<&[String]> {
    (!list.is_empty()).then_some(list)
}

impl WithoutEffect {
    /// The keys of these flags.
    fn settings(&self) -> Value {
        json!({
            "ports": {
                "serf_lan": self.serf_lan_port,
                "serf_wan": self.serf_wan_port,
            },
            "disable_host_node_id": self.disable_host_node_id,
            "disable_keyring_file": self.disable_keyring_file,
            "encrypt": self.encrypt,
            "start_join": lists(&self.join),
            "non_voting_server": self.non_voting_server,
            "protocol": self.protocol,
            "raft_protocol": self.raft_protocol,
            "read_replica": self.read_replica,
            "rejoin_after_leave": self.rejoin,
            "retry_interval": self.retry_interval,
            "retry_join": lists(&self.retry_join),
            "retry_max": self.retry_max,
            "segment": self.segment,
            "serf_lan_allowed_cidrs": lists(&self.serf_lan_allowed_cidrs),
            "serf_lan": self.serf_lan_bind,
            "serf_wan_allowed_cidrs": lists(&self.serf_wan_allowed_cidrs),
            "serf_wan": self.serf_wan_bind,
            "enable_syslog": self.syslog,
            "ui": self.ui,
            "ui_content_path": self.ui_content_path,
            "ui_dir": self.ui_dir,
        })
    }
}

/// Parses a command line as the program does.
#[cfg(test)]
pub(super) fn parse(args: &[&str]) -> anyhow::Result<Flags> {
    use anyhow::Context;
    use clap::{Command, FromArgMatches};

    let agent = Flags::augment_args(Command::new("agent")).args_override_self(true);
    let mut root = Command::new("legate").subcommand(agent);
    root.build();
    let line = ["legate", "agent"].iter().chain(args);
    let line = line.map(std::ffi::OsString::from).collect();
    let line = crate::go_flags::translated(line, &root, crate::commands::is_consuls)?;
    let matches = root.try_get_matches_from(line)?;
    let (_, matches) = matches.subcommand().context("there is no command")?;
    Ok(Flags::from_arg_matches(matches)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dash_or_two_and_both_forms_of_values() {
        let flags = parse(&[
            "-data-dir=/consul/data",
            "-config-dir=/consul/config",
            "-dev",
            "-datacenter",
            "primary",
            "--config-dir",
            "a",
            "-config-dir",
            "b",
            "-client",
            "0.0.0.0",
            "-grpc-port",
            "-1",
            "-server=true",
            "-hcl",
            "log_level = \"warn\"",
            "-node-meta",
            "a:b",
        ]);
        let flags = flags.unwrap();
        assert!(flags.dev);
        assert_eq!(
            flags.config_dir,
            ["/consul/config", "a", "b"].map(PathBuf::from)
        );
        assert_eq!(flags.hcl, ["log_level = \"warn\""]);
        let settings = flags.settings().unwrap();
        assert_eq!(settings["datacenter"], "primary");
        assert_eq!(settings["client_addr"], "0.0.0.0");
        assert_eq!(settings["ports"]["grpc"], -1);
        assert_eq!(settings["server"], true);
        assert_eq!(settings["node_meta"]["a"], "b");
    }

    #[test]
    fn the_last_one_wins() {
        let flags = parse(&["-datacenter", "a", "-dev=false", "-datacenter=b"]).unwrap();
        assert_eq!(flags.settings().unwrap()["datacenter"], "b");
        assert!(!flags.dev);
    }

    #[test]
    fn unsupported_flags_are_named() {
        let refused = |args: &[&str]| parse(args).unwrap_err().to_string();
        assert!(refused(&["-nonsense"]).contains("flag provided but not defined: -nonsense"));
        assert!(refused(&["-h"]).contains("--bind <ADDRESS>"));
        let meta = parse(&["-node-meta", "x"]).unwrap().settings();
        assert!(meta.unwrap_err().to_string().contains("KEY:VALUE"));
    }
}
