//! `docs/peering.md` as it is written: two clusters, each with a network of its own, and the commands of the page.

use legate_runtime::Scope;
use legate_testkit::document::Document;
use legate_testkit::envoy::workspace_binary;
use legate_testkit::requirement::{self, IP, NFT, ROOT};
use legate_tests::sites::{self, Namespace, Sites};
use legate_tests::steps::Shell;
use legate_tests::{app, client, eventually};
use tempfile::TempDir;

const DOCUMENT: Document = Document {
    path: "docs/peering.md",
    text: include_str!("../../docs/peering.md"),
    section: None,
};
/// What other clusters reach: mesh gateways, and servers.
const PORTS: [u16; 2] = [8443, 8503];

/// A cluster of one machine.
struct Cluster {
    network: Namespace,
    shell: Shell,
}

impl Cluster {
    /// Starts a server, as `docs/agent.md` says.
    async fn start(networks: &Sites, site: u8, folder: &TempDir) -> Self {
        let network = networks.site(usize::from(site));
        let programs = format!("programs-{site}");
        let mut shell = Shell::new(folder.path(), &programs, &network);
        shell.add("legate", &workspace_binary("legate"), &network, None);
        let address = sites::address(site, 1);
        let agent = format!(
            "legate agent -server -bind {address} -data-dir data-{site} \
             -hcl 'addresses {{ grpc_tls = \"127.0.0.1 {address}\" }}' \
             -hcl 'default_intention_policy = \"deny\"' &"
        );
        shell.start(&agent).await;
        let leader = || async {
            let answer = client::get(([127, 0, 0, 1], 8500).into(), "/v1/connect/ca/roots");
            network
                .within(answer)
                .await
                .map_err(|error| error.to_string())
        };
        let serves = |answer: &Result<client::Answer, String>| matches!(answer, Ok((status, _)) if status.is_success());
        eventually("the server has a CA", leader, serves)
            .await
            .expect("an answer");
        Self { network, shell }
    }
}

/// The clusters in which a reader runs a block.
fn places(introduction: &str) -> Vec<usize> {
    let names = [("first cluster", 0), ("second cluster", 1)];
    let named = names.iter().filter(|(name, _)| introduction.contains(name));
    match introduction.contains("both clusters") {
        true => vec![0, 1],
        false => named.map(|(_, place)| *place).collect(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_page_join_two_clusters() {
    if !requirement::met(&[ROOT, IP, NFT]) {
        return;
    }
    let content = DOCUMENT.parse().expect("the page can be run");
    let networks = Sites::open(2, &PORTS);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let apps = Scope::new("applications");
    let mut clusters = [
        Cluster::start(&networks, 0, &folder).await,
        Cluster::start(&networks, 1, &folder).await,
    ];
    // The page takes the called service for granted.
    app::chained("api", &clusters[1].network, 8081, None, &apps).await;
    let api = "echo 'service { name = \"api\" port = 8081 address = \"10.80.1.1\" connect { sidecar_service { port = 21000 } } }' > api.hcl
        legate services register api.hcl
        legate connect envoy -sidecar-for api -admin-bind 127.0.0.1:19001 &";
    clusters[1].shell.start(api).await;
    for step in &content.steps {
        let places = places(&step.introduction);
        assert!(!places.is_empty(), "line {}: in which cluster?", step.line);
        for place in places {
            clusters[place].shell.run(step).await;
        }
    }
    drop(clusters);
    apps.stop(legate_tests::wait::LIMIT)
        .await
        .expect("the application stops");
}
