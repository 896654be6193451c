//! The size of a snapshot grows with the cost of making its resources.

use super::*;

#[test]
fn the_size_of_a_snapshot_counts_its_lists() {
    let store = mesh();
    let size = || snapshot(&store).unwrap().size();
    let before = size();
    let permission = |at: usize| {
        let path = format!("/{at}");
        json!({"Action": "allow", "HTTP": {"PathExact": path}})
    };
    let permissions: Vec<Value> = (0..1_000).map(permission).collect();
    apply(
        &store,
        entry(json!({
            "Kind": "service-intentions", "Name": "web",
            "Sources": [{"Name": "shop", "Permissions": permissions}],
        })),
    );
    let with_intention = size();
    assert!(with_intention >= before + 1_000, "{with_intention}");
    let path = |at: usize| json!({"Path": format!("/{at}"), "ListenerPort": 30_000 + at, "LocalPathPort": 80});
    let paths: Vec<Value> = (0..500).map(path).collect();
    let service = json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": {"DestinationServiceName": "web", "Expose": {"Paths": paths}},
    });
    apply(&store, register("n1", service, Vec::new()));
    assert!(size() >= 1_000 + 500, "{}", size());
}
