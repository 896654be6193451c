//! The image of a sidecar meets the requirements of Consul's Helm chart. The programs of this
//! workspace run in restricted containers with the layout of the Dockerfile: a read-only file
//! system, users without a name, no capabilities.

mod container;
mod root;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use http::Method;
use legate_testkit::requirement::{self, ROOT, SETCAP};
use legate_tests::mesh::{NODE, proxy_id};
use legate_tests::{Mesh, MeshOptions, ServiceSpec, SidecarFlags, client, eventually};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::json;

use crate::container::{Container, Spec};
use crate::root::{CA_BUNDLE, GATEWAY_VOLUME, SHELL, VOLUME};

/// The user of injected sidecars; of the image; and of OpenShift's range.
const INJECTED: u32 = 5995;
const OF_IMAGE: u32 = 100;
const OF_NAMESPACE: u32 = 1_000_650_000;

/// The entrypoint's program, and the names that the chart executes.
const ENTRYPOINT: &str = "/usr/local/bin/legate-dataplane";
const BY_NAME: &str = "consul-dataplane";
const PRIVILEGED: &str = "privileged-consul-dataplane";

/// The ports of health and readiness: of injected sidecars, and the default.
const INJECTED_LIFECYCLE: u16 = 20600;
const LIFECYCLE: u16 = 20300;

/// `CAP_NET_BIND_SERVICE` in the kernel's notation of capability sets.
const LOW_PORTS: &str = "0000000000000400";
const NO_CAPABILITIES: &str = "0000000000000000";

const API: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "api",
    protocol: "http",
    upstreams: &[],
};
const WEB: ServiceSpec = ServiceSpec {
    service: "web",
    instance: "web",
    protocol: "http",
    upstreams: &["api"],
};

/// The mesh of a scenario; `None` if this machine cannot have containers, and the calling test is left out.
async fn mesh() -> Option<Mesh> {
    if !requirement::met(&[ROOT, SETCAP]) {
        return None;
    }
    Some(Mesh::start(MeshOptions::default()).await)
}

/// The value of a flag.
fn value<'a>(flags: &'a SidecarFlags, name: &str) -> &'a str {
    let found = flags.flags.iter().find(|(flag, _)| *flag == name);
    &found.expect("the flag is set").1
}

/// A folder for a volume, readable by every user.
fn volume(mesh: &Mesh, name: &str) -> PathBuf {
    let folder = mesh.file(&format!("{name}.volume"));
    fs::create_dir_all(&folder).expect("folders can be made");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("it is ours");
    folder
}

/// A sidecar as injected with TLS and transparent proxying, except for addresses, which are shared
/// here, and the grace period.
fn injected(mesh: &mut Mesh, instance: &'static str, user: u32) -> Spec {
    let flags = mesh.flags(instance);
    let volume = volume(mesh, instance);
    fs::copy(value(&flags, "ca-certs"), volume.join("consul-ca.pem")).expect("the CA is there");
    fs::write(volume.join("proxyid"), proxy_id(instance)).expect("files can be made");
    let own = flags.address;
    let command = [
        ENTRYPOINT.to_owned(),
        "-addresses".to_owned(),
        value(&flags, "addresses").to_owned(),
        format!("-envoy-admin-bind-address={own}"),
        format!("-consul-dns-bind-addr={own}"),
        "-xds-bind-addr=127.0.0.1".to_owned(),
        format!("-grpc-port={}", value(&flags, "grpc-port")),
        format!("-proxy-service-id-path={VOLUME}/proxyid"),
        "-log-level=info".to_owned(),
        "-log-json=false".to_owned(),
        "-envoy-concurrency=2".to_owned(),
        format!("-graceful-addr={own}"),
        format!("-tls-server-name={}", value(&flags, "tls-server-name")),
        format!("-ca-certs={VOLUME}/consul-ca.pem"),
        format!("-graceful-port={INJECTED_LIFECYCLE}"),
        "-shutdown-drain-listeners".to_owned(),
        "-shutdown-grace-period-seconds=1".to_owned(),
        "-graceful-shutdown-path=/graceful_shutdown".to_owned(),
        "-startup-grace-period-seconds=0".to_owned(),
        "-graceful-startup-path=/graceful_startup".to_owned(),
        "-telemetry-prom-scrape-path=/metrics".to_owned(),
        "-consul-dns-bind-port=8600".to_owned(),
    ];
    Spec {
        user,
        command: command.to_vec(),
        variables: vec![
            ("TMPDIR", VOLUME.to_owned()),
            ("DP_SERVICE_NODE_NAME", NODE.to_owned()),
            // The probe has no flags and reads the address, which differs from the default here.
            ("DP_ENVOY_ADMIN_BIND_ADDRESS", own.to_string()),
        ],
        mounts: vec![(volume, VOLUME)],
        shared_memory: false,
        low_ports: false,
        escalation: false,
        lifecycle: (own, INJECTED_LIFECYCLE).into(),
    }
}

