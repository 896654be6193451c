//! The lifecycle of a pod with a sidecar: probes, a Job, a slow shutdown.

use anyhow::{Context, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::namespace::Namespace;
use crate::run::Scenario;
use crate::workload::{App, PORT, ask_until_answered, intend, speaks_http};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "probes_of_the_node_reach_the_application",
        run: probes_of_the_node_reach_the_application,
    },
    Scenario {
        name: "a_job_ends_with_its_application",
        run: a_job_ends_with_its_application,
    },
    Scenario {
        name: "an_application_calls_others_until_it_ends",
        run: an_application_calls_others_until_it_ends,
    },
    Scenario {
        name: "garbage_in_annotations_is_refused_in_a_sentence",
        run: garbage_in_annotations_is_refused_in_a_sentence,
    },
];

/// The node has no identity in the mesh, but its probes reach the application. A probe that the
/// application does not answer fails.
fn probes_of_the_node_reach_the_application(space: &Namespace) -> anyhow::Result<()> {
    let http = |path: &str, port: Value| json!({"httpGet": {"path": path, "port": port}});
    let grpc = |port: u16| json!({"grpc": {"port": port}});
    let tcp = |port: Value| json!({"tcpSocket": {"port": port}});
    let probed = |name, probe: Value| {
        App::new(name)
            .arguments(&["serve", "--lines=9000", "--grpc=9001"])
            .container(
                "ports",
                json!([
                    {"name": "web", "containerPort": PORT},
                    {"name": "lines", "containerPort": 9000},
                ]),
            )
            .container("readinessProbe", every_second(probe))
    };
    for (name, probe) in [
        ("probed-http", http("/", json!(PORT))),
        ("probed-http-name", http("/", json!("web"))),
        ("probed-grpc", grpc(9001)),
        ("probed-tcp", tcp(json!(9000))),
        ("probed-tcp-name", tcp(json!("lines"))),
    ] {
        let app = probed(name, probe.clone())
            .container("startupProbe", every_second(probe.clone()))
            .container("livenessProbe", every_second(probe));
        space.apply(&app.manifests().to_string())?;
    }
    for (name, probe) in [
        ("broken-http", http("/none", json!(PORT))),
        ("broken-grpc", grpc(9002)),
        ("broken-tcp", tcp(json!(9002))),
    ] {
        space.apply(&probed(name, probe).manifests().to_string())?;
    }
    for name in ["http", "http-name", "grpc", "tcp", "tcp-name"] {
        space.rolled_out(&format!("deployment/probed-{name}"))?;
    }
    for name in ["http", "grpc", "tcp"] {
        let label = format!("app=broken-{name}");
        eventually(&format!("the probe of broken-{name} fails"), || {
            let pods = space.pods(&label)?;
            let pod = pods.first().context("there is no pod yet")?;
            let about = format!("involvedObject.name={pod},reason=Unhealthy");
            let events = space.kubectl(&["get", "events", "--field-selector", &about])?;
            ensure!(events.contains("Readiness probe failed"), "{events}");
            Ok(())
        })?;
        for status in app_statuses(space, &label)? {
            ensure!(status["started"] == true, "{status}");
            ensure!(status["ready"] == false, "{status}");
        }
    }
    // Liveness probes have run during the whole time.
    for name in ["http", "http-name", "grpc", "tcp", "tcp-name"] {
        for status in app_statuses(space, &format!("app=probed-{name}"))? {
            ensure!(status["ready"] == true, "{status}");
            ensure!(status["restartCount"] == 0, "{status}");
        }
    }
    Ok(())
}

fn every_second(mut probe: Value) -> Value {
    probe["periodSeconds"] = json!(1);
    probe
}

/// The kubelet's status of the applications' containers, of which there is at least one.
fn app_statuses(space: &Namespace, label: &str) -> anyhow::Result<Vec<Value>> {
    let pods = space.json(&["get", "pods", "--selector", label])?;
    let pods = pods["items"].as_array().context("pods are a list")?;
    let statuses = pods
        .iter()
        .filter_map(|pod| pod["status"]["containerStatuses"].as_array());
    let apps = statuses.flatten().filter(|status| status["name"] == "app");
    let apps: Vec<Value> = apps.cloned().collect();
    ensure!(!apps.is_empty(), "{label} has no pod");
    Ok(apps)
}

