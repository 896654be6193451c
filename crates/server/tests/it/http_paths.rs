//! No path of Consul's HTTP API is mistaken for a missing object.

use http::{Method, StatusCode};

use crate::http_client::start;

/// All endpoints of Consul 1.21 with their methods, without the two whose responses do not end. Paths that end
/// in a slash need a name.
const CONSUL: &[(&str, &str)] = &[
    ("/v1/acl/bootstrap", "PUT"),
    ("/v1/acl/login", "POST"),
    ("/v1/acl/logout", "POST"),
    ("/v1/acl/replication", "GET"),
    ("/v1/acl/policies", "GET"),
    ("/v1/acl/policy", "PUT"),
    ("/v1/acl/policy/", "GET PUT DELETE"),
    ("/v1/acl/policy/name/", "GET"),
    ("/v1/acl/roles", "GET"),
    ("/v1/acl/role", "PUT"),
    ("/v1/acl/role/name/", "GET"),
    ("/v1/acl/role/", "GET PUT DELETE"),
    ("/v1/acl/binding-rules", "GET"),
    ("/v1/acl/binding-rule", "PUT"),
    ("/v1/acl/binding-rule/", "GET PUT DELETE"),
    ("/v1/acl/auth-methods", "GET"),
    ("/v1/acl/auth-method", "PUT"),
    ("/v1/acl/auth-method/", "GET PUT DELETE"),
    ("/v1/acl/tokens", "GET"),
    ("/v1/acl/token", "PUT"),
    ("/v1/acl/token/self", "GET"),
    ("/v1/acl/token/", "GET PUT DELETE"),
    ("/v1/acl/templated-policies", "GET"),
    ("/v1/acl/templated-policy/name/", "GET"),
    ("/v1/acl/templated-policy/preview/", "POST"),
    ("/v1/agent/token/", "PUT"),
    ("/v1/agent/self", "GET"),
    ("/v1/agent/host", "GET"),
    ("/v1/agent/version", "GET"),
    ("/v1/agent/maintenance", "PUT"),
    ("/v1/agent/reload", "PUT"),
    ("/v1/agent/metrics", "GET"),
    ("/v1/agent/services", "GET"),
    ("/v1/agent/service/", "GET"),
    ("/v1/agent/checks", "GET"),
    ("/v1/agent/members", "GET"),
    ("/v1/agent/join/", "PUT"),
    ("/v1/agent/leave", "PUT"),
    ("/v1/agent/force-leave/", "PUT"),
    ("/v1/agent/health/service/id/", "GET"),
    ("/v1/agent/health/service/name/", "GET"),
    ("/v1/agent/check/register", "PUT"),
    ("/v1/agent/check/deregister/", "PUT"),
    ("/v1/agent/check/pass/", "PUT"),
    ("/v1/agent/check/warn/", "PUT"),
    ("/v1/agent/check/fail/", "PUT"),
    ("/v1/agent/check/update/", "PUT"),
    ("/v1/agent/connect/authorize", "POST"),
    ("/v1/agent/connect/ca/roots", "GET"),
    ("/v1/agent/connect/ca/leaf/", "GET"),
    ("/v1/agent/service/register", "PUT"),
    ("/v1/agent/service/deregister/", "PUT"),
    ("/v1/agent/service/maintenance/", "PUT"),
    ("/v1/catalog/register", "PUT"),
    ("/v1/catalog/connect/", "GET"),
    ("/v1/catalog/deregister", "PUT"),
    ("/v1/catalog/datacenters", "GET"),
    ("/v1/catalog/nodes", "GET"),
    ("/v1/catalog/services", "GET"),
    ("/v1/catalog/service/", "GET"),
    ("/v1/catalog/node/", "GET"),
    ("/v1/catalog/node-services/", "GET"),
    ("/v1/catalog/gateway-services/", "GET"),
    ("/v1/config/mesh/", "GET DELETE"),
    ("/v1/config", "PUT"),
    ("/v1/connect/ca/configuration", "GET PUT"),
    ("/v1/connect/ca/roots", "GET"),
    ("/v1/connect/intentions", "GET POST"),
    ("/v1/connect/intentions/match", "GET"),
    ("/v1/connect/intentions/check", "GET"),
    ("/v1/connect/intentions/exact", "GET PUT DELETE"),
    ("/v1/connect/intentions/", "GET PUT DELETE"),
    ("/v1/coordinate/datacenters", "GET"),
    ("/v1/coordinate/nodes", "GET"),
    ("/v1/coordinate/node/", "GET"),
    ("/v1/coordinate/update", "PUT"),
    ("/v1/internal/federation-states", "GET"),
    ("/v1/internal/federation-states/mesh-gateways", "GET"),
    ("/v1/internal/federation-state/", "GET"),
    ("/v1/discovery-chain/", "GET POST"),
    ("/v1/exported-services", "GET"),
    ("/v1/event/fire/", "PUT"),
    ("/v1/event/list", "GET"),
    ("/v1/health/node/", "GET"),
    ("/v1/health/checks/", "GET"),
    ("/v1/health/state/", "GET"),
    ("/v1/health/service/", "GET"),
    ("/v1/health/connect/", "GET"),
    ("/v1/health/ingress/", "GET"),
    ("/v1/internal/ui/metrics-proxy/", "GET"),
    ("/v1/internal/ui/nodes", "GET"),
    ("/v1/internal/ui/node/", "GET"),
    ("/v1/internal/ui/services", "GET"),
    ("/v1/internal/ui/exported-services", "GET"),
    ("/v1/internal/ui/catalog-overview", "GET"),
    ("/v1/internal/ui/gateway-services-nodes/", "GET"),
    ("/v1/internal/ui/gateway-intentions/", "GET"),
    ("/v1/internal/ui/service-topology/", "GET"),
    ("/v1/internal/acl/authorize", "POST"),
    ("/v1/internal/service-virtual-ip", "PUT"),
    ("/v1/kv/", "GET PUT DELETE"),
    ("/v1/operator/raft/configuration", "GET"),
    ("/v1/operator/raft/transfer-leader", "POST"),
    ("/v1/operator/raft/peer", "DELETE"),
    ("/v1/operator/keyring", "GET POST PUT DELETE"),
    ("/v1/operator/usage", "GET"),
    ("/v1/operator/autopilot/configuration", "GET PUT"),
    ("/v1/operator/autopilot/health", "GET"),
    ("/v1/operator/autopilot/state", "GET"),
    ("/v1/peering/token", "POST"),
    ("/v1/peering/establish", "POST"),
    ("/v1/peering/", "GET DELETE"),
    ("/v1/peerings", "GET"),
    ("/v1/query", "GET POST"),
    ("/v1/query/", "GET PUT DELETE"),
    ("/v1/session/create", "PUT"),
    ("/v1/session/destroy/", "PUT"),
    ("/v1/session/renew/", "PUT"),
    ("/v1/session/info/", "GET"),
    ("/v1/session/node/", "GET"),
    ("/v1/session/list", "GET"),
    ("/v1/status/leader", "GET"),
    ("/v1/status/peers", "GET"),
    ("/v1/snapshot", "GET PUT"),
    ("/v1/txn", "PUT"),
];

