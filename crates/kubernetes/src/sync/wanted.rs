//! The catalog's wanted state of a pod: a pure function of the pod, the Services that select it and
//! its node. Ids, metadata and checks are those of consul-k8s, so that its tools and the UI
//! recognise them.

use std::collections::BTreeSet;
use std::sync::Arc;

use legate_model::{ConnectProxy, Expose, ProxyMode};
use serde_json::{Value, json};

use super::facts::{Node, Pod, Service, Target};
use super::gateway;
use super::registration::{Context, Registration, Settings, VirtualIp, scrape_port};
use crate::annotations::{self, Annotations, Port};

/// The sidecar's port for mesh traffic.
pub(crate) const PROXY_PORT: u16 = 20000;
/// The field of a proxy's configuration with the ports of the application that the sidecar leads to,
/// besides that which is registered.
pub(crate) const PORTS: &str = "legate_ports";
/// The most of these ports.
const MAX_PORTS: usize = 64;

/// The wanted state of one pod in the catalog.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// The pod has these instances.
    Instances {
        /// The instances, in the order in which they are written.
        registrations: Vec<Registration>,
        /// The address by which callers reach the service through the mesh.
        virtual_ip: Option<VirtualIp>,
        /// A warning, although the pod works.
        remark: Option<Reason>,
    },
    /// The pod has no instances: it is not, or no longer, in the mesh.
    Nothing,
    /// The pod has no address yet.
    Later {
        /// The namespace of the mesh that it will be in; empty if namespaces are not used.
        namespace: String,
    },
    /// The pod cannot be registered until a user changes something.
    Wrong(Reason),
}

/// An event for users on the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The reason in one word, as in Kubernetes' events.
    pub reason: &'static str,
    /// The message, a sentence.
    pub message: String,
}

/// The wanted state of `pod`; `services` are those of its namespace.
#[must_use]
pub fn wanted<'a>(
    pod: &Pod,
    services: impl IntoIterator<Item = &'a Service>,
    node: Option<&Node>,
    settings: &Settings,
) -> Wanted {
    if pod.finished {
        return Wanted::Nothing;
    }
    let kind = pod.annotation("gateway-kind");
    let injected = pod.annotation("connect-inject-status") == Some(annotations::INJECTED);
    if kind.is_none() && !injected {
        return Wanted::Nothing;
    }
    let mark = pod.annotation("connect-inject-installation");
    if mark.is_some_and(|mark| mark != settings.installation) {
        return Wanted::Nothing;
    }
    if pod.node.is_empty() || pod.host_ip.is_empty() || pod.ip.is_empty() {
        let meshed = kind.is_none();
        let namespace = meshed.then(|| settings.tenants.namespace(&pod.key.namespace));
        return Wanted::Later {
            namespace: namespace.flatten().unwrap_or_default(),
        };
    }
    let selecting = services.into_iter().filter(|service| service.selects(pod));
    let (ignored, mut found): (Vec<_>, Vec<_>) = selecting.partition(|service| service.ignored);
    found.sort_by(|a, b| a.key.cmp(&b.key));
    let selection = service_of(pod, (&found, !ignored.is_empty()), settings);
    let (service, remark) = match selection {
        Selection::One(service, remark) => (Some(service), remark),
        Selection::None => (None, None),
        Selection::Ignored => return Wanted::Nothing,
        Selection::Wrong(reason) => return Wanted::Wrong(reason),
    };
    let context = Context {
        pod,
        service,
        node,
        settings,
    };
    let made = match kind {
        Some(kind) => gateway::registration(&context, kind).map(|gateway| (vec![gateway], None)),
        None => meshed(&context, &found),
    };
    match made {
        Ok((registrations, virtual_ip)) => Wanted::Instances {
            registrations,
            virtual_ip,
            remark,
        },
        Err(message) => Wanted::Wrong(Reason {
            reason: "NotRegistered",
            message,
        }),
    }
}

/// The Service that a pod is registered with.
enum Selection<'a> {
    One(&'a Service, Option<Reason>),
    None,
    /// All Services that select the pod are excluded from the mesh.
    Ignored,
    Wrong(Reason),
}

