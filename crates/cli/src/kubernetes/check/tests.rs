//! Findings for given facts: a healthy mesh, and every failure with its next step.

mod healthy;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use self::healthy::{DAY, HOST, deployment, healthy, issue, now, pod, refused, server};
use super::facts::*;
use super::finding::{Finding, Outcome};
use super::release;
use super::{findings, mesh_pods, report};

/// The findings that are not OK.
fn bad(facts: &Facts) -> Vec<Finding> {
    let mut all = findings::all(facts);
    all.retain(|finding| finding.outcome != Outcome::Ok);
    for finding in &all {
        let needs = matches!(finding.outcome, Outcome::Failed | Outcome::Warning);
        assert_eq!(finding.next_step.is_some(), needs, "{finding:?}");
    }
    all
}

/// The only finding after a change, with its next step.
fn only(change: impl FnOnce(&mut Facts)) -> (&'static str, Outcome, String) {
    let mut facts = healthy();
    change(&mut facts);
    let bad = bad(&facts);
    let [finding] = &bad[..] else {
        panic!("{bad:#?}");
    };
    let next = finding.next_step.clone().unwrap_or_default();
    (
        finding.check,
        finding.outcome,
        format!("{} | {next}", finding.message),
    )
}

fn fails(check: &str, parts: &[&str], change: impl FnOnce(&mut Facts)) {
    expect(check, Outcome::Failed, parts, change);
}

