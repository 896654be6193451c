//! `docs/federation.md` as it is written: two datacenters, each with a network of its own, and the commands of its first
//! section.

use legate_runtime::Scope;
use legate_testkit::document::Document;
use legate_testkit::envoy::workspace_binary;
use legate_testkit::requirement::{self, IP, NFT, ROOT};
use legate_tests::app;
use legate_tests::sites::Sites;
use legate_tests::steps::Shell;

const DOCUMENT: Document = Document {
    path: "docs/federation.md",
    text: include_str!("../../docs/federation.md"),
    section: Some("## From one datacenter to two"),
};
/// What the other datacenter reaches: servers and mesh gateways.
const PORTS: [u16; 2] = [8300, 8443];

/// The datacenter in which a reader runs a block: the paragraph before it says so last.
fn place(introduction: &str) -> Option<usize> {
    let introduction = introduction.to_lowercase();
    let last = |name| introduction.rfind(name);
    match (last("in `dc1`"), last("in `dc2`")) {
        (None, None) => None,
        (first, second) => Some(usize::from(second > first)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_page_join_two_datacenters() {
    if !requirement::met(&[ROOT, IP, NFT]) {
        return;
    }
    let content = DOCUMENT.parse().expect("the page can be run");
    let networks = Sites::open(2, &PORTS);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let apps = Scope::new("applications");
    let mut shells = [0, 1].map(|site| {
        let network = networks.site(site);
        let shell = Shell::new(folder.path(), &format!("programs-{site}"), &network);
        shell.add("legate", &workspace_binary("legate"), &network, None);
        shell
    });
    app::chained("api", &networks.site(1), 8081, None, &apps).await;
    for step in &content.steps {
        let place = place(&step.introduction);
        let place = place.unwrap_or_else(|| panic!("line {}: in which datacenter?", step.line));
        shells[place].run(step).await;
    }
    drop(shells);
    apps.stop(legate_tests::wait::LIMIT)
        .await
        .expect("the application stops");
}