/// The Service among those that select the pod, sorted; and whether there are excluded ones, too.
fn service_of<'a>(
    pod: &Pod,
    (found, some_ignored): (&[&'a Service], bool),
    settings: &Settings,
) -> Selection<'a> {
    if let Some(name) = pod.annotation("kubernetes-service") {
        return match found.iter().find(|service| service.key.name == name) {
            Some(service) => Selection::One(service, None),
            None => Selection::Wrong(Reason {
                reason: "NoSuchService",
                message: format!(
                    "No Service {name:?} of this namespace selects the pod, which its annotation \
                     kubernetes-service names: correct the annotation or the Service's selector"
                ),
            }),
        };
    }
    let name = pod.annotation("connect-service");
    let preferred = found
        .iter()
        .find(|service| Some(service.key.name.as_str()) == name);
    match (preferred, found) {
        (Some(service), _) => Selection::One(service, None),
        (None, []) if some_ignored => Selection::Ignored,
        (None, []) => Selection::None,
        (None, [service]) => Selection::One(service, None),
        // The pod is none of them: each has a frontend.
        (None, _) if settings.gateway_api && name.is_some() => Selection::None,
        (None, [first, ..]) => {
            let names: Vec<&str> = found.iter().map(|s| s.key.name.as_str()).collect();
            let remark = Reason {
                reason: "SeveralServices",
                message: format!(
                    "The Services {} select the pod; it is registered with {}. Select one with the \
                     annotation kubernetes-service, or label the others service-ignore=true",
                    names.join(", "),
                    first.key.name
                ),
            };
            Selection::One(first, Some(remark))
        }
    }
}

/// The service and its sidecar proxy.
fn meshed(
    context: &Context<'_>,
    services: &[&Service],
) -> Result<(Vec<Registration>, Option<VirtualIp>), String> {
    let pod = context.pod;
    let parsed = Annotations::parse(&pod.annotations).map_err(|error| error.to_string())?;
    let found = context.service.map(|service| service.key.name.clone());
    let name = parsed.service.clone().or(found).ok_or_else(|| {
        "The pod has no service name: no Service selects it, and it has no annotation \
         connect-service"
            .to_owned()
    })?;
    let port = match port_of(pod, &parsed)? {
        // It may have been admitted before its Services existed, so nobody else can say it.
        0 if context.settings.gateway_api => port_of_services(pod, services, &name).unwrap_or(0),
        port => port,
    };
    let (tags, meta) = (tags(pod, &parsed), context.meta(&name, &parsed));
    let virtual_ip = match parsed.written.transparent_proxy {
        true => context.virtual_ip(&name),
        false => None,
    };
    let tagged = virtual_ip.as_ref().map(|virtual_ip| {
        let service_port = context.service.and_then(|s| service_port(pod, s, port));
        json!({"virtual": {"Address": virtual_ip.address, "Port": service_port.unwrap_or(0)}})
    });
    let further = match context.settings.gateway_api {
        true => further_ports(pod, services, port),
        false => BTreeSet::new(),
    };
    let id = format!("{}-{name}", pod.key.name);
    let mut service = json!({
        "ID": id, "Service": name, "Address": pod.ip, "Port": port,
        "Tags": tags, "Meta": meta,
    });
    let mut proxy = json!({
        "Kind": "connect-proxy",
        "ID": format!("{id}-sidecar-proxy"), "Service": format!("{name}-sidecar-proxy"),
        "Address": pod.ip, "Port": PROXY_PORT,
        "Tags": tags, "Meta": meta,
        "Proxy": proxy_block(pod, &parsed, (&name, port), further)?,
    });
    let namespace = context.namespace();
    for instance in [&mut service, &mut proxy] {
        if let Some(tagged) = &tagged {
            instance["TaggedAddresses"] = tagged.clone();
        }
        if let Some(locality) = context.locality() {
            instance["Locality"] = locality;
        }
    }
    let registrations =
        [service, proxy].map(|instance| context.registration(instance, namespace.as_deref()));
    Ok((registrations.into(), virtual_ip))
}