fn expect(check: &str, outcome: Outcome, parts: &[&str], change: impl FnOnce(&mut Facts)) {
    let (found, how, text) = only(change);
    assert_eq!((found, how), (check, outcome), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

fn with_pod(change: impl FnOnce(&mut MeshPod)) -> impl FnOnce(&mut Facts) {
    |facts| change(&mut facts.pods.as_mut().unwrap()[0])
}

fn with_status(path: &'static str, value: Value) -> impl FnOnce(&mut Facts) {
    with_pod(move |pod| {
        let document = pod.status.as_mut().unwrap().as_mut().unwrap();
        let (parent, field) = path.rsplit_once('/').unwrap();
        document.pointer_mut(parent).unwrap()[field] = value;
    })
}

#[test]
fn a_healthy_mesh_is_reported_healthy() {
    let all = findings::all(&healthy());
    assert!(bad(&healthy()).is_empty() && report::healthy(&all));
    let text = report::text(&all);
    assert!(
        text.lines()
            .take(all.len())
            .all(|line| line.starts_with("ok    ")),
        "{text}"
    );
    assert!(text.ends_with("\nThe mesh is healthy.\n"), "{text}");
    let document: Value = serde_json::from_str(&report::json(&all)).unwrap();
    assert_eq!(document["healthy"], true);
    assert_eq!(document["findings"][0]["outcome"], "ok");
}

#[test]
fn a_failure_is_one_line_with_its_next_step() {
    let finding = Finding::failed("operator", "it is\naway", "look at it");
    let text = report::text(&[finding]);
    let first = text.lines().next();
    assert_eq!(first, Some("FAIL  operator: it is away. Next: look at it"));
    assert!(text.contains("not healthy: failed 1, warnings 0"), "{text}");
}

#[test]
fn the_operator() {
    fails(
        "operator",
        &["scaled to 0", "kubectl scale deployment/legate-operator"],
        |facts| {
            facts.release.replicas = 0;
        },
    );
    fails(
        "operator",
        &["1 of 2", "kubectl describe deployment/legate-operator"],
        |facts| {
            facts.release.available = 1;
        },
    );
    let unready = "servers: not reached\n".to_owned();
    fails(
        "operator",
        &["operator-1", "servers: not reached", "kubectl logs"],
        |facts| {
            facts.operator_pods.as_mut().unwrap()[0].readiness = Ok((false, unready));
        },
    );
    expect("operator", Outcome::Warning, &["rolled out"], |facts| {
        facts.release.updated = 1
    });
    expect("operator", Outcome::Unchecked, &["forbidden"], |facts| {
        facts.operator_pods.as_mut().unwrap()[0].readiness = Err("forbidden".to_owned());
    });
}

#[test]
fn the_configuration_of_the_webhook() {
    fails(
        "webhook-configuration",
        &["there is no", "helm upgrade"],
        |facts| {
            facts.webhook = Ok(None);
        },
    );
    fails(
        "webhook-configuration",
        &["no caBundle", "rollout restart"],
        |facts| {
            facts.webhook.as_mut().unwrap().as_mut().unwrap().ca_bundle = None;
        },
    );
    expect(
        "webhook-configuration",
        Outcome::Unchecked,
        &["forbidden"],
        |facts| {
            facts.webhook = Err("forbidden".to_owned());
        },
    );
}

#[test]
fn the_certificate_of_the_webhook() {
    let check = "webhook-certificate";
    fn one(facts: &mut Facts) -> &mut OperatorPod {
        &mut facts.operator_pods.as_mut().unwrap()[1]
    }
    fails(
        check,
        &[
            "caBundle of legate-operator does not verify",
            "invalid peer certificate",
        ],
        |facts| {
            let (bundle, _) = issue(HOST, now());
            facts.webhook.as_mut().unwrap().as_mut().unwrap().ca_bundle = Some(bundle);
            facts.operator_pods.as_mut().unwrap().truncate(1);
        },
    );
    fails(
        check,
        &["does not verify", "for other.legate.svc"],
        |facts| {
            facts.webhook.as_mut().unwrap().as_mut().unwrap().host = "other.legate.svc".to_owned();
            facts.operator_pods.as_mut().unwrap().truncate(1);
        },
    );
    fails(
        check,
        &["operator-2", "has expired", "5d ago", "rollout restart"],
        |facts| {
            let (_, chain) = issue(HOST, now() - 95 * DAY);
            one(facts).chain = Ok(chain);
        },
    );
    fails(check, &["expires soon", "in 5d"], |facts| {
        let (_, chain) = issue(HOST, now() - 85 * DAY);
        one(facts).chain = Ok(chain);
    });
    fails(check, &["check the clocks"], |facts| {
        let (_, chain) = issue(HOST, now() + DAY);
        one(facts).chain = Ok(chain);
    });
    expect(
        check,
        Outcome::Unchecked,
        &["operator-2", "refused"],
        |facts| {
            one(facts).chain = Err("refused".to_owned());
        },
    );
}

#[test]
fn whether_the_webhook_is_called() {
    let check = "webhook-called";
    fails(check, &["without calling", "failurePolicy"], |facts| {
        facts.admission = Admission::Created {
            namespace: "legate".to_owned(),
        };
    });
    let away = "failed calling webhook \"operator.consul.hashicorp.com\": no endpoints available";
    fails(
        check,
        &["no endpoints available", "kubectl get pods"],
        |facts| {
            facts.admission = refused(away, 500);
        },
    );
    let other = "admission webhook \"policy.example.com\" denied the request: no";
    fails(check, &["something other", "policy.example.com"], |facts| {
        facts.admission = refused(other, 400);
    });
    let forbidden = "pods is forbidden: User \"me\" cannot create resource";
    expect(check, Outcome::Unchecked, &["cannot create"], |facts| {
        facts.admission = refused(forbidden, 403);
    });
    expect(check, Outcome::Unchecked, &["namespaceSelector"], |facts| {
        facts.admission = Admission::NoNamespace;
    });
}

#[test]
fn the_servers() {
    fn pods(facts: &mut Facts) -> &mut Vec<ServerPod> {
        match facts.servers.as_mut().unwrap() {
            Servers::InCluster { pods, .. } => pods,
            Servers::External(_) => unreachable!(),
        }
    }
    fails(
        "servers",
        &["0 of 1", "statefulset/legate-server"],
        |facts| pods(facts).clear(),
    );
    fails(
        "servers",
        &["legate-server-0 is not ready", "describe pod"],
        |facts| {
            pods(facts)[0].api = None;
        },
    );
    fails(
        "servers",
        &["does not respond: refused", "kubectl logs legate-server-0"],
        |facts| {
            pods(facts)[0].api = Some(Err("refused".to_owned()));
        },
    );
    expect(
        "servers",
        Outcome::Unchecked,
        &["legate-server-0", "forbidden"],
        |facts| {
            pods(facts)[0].api = Some(Err("port-forward: forbidden".to_owned()));
        },
    );
    fails("server-agreement", &["different meshes", "etcd"], |facts| {
        let mut other = server("legate-server-1");
        other.api.as_mut().unwrap().as_mut().unwrap().active_root = "cc:dd".to_owned();
        pods(facts).push(other);
    });
    fails(
        "server-certificate",
        &["expires soon", "rollout restart statefulset"],
        |facts| {
            let (_, chain) = issue("x", now() - 85 * DAY);
            pods(facts)[0].api.as_mut().unwrap().as_mut().unwrap().chain = chain;
        },
    );
    let new = "legate-server:1.1".to_owned();
    expect(
        "versions",
        Outcome::Warning,
        &["server 1.1", "helm upgrade"],
        |facts| {
            pods(facts)[0].image = new;
        },
    );
    expect(
        "servers",
        Outcome::Unchecked,
        &["outside", "consul.example.com"],
        |facts| {
            facts.servers = Ok(Servers::External("consul.example.com".to_owned()));
        },
    );
}

#[test]
fn pods_with_a_sidecar() {
    fails(
        "pods-ready",
        &["shop/web-1", "ImagePullBackOff", "describe pod web-1"],
        with_pod(|pod| {
            pod.sidecar_waits = Some("ImagePullBackOff".to_owned());
            pod.status = None;
            pod.leaves = None;
        }),
    );
    let unready = |pod: &mut MeshPod| pod.sidecar_ready = false;
    fails(
        "pods-ready",
        &["sidecar is not ready", "legate proxy status web-1"],
        with_pod(unready),
    );
    let app = |pod: &mut MeshPod| pod.unready = vec!["app".to_owned()];
    fails(
        "pods-ready",
        &["container app is not ready", "--namespace shop"],
        with_pod(app),
    );
    fails(
        "proxies-connected",
        &["cannot be queried", "kubectl logs web-1"],
        with_pod(|pod| {
            pod.status = Some(Err("refused".to_owned()));
            pod.leaves = None;
        }),
    );
    let waiting = with_status("/session/state", json!("waiting"));
    fails(
        "proxies-connected",
        &["(waiting)", "NetworkPolicies"],
        waiting,
    );
    let missing = with_status("/relay/missing", json!("Envoy rejected its listeners: no"));
    fails(
        "proxies-configured",
        &["rejected its listeners", "legate proxy status"],
        missing,
    );
    fails(
        "proxies-configured",
        &["not started yet"],
        with_pod(|pod| {
            let document = pod.status.as_mut().unwrap().as_mut().unwrap();
            document["ready"] = json!(false);
            let reason = "not started yet";
            document["components"] =
                json!([{"name": "envoy", "state": "pending", "reason": reason}]);
        }),
    );
    fails(
        "proxy-certificates",
        &["has expired", "rollout restart deployment/web"],
        with_pod(|pod| {
            pod.leaves.as_mut().unwrap().as_mut().unwrap()[0].not_after = now() - DAY / 2;
        }),
    );
    let old = |pod: &mut MeshPod| pod.image = "legate-dataplane:0.9".to_owned();
    let next = "kubectl rollout restart deployment/web --namespace shop";
    expect(
        "sidecar-versions",
        Outcome::Warning,
        &["0.9", "1.0", next],
        with_pod(old),
    );
}

#[test]
fn pods_that_lack_a_requested_sidecar() {
    let bare = |namespace: &str| BarePod {
        namespace: namespace.to_owned(),
        name: "web-2".to_owned(),
        owner: None,
    };
    let pod = bare("shop");
    fails(
        "pods-injected",
        &["shop/web-2", "create it again"],
        |facts| {
            facts.bare_pods = Ok(vec![pod]);
        },
    );
    let pod = bare("legate");
    fails("pods-injected", &["another namespace"], |facts| {
        facts.bare_pods = Ok(vec![pod])
    });
}

#[test]
fn the_report_of_a_failed_mesh_is_limited() {
    let mut facts = healthy();
    let mut broken = pod();
    broken.unready = vec!["app".to_owned()];
    facts.pods = Ok(vec![broken; 500]);
    let found = bad(&facts);
    assert_eq!(found.len(), 21);
    assert!(
        found[20].message.contains("and 480 more"),
        "{:?}",
        found[20]
    );
}

#[test]
fn the_release_is_found_or_chosen() {
    let one = deployment("legate", 2);
    let release = release::choose(std::slice::from_ref(&one), None)
        .unwrap()
        .unwrap();
    assert_eq!(release.full_name, "legate");
    assert_eq!(release.dataplane_image, "legate-dataplane:1.0");
    assert!(release.tls && release.label == "mesh");
    let none = release::choose(&[], None).unwrap().unwrap_err();
    assert_eq!(none.outcome, Outcome::Failed);
    assert!(none.next_step.unwrap().contains("helm install"));
    let several = [one, deployment("other", 1)];
    let error = release::choose(&several, None).unwrap_err().to_string();
    assert!(
        error.contains("legate/legate-operator, other/legate-operator"),
        "{error}"
    );
    assert!(error.contains("--namespace"), "{error}");
}

#[test]
fn facts_of_pods() {
    let object = json!({
        "metadata": {
            "name": "web-6c9-x", "namespace": "shop",
            "labels": {"pod-template-hash": "6c9",
                       "consul.hashicorp.com/connect-inject-managed-by": "legate-k8s"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
                                 "name": "web-6c9", "uid": "1", "controller": true}],
        },
        "spec": {
            "containers": [{"name": "app"}],
            "initContainers": [{"name": "consul-dataplane", "image": "d:1"}],
        },
        "status": {
            "phase": "Pending",
            "containerStatuses": [{"name": "app", "ready": false, "image": "", "imageID": "",
                                   "restartCount": 0}],
            "initContainerStatuses": [{
                "name": "consul-dataplane", "ready": false, "image": "", "imageID": "",
                "restartCount": 0,
                "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}},
            }],
        },
    });
    let pod = |object: &Value| serde_json::from_value::<Pod>(object.clone()).unwrap();
    let facts = mesh_pods::mesh_pod(&pod(&object)).unwrap();
    assert_eq!(facts.owner.as_deref(), Some("deployment/web"));
    assert_eq!(facts.unready, ["app"]);
    assert_eq!(
        facts.sidecar_waits.as_deref(),
        Some("ErrImagePull: no such image")
    );
    assert!(!mesh_pods::sidecar_runs(&pod(&object)));
    let mut ended = object.clone();
    ended["status"]["phase"] = json!("Succeeded");
    assert!(mesh_pods::mesh_pod(&pod(&ended)).is_none());
    let mut other = object;
    other["metadata"]["labels"]["consul.hashicorp.com/connect-inject-managed-by"] = json!("x");
    assert!(mesh_pods::mesh_pod(&pod(&other)).is_none());
}

#[test]
fn pods_without_a_requested_sidecar_are_bare() {
    let metadata = |value: &str| -> ObjectMeta {
        serde_json::from_value(json!({
            "name": "web", "namespace": "shop",
            "annotations": {"consul.hashicorp.com/connect-inject": value},
        }))
        .unwrap()
    };
    assert!(mesh_pods::bare_pod(&metadata("true")).is_some());
    assert!(mesh_pods::bare_pod(&metadata("false")).is_none());
    assert!(mesh_pods::bare_pod(&metadata("maybe")).is_none());
    assert!(mesh_pods::bare_pod(&ObjectMeta::default()).is_none());
}

#[test]
fn a_check_without_permission_has_not_failed() {
    let no_way = "port-forward: pods \"web-1\" is forbidden";
    for check in [
        "proxies-connected",
        "proxies-configured",
        "proxy-certificates",
    ] {
        let mut facts = healthy();
        let pod = &mut facts.pods.as_mut().unwrap()[0];
        (pod.status, pod.leaves) = (Some(Err(no_way.to_owned())), None);
        let found = findings::all(&facts);
        let found = found.iter().find(|one| one.check == check).unwrap();
        assert_eq!(found.outcome, Outcome::Unchecked, "{}", found.message);
        assert!(found.message.contains("forbidden"), "{}", found.message);
    }
}
