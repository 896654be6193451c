//! Settings: declared once each, read from flags, environment and file, merged and checked.
//! Nothing outside this module reads the environment or a configuration file, and nothing here
//! acts on a setting.
//!
//! The order of events is that of the original: environment, flags, `-version` and
//! `-check-proxy-health`, files with ids, log level and name of the file, the file, checks. What is
//! asked of a running dataplane comes after the probe and needs the file besides.
//! Deliberate differences from the original:
//!
//! - An unknown `-mode`, an unknown key or log level in the file, half a client certificate, a
//!   login without auth method, text that is not an address, a port outside of 0 to 65535, a negative
//!   count, and a lifecycle path without a slash or in the place of another one, are errors here.
//! - Ids read from files are trimmed; a path in the file is honoured like one from a flag.
//! - Deprecated settings that are out of force, and credentials without effect, are warned about.
//! - IP addresses may stand in brackets. `-telemetry-prom-ca-certs-file` exists, because the
//!   Kubernetes injector passes it.
//! - The health probe asks the address that flags or environment configure, and loopback of both
//!   families by default.

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
pub use types::{
    Environment, Envoy, Lifecycle, Mode, PrometheusTls, Proxy, Servers, Settings, SettingsError,
    Telemetry,
};
pub use usage::usage;

use anyhow::{anyhow, bail, ensure};
use table::Item;
use values::{Source, Values};

/// What the command line asks for.
#[derive(Debug)]
pub enum Invocation {
    /// Print the version.
    Version,
    /// Ask Envoy whether it is ready, at the first of these addresses that answers.
    CheckHealth(Vec<SocketAddr>),
    /// Ask the running dataplane for its status.
    Status {
        /// Where it may answer; the first that does counts.
        addresses: Vec<SocketAddr>,
        /// Print the document instead of text for people.
        json: bool,
    },
    /// Ask the running dataplane for a new Envoy, at the first of these addresses that answers.
    Restart(Vec<SocketAddr>),
    /// Ask the running dataplane to drain inbound connections.
    Drain {
        /// Where it may answer; the first that does counts.
        addresses: Vec<SocketAddr>,
        /// For how long new connections are still accepted.
        accept: Duration,
    },
    /// Run with these settings.
    Run {
        /// The settings.
        settings: Box<Settings>,
        /// What the user should know, for the log.
        warnings: Vec<String>,
    },
}

/// Reads everything: `arguments` without the program's name, the environment, and the files that
/// either of them names.
///
/// # Errors
/// When any of it cannot be used; the error names the setting.
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
        return Ok(question(values)?);
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

/// What is asked of a running dataplane; nothing but its address matters.
fn question(mut values: Values) -> anyhow::Result<Invocation> {
    // The variable is about the log of the process that runs here, too.
    let json = values.source(Item::LogJson) == Source::Flag && values.bool(Item::LogJson);
    read_file(&mut values)?;
    let asked = [
        values.bool(Item::Status),
        values.bool(Item::Restart),
        values.given(Item::Drain),
    ];
    // Where the dataplane that runs with these settings answers.
    let addresses = on_host(resolve::lifecycle(&values)?.bind);
    Ok(match asked {
        [true, false, false] => Invocation::Status { addresses, json },
        [false, true, false] => Invocation::Restart(addresses),
        [false, false, true] => Invocation::Drain {
            addresses,
            accept: values.duration(Item::Drain).unwrap_or_default(),
        },
        _ => bail!("-status, -restart and -drain are questions of their own: ask one at a time"),
    })
}

/// Adds what the configuration file says, when there is one.
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

/// Puts the content of id files in place of ids that came from a weaker source. What was read
/// once is not read again, because the id then has the path's own source.
fn read_ids(values: &mut Values) -> anyhow::Result<()> {
    for (id, path) in [
        (Item::ServiceId, Item::ServiceIdPath),
        (Item::ProxyId, Item::ProxyIdPath),
    ] {
        let Some(file) = values.some_text(path) else {
            continue;
        };
        // Flags and variables are one place: an id from either stands against a path from either.
        let place = |item| values.source(item).min(Source::Environment);
        if place(path) > place(id) {
            let text = std::fs::read_to_string(file).map_err(|error| {
                let error = go::os_error(&error);
                anyhow!("failed to read given {path}: open {file}: {error}")
            })?;
            // An id has no blanks at its ends; a newline is what editors and `echo` leave there.
            values.put_named(id, "", values.source(path), text.trim());
        }
    }
    Ok(())
}

/// Where Envoy's admin interface is, as far as flags and variables tell; the file is not read, so
/// that the probe stays quick and needs no mounted file.
fn health_addresses(values: &Values) -> anyhow::Result<Vec<SocketAddr>> {
    let address = values.socket(Item::AdminBindAddress, Item::AdminBindPort)?;
    Ok(match values.source(Item::AdminBindAddress) {
        Source::Default => loopback(address.port()).to_vec(),
        _ => on_host(address),
    })
}

/// Where to reach, on this host, what listens there.
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