fn port_of(pod: &Pod, parsed: &Annotations) -> Result<u16, String> {
    match parsed.port() {
        None => Ok(0),
        Some(Port::Number(number)) => Ok(*number),
        Some(Port::Name(name)) => pod.ports.get(name).copied().ok_or_else(|| {
            format!(
                "annotation connect-service-port names the port {name:?}, which no container has"
            )
        }),
    }
}

/// The port of a pod that declares none: that to which the Service with the name of its service leads first,
/// or else the first of the Services that select it.
fn port_of_services(pod: &Pod, services: &[&Service], name: &str) -> Option<u16> {
    let own = services.iter().find(|service| service.key.name == name);
    let service = own.or_else(|| services.first())?;
    let port = service.ports.iter().find(|port| port.tcp)?;
    target_port(pod, &port.target)
}

/// The number of a Service's target port.
pub(crate) fn target_port(pod: &Pod, target: &Target) -> Option<u16> {
    match target {
        Target::Number(number) => Some(*number),
        Target::Name(name) => pod.ports.get(name).copied(),
    }
}

/// The ports of a pod that Services lead to, without the registered one.
fn further_ports(pod: &Pod, services: &[&Service], registered: u16) -> BTreeSet<u16> {
    let ports = services.iter().flat_map(|service| &service.ports);
    let targets = ports.filter(|port| port.tcp);
    let targets = targets.filter_map(|port| target_port(pod, &port.target));
    let targets: BTreeSet<_> = targets
        .filter(|port| ![0, registered, PROXY_PORT].contains(port))
        .collect();
    targets.into_iter().take(MAX_PORTS).collect()
}

/// The tags, with the pod's name filled in.
fn tags(pod: &Pod, parsed: &Annotations) -> Vec<String> {
    let tags = parsed.tags.iter();
    tags.map(|tag| tag.replace(annotations::POD_NAME, &pod.key.name))
        .collect()
}

fn proxy_block(
    pod: &Pod,
    parsed: &Annotations,
    (name, port): (&str, u16),
    further: BTreeSet<u16>,
) -> Result<Value, String> {
    let upstreams = parsed.upstreams.iter().map(|upstream| {
        let registered = upstream.registered(|name| pod.ports.get(name).copied());
        registered.map(Arc::new).ok_or_else(|| {
            format!(
                "annotation connect-service-upstreams names the port {} for {}, which no container \
                 has",
                upstream.port, upstream.name
            )
        })
    });
    let mut config = parsed.proxy_config.clone();
    if let Some(port) = scrape_port(parsed) {
        let address = format!("0.0.0.0:{port}");
        config.insert("envoy_prometheus_bind_addr".to_owned(), address.into());
    }
    if !further.is_empty() {
        config.insert(PORTS.to_owned(), further.into_iter().collect());
    }
    let block = ConnectProxy {
        destination_service_name: name.to_owned(),
        destination_service_id: format!("{}-{name}", pod.key.name),
        local_service_address: match port {
            0 => String::new(),
            _ => "127.0.0.1".to_owned(),
        },
        local_service_port: port,
        upstreams: upstreams.collect::<Result<_, _>>()?,
        mode: match parsed.written.transparent_proxy {
            true => ProxyMode::Transparent,
            false => ProxyMode::default(),
        },
        expose: Expose {
            paths: parsed.written.expose_paths.clone(),
            ..Expose::default()
        },
        config,
        ..ConnectProxy::default()
    };
    let mut block = serde_json::to_value(&block)
        .map_err(|error| format!("cannot serialize the proxy: {error}"))?;
    let written = block.get_mut("Upstreams").and_then(Value::as_array_mut);
    for (written, upstream) in written.into_iter().flatten().zip(&parsed.upstreams) {
        upstream.name_tenant(written);
    }
    Ok(block)
}

/// The Service's port with the target port `port`.
fn service_port(pod: &Pod, service: &Service, port: u16) -> Option<u16> {
    let leads = |target: &Target| match target {
        Target::Number(number) => *number == port,
        Target::Name(name) => pod.ports.get(name) == Some(&port),
    };
    let found = service.ports.iter().find(|own| leads(&own.target));
    found.map(|own| own.port)
}
