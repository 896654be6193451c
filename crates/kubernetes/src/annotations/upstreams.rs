//! The grammar of `connect-service-upstreams`: consul-k8s' forms, separated by commas.
//!
//! ```text
//! service[.namespace[.partition]]:port[:datacenter][:options or ?options]
//! service.svc[.namespace.ns][.name.peer | .name.ap | .name.dc]:port[:options]
//! prepared_query:name:port
//! ```

use std::net::IpAddr;

use legate_model::name::validate_upstream;
use legate_model::{MeshGateway, MeshGatewayMode, TenancyName, UpstreamType};
use serde_json::Value;

use super::values::{Port, Reason, list, port};

/// An upstream of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// Whether `name` is a service or a prepared query.
    pub kind: UpstreamType,
    /// Name of the service or of the prepared query.
    pub name: String,
    /// The upstream's namespace; empty means the proxy's own.
    pub namespace: TenancyName,
    /// The upstream's partition; empty means the proxy's own.
    pub partition: TenancyName,
    /// The upstream's cluster peer; empty means none.
    pub peer: String,
    /// The upstream's datacenter; empty means the proxy's own.
    pub datacenter: String,
    /// The local port on which the application calls the upstream.
    pub port: Port,
    /// The address of that port; 127.0.0.1 if `None`.
    pub bind_address: Option<IpAddr>,
    /// The mesh gateway mode; the mesh's default if `None`.
    pub mesh_gateway: Option<MeshGatewayMode>,
}

impl Upstream {
    /// Adds the tenant to the registered upstream.
    pub fn name_tenant(&self, registered: &mut Value) {
        let names = [
            ("DestinationNamespace", &self.namespace),
            ("DestinationPartition", &self.partition),
        ];
        for (field, name) in names.into_iter().filter(|(_, name)| !name.is_empty()) {
            registered[field] = name.as_str().into();
        }
    }

    /// The upstream in its registered form, without its tenant. `number` resolves a port's name.
    pub fn registered(
        &self,
        number: impl Fn(&str) -> Option<u16>,
    ) -> Option<legate_model::Upstream> {
        let local_bind_port = match &self.port {
            Port::Number(number) => *number,
            Port::Name(name) => number(name)?,
        };
        Some(legate_model::Upstream {
            destination_type: self.kind,
            destination_peer: self.peer.clone(),
            destination_name: self.name.clone(),
            datacenter: self.datacenter.clone(),
            local_bind_address: self
                .bind_address
                .map_or_else(String::new, |address| address.to_string()),
            local_bind_port,
            mesh_gateway: MeshGateway {
                mode: self.mesh_gateway.unwrap_or_default(),
            },
            ..legate_model::Upstream::default()
        })
    }
}

/// Parses all upstreams of an annotation.
pub(super) fn upstreams(text: &str) -> Result<Vec<Upstream>, Reason> {
    list(text)
        .map(|item| upstream(item).map_err(|reason| format!("holds {item:?}, which {reason}")))
        .collect()
}

fn upstream(item: &str) -> Result<Upstream, Reason> {
    let (name, rest) = item
        .split_once(':')
        .ok_or_else(|| "has no port: write service:port".to_owned())?;
    let name = name.trim();
    if name == "prepared_query" {
        return prepared_query(rest);
    }
    let (number, rest) = match rest.split_once(':') {
        Some((number, rest)) => (number, Some(rest.trim())),
        None => (rest, None),
    };
    let mut upstream = Upstream {
        kind: UpstreamType::Service,
        name: String::new(),
        namespace: TenancyName::default(),
        partition: TenancyName::default(),
        peer: String::new(),
        datacenter: String::new(),
        port: port(number).map_err(|reason| format!("has an invalid port: it {reason}"))?,
        bind_address: None,
        mesh_gateway: None,
    };
    let labels: Vec<&str> = name.split('.').map(str::trim).collect();
    if labels.get(1) == Some(&"svc") {
        labelled(&mut upstream, &labels)?;
        if let Some(rest) = rest {
            only_options(&mut upstream, rest)?;
        }
    } else {
        match labels[..] {
            [name] => name.clone_into(&mut upstream.name),
            [name, namespace] => {
                name.clone_into(&mut upstream.name);
                upstream.namespace = tenant("namespace", namespace)?;
            }
            [name, namespace, partition] => {
                name.clone_into(&mut upstream.name);
                upstream.namespace = tenant("namespace", namespace)?;
                upstream.partition = tenant("partition", partition)?;
            }
            _ => return Err("is malformed: write service.namespace.partition:port".to_owned()),
        }
        if let Some(rest) = rest {
            datacenter_and_options(&mut upstream, rest)?;
        }
    }
    validate_upstream(&upstream.name).map_err(|error| format!("has an invalid name: {error}"))?;
    Ok(upstream)
}

fn prepared_query(rest: &str) -> Result<Upstream, Reason> {
    let wrong = || "is not a prepared query: write prepared_query:name:port".to_owned();
    let (name, number) = rest.split_once(':').ok_or_else(wrong)?;
    let name = name.trim();
    validate_upstream(name).map_err(|_| wrong())?;
    Ok(Upstream {
        kind: UpstreamType::PreparedQuery,
        name: name.to_owned(),
        namespace: TenancyName::default(),
        partition: TenancyName::default(),
        peer: String::new(),
        datacenter: String::new(),
        port: port(number).map_err(|reason| format!("has an invalid port: it {reason}"))?,
        bind_address: None,
        mesh_gateway: None,
    })
}

