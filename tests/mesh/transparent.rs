//! Services in transparent mode: the traffic of their applications is captured.

use legate_tests::{MeshOptions, captured};

use crate::captured_traffic;

#[test]
fn captured_traffic() {
    captured::run("transparent::in_a_network_of_its_own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that makes its network"]
async fn in_a_network_of_its_own() {
    if captured::is_here() {
        captured_traffic::scenario(MeshOptions::default()).await;
    }
}
