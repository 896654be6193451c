//! The JSON patch (RFC 6902) that injects a sidecar into a pod. Pure.
//!
//! It consists of explicit steps instead of the difference between two documents, so that fields
//! unknown to this program are kept.

use std::collections::BTreeMap;

use json_patch::Patch;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use kube::ResourceExt;
use serde_json::json;

use super::installation::Installation;
use super::operations::Operations;
use super::probes::{self, Surroundings};
use super::request::{Refusal, Request, SIDECAR_USER};
use super::service::{self, Instance};
use super::settings::Settings;
use super::upstreams::Upstreams;
use super::{data, redirect, sidecar};
use crate::annotations::{
    self, Annotations, CA_CERTS, CONSUL_NAMESPACE, EXPOSE_PATHS, INJECTED, INSTALLATION,
    MANAGED_BY, MANAGED_BY_LEGATE, PREFIX, SCRAPE_PORT, SERVICE, SERVICE_PORT, STATUS,
    TRANSPARENT_PROXY_STATUS, UPSTREAMS,
};

/// The sleep of an application without a `preStop` hook when its pod terminates, while the sidecar
/// drains callers: an application that exits at once would lose requests in flight.
pub(super) const SLEEP_SECONDS: i64 = 2;
/// Kubernetes' default grace period of a pod.
const DEFAULT_GRACE: i64 = 30;

/// The patch of a pod to inject; may add warnings.
///
/// # Errors
/// If the pod cannot be injected.
pub(super) fn patch(
    installation: &Installation,
    request: &Request<'_>,
    warnings: &mut Vec<String>,
) -> Result<Patch, Refusal> {
    let pod = request.pod;
    let spec = pod.spec.as_ref();
    let spec = spec.ok_or_else(|| Refusal::new("the pod has no spec".to_owned()))?;
    warnings.extend(annotations::warnings(pod.annotations()));
    let own = Annotations::parse(pod.annotations())?;
    acceptable(installation, spec, &own)?;
    let instance = service::resolve(installation, request.namespace, pod, &own, request.services)?;
    let settings = Settings::resolve(installation, request, &own, &instance, spec, warnings)?;
    warnings.extend(not_served(&own, &settings, &instance, spec));
    let upstreams = Upstreams::resolve(installation, &own, spec)?;
    let mut operations = Operations::default();
    let mut written = written(installation, &settings, &own, &instance);
    if let Some(text) = upstreams.rewritten() {
        written.insert(UPSTREAMS.to_owned(), text);
    }
    // Steps that refer to containers by index come before those that insert containers.
    application(spec, &upstreams, &mut operations);
    data::share(spec, &own.mount_volume, &mut operations, warnings);
    let mut open = Vec::new();
    if settings.transparent && settings.overwrite_probes {
        let around = Surroundings {
            excluded: &own.transparent_proxy.exclude_inbound_ports,
            lifecycle_port: settings.lifecycle.port,
        };
        let paths = probes::rewrite(spec, &around, &mut operations)?;
        open.extend(paths.iter().map(|path| path.listener_port));
        if !paths.is_empty() {
            written.insert(EXPOSE_PATHS.to_owned(), json!(paths).to_string());
        }
    }
    let sleeps = sleep(installation, &settings, spec, &mut operations);
    names(installation, request, &settings, spec, &mut operations)?;
    let metadata = &pod.metadata;
    let map = metadata.annotations.is_some();
    operations.add_to_map(&["metadata", "annotations"], map, &written);
    let labels = [(STATUS, INJECTED), (MANAGED_BY, MANAGED_BY_LEGATE)];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let map = metadata.labels.is_some();
    operations.add_to_map(&["metadata", "labels"], map, &labels.into());
    containers(
        installation,
        spec,
        &Parts {
            settings: &settings,
            own: &own,
            service: &instance.name,
            open,
            sleeps,
        },
        &mut operations,
    )?;
    Ok(operations.patch())
}

struct Parts<'a> {
    settings: &'a Settings,
    own: &'a Annotations,
    service: &'a str,
    /// Ports served without mutual TLS.
    open: Vec<u16>,
    /// Whether the application's containers sleep before they stop.
    sleeps: bool,
}

