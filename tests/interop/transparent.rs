//! Transparent proxying works the same if Consul configures the mesh.

use legate_tests::captured;
use legate_tests::interop::Pair;

use crate::captured_traffic;

#[test]
fn captured_traffic() {
    if Pair::legate_dataplane().is_some() {
        captured::run("transparent::in_a_network_of_its_own");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that makes its network"]
async fn in_a_network_of_its_own() {
    if captured::is_here()
        && let Some(pair) = Pair::legate_dataplane()
    {
        let options = legate_tests::MeshOptions {
            consul: pair.consul,
            ..Default::default()
        };
        captured_traffic::scenario(options).await;
    }
}