/// A gateway's container, whose command is explicit. It has no folder for temporary files, and the
/// server's certificate is verified with the system's CA bundle.
fn gateway(mesh: &mut Mesh, instance: &'static str, program: &str, user: u32) -> Spec {
    let flags = mesh.flags(instance);
    let volume = volume(mesh, &format!("{instance}.gateway"));
    fs::write(volume.join("proxy-id"), proxy_id(instance)).expect("files can be made");
    let own = flags.address;
    let command = [
        program.to_owned(),
        format!("-addresses={}", value(&flags, "addresses")),
        format!("-grpc-port={}", value(&flags, "grpc-port")),
        format!("-tls-server-name={}", value(&flags, "tls-server-name")),
        format!("-proxy-service-id-path={GATEWAY_VOLUME}/proxy-id"),
        format!("-envoy-admin-bind-address={own}"),
        format!("-graceful-addr={own}"),
    ];
    Spec {
        user,
        command: command.to_vec(),
        variables: vec![
            ("DP_SERVICE_NODE_NAME", NODE.to_owned()),
            ("DP_ENVOY_ADMIN_BIND_ADDRESS", own.to_string()),
        ],
        mounts: vec![
            (volume, GATEWAY_VOLUME),
            (value(&flags, "ca-certs").into(), CA_BUNDLE),
        ],
        shared_memory: false,
        low_ports: false,
        escalation: false,
        lifecycle: (own, LIFECYCLE).into(),
    }
}

async fn ready(mesh: &Mesh, name: &str, spec: Spec) -> Container {
    Container::ready(spec, mesh.file(&format!("{name}.log"))).await
}

/// The probe of the chart, verbatim.
async fn assert_healthy(container: &Container) {
    let probe = ["/usr/local/bin/consul-dataplane", "-check-proxy-health"];
    let (status, said) = container.exec(&probe).await;
    assert_eq!(status.code(), Some(0), "{said}");
}

/// Asserts that every process in the container is restricted as specified.
fn assert_restricted(container: &Container, user: u32) {
    let init = container.init();
    for process in [init, container.envoy()] {
        let ids = Container::fact(process, "Uid");
        assert!(
            ids.split_whitespace().all(|id| id == user.to_string()),
            "{ids}"
        );
        for set in ["CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(Container::fact(process, set), NO_CAPABILITIES, "{set}");
        }
        assert_eq!(Container::fact(process, "NoNewPrivs"), "1");
    }
    let mounts = fs::read_to_string(format!("/proc/{init}/mountinfo")).expect("it runs");
    for mount in mounts.lines() {
        let mut words = mount.split_whitespace().skip(4);
        let (place, options) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let kernel = place == "/proc" || place.starts_with("/dev/");
        assert!(
            kernel || options.split(',').any(|option| option == "ro"),
            "{mount}"
        );
    }
}