/// Adds volumes and containers.
///
/// A native sidecar comes first, after the redirection, so that the pod's own init containers can use
/// the mesh. Without one they run outside the mesh, and the redirection comes last, because redirected
/// traffic would not be answered yet.
fn containers(
    installation: &Installation,
    spec: &PodSpec,
    parts: &Parts<'_>,
    operations: &mut Operations,
) -> Result<(), Refusal> {
    let settings = parts.settings;
    let shares_data = !parts.own.mount_volume.is_empty();
    let mut volumes = sidecar::volumes(installation);
    volumes.extend(shares_data.then(data::volume));
    volumes.extend(parts.own.sidecar.volumes.iter().cloned());
    let present = spec.volumes.as_ref().map(Vec::len);
    operations.add_to_list(&["spec", "volumes"], present, None, volumes);
    let mut init = Vec::new();
    if shares_data {
        init.push(data::container(installation, parts.service));
    }
    if settings.transparent {
        let mut open = parts.open.clone();
        open.extend(settings.metrics.as_ref().map(|metrics| metrics.scrape_port));
        open.extend(settings.proxy_health_check.then_some(sidecar::READY_PORT));
        let own = &parts.own.transparent_proxy;
        init.push(redirect::container(installation, settings, own, &open)?);
    }
    let sidecar = sidecar::container(
        installation,
        settings,
        &parts.own.sidecar,
        parts.service,
        parts.sleeps,
        shares_data,
    );
    let list = spec.init_containers.as_ref().map(Vec::len);
    if settings.native {
        init.push(sidecar);
        operations.add_to_list(&["spec", "initContainers"], list, Some(0), init);
    } else {
        operations.add_to_list(&["spec", "initContainers"], list, None, init);
        let list = Some(spec.containers.len());
        let first = settings.lifecycle.enabled.then_some(0);
        operations.add_to_list(&["spec", "containers"], list, first, vec![sidecar]);
    }
    Ok(())
}

/// Refuses pods whose settings conflict with the injection.
fn acceptable(
    installation: &Installation,
    spec: &PodSpec,
    own: &Annotations,
) -> Result<(), Refusal> {
    let user = i64::from(SIDECAR_USER);
    let of_pod = spec.security_context.as_ref().and_then(|it| it.run_as_user);
    if of_pod == Some(user) {
        return Err(Refusal::new(format!(
            "spec.securityContext.runAsUser is {user}, the user of the sidecar, whose traffic is not \
             redirected: use another one"
        )));
    }
    for container in all_containers(spec) {
        let context = container.security_context.as_ref();
        if context.and_then(|it| it.run_as_user) == Some(user) {
            return Err(Refusal::new(format!(
                "container {:?} has runAsUser {user}, the user of the sidecar, whose traffic is not \
                 redirected: use another one",
                container.name
            )));
        }
        if [sidecar::NAME, redirect::NAME, data::NAME].contains(&container.name.as_str()) {
            return Err(Refusal::new(format!(
                "the pod has a container {:?} already, which is the name of one that is injected: \
                 rename it, or set {PREFIX}connect-inject to false",
                container.name
            )));
        }
    }
    let ours = [sidecar::CA_VOLUME, sidecar::TOKEN_VOLUME, data::VOLUME];
    let volumes = spec.volumes.iter().flatten();
    let volumes = volumes.map(|volume| volume.name.as_str());
    let added = own.sidecar.volumes.iter();
    let mut volumes = volumes.chain(added.filter_map(|volume| volume["name"].as_str()));
    if let Some(name) = volumes.find(|name| ours.contains(name)) {
        return Err(Refusal::new(format!(
            "the pod has a volume {name:?} already, which is the name of one that is injected: rename it"
        )));
    }
    let servers = &installation.servers;
    let expected = servers.http.tls && (servers.managed_ca || servers.http.ca_certs.is_some());
    if expected && installation.ca_certs.is_none() {
        return Err(Refusal::new(
            "the operator does not have the servers' CA yet: try again, and see its log if that \
             does not help"
                .to_owned(),
        ));
    }
    Ok(())
}

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
}

/// Warns about settings that are ignored or may surprise.
fn not_served(
    own: &Annotations,
    settings: &Settings,
    instance: &Instance,
    spec: &PodSpec,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if own.ports.len() > 1
        && let Some(port) = instance.port
    {
        warnings.push(format!(
            "annotation {SERVICE_PORT} lists {} ports: only {port} is registered",
            own.ports.len()
        ));
    }
    let grace = spec
        .termination_grace_period_seconds
        .unwrap_or(DEFAULT_GRACE);
    let needed = settings.lifecycle.shutdown_grace;
    if settings.lifecycle.enabled && grace <= i64::from(needed) {
        warnings.push(format!(
            "terminationGracePeriodSeconds is {grace}: the sidecar may take {needed} s to stop, and is \
             killed before; see {PREFIX}sidecar-proxy-lifecycle-shutdown-grace-period-seconds"
        ));
    }
    warnings
}

