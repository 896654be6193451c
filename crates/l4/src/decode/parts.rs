//! Makes what several resources have of their trees: addresses, sources of data, references to secrets.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::problem::Problem;
use super::tree::Node;
use crate::model::{Address, Name};

/// The longest path of a unix socket, with the byte that ends it.
const PATH: usize = 108;
/// All permissions of a file.
const MODE: u32 = 0o777;

/// `SocketAddress.Protocol.UDP`.
const UDP: i32 = 1;
/// `ApiVersion.V3`.
const V3: i32 = 2;

/// An address. A name instead of an IP address is an [`Address::Dns`], which not every place may have.
pub(super) fn address(node: &Node<'_>) -> Result<Address, Problem> {
    if let Some(address) = node.child("socket_address", socket_address)? {
        return Ok(address);
    }
    let pipe = node.child("pipe", pipe)?;
    pipe.ok_or_else(|| Problem::invalid("an address is necessary"))
}

/// An IP address with its port, or a pipe.
pub(super) fn address_without_names(node: &Node<'_>) -> Result<Address, Problem> {
    match address(node)? {
        Address::Dns(name, _) => Err(Problem::invalid(format!(
            "malformed IP address: {name}. Consider setting resolver_name or setting cluster type to 'STRICT_DNS' \
             or 'LOGICAL_DNS'"
        ))),
        address => Ok(address),
    }
}

fn socket_address(node: &Node<'_>) -> Result<Address, Problem> {
    if node.choice("protocol") == UDP {
        return Err(Problem::needs_envoy("UDP").within("protocol"));
    }
    let host = node.text("address");
    if host.is_empty() {
        return Err(
            Problem::invalid("value length must be at least 1 characters").within("address"),
        );
    }
    if !node.has("port_value") {
        return Err(Problem::invalid("a port is necessary"));
    }
    let port = node.number("port_value");
    let port = u16::try_from(port).map_err(|_| {
        Problem::invalid("value must be less than or equal to 65535").within("port_value")
    })?;
    if host.contains('%') {
        let what = "an address of one interface only";
        return Err(Problem::needs_envoy(what).within("address"));
    }
    Ok(match host.parse::<IpAddr>() {
        Ok(ip) => Address::Socket(SocketAddr::new(ip, port)),
        Err(_) => Address::Dns(host.into(), port),
    })
}

fn pipe(node: &Node<'_>) -> Result<Address, Problem> {
    let (path, mode) = (node.text("path"), node.number("mode"));
    if path.is_empty() {
        return Err(Problem::invalid("value length must be at least 1 characters").within("path"));
    }
    if path.len() >= PATH {
        return Err(Problem::invalid(format!(
            "Path \"{path}\" exceeds maximum UNIX domain socket path size of {PATH}."
        )));
    }
    if mode > MODE {
        let text = format!("value must be less than or equal to {MODE}");
        return Err(Problem::invalid(text).within("mode"));
    }
    if mode != 0 && path.starts_with('@') {
        return Err(Problem::invalid(
            "Cannot set mode for Abstract AF_UNIX sockets",
        ));
    }
    let path = PathBuf::from(path);
    Ok(Address::Pipe { path, mode })
}

/// Text that a resource has itself.
pub(super) fn data(node: &Node<'_>) -> Result<String, Problem> {
    let text = match node.bytes("inline_bytes") {
        Some(bytes) => std::str::from_utf8(bytes)
            .map_err(|_| Problem::needs_envoy("bytes that are no text").within("inline_bytes"))?,
        None => node.text("inline_string"),
    };
    if text.is_empty() {
        return Err(Problem::invalid("DataSource cannot be empty"));
    }
    Ok(text.to_owned())
}

/// Checks that a resource comes by the stream on which its user came.
pub(super) fn same_stream(node: &Node<'_>) -> Result<(), Problem> {
    if node.node("ads").is_none() {
        return Err(Problem::needs_envoy("a source of its own"));
    }
    if node.choice("resource_api_version") != V3 {
        return Err(Problem::needs_envoy("another version than V3").within("resource_api_version"));
    }
    Ok(())
}

/// The name of a secret.
pub(super) fn secret_name(node: &Node<'_>) -> Result<Name, Problem> {
    if node.child("sds_config", same_stream)?.is_none() {
        let what = "a secret of Envoy's own configuration";
        return Err(Problem::needs_envoy(what).within("sds_config"));
    }
    required(node, "name")
}

/// A string that must not be empty.
pub(super) fn required(node: &Node<'_>, name: &'static str) -> Result<Name, Problem> {
    match node.text(name) {
        "" => Err(Problem::invalid("value length must be at least 1 characters").within(name)),
        text => Ok(text.into()),
    }
}