/// Parses a namespace or partition, which must not be empty.
fn tenant(what: &str, name: &str) -> Result<TenancyName, Reason> {
    let named = name.parse::<TenancyName>().ok();
    named
        .filter(|name| !name.is_empty() && !name.is_every())
        .ok_or_else(|| format!("has an invalid {what}: {name:?}"))
}

/// Parses `service.svc` with its labels, pairs of a name and its kind: an optional namespace, then at
/// most one other.
fn labelled(upstream: &mut Upstream, labels: &[&str]) -> Result<(), Reason> {
    labels[0].clone_into(&mut upstream.name);
    let rest = match &labels[2..] {
        [namespace, "ns", rest @ ..] => {
            upstream.namespace = tenant("namespace", namespace)?;
            rest
        }
        rest => rest,
    };
    match *rest {
        [] => {}
        [peer, "peer"] if !peer.is_empty() => peer.clone_into(&mut upstream.peer),
        [datacenter, "dc"] if !datacenter.is_empty() => {
            datacenter.clone_into(&mut upstream.datacenter);
        }
        [partition, "ap"] => upstream.partition = tenant("partition", partition)?,
        _ => {
            return Err(
                "is malformed: write service.svc:port, service.svc.namespace.ns:port, and then \
                 either .name.peer, .name.ap or .name.dc"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

/// `dc`, `dc?options` or `options`.
fn datacenter_and_options(upstream: &mut Upstream, rest: &str) -> Result<(), Reason> {
    let (datacenter, options_text) = match rest.split_once('?') {
        Some((datacenter, rest)) => (datacenter, rest),
        None if rest.contains('=') => ("", rest),
        None => (rest, ""),
    };
    datacenter.trim().clone_into(&mut upstream.datacenter);
    if !options_text.is_empty() {
        options(upstream, options_text)?;
    }
    datacenter_is_one(upstream)
}

fn only_options(upstream: &mut Upstream, rest: &str) -> Result<(), Reason> {
    if !rest.contains('=') {
        return Err(NO_DESTINATION_PORT.to_owned());
    }
    options(upstream, rest.trim_start_matches('?'))?;
    datacenter_is_one(upstream)
}

fn datacenter_is_one(upstream: &Upstream) -> Result<(), Reason> {
    match upstream.datacenter.as_str() {
        "" => Ok(()),
        name => legate_model::name::validate_datacenter(name)
            .map_err(|error| format!("has an invalid datacenter: {error}")),
    }
}

const NO_DESTINATION_PORT: &str =
    "names a port of the destination, which the servers do not support: a service has one port";

/// Parses `name=value&name=value`; names may be written with `_`, `-` or capitals.
fn options(upstream: &mut Upstream, text: &str) -> Result<(), Reason> {
    for option in text.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let value = value.trim();
        let spelled: String = name
            .chars()
            .filter(|letter| letter.is_ascii_alphanumeric())
            .map(|letter| letter.to_ascii_lowercase())
            .collect();
        match spelled.as_str() {
            "destinationport" => return Err(NO_DESTINATION_PORT.to_owned()),
            "datacenter" => value.clone_into(&mut upstream.datacenter),
            "localbindaddress" => {
                let address = value.parse();
                let wrong =
                    |_| format!("has local_bind_address={value}, which is not an IP address");
                upstream.bind_address = Some(address.map_err(wrong)?);
            }
            "meshgatewaymode" => {
                upstream.mesh_gateway = Some(match value {
                    "none" => MeshGatewayMode::None,
                    "local" => MeshGatewayMode::Local,
                    "remote" => MeshGatewayMode::Remote,
                    _ => {
                        return Err(format!(
                            "has mesh_gateway_mode={value}: use none, local or remote"
                        ));
                    }
                });
            }
            _ => {
                return Err(format!(
                    "has the option {name:?}: use local_bind_address, mesh_gateway_mode or \
                     datacenter"
                ));
            }
        }
    }
    Ok(())
}

/// Prints the item in the annotation's syntax.
impl std::fmt::Display for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.kind == UpstreamType::PreparedQuery {
            return write!(f, "prepared_query:{}:{}", self.name, self.port);
        }
        f.write_str(&self.name)?;
        // A partition takes the datacenter's place among the labels.
        let datacenter = Some(self.datacenter.as_str());
        let (datacenter, option) = match self.partition.is_empty() {
            true => (datacenter, None),
            false => (None, datacenter.filter(|name| !name.is_empty())),
        };
        let pairs = [
            (self.namespace.as_str(), "ns"),
            (self.partition.as_str(), "ap"),
            (self.peer.as_str(), "peer"),
            (datacenter.unwrap_or_default(), "dc"),
        ];
        let mut pairs = pairs.into_iter().filter(|(name, _)| !name.is_empty());
        if let Some((name, kind)) = pairs.next() {
            write!(f, ".svc.{name}.{kind}")?;
        }
        for (name, kind) in pairs {
            write!(f, ".{name}.{kind}")?;
        }
        write!(f, ":{}", self.port)?;
        let address = self
            .bind_address
            .map(|address| format!("local_bind_address={address}"));
        let mode = self.mesh_gateway.and_then(|mode| match mode {
            MeshGatewayMode::Default => None,
            MeshGatewayMode::None => Some("none"),
            MeshGatewayMode::Local => Some("local"),
            MeshGatewayMode::Remote => Some("remote"),
        });
        let mode = mode.map(|mode| format!("mesh_gateway_mode={mode}"));
        let datacenter = option.map(|name| format!("datacenter={name}"));
        let options = address.into_iter().chain(mode).chain(datacenter);
        let options: Vec<String> = options.collect();
        match options.is_empty() {
            true => Ok(()),
            false => write!(f, ":{}", options.join("&")),
        }
    }
}
