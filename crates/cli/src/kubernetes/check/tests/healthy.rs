//! The facts of a healthy mesh.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::apps::v1::Deployment;
use legate_identity::{Authority, LeafRequest, RootRequest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::super::facts::*;
use super::super::release::Release;
use crate::kubernetes::sidecar::Leaf;

pub(super) const DAY: Duration = Duration::from_secs(86_400);
pub(super) const HOST: &str = "legate-operator.legate.svc";

pub(super) fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + 20_000 * DAY
}

/// A CA, and the chain of a certificate for `host` that is valid for 90 days.
pub(super) fn issue(host: &str, not_before: SystemTime) -> (String, Vec<CertificateDer<'static>>) {
    let root = Authority::generate_root(RootRequest {
        common_name: "CA".to_owned(),
        uri: "spiffe://x.consul".to_owned(),
        serial: 1,
        now: not_before - 10 * DAY,
        ttl: 1000 * DAY,
    })
    .unwrap();
    let leaf = root.issue(LeafRequest {
        uris: Vec::new(),
        dns_names: vec![host.to_owned()],
        ips: Vec::new(),
        serial: 2,
        // The validity starts a minute before `now`.
        now: not_before + Duration::from_secs(60),
        ttl: 90 * DAY,
    });
    let leaf = leaf.unwrap();
    let chain = CertificateDer::from_pem_slice(leaf.cert_pem.as_bytes()).unwrap();
    (root.cert_pem().to_owned(), vec![chain])
}

pub(super) fn deployment(namespace: &str, available: i32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "legate-operator", "namespace": namespace,
                     "labels": {"app": "legate", "component": "operator", "release": "mesh"}},
        "spec": {
            "replicas": 2, "selector": {},
            "template": {"spec": {"containers": [{
                "name": "operator", "image": "legate-k8s:1.0",
                "args": ["operator", "--full-name=legate", "--tls",
                         "--server-addresses=legate-server.legate.svc",
                         "--dataplane-image=legate-dataplane:1.0"],
            }]}},
        },
        "status": {"availableReplicas": available, "updatedReplicas": 2},
    }))
    .unwrap()
}

pub(super) fn server(name: &str) -> ServerPod {
    let (_, chain) = issue("legate-server.legate.svc", now() - 10 * DAY);
    ServerPod {
        name: name.to_owned(),
        image: "legate-server:1.0".to_owned(),
        api: Some(Ok(ServerApi {
            chain,
            trust_domain: "x.consul".to_owned(),
            active_root: "aa:bb".to_owned(),
            status: Ok(json!({"Datacenters": []})),
        })),
    }
}

pub(super) fn status() -> Value {
    json!({
        "ready": true,
        "components": [{"name": "session", "state": "ready"}],
        "session": {"state": "connected", "server": "10.0.0.1:8502"},
        "relay": {"upstream": {}},
    })
}

pub(super) fn pod() -> MeshPod {
    MeshPod {
        namespace: "shop".to_owned(),
        name: "web-1".to_owned(),
        owner: Some("deployment/web".to_owned()),
        image: "legate-dataplane:1.0".to_owned(),
        sidecar_ready: true,
        sidecar_waits: None,
        unready: Vec::new(),
        ready: true,
        status: Some(Ok(status())),
        leaves: Some(Ok(vec![Leaf {
            identity: "spiffe://x/svc/web".to_owned(),
            not_before: now() - DAY,
            not_after: now() + 2 * DAY,
        }])),
    }
}

pub(super) fn refused(words: &str, code: u16) -> Admission {
    Admission::Refused {
        namespace: "legate".to_owned(),
        code,
        words: words.to_owned(),
    }
}

pub(super) fn healthy() -> Facts {
    let (bundle, chain) = issue(HOST, now() - 10 * DAY);
    let operator = |name: &str| OperatorPod {
        name: name.to_owned(),
        ready: true,
        readiness: Ok((true, "ok\n".to_owned())),
        chain: Ok(chain.clone()),
    };
    let denied = "admission webhook \"operator.consul.hashicorp.com\" denied the request: no";
    Facts {
        now: now(),
        version: "v1.33.0".to_owned(),
        release: Release::of(&deployment("legate", 2)),
        operator_pods: Ok(vec![operator("operator-1"), operator("operator-2")]),
        webhook: Ok(Some(Webhook {
            configuration: "legate-operator".to_owned(),
            name: "operator.consul.hashicorp.com".to_owned(),
            ca_bundle: Some(bundle),
            host: HOST.to_owned(),
        })),
        admission: refused(denied, 400),
        servers: Ok(Servers::InCluster {
            replicas: 1,
            pods: vec![server("legate-server-0")],
        }),
        pods: Ok(vec![pod()]),
        bare_pods: Ok(Vec::new()),
    }
}