/// Writes the operator's annotations.
fn written(
    installation: &Installation,
    settings: &Settings,
    own: &Annotations,
    instance: &Instance,
) -> BTreeMap<String, String> {
    let mut written = BTreeMap::new();
    let mut write = |key: &str, value: String| {
        written.insert(key.to_owned(), value);
    };
    write(STATUS, INJECTED.to_owned());
    write(INSTALLATION, installation.mark());
    if own.service.is_none() {
        write(SERVICE, instance.name.clone());
    }
    if let Some(port) = instance.port {
        write(SERVICE_PORT, port.to_string());
    }
    if let Some(namespace) = &settings.namespace {
        write(CONSUL_NAMESPACE, namespace.clone());
    }
    if settings.transparent {
        write(TRANSPARENT_PROXY_STATUS, "enabled".to_owned());
    }
    if let Some(pem) = &installation.ca_certs {
        write(CA_CERTS, pem.clone());
    }
    if let Some(metrics) = &settings.metrics {
        write(&format!("{PREFIX}enable-metrics"), "true".to_owned());
        write(SCRAPE_PORT, metrics.scrape_port.to_string());
        write("prometheus.io/scrape", "true".to_owned());
        write("prometheus.io/port", metrics.scrape_port.to_string());
        write("prometheus.io/path", settings.scrape_path.clone());
    }
    written
}

/// Sets the environment variables of upstreams in every container of the application.
fn application(spec: &PodSpec, upstreams: &Upstreams, operations: &mut Operations) {
    let init = spec.init_containers.iter().flatten();
    let lists = (spec
        .containers
        .iter()
        .enumerate()
        .map(|one| ("containers", one)))
    .chain(init.enumerate().map(|one| ("initContainers", one)));
    for (list, (index, container)) in lists {
        let present = container.env.as_ref();
        let is_set = |name: &str| present.into_iter().flatten().any(|one| one.name == name);
        let variables = upstreams.variables();
        let variables = variables.filter(|(name, _)| !is_set(name));
        let variables = variables.map(|(name, value)| json!({ "name": name, "value": value }));
        let (index, length) = (index.to_string(), present.map(Vec::len));
        let path = ["spec", list, &index, "env"];
        operations.add_to_list(&path, length, None, variables.collect());
    }
}

/// Adds a `preStop` hook that sleeps to containers without one. Returns whether all of them sleep.
fn sleep(
    installation: &Installation,
    settings: &Settings,
    spec: &PodSpec,
    operations: &mut Operations,
) -> bool {
    let grace = spec
        .termination_grace_period_seconds
        .unwrap_or(DEFAULT_GRACE);
    let wanted = settings.lifecycle.enabled && settings.lifecycle.drain;
    // A hook must not take longer than the pod's grace period.
    if !installation.cluster.sleep_hooks || !wanted || grace <= 2 * SLEEP_SECONDS {
        return false;
    }
    let hook = json!({ "sleep": { "seconds": SLEEP_SECONDS } });
    for (index, container) in spec.containers.iter().enumerate() {
        let index = index.to_string();
        match &container.lifecycle {
            None => operations.add(
                &["spec", "containers", &index, "lifecycle"],
                json!({ "preStop": hook }),
            ),
            Some(lifecycle) if lifecycle.pre_stop.is_none() => operations.add(
                &["spec", "containers", &index, "lifecycle", "preStop"],
                hook.clone(),
            ),
            Some(_) => {}
        }
    }
    true
}

/// Configures the pod to resolve names through the sidecar.
fn names(
    installation: &Installation,
    request: &Request<'_>,
    settings: &Settings,
    spec: &PodSpec,
    operations: &mut Operations,
) -> Result<(), Refusal> {
    if !settings.dns {
        return Ok(());
    }
    if spec.dns_config.is_some() {
        return Err(Refusal::new(format!(
            "the pod has a dnsConfig, which conflicts with the one for names of the mesh: remove \
             spec.dnsConfig, or set {} to false",
            annotations::DNS
        )));
    }
    let config = installation
        .resolv_conf
        .with_sidecar(&installation.namespace, request.namespace);
    operations.add(&["spec", "dnsPolicy"], json!("None"));
    operations.add(&["spec", "dnsConfig"], json!(config));
    Ok(())
}
