//! The command line of `consul agent`: Go's flags, with one dash or two, `-flag value` or
//! `-flag=value`. What a flag sets is a key of the configuration and wins over the files.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;
use serde_json::{Map, Value, json};

use super::refused;

/// The flags of `legate agent`.
#[derive(Debug, Default, Args)]
pub(crate) struct Flags {
    /// Development mode: everything in memory, and gRPC also without TLS, on 8502
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    pub(crate) dev: bool,
    /// Run a server; client agents are not served, so that it is needed without -dev
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    server: Option<bool>,
    /// Directory whose *.hcl and *.json files are read, in the order of their names; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) config_dir: Vec<PathBuf>,
    /// File to read, *.hcl or *.json, or a directory; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) config_file: Vec<PathBuf>,
    /// Configuration in HCL, read after the files; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) hcl: Vec<String>,
    /// Directory that keeps the state; -dev keeps it in memory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Name of the datacenter [default: dc1]
    #[arg(long, value_name = "NAME")]
    datacenter: Option<String>,
    /// Name of this node [default: the name of the host]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Key and value that describe this node; may be repeated
    #[arg(long, value_name = "KEY:VALUE")]
    node_meta: Vec<String>,
    /// Address at which HTTP, gRPC and DNS listen [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// Address that stands for this node in the catalog, unless -advertise does
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Address that stands for this node in the catalog [default: that of -bind]
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<String>,
    /// Port of the HTTP API; -1 turns it off [default: 8500]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    http_port: Option<i64>,
    /// Port of the HTTP API with TLS; -1 turns it off [default: -1]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    https_port: Option<i64>,
    /// Port of the gRPC API; -1 turns it off [default: 8502 with -dev, else -1]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    grpc_port: Option<i64>,
    /// Port of the gRPC API with TLS; -1 turns it off [default: 8503]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    grpc_tls_port: Option<i64>,
    /// Port of DNS; -1 turns it off [default: 8600]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    dns_port: Option<i64>,
    /// How many servers there will be: one
    #[arg(long, value_name = "NUMBER")]
    bootstrap_expect: Option<i64>,
    /// The same as -bootstrap-expect 1
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    bootstrap: Option<bool>,
    /// From which weight on events are logged: trace, debug, info, warn or error [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Log JSON objects instead of text
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), value_name = "BOOL")]
    log_json: Option<bool>,
}

impl Flags {
    /// What the flags set, as a configuration.
    ///
    /// # Errors
    /// When a value has not the form that the flag needs.
    pub(super) fn settings(&self) -> anyhow::Result<Value> {
        let meta: anyhow::Result<Map<String, Value>> = self
            .node_meta
            .iter()
            .map(|pair| match pair.split_once(':') {
                Some((key, value)) => Ok((key.to_owned(), Value::from(value))),
                None => anyhow::bail!("-node-meta {pair:?} must be KEY:VALUE"),
            })
            .collect();
        Ok(json!({
            "server": self.server,
            "data_dir": self.data_dir,
            "datacenter": self.datacenter,
            "node_name": self.node,
            "node_meta": meta?,
            "client_addr": self.client,
            "bind_addr": self.bind,
            "advertise_addr": self.advertise,
            "bootstrap": self.bootstrap,
            "bootstrap_expect": self.bootstrap_expect,
            "log_level": self.log_level,
            "log_json": self.log_json,
            "ports": {
                "http": self.http_port,
                "https": self.https_port,
                "grpc": self.grpc_port,
                "grpc_tls": self.grpc_tls_port,
                "dns": self.dns_port,
            },
        }))
    }
}

/// The command line as clap takes it: Go's flags may have one dash.
///
/// # Errors
/// Names a flag of `consul agent` that is not served, and why.
pub(crate) fn with_two_dashes(
    args: impl IntoIterator<Item = OsString>,
) -> anyhow::Result<Vec<OsString>> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    if args.get(1).is_none_or(|command| command != "agent") {
        return Ok(args);
    }
    for arg in args.iter_mut().skip(2) {
        let Some(text) = arg.to_str() else { continue };
        let Some(flag) = text.strip_prefix('-') else {
            continue;
        };
        let flag = flag.strip_prefix('-').unwrap_or(flag);
        // A port of -1 is a value.
        if !flag.starts_with(|first: char| first.is_ascii_alphabetic()) {
            continue;
        }
        let name = flag.split_once('=').map_or(flag, |(name, _)| name);
        if let Some(reason) = refused::flag(name) {
            anyhow::bail!("the flag -{name} is not served: {reason}");
        }
        *arg = format!("--{flag}").into();
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    #[command(args_override_self = true)]
    struct Program {
        #[command(flatten)]
        flags: Flags,
    }

    fn parse(args: &[&str]) -> anyhow::Result<Flags> {
        let line = ["legate", "agent"].iter().chain(args);
        let mut line = with_two_dashes(line.map(Into::into))?;
        line.remove(1);
        Ok(Program::try_parse_from(line)?.flags)
    }

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
    fn what_is_not_served_is_named() {
        let refused = |args: &[&str]| parse(args).unwrap_err().to_string();
        assert!(refused(&["-retry-join", "x"]).contains("-retry-join is not served"));
        assert!(refused(&["-ui"]).contains("-ui"));
        assert!(refused(&["-nonsense"]).contains("--nonsense"));
        let meta = parse(&["-node-meta", "x"]).unwrap().settings();
        assert!(meta.unwrap_err().to_string().contains("KEY:VALUE"));
    }

    #[test]
    fn other_commands_keep_their_dashes() {
        let line = ["legate", "dev", "-h"].map(OsString::from);
        assert_eq!(with_two_dashes(line.clone()).unwrap(), line);
    }
}