/// Asserts that SIGTERM ends the container with code 0 and leaves nothing behind.
async fn assert_ends(mut container: Container) {
    let processes = container.processes();
    assert!(processes.len() > 1, "{processes:?}");
    let status = container.stop().await;
    let log = container.log();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(container.processes(), Vec::<PathBuf>::new());
    // The lack of shared memory is logged once, with its effect on restarts of Envoy.
    let lines = log
        .lines()
        .filter(|line| !line.contains("a cold restart is used"));
    for line in lines {
        for trouble in ["Read-only file system", "Permission denied", "panicked"] {
            assert!(!line.contains(trouble), "{log}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidecars_carry_traffic_without_rights_and_without_a_place_to_write_to() {
    let Some(mut mesh) = mesh().await else {
        return;
    };
    mesh.intend("web", "api", "allow").await;
    mesh.register(&API).await;
    mesh.register(&WEB).await;
    let specs = [
        injected(&mut mesh, API.instance, INJECTED),
        injected(&mut mesh, WEB.instance, OF_IMAGE),
    ];
    let folders = [&specs[0].mounts[0].0, &specs[1].mounts[0].0].map(PathBuf::from);
    let before = root::contents(root::image());
    let volumes = folders.each_ref().map(|folder| root::contents(folder));

    let [api, web] = specs;
    let api = ready(&mesh, API.instance, api).await;
    let web = ready(&mesh, WEB.instance, web).await;
    assert_restricted(&api, INJECTED);
    assert_restricted(&web, OF_IMAGE);
    mesh.settle(WEB.instance, 200).await;
    assert_healthy(&api).await;
    assert_healthy(&web).await;

    assert_ends(web).await;
    assert_ends(api).await;
    assert_eq!(root::contents(root::image()), before);
    assert_eq!(
        folders.each_ref().map(|folder| root::contents(folder)),
        volumes
    );
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_needs_no_place_to_write_to_even_for_a_large_document() {
    let Some(mut mesh) = mesh().await else {
        return;
    };
    mesh.register(&API).await;
    // The document exceeds the limit of a command line and is passed to Envoy through memory.
    let long = "x".repeat(200_000);
    let cluster = json!({
        "name": "padded",
        "type": "STATIC",
        "metadata": {"filter_metadata": {"padding": {"text": long}}},
    });
    let defaults = json!({
        "Kind": "proxy-defaults",
        "Name": "global",
        "Config": {"envoy_extra_static_clusters_json": cluster.to_string()},
    });
    mesh.api(Method::PUT, "/v1/config", Some(defaults)).await;
    let spec = gateway(&mut mesh, API.instance, BY_NAME, OF_NAMESPACE);
    let gateway = ready(&mesh, API.instance, spec).await;
    assert_restricted(&gateway, OF_NAMESPACE);
    assert_healthy(&gateway).await;
    let envoy = fs::read(format!("/proc/{}/cmdline", gateway.envoy())).expect("Envoy runs");
    assert!(
        envoy.len() < long.len(),
        "the document is on the command line"
    );
    assert_ends(gateway).await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_1_collects_orphans() {
    let Some(mut mesh) = mesh().await else {
        return;
    };
    mesh.register(&API).await;
    let mut spec = gateway(&mut mesh, API.instance, BY_NAME, OF_IMAGE);
    let volume = volume(&mesh, API.instance);
    let end = volume.join("end");
    mkfifo(&end, Mode::from_bits_truncate(0o644)).expect("a pipe can be made");
    // Its child outlives it, and ends when the test writes to the pipe.
    let script = format!("(read -r _ < {VOLUME}/end) > /dev/null 2>&1 &\necho \"$1\"\n");
    fs::write(volume.join("addresses"), script).expect("files can be made");
    let address = spec.command[1].replace("-addresses=", "");
    spec.command[1] = format!("-addresses=exec={SHELL} {VOLUME}/addresses {address}");
    spec.mounts.push((volume, VOLUME));
    spec.mounts.push((Path::new("/bin/sh").into(), SHELL));
    let container = ready(&mesh, API.instance, spec).await;

    let orphans = || async {
        let children = container.children().into_iter();
        children
            .filter(|(_, name)| name.trim() == "sh")
            .map(|(pid, _)| pid)
            .collect::<Vec<_>>()
    };
    let left = eventually("an orphan is left", &orphans, |left| !left.is_empty()).await;
    fs::write(&end, "").expect("the orphan reads");
    eventually("process 1 collects it", &orphans, Vec::is_empty).await;
    for orphan in left {
        assert!(!Path::new(&format!("/proc/{orphan}")).exists());
    }
    assert_healthy(&container).await;
    assert_ends(container).await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_envoy_is_started_again_and_nothing_else_is_left() {
    let Some(mut mesh) = mesh().await else {
        return;
    };
    mesh.register(&API).await;
    let mut spec = injected(&mut mesh, API.instance, INJECTED);
    spec.shared_memory = true;
    let mut container = ready(&mesh, API.instance, spec).await;
    let envoy = container.envoy();
    kill(envoy, Signal::SIGKILL).expect("Envoy runs");
    let gone = || async { Path::new(&format!("/proc/{envoy}")).exists() };
    eventually("the killed Envoy is collected", gone, |there| !there).await;
    let count = || async { container.processes().len() };
    eventually("another Envoy runs", count, |count| *count == 2).await;
    container.gets_ready().await;
    assert_healthy(&container).await;
    assert_restricted(&container, INJECTED);
    assert_ends(container).await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn privileged_programs_bind_low_ports_and_start_without_the_right_to() {
    let Some(mut mesh) = mesh().await else {
        return;
    };
    mesh.register(&API).await;
    let mut spec = gateway(&mut mesh, API.instance, PRIVILEGED, OF_IMAGE);
    let own = spec.lifecycle.ip();
    spec.low_ports = true;
    spec.command
        .push("-envoy-executable-path=/usr/local/bin/privileged-envoy".to_owned());
    let bare = spec.clone();

    spec.escalation = true;
    spec.command
        .push(format!("-envoy-ready-bind-address={own}"));
    spec.command.push("-envoy-ready-bind-port=443".to_owned());
    let container = ready(&mesh, API.instance, spec).await;
    for process in [container.init(), container.envoy()] {
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(Container::fact(process, set), LOW_PORTS, "{set}");
        }
    }
    let (status, _) = client::get((own, 443).into(), "/ready")
        .await
        .expect("Envoy listens");
    assert!(status.is_success(), "{status}");
    assert_healthy(&container).await;
    assert_ends(container).await;

    let container = ready(&mesh, "bare", bare).await;
    for process in [container.init(), container.envoy()] {
        assert_eq!(Container::fact(process, "CapEff"), NO_CAPABILITIES);
    }
    assert_healthy(&container).await;
    assert_ends(container).await;
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_discover_is_named_with_what_to_do() {
    let Some(mut mesh) = mesh().await else {
        return;
    };
    mesh.register(&API).await;
    let mut spec = gateway(&mut mesh, API.instance, BY_NAME, OF_IMAGE);
    spec.command[1] = "-addresses=exec=discover -q addrs provider=aws".to_owned();
    let mut container = Container::start(spec, mesh.file("discover.log")).await;
    let log_now = || async { container.log() };
    let log = eventually("the missing program is named", log_now, |log| {
        log.contains("with-discover")
    })
    .await;
    assert!(!log.contains("provider=aws"), "{log}");
    let status = container.stop().await;
    assert_eq!(status.code(), Some(0), "{}", container.log());
    mesh.stop().await;
}