#[tokio::test]
async fn every_endpoint_of_consul_is_served_or_not_implemented() {
    let (_server, client) = start(|_| {}).await;
    let mut refused = Vec::new();
    for (path, methods) in CONSUL {
        let path = match path.ends_with('/') {
            true => format!("{path}x"),
            false => (*path).to_owned(),
        };
        for method in methods.split(' ') {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let reply = client.send(method.clone(), &path, "").await;
            let named = || reply.text().contains(&path);
            // Other responses may be binary, such as a snapshot.
            let unknown = || reply.text().starts_with("Invalid URL path");
            let missing = reply.status == StatusCode::NOT_FOUND && unknown();
            let wrong_method = reply.status == StatusCode::METHOD_NOT_ALLOWED;
            let unnamed = reply.status == StatusCode::NOT_IMPLEMENTED && !named();
            if missing || wrong_method || unnamed {
                refused.push(format!("{method} {path}: {}", reply.text()));
            }
        }
    }
    assert_eq!(refused, Vec::<String>::new());
}

#[tokio::test]
async fn paths_that_consul_does_not_have_are_not_found() {
    let (_server, client) = start(|_| {}).await;
    for path in ["/v1/nonsense", "/v1/kv", "/v2/kv/x", "/", "/v1/query-x"] {
        let reply = client.get(path).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{path}");
        assert!(reply.text().starts_with("Invalid URL path"), "{path}");
    }
}
