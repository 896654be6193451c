//! A token of one namespace or partition has no access to others, nor to the whole mesh, unless a rule grants
//! it.

use http::{Method, StatusCode};
use serde_json::json;

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_acl_policies::text;
use crate::http_client::{Client, start};
use crate::running::Running;

/// A server with the namespace `team` and the partition `west`, a client without a token, and one with the
/// management token.
async fn server() -> (Running, Client, Client) {
    let (server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    management
        .write("/v1/namespace", &json!({"Name": "team"}))
        .await;
    management
        .write("/v1/partition", &json!({"Name": "west"}))
        .await;
    (server, client, management)
}

/// A client whose token has these rules, in the tenancy of the query.
async fn holder(management: &Client, query: &str, rules: &str) -> Client {
    let name = format!("p{}", rules.len());
    let body = json!({"Name": name, "Rules": rules});
    let path = format!("/v1/acl/policy{query}");
    let policy = management.write(&path, &body).await;
    let body = json!({"Policies": [{"ID": policy["ID"]}]});
    let token = management
        .write(&format!("/v1/acl/token{query}"), &body)
        .await;
    management.with_token(text(&token, "SecretID"))
}

/// All permissions that a namespace's own policies can grant.
const EVERYTHING: &str = "acl = \"write\" key_prefix \"\" { policy = \"write\" } node_prefix \"\" { \
                          policy = \"read\" } service_prefix \"\" { policy = \"write\" intentions = \
                          \"write\" } session_prefix \"\" { policy = \"write\" }";

#[tokio::test]
async fn namespace_administrators_cannot_change_the_mesh() {
    let (_server, _, management) = server().await;
    let manager = holder(&management, "?ns=team", EVERYTHING).await;
    let west = holder(&management, "?partition=west", EVERYTHING).await;
    let mesh_wide = [
        ("GET", "/v1/snapshot"),
        ("PUT", "/v1/snapshot"),
        ("GET", "/v1/agent/self"),
        ("GET", "/v1/agent/metrics"),
        ("GET", "/v1/agent/metrics/stream"),
        ("GET", "/v1/agent/monitor"),
        ("GET", "/v1/agent/host"),
        ("PUT", "/v1/agent/reload"),
        ("PUT", "/v1/agent/leave"),
        ("PUT", "/v1/agent/token/default"),
        ("PUT", "/v1/agent/maintenance?enable=true"),
        ("GET", "/debug/pprof/"),
        ("GET", "/debug/pprof/heap"),
        ("GET", "/v1/operator/raft/configuration"),
        ("GET", "/v1/operator/autopilot/configuration"),
        ("GET", "/v1/operator/usage"),
        ("GET", "/v1/operator/keyring"),
        ("GET", "/v1/connect/ca/configuration"),
        ("GET", "/v1/internal/ui/catalog-overview"),
        ("PUT", "/v1/event/fire/e"),
        ("GET", "/v1/peerings"),
        ("GET", "/v1/exported-services"),
        ("DELETE", "/v1/namespace/team"),
        ("DELETE", "/v1/partition/west"),
    ];
    for (method, path) in mesh_wide {
        let method: Method = method.parse().unwrap();
        let also = match path.contains('?') {
            true => '&',
            false => '?',
        };
        for (client, query) in [
            (&manager, ""),
            (&manager, "ns=team"),
            (&west, "partition=west"),
        ] {
            let path = format!("{path}{also}{query}");
            let reply = client.send(method.clone(), &path, "").await;
            // The agent is in the default partition only, whatever the token permits.
            let elsewhere = path.starts_with("/v1/agent/maintenance") && !query.is_empty();
            let refused = reply.status == StatusCode::FORBIDDEN
                || elsewhere && reply.status == StatusCode::BAD_REQUEST;
            assert!(refused, "{method} {path}: {}", reply.text());
        }
    }
    let snapshot = management.get("/v1/snapshot?ns=team").await;
    assert_ne!(snapshot.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn tokens_of_queries_are_hidden_from_namespace_administrators() {
    let (_server, _, management) = server().await;
    let service = json!({"Service": "web"});
    let query = json!({"Name": "q", "Service": service, "Token": MANAGEMENT});
    let made = management
        .send(Method::POST, "/v1/query", &query.to_string())
        .await
        .json();
    let path = format!("/v1/query/{}", text(&made, "ID"));
    let manager = holder(&management, "?ns=team", EVERYTHING).await;
    for query in ["", "?ns=team"] {
        let listed = manager.get(&format!("/v1/query{query}")).await;
        assert_eq!(listed.json(), json!([]));
        for path in [path.as_str(), "/v1/query/q/explain"] {
            let reply = manager.get(&format!("{path}{query}")).await;
            assert_eq!(reply.status, StatusCode::FORBIDDEN, "{}", reply.text());
        }
    }
    // Permission on queries and on one namespace does not reveal tokens; permission on the mesh does.
    let rules = "query_prefix \"\" { policy = \"read\" } namespace \"team\" { acl = \"write\" }";
    let reader = holder(&management, "", rules).await;
    let token = async |client: &Client| {
        let listed = client.get("/v1/query?ns=team").await.json();
        listed[0]["Token"].clone()
    };
    assert_eq!(token(&reader).await, json!("<hidden>"));
    assert_eq!(token(&management).await, json!(MANAGEMENT));
}

#[tokio::test]
async fn gateways_of_a_service_are_authorized_in_each_namespace() {
    let (_server, _, management) = server().await;
    for query in ["", "?ns=team"] {
        let proxy = json!({
            "Node": "n1", "Address": "10.0.0.1",
            "Service": {
                "Kind": "connect-proxy", "Service": "web-proxy", "Port": 21000,
                "Proxy": {"DestinationServiceName": "web"},
            },
        });
        let path = format!("/v1/catalog/register{query}");
        management.write(&path, &proxy).await;
    }
    let found = async |client: &Client| {
        let reply = client.get("/v1/health/connect/web?ns=*").await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
        let found = reply.json();
        let found = found.as_array().unwrap().iter();
        found
            .map(|one| {
                one["Service"]["Namespace"]
                    .as_str()
                    .unwrap_or("")
                    .to_owned()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(found(&management).await, ["", "team"]);
    let all = "service_prefix \"\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }";
    let proxies = "service \"web-proxy\" { policy = \"read\" }";
    let rules = format!("{all} namespace \"team\" {{ {proxies} }}");
    let of_default = holder(&management, "", &rules).await;
    assert_eq!(found(&of_default).await, [""]);
    let rules = format!(
        "{proxies} node_prefix \"\" {{ policy = \"read\" }} namespace \"team\" {{ {all} }}"
    );
    let of_team = holder(&management, "", &rules).await;
    assert_eq!(found(&of_team).await, ["team"]);
    let one = of_team.get("/v1/health/connect/web").await;
    assert_eq!(one.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn listing_keys_requires_permission_in_their_namespace() {
    let (_server, client) = start(|config| {
        deny_by_default(config);
        config.acl.key_list_policy = true;
    })
    .await;
    let management = client.with_token(MANAGEMENT);
    management
        .write("/v1/namespace", &json!({"Name": "team"}))
        .await;
    for path in ["/v1/kv/a", "/v1/kv/b?ns=team"] {
        assert_eq!(management.send_bytes(path, b"v").await.text(), "true");
    }
    let list = "key_prefix \"\" { policy = \"list\" }";
    let read = "key_prefix \"\" { policy = \"read\" }";
    for (own, of_team, seen) in [
        (list, list, json!(["a", "b"])),
        (list, read, json!(["a"])),
        (read, list, json!(["b"])),
    ] {
        let name = format!("p{}", seen.to_string().replace(['"', '[', ']', ','], ""));
        let rules = format!("{own} namespace \"team\" {{ {of_team} }}");
        let policy = json!({"Name": name, "Rules": rules});
        management.write("/v1/acl/policy", &policy).await;
        let token = json!({"Policies": [{"Name": name}]});
        let token = management.write("/v1/acl/token", &token).await;
        let reader = client.with_token(text(&token, "SecretID"));
        let keys = reader.get("/v1/kv/?keys&ns=*").await;
        assert_eq!(keys.status, StatusCode::OK, "{}", keys.text());
        assert_eq!(keys.json(), seen, "{rules}");
    }
}

#[tokio::test]
async fn a_session_does_not_reveal_checks_of_other_namespaces() {
    let (_server, _, management) = server().await;
    for status in ["passing", "critical"] {
        let body = json!({
            "Node": "n1", "Address": "10.0.0.1", "Service": {"Service": status},
            "Check": {"CheckID": status, "ServiceID": status, "Status": status},
        });
        management
            .write("/v1/catalog/register?ns=team", &body)
            .await;
    }
    let write = "session_prefix \"\" { policy = \"write\" }";
    let own = holder(&management, "", write).await;
    let rules =
        format!("{write} namespace \"team\" {{ service_prefix \"\" {{ policy = \"read\" }} }}");
    let seeing = holder(&management, "", &rules).await;
    for (check, for_own, for_seeing) in [
        ("passing", "Missing check 'passing'", "\"ID\""),
        (
            "critical",
            "Missing check 'critical'",
            "is in critical state",
        ),
        ("none", "Missing check 'none'", "Missing check 'none'"),
    ] {
        let body = json!({
            "Node": "n1", "NodeChecks": [],
            "ServiceChecks": [{"ID": check, "Namespace": "team"}],
        });
        for (client, expected) in [(&own, for_own), (&seeing, for_seeing)] {
            let reply = client.put("/v1/session/create", &body).await;
            assert!(reply.text().contains(expected), "{check}: {}", reply.text());
        }
    }
}

#[tokio::test]
async fn namespace_defaults_require_acl_write() {
    let (_server, _, management) = server().await;
    let policy = json!({"Name": "d", "Rules": "key_prefix \"\" { policy = \"deny\" }"});
    management.write("/v1/acl/policy", &policy).await;
    let with = json!({"Name": "team", "ACLs": {"PolicyDefaults": [{"Name": "d"}]}});
    let made = management.write("/v1/namespace", &with).await;
    let operator = holder(&management, "", "operator = \"write\"").await;
    let without = json!({"Name": "team", "Description": "d"});
    let refused = operator.put("/v1/namespace", &without).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text());
    let left = management.get("/v1/namespace/team").await.json();
    assert_eq!(left, made);
    management.write("/v1/namespace", &without).await;
    operator
        .write("/v1/namespace", &json!({"Name": "team"}))
        .await;
}

/// A marker in the data of namespace `team`, and in no path.
const MARK: &str = "nobody-elses";

/// Creates one object of every kind in the namespace `team`. Returns the id of its session.
async fn fill_team(management: &Client) -> String {
    let write = async |path: &str, body: serde_json::Value| {
        let joined = match path.contains('?') {
            true => '&',
            false => '?',
        };
        management
            .write(&format!("{path}{joined}ns=team"), &body)
            .await
    };
    for service in [
        json!({"Service": "web", "Port": 80, "Meta": {"m": MARK}}),
        json!({
            "Kind": "connect-proxy", "Service": "web-proxy", "Port": 20000, "Meta": {"m": MARK},
            "Proxy": {"DestinationServiceName": "web"},
        }),
    ] {
        let id = &service["Service"];
        let check = json!({"CheckID": id, "ServiceID": id, "Status": "warning", "Output": MARK});
        let body = json!({"Node": "n1", "Address": "10.0.0.1", "Service": service, "Check": check});
        write("/v1/catalog/register", body).await;
    }
    let definition =
        json!({"Name": "local", "Meta": {"m": MARK}, "Check": {"TTL": "1h", "Notes": MARK}});
    write("/v1/agent/service/register", definition).await;
    for kind in ["service-defaults", "service-resolver"] {
        let entry = json!({"Kind": kind, "Name": "web", "Meta": {"m": MARK}});
        write("/v1/config", entry).await;
    }
    let source = json!({"Name": "api", "Action": "allow", "Description": MARK});
    let entry = json!({"Kind": "service-intentions", "Name": "web", "Sources": [source]});
    write("/v1/config", entry).await;
    write("/v1/kv/nobody-elses", json!({})).await;
    let named = json!({"Name": "named", "Description": MARK});
    for kind in ["policy", "role", "token"] {
        let mut body = named.clone();
        if kind == "token" {
            body = json!({"Description": MARK});
        }
        write(&format!("/v1/acl/{kind}"), body).await;
    }
    let signer = legate_testkit::jwt::TestSigner::generate();
    let method = json!({
        "Name": "method", "Type": "jwt", "Description": MARK,
        "Config": {"JWTValidationPubKeys": [signer.public_key_pem()], "JWTSupportedAlgs": ["ES256"]},
    });
    write("/v1/acl/auth-method", method).await;
    let rule = json!({
        "AuthMethod": "method", "BindType": "service", "BindName": "web", "Description": MARK,
    });
    write("/v1/acl/binding-rule", rule).await;
    let session = write(
        "/v1/session/create",
        json!({"Node": "n1", "NodeChecks": [], "Name": MARK}),
    );
    text(&session.await, "ID").to_owned()
}

/// Read requests, and whether the marker is in the response for authorized callers.
fn readings(session: &str) -> Vec<(String, bool)> {
    let shown = [
        "catalog/service/web",
        "catalog/connect/web",
        "catalog/node/n1",
        "catalog/node-services/n1",
        "health/service/web",
        "health/connect/web",
        "health/checks/web",
        "health/state/any",
        "health/node/n1",
        "kv/?recurse",
        "kv/?keys",
        "session/list",
        "session/node/n1",
        "config/",
        "config/service-defaults",
        "config/service-defaults/web",
        "config/service-resolver/web",
        "config/service-intentions",
        "config/service-intentions/web",
        "connect/intentions",
        "connect/intentions/exact?source=api&destination=web",
        "connect/intentions/match?by=destination&name=web",
        "connect/intentions/match?by=source&name=api",
        "agent/services",
        "agent/service/local",
        "agent/checks",
        "agent/health/service/id/local",
        "agent/health/service/name/local",
        "acl/policies",
        "acl/policy/name/named",
        "acl/roles",
        "acl/role/name/named",
        "acl/tokens",
        "acl/auth-methods",
        "acl/auth-method/method",
        "acl/binding-rules",
        "internal/ui/nodes",
        "internal/ui/node/n1",
    ];
    let never = [
        "catalog/services",
        "catalog/nodes",
        "catalog/gateway-services/web",
        "health/ingress/web",
        "connect/intentions/match?by=destination&name=default/team/web",
        "connect/intentions/check?source=api&destination=web",
        "discovery-chain/web",
        "namespaces",
        "namespace/team",
        "partitions",
        "exported-services",
        "internal/ui/services",
        "internal/ui/service-topology/web?kind=",
        "internal/legate/proxies",
        "coordinate/nodes",
        "agent/connect/ca/roots",
        "acl/token/self",
        "query",
    ];
    let info = (format!("/v1/session/info/{session}"), true);
    let named = |all: &[&str], mark: bool| {
        let path = |path: &&str| (format!("/v1/{path}"), mark);
        all.iter().map(path).collect::<Vec<_>>()
    };
    [named(&shown, true), named(&never, false), vec![info]].concat()
}

#[tokio::test]
async fn namespaces_are_hidden_from_administrators_of_others() {
    let (_server, _, management) = server().await;
    management
        .write("/v1/namespace", &json!({"Name": "shop"}))
        .await;
    let session = fill_team(&management).await;
    let shop = holder(&management, "?ns=shop", EVERYTHING).await;
    let west = holder(&management, "?partition=west", EVERYTHING).await;
    let queries = [
        "",
        "ns=shop",
        "ns=default",
        "ns=team",
        "ns=*",
        "partition=west",
        "ns=team&partition=west",
    ];
    for (path, mark) in readings(&session) {
        let joined = match path.contains('?') {
            true => '&',
            false => '?',
        };
        let seen = management.get(&format!("{path}{joined}ns=team")).await;
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        assert!(
            !mark || body.contains(MARK),
            "{path}: {} {body}",
            seen.status
        );
        for query in queries {
            for client in [&shop, &west] {
                let path = format!("{path}{joined}{query}");
                let reply = client.get(&path).await;
                let body = String::from_utf8_lossy(&reply.body);
                assert!(!body.contains(MARK), "{path}: {body}");
            }
        }
    }
    let operations = json!([
        {"KV": {"Verb": "get-tree", "Key": "nobody", "Namespace": "team"}},
        {"Service": {"Verb": "get", "Node": "n1", "Service": {"ID": "web", "Namespace": "team"}}},
        {"Check": {"Verb": "get", "Check": {"Node": "n1", "CheckID": "web", "Namespace": "team"}}},
    ]);
    let seen = management.put("/v1/txn", &operations).await;
    assert_eq!(seen.text().matches(MARK).count(), 3, "{}", seen.text());
    for client in [&shop, &west] {
        let reply = client.put("/v1/txn", &operations).await;
        assert!(!reply.text().contains(MARK), "{}", reply.text());
    }
}