fn a_job_ends_with_its_application(space: &Namespace) -> anyhow::Result<()> {
    speaks_http(space, "job-api")?;
    intend(space, "job-once", "job-api", "allow")?;
    App::new("job-api").run(space)?;
    let once = App::new("job-once").arguments(&["get", "--retry=60", "http://job-api/"]);
    // Its Service determines its name in the mesh.
    once.apply_without_pods(space)?;
    let mut template = once.template();
    template["spec"]["restartPolicy"] = json!("Never");
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job-once"},
        "spec": {"backoffLimit": 0, "template": template},
    });
    space.apply(&job.to_string())?;
    space.wait("job/job-once", "condition=Complete")?;
    let log = space.kubectl(&["logs", "job/job-once", "--container=app"])?;
    let answer: Value = serde_json::from_str(&log)?;
    ensure!(answer["instance"].is_string(), "{answer}");
    sidecar_ends_with(space, "job-name=job-once")
}

/// The sidecar of a completed pod has ended soon after the application: within a second of the
/// kubelet's signal. The kubelet looks for ended containers once a second, and reports whole seconds.
fn sidecar_ends_with(space: &Namespace, label: &str) -> anyhow::Result<()> {
    let pods = space.json(&["get", "pods", "--selector", label])?;
    let status = &pods["items"][0]["status"];
    let ended = |list: &str, name: &str| {
        let containers = status[list].as_array().context("containers are a list")?;
        let container = containers.iter().find(|one| one["name"] == name);
        let ended = &container.context(name.to_owned())?["state"]["terminated"]["finishedAt"];
        let ended = ended
            .as_str()
            .with_context(|| format!("{name} runs: {status}"))?;
        Ok::<Timestamp, anyhow::Error>(ended.parse()?)
    };
    let app = ended("containerStatuses", "app")?;
    let sidecar = ended("initContainerStatuses", "consul-dataplane")?;
    let later = sidecar.duration_since(app).as_secs();
    ensure!(
        later <= 3,
        "the sidecar ended {later} s after the application"
    );
    Ok(())
}

fn an_application_calls_others_until_it_ends(space: &Namespace) -> anyhow::Result<()> {
    speaks_http(space, "late-api")?;
    intend(space, "late-web", "late-api", "allow")?;
    App::new("late-api").run(space)?;
    let url = "http://late-api/";
    let linger = ["serve", "--end=linger", "--seconds=8", "--upstream", url];
    App::new("late-web").arguments(&linger).run(space)?;
    ask_until_answered(space, "late-web", url)?;
    let pods = space.pods("app=late-web")?;
    let pod = pods.first().context("there is a pod")?;
    // Its log can only be read while it exists.
    let log = std::thread::scope(|scope| {
        let words = ["logs", "--follow", pod, "--container=app"];
        let log = scope.spawn(move || space.kubectl(&words));
        space.kubectl(&["delete", "pod", pod, "--wait=false"])?;
        log.join().expect("it does not panic")
    })?;
    let answers = log.lines().filter(|line| line.contains("\"instance\""));
    ensure!(answers.count() == 8, "{log}");
    Ok(())
}

fn garbage_in_annotations_is_refused_in_a_sentence(space: &Namespace) -> anyhow::Result<()> {
    for (name, value, said) in [
        (
            "connect-service-upstreams",
            "api",
            "connect-service-upstreams",
        ),
        (
            "transparent-proxy-exclude-inbound-ports",
            "x",
            "exclude-inbound-ports",
        ),
        ("consul-envoy-proxy-concurrency", "-1", "concurrency"),
    ] {
        let app = App::new("garbage").annotation(name, value);
        app.apply_without_pods(space)?;
        let refused = space.apply(&app.pod("garbage").to_string());
        let error = refused.err().context("the pod was let in")?;
        ensure!(format!("{error:#}").contains(said), "{error:#}");
    }
    Ok(())
}
