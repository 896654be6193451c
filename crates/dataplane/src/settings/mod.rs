//! Settings: declared once each, read from flags, environment and file, merged and checked. Nothing
//! outside this module reads the environment or a configuration file, and nothing here acts on a
//! setting.
//!
//! The order is that of Consul's dataplane: environment, flags, `-version` and `-check-proxy-health`,
//! id files, log level and name of the configuration file, the file, checks. Requests to a running
//! dataplane follow the health probe and also read the file. Deliberate differences from Consul's
//! dataplane:
//!
//! - These are errors here: an unknown `-mode`, an unknown key or log level in the file, a client
//!   certificate without key or the reverse, a login without auth method, text that is not an
//!   address, a port outside of 0 to 65535, a negative count, and a lifecycle path that lacks the
//!   leading slash or overlaps another one.
//! - Ids read from files are trimmed. An id path in the configuration file has the same effect as the
//!   flag.
//! - Deprecated settings that are ignored, and credentials without effect, cause a warning.
//! - IP addresses may be in brackets. `-telemetry-prom-ca-certs-file` exists, because the Kubernetes
//!   injector passes it.
//! - The health probe uses the address from flags or environment. Its default is loopback of both
//!   families.

mod environment;
mod file;
mod flags;
mod go;
pub(crate) mod lifecycle_paths;
mod resolve;
mod table;
#[cfg(test)]
mod tests;
mod types;
mod usage;
mod values;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

pub use legate_envoy::bootstrap::XdsAddress;
pub use types::ProxyKind;
pub use types::{
    Environment, Envoy, Lifecycle, Mode, PrometheusTls, Proxy, Servers, Settings, SettingsError,
    Telemetry,
};
pub use usage::usage;

use anyhow::{anyhow, bail, ensure};
use table::Item;
use values::{Source, Values};

/// The action that the command line requests.
#[derive(Debug)]
pub enum Invocation {
    /// Print the version.
    Version,
    /// Check Envoy's readiness at the first of these addresses that accepts a connection.
    CheckHealth(Vec<SocketAddr>),
    /// Request the status of the running dataplane.
    Status {
        /// Candidate addresses; the first that accepts a connection is used.
        addresses: Vec<SocketAddr>,
        /// Print the JSON document instead of text for humans.
        json: bool,
    },
    /// Request a new Envoy from the running dataplane, at the first of these addresses that accepts a
    /// connection.
    Restart(Vec<SocketAddr>),
    /// Request the running dataplane to drain inbound connections.
    Drain {
        /// Candidate addresses; the first that accepts a connection is used.
        addresses: Vec<SocketAddr>,
        /// How long new connections are still accepted.
        accept: Duration,
    },
    /// Run with these settings.
    Run {
        /// The settings.
        settings: Box<Settings>,
        /// Problems that the user should see in the log.
        warnings: Vec<String>,
    },
}

/// Loads the settings from `arguments` (without the program's name), the environment, and the files
/// that either of them names.
///
/// # Errors
/// When any of it is invalid; the error names the setting.
pub fn load(
    arguments: impl IntoIterator<Item = OsString>,
    environment: Environment,
) -> Result<Invocation, SettingsError> {
    let mut values = Values::default();
    environment::read(&environment, &mut values)?;
    let extra_args = flags::read(arguments, &mut values)?;
    if values.bool(Item::Version) {
        return Ok(Invocation::Version);
    }
    if values.bool(Item::CheckProxyHealth) {
        return Ok(Invocation::CheckHealth(health_addresses(&values)?));
    }
    if values.bool(Item::Status) || values.bool(Item::Restart) || values.given(Item::Drain) {
        return Ok(client_request(values)?);
    }
    read_ids(&mut values)?;
    resolve::level(&values)?;
    read_file(&mut values)?;
    read_ids(&mut values)?;
    let (settings, warnings) = resolve::resolve(&values, extra_args, environment)?;
    Ok(Invocation::Run {
        settings: Box::new(settings),
        warnings,
    })
}

/// The request to a running dataplane. Only the address of its lifecycle server matters.
fn client_request(mut values: Values) -> anyhow::Result<Invocation> {
    // Only the flag counts: the variable also configures the log of the dataplane in the same
    // container.
    let json = values.source(Item::LogJson) == Source::Flag && values.bool(Item::LogJson);
    read_file(&mut values)?;
    let requested = [
        values.bool(Item::Status),
        values.bool(Item::Restart),
        values.given(Item::Drain),
    ];
    // The lifecycle address of a dataplane that runs with these settings.
    let addresses = on_host(resolve::lifecycle(&values)?.bind);
    Ok(match requested {
        [true, false, false] => Invocation::Status { addresses, json },
        [false, true, false] => Invocation::Restart(addresses),
        [false, false, true] => Invocation::Drain {
            addresses,
            accept: values.duration(Item::Drain).unwrap_or_default(),
        },
        _ => bail!("-status, -restart and -drain exclude each other: use one at a time"),
    })
}

/// Adds the settings of the configuration file, if there is one.
fn read_file(values: &mut Values) -> anyhow::Result<()> {
    let Some(path) = values.some_text(Item::ConfigFile).map(str::to_owned) else {
        return Ok(());
    };
    ensure!(
        path.ends_with(".json"),
        "invalid config file format. Should be a json file"
    );
    file::read(Path::new(&path), values)
}

/// Replaces ids by the content of id files whose path comes from a stronger source. No file is read
/// twice, because the id then has the source of the path.
fn read_ids(values: &mut Values) -> anyhow::Result<()> {
    for (id, path) in [
        (Item::ServiceId, Item::ServiceIdPath),
        (Item::ProxyId, Item::ProxyIdPath),
    ] {
        let Some(file) = values.some_text(path) else {
            continue;
        };
        // Flags and variables have the same rank here: an id from either takes precedence over a path
        // from either.
        let rank = |item| values.source(item).min(Source::Environment);
        if rank(path) > rank(id) {
            let text = std::fs::read_to_string(file).map_err(|error| {
                let error = go::os_error(&error);
                anyhow!("failed to read given {path}: open {file}: {error}")
            })?;
            // Ids have no surrounding white space; editors and `echo` append a newline.
            values.put_named(id, "", values.source(path), text.trim());
        }
    }
    Ok(())
}

/// Addresses of Envoy's admin interface according to flags and variables. The configuration file is
/// not read, so that the health probe is fast and needs no mounted file.
fn health_addresses(values: &Values) -> anyhow::Result<Vec<SocketAddr>> {
    let address = values.socket(Item::AdminBindAddress, Item::AdminBindPort)?;
    Ok(match values.source(Item::AdminBindAddress) {
        Source::Default => loopback(address.port()).to_vec(),
        _ => on_host(address),
    })
}

/// Addresses at which a listener on `address` can be reached from this host.
fn on_host(address: SocketAddr) -> Vec<SocketAddr> {
    let [v4, v6] = loopback(address.port());
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => vec![v4],
        IpAddr::V6(ip) if ip.is_unspecified() => vec![v6, v4],
        _ => vec![address],
    }
}

fn loopback(port: u16) -> [SocketAddr; 2] {
    let hosts: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    hosts.map(|host| SocketAddr::new(host, port))
}
