//! Entries with permissive mTLS mode require permission in the `mesh` entry.

use http::StatusCode;
use serde_json::json;

use crate::http_client::start;

const MESSAGE: &str =
    "cannot set MutualTLSMode=permissive because AllowEnablingPermissiveMutualTLS=false";

#[tokio::test]
async fn permissive_mode_requires_permission_in_the_mesh_entry() {
    let (_server, client) = start(|_| {}).await;
    let mesh = |allow: bool| json!({ "Kind": "mesh", "AllowEnablingPermissiveMutualTLS": allow });
    let entries = [
        json!({ "Kind": "service-defaults", "Name": "web", "MutualTLSMode": "permissive" }),
        json!({ "Kind": "proxy-defaults", "Name": "global", "MutualTLSMode": "permissive" }),
    ];
    client.write("/v1/config", &mesh(false)).await;
    for entry in &entries {
        let refused = client.put("/v1/config", entry).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.text().contains(MESSAGE), "{}", refused.text());
    }
    client.write("/v1/config", &mesh(true)).await;
    for entry in &entries {
        client.write("/v1/config", entry).await;
    }
    // A permissive entry may stay so; becoming permissive is rejected again.
    client.write("/v1/config", &mesh(false)).await;
    let mut changed = entries[0].clone();
    changed["Protocol"] = json!("http");
    client.write("/v1/config", &changed).await;
    let read = client.get("/v1/config/service-defaults/web").await.json();
    assert_eq!(read["MutualTLSMode"], "permissive");
    changed["MutualTLSMode"] = json!("strict");
    client.write("/v1/config", &changed).await;
    changed["MutualTLSMode"] = json!("permissive");
    let refused = client.put("/v1/config", &changed).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
}
