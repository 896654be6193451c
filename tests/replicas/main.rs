//! Three servers with one etcd of three members, with sidecars and real Envoys: the effects of a
//! lost server, a lost member and an outage of etcd; and writers at all servers.

#[path = "../benches/store/client.rs"]
#[expect(dead_code, reason = "the bench of the store uses more of it")]
mod client;
#[path = "../benches/etcd/cluster.rs"]
mod cluster;
mod etcd;
mod leader;
#[path = "../benches/etcd/load.rs"]
#[expect(dead_code, reason = "the bench of etcd uses more of it")]
mod load;
mod peering;
#[path = "../benches/store/process.rs"]
#[expect(dead_code, reason = "the bench of the store uses more of it")]
mod process;
mod servers;
mod writes;

use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::Value;

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
const SERVERS: usize = 3;

/// Three servers, and `web` with permission to call `api`.
async fn web_and_api() -> (Mesh, [Sidecar; 2]) {
    let mut mesh = Mesh::start(three()).await;
    mesh.intend("web", "api", "allow").await;
    let api = mesh.add(&API).await;
    let web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;
    (mesh, [api, web])
}

fn three() -> MeshOptions {
    MeshOptions {
        servers: SERVERS as u8,
        ..MeshOptions::default()
    }
}

/// Each server in turn denies `web` and allows it again, and proxies follow.
async fn intentions_by_each_server(mesh: &mut Mesh) {
    for n in 0..SERVERS {
        if !mesh.replicas().runs(n) {
            continue;
        }
        mesh.use_server(n);
        for (action, status) in [("deny", 403), ("allow", 200)] {
            mesh.intend("web", "api", action).await;
            mesh.settle("web", status).await;
        }
    }
}

/// Asserts that all servers have the same roots and catalog.
async fn all_agree(mesh: &mut Mesh) {
    let mut answers = Vec::new();
    for path in [
        "/v1/connect/ca/roots",
        "/v1/catalog/nodes",
        "/v1/health/service/api",
    ] {
        let replicas = &*mesh.replicas();
        let asked = || async move {
            let mut answers = Vec::new();
            for n in 0..SERVERS {
                answers.push(replicas.ask(n, path).await);
            }
            answers
        };
        let same = |answers: &Vec<String>| answers.iter().all(|answer| *answer == answers[0]);
        answers.push(eventually("all servers agree", asked, same).await.remove(0));
    }
    let roots: Value = serde_json::from_str(&answers[0]).expect("JSON");
    let count = roots["Roots"].as_array().map(Vec::len);
    assert_eq!(count, Some(1), "{roots:#}");
    assert_eq!(roots["Roots"][0]["ID"], roots["ActiveRootID"], "{roots:#}");
}

/// The number of configuration streams that each Envoy has opened.
async fn streams(sidecars: &[Sidecar]) -> Vec<u64> {
    let mut opened = Vec::new();
    for sidecar in sidecars {
        let name = "cluster.consul-dataplane.upstream_rq_total";
        opened.push(sidecar.stat(name).await);
    }
    opened
}

/// The server of a sidecar's configuration; `None` between two servers.
async fn server_of(sidecar: &Sidecar) -> Option<String> {
    let status = sidecar.status().await;
    let server = status["relay"]["upstream"]["server"].as_str()?;
    Some(server.split(':').next().unwrap_or(server).to_owned())
}

/// Stops everything in order.
async fn stop(mesh: Mesh, sidecars: impl IntoIterator<Item = Sidecar>) {
    for mut sidecar in sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}
