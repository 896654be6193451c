//! Whether an object exists is only shown to callers with permissions: without any, the responses about an object and
//! about a missing one are the same, at every route with a name and for every name in a body.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use legate_testkit::jwt::TestSigner;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_acl_policies::text;
use crate::http_client::{Client, start};

const ROUTES: &str = include_str!("../../src/http/mod.rs");

/// Id of nothing.
const NOBODY: &str = "6c5bb4e6-96c1-4e59-9a0c-a0cf3b0dae9d";

/// Requests about an object, which `$` stands for: route, method, the rest of the path and its query, and body.
type Case = (&'static str, &'static str, &'static str, &'static str);

/// Names that `$` stands for.
#[derive(Clone, Copy)]
enum Of {
    /// The service `web`, its id, node, check, key, query, peering, namespace, policy, …: all have this name.
    Name,
    Session,
    Intention,
    Query,
    Token,
    Policy,
    Role,
    Rule,
}

const CASES: &[(Of, &[Case])] = &[
    (
        Of::Name,
        &[
            ("/v1/catalog/node/{name}", "GET", "", ""),
            ("/v1/catalog/service/{name}", "GET", "", ""),
            ("/v1/catalog/connect/{name}", "GET", "", ""),
            ("/v1/catalog/node-services/{name}", "GET", "", ""),
            ("/v1/catalog/gateway-services/{name}", "GET", "", ""),
            (
                "/v1/internal/ui/gateway-services-nodes/{name}",
                "GET",
                "",
                "",
            ),
            ("/v1/internal/ui/gateway-intentions/{name}", "GET", "", ""),
            (
                "/v1/catalog/register",
                "PUT",
                "",
                r#"{"Node": "$", "Address": "10.0.0.1"}"#,
            ),
            (
                "/v1/catalog/register",
                "PUT",
                "",
                r#"{"Node": "$", "SkipNodeUpdate": true, "Service": {"Service": "$"}}"#,
            ),
            (
                "/v1/catalog/register",
                "PUT",
                "",
                r#"{"Node": "host", "SkipNodeUpdate": true,
                    "Check": {"Name": "c", "CheckID": "$", "ServiceID": "$"}}"#,
            ),
            ("/v1/catalog/deregister", "PUT", "", r#"{"Node": "$"}"#),
            (
                "/v1/catalog/deregister",
                "PUT",
                "",
                r#"{"Node": "host", "ServiceID": "$"}"#,
            ),
            (
                "/v1/catalog/deregister",
                "PUT",
                "",
                r#"{"Node": "host", "CheckID": "$"}"#,
            ),
            ("/v1/health/node/{name}", "GET", "", ""),
            ("/v1/health/service/{name}", "GET", "", ""),
            ("/v1/health/connect/{name}", "GET", "", ""),
            ("/v1/health/checks/{name}", "GET", "", ""),
            ("/v1/health/ingress/{name}", "GET", "", ""),
            ("/v1/coordinate/node/{name}", "GET", "", ""),
            (
                "/v1/coordinate/update",
                "PUT",
                "",
                r#"{"Node": "$", "Coord": {}}"#,
            ),
            ("/v1/event/fire/{*name}", "PUT", "", ""),
            ("/v1/internal/ui/node/{name}", "GET", "", ""),
            (
                "/v1/internal/ui/service-topology/{name}",
                "GET",
                "?kind=",
                "",
            ),
            ("/v1/query/{*rest}", "GET", "/explain", ""),
            ("/v1/kv/{*key}", "GET", "", ""),
            ("/v1/kv/{*key}", "GET", "?keys", ""),
            ("/v1/kv/{*key}", "GET", "?recurse", ""),
            ("/v1/kv/{*key}", "PUT", "?cas=0", "x"),
            ("/v1/kv/{*key}", "DELETE", "", ""),
            ("/v1/session/create", "PUT", "", r#"{"Node": "$"}"#),
            (
                "/v1/session/create",
                "PUT",
                "",
                r#"{"Node": "host", "NodeChecks": ["$"]}"#,
            ),
            ("/v1/session/node/{node}", "GET", "", ""),
            (
                "/v1/txn",
                "PUT",
                "",
                r#"[{"KV": {"Verb": "get", "Key": "$"}}]"#,
            ),
            (
                "/v1/txn",
                "PUT",
                "",
                r#"[{"KV": {"Verb": "check-not-exists", "Key": "$"}}]"#,
            ),
            (
                "/v1/txn",
                "PUT",
                "",
                r#"[{"Node": {"Verb": "get", "Node": {"Node": "$"}}}]"#,
            ),
            (
                "/v1/txn",
                "PUT",
                "",
                r#"[{"Node": {"Verb": "delete", "Node": {"Node": "$"}}}]"#,
            ),
            (
                "/v1/txn",
                "PUT",
                "",
                r#"[{"Service": {"Verb": "get", "Node": "host", "Service": {"ID": "$"}}}]"#,
            ),
            (
                "/v1/txn",
                "PUT",
                "",
                r#"[{"Service": {"Verb": "delete", "Node": "host", "Service": {"ID": "$"}}}]"#,
            ),
            (
                "/v1/txn",
                "PUT",
                "",
                r#"[{"Service": {"Verb": "delete", "Node": "$", "Service": {"Service": "$"}}}]"#,
            ),
            (
                "/v1/txn",
                "PUT",
                "",
                r#"[{"Check": {"Verb": "get", "Check": {"Node": "host", "CheckID": "$"}}}]"#,
            ),
            (
                "/v1/txn",
                "PUT",
                "",
                r#"[{"Check": {"Verb": "delete", "Check": {"Node": "host", "CheckID": "$"}}}]"#,
            ),
            ("/v1/namespace/{name}", "GET", "", ""),
            ("/v1/namespace/{name}", "PUT", "", r#"{"Name": "$"}"#),
            ("/v1/namespace/{name}", "DELETE", "", ""),
            ("/v1/namespace", "PUT", "", r#"{"Name": "$"}"#),
            ("/v1/partition/{name}", "GET", "", ""),
            ("/v1/partition/{name}", "PUT", "", r#"{"Name": "$"}"#),
            ("/v1/partition/{name}", "DELETE", "", ""),
            ("/v1/partition", "PUT", "", r#"{"Name": "$"}"#),
            (
                "/v1/agent/service/register",
                "PUT",
                "",
                r#"{"Name": "$", "ID": "$"}"#,
            ),
            ("/v1/agent/service/deregister/{id}", "PUT", "", ""),
            ("/v1/agent/service/{id}", "GET", "", ""),
            ("/v1/agent/health/service/id/{id}", "GET", "", ""),
            ("/v1/agent/health/service/name/{name}", "GET", "", ""),
            (
                "/v1/agent/check/register",
                "PUT",
                "",
                r#"{"Name": "c", "ServiceID": "$", "TTL": "9s"}"#,
            ),
            (
                "/v1/agent/check/register",
                "PUT",
                "",
                r#"{"Name": "$", "TTL": "9s"}"#,
            ),
            ("/v1/agent/check/deregister/{id}", "PUT", "", ""),
            ("/v1/agent/check/pass/{id}", "PUT", "", ""),
            ("/v1/agent/check/warn/{id}", "PUT", "", ""),
            ("/v1/agent/check/fail/{id}", "PUT", "", ""),
            (
                "/v1/agent/check/update/{id}",
                "PUT",
                "",
                r#"{"Status": "passing"}"#,
            ),
            (
                "/v1/agent/service/maintenance/{id}",
                "PUT",
                "?enable=true",
                "",
            ),
            ("/v1/agent/join/{address}", "PUT", "", ""),
            ("/v1/agent/force-leave/{node}", "PUT", "", ""),
            ("/v1/agent/connect/ca/leaf/{service}", "GET", "", ""),
            (
                "/v1/agent/connect/authorize",
                "POST",
                "",
                r#"{"Target": "$"}"#,
            ),
            ("/v1/discovery-chain/{service}", "GET", "", ""),
            ("/v1/discovery-chain/{service}", "POST", "", "{}"),
            (
                "/v1/connect/intentions/exact",
                "GET",
                "?source=$&destination=$",
                "",
            ),
            (
                "/v1/connect/intentions/exact",
                "PUT",
                "?source=$&destination=$",
                r#"{"Action": "allow"}"#,
            ),
            (
                "/v1/connect/intentions/exact",
                "DELETE",
                "?source=$&destination=$",
                "",
            ),
            (
                "/v1/connect/intentions/check",
                "GET",
                "?source=$&destination=$",
                "",
            ),
            (
                "/v1/connect/intentions/match",
                "GET",
                "?by=source&name=$",
                "",
            ),
            (
                "/v1/connect/intentions",
                "POST",
                "",
                r#"{"SourceName": "$", "DestinationName": "$", "Action": "allow"}"#,
            ),
            (
                "/v1/internal/service-virtual-ip",
                "PUT",
                "",
                r#"{"ServiceName": "$", "ManualVIPs": ["10.9.0.1"]}"#,
            ),
            ("/v1/internal/legate/proxy/{node}/{id}", "GET", "", ""),
            ("/v1/internal/legate/gateway/{name}", "GET", "", ""),
            ("/v1/internal/legate/gateway/{name}/status", "GET", "", ""),
            (
                "/v1/internal/legate/gateway/{name}",
                "PUT",
                "",
                r#"{"Listeners": []}"#,
            ),
            ("/v1/internal/legate/gateway/{name}", "DELETE", "", ""),
            (
                "/v1/internal/legate/gateway/{name}/endpoints",
                "PUT",
                "",
                r#"{"Endpoints": []}"#,
            ),
            (
                "/v1/internal/legate/gateway/{name}/secrets",
                "PUT",
                "",
                r#"{"Secrets": []}"#,
            ),
            ("/v1/config/{kind}/{name}", "GET", "", ""),
            ("/v1/config/{kind}/{name}", "DELETE", "", ""),
            (
                "/v1/config",
                "PUT",
                "?cas=0",
                r#"{"Kind": "service-defaults", "Name": "$"}"#,
            ),
            ("/v1/acl/policy/name/{*name}", "GET", "", ""),
            ("/v1/acl/policy", "PUT", "", r#"{"Name": "$"}"#),
            ("/v1/acl/role/name/{name}", "GET", "", ""),
            ("/v1/acl/role", "PUT", "", r#"{"Name": "$"}"#),
            (
                "/v1/acl/token",
                "PUT",
                "",
                r#"{"Policies": [{"Name": "$"}]}"#,
            ),
            ("/v1/acl/auth-method/{name}", "GET", "", ""),
            ("/v1/acl/auth-method/{name}", "PUT", "", r#"{"Name": "$"}"#),
            ("/v1/acl/auth-method/{name}", "DELETE", "", ""),
            (
                "/v1/acl/auth-method",
                "PUT",
                "",
                r#"{"Name": "$", "Type": "jwt"}"#,
            ),
            (
                "/v1/acl/binding-rule",
                "PUT",
                "",
                r#"{"AuthMethod": "$", "BindType": "service"}"#,
            ),
            ("/v1/operator/area/{*rest}", "GET", "", ""),
            ("/v1/internal/federation-state/{datacenter}", "GET", "", ""),
            ("/v1/peering/{name}", "GET", "", ""),
            ("/v1/peering/{name}", "DELETE", "", ""),
            ("/v1/peering/token", "POST", "", r#"{"PeerName": "$"}"#),
        ],
    ),
    (
        Of::Session,
        &[
            ("/v1/session/destroy/{id}", "PUT", "", ""),
            ("/v1/session/renew/{id}", "PUT", "", ""),
            ("/v1/session/info/{id}", "GET", "", ""),
            (
                "/v1/txn",
                "PUT",
                "",
                r#"[{"Session": {"Verb": "delete", "Session": {"ID": "$"}}}]"#,
            ),
        ],
    ),
    (
        Of::Intention,
        &[
            ("/v1/connect/intentions/{id}", "GET", "", ""),
            (
                "/v1/connect/intentions/{id}",
                "PUT",
                "",
                r#"{"SourceName": "web", "DestinationName": "web", "Action": "deny"}"#,
            ),
            ("/v1/connect/intentions/{id}", "DELETE", "", ""),
        ],
    ),
    (
        Of::Query,
        &[
            ("/v1/query/{*rest}", "GET", "", ""),
            (
                "/v1/query/{*rest}",
                "PUT",
                "",
                r#"{"Service": {"Service": "web"}}"#,
            ),
            ("/v1/query/{*rest}", "DELETE", "", ""),
            ("/v1/query/{*rest}", "GET", "/explain", ""),
        ],
    ),
    (
        Of::Token,
        &[
            ("/v1/acl/token/{accessor}", "GET", "", ""),
            ("/v1/acl/token/{accessor}", "PUT", "", "{}"),
            ("/v1/acl/token/{accessor}", "DELETE", "", ""),
            ("/v1/acl/token/{accessor}/clone", "PUT", "", "{}"),
        ],
    ),
    (
        Of::Policy,
        &[
            ("/v1/acl/policy/{id}", "GET", "", ""),
            ("/v1/acl/policy/{id}", "PUT", "", r#"{"Name": "new"}"#),
            ("/v1/acl/policy/{id}", "DELETE", "", ""),
        ],
    ),
    (
        Of::Role,
        &[
            ("/v1/acl/role/{id}", "GET", "", ""),
            ("/v1/acl/role/{id}", "PUT", "", r#"{"Name": "new"}"#),
            ("/v1/acl/role/{id}", "DELETE", "", ""),
        ],
    ),
    (
        Of::Rule,
        &[
            ("/v1/acl/binding-rule/{id}", "GET", "", ""),
            ("/v1/acl/binding-rule/{id}", "PUT", "", "{}"),
            ("/v1/acl/binding-rule/{id}", "DELETE", "", ""),
        ],
    ),
];

/// Routes whose names are not of objects but part of the API.
const FIXED: [&str; 6] = [
    "/v1/health/state/{state}",
    "/v1/agent/token/{kind}",
    "/v1/config/{kind}",
    "/v1/acl/templated-policy/name/{*name}",
    "/v1/acl/templated-policy/preview/{*name}",
    "/debug/pprof/{name}",
];

/// Creates an object of each kind. Returns the ids by which [`Of`] finds them.
async fn fixture(management: &Client) -> impl Fn(Of) -> String + use<> {
    let write = async |path: &str, body: Value| management.write(path, &body).await;
    let id = |made: &Value| text(made, "ID").to_owned();
    for node in ["web", "host"] {
        write(
            "/v1/catalog/register",
            json!({ "Node": node, "Address": "10.0.0.1",
            "Service": { "Service": "web" },
            "Checks": [{ "CheckID": "web", "Name": "web", "Status": "passing" },
                       { "CheckID": "web-1", "ServiceID": "web", "Status": "passing" }]}),
        )
        .await;
    }
    write(
        "/v1/agent/service/register",
        json!({ "Name": "web", "Check": { "TTL": "9s", "CheckID": "web" }}),
    )
    .await;
    write(
        "/v1/coordinate/update",
        json!({ "Node": "web", "Coord": { "Vec": [0, 0, 0, 0, 0, 0, 0, 0],
        "Error": 1.5, "Height": 0.1 }}),
    )
    .await;
    for (path, body) in [
        ("/v1/kv/web", json!("value")),
        ("/v1/namespace", json!({ "Name": "web" })),
        ("/v1/partition", json!({ "Name": "web" })),
        (
            "/v1/config",
            json!({ "Kind": "service-defaults", "Name": "web", "Protocol": "http" }),
        ),
        (
            "/v1/acl/auth-method",
            json!({ "Name": "web", "Type": "jwt", "Config": {
            "JWTValidationPubKeys": [TestSigner::generate().public_key_pem()],
            "JWTSupportedAlgs": ["ES256"] }}),
        ),
    ] {
        write(path, body).await;
    }
    let post = async |path: &str, body: Value| {
        let reply = management.send(Method::POST, path, &body.to_string()).await;
        reply.json()
    };
    post("/v1/peering/token", json!({ "PeerName": "web" })).await;
    let intention = json!({ "SourceName": "web", "DestinationName": "web", "Action": "allow" });
    let intention = id(&post("/v1/connect/intentions", intention).await);
    let query = json!({ "Name": "web", "Service": { "Service": "web" } });
    let query = id(&post("/v1/query", query).await);
    let session = id(&write(
        "/v1/session/create",
        json!({ "Node": "host", "NodeChecks": [] }),
    )
    .await);
    let policy = id(&write("/v1/acl/policy", json!({ "Name": "web" })).await);
    let role = json!({ "Name": "web", "Policies": [{ "ID": policy }] });
    let role = id(&write("/v1/acl/role", role).await);
    let token = write("/v1/acl/token", json!({})).await;
    let token = text(&token, "AccessorID").to_owned();
    let rule = json!({ "AuthMethod": "web", "BindType": "service", "BindName": "web" });
    let rule = id(&write("/v1/acl/binding-rule", rule).await);
    move |of| match of {
        Of::Name => "web".to_owned(),
        Of::Session => session.clone(),
        Of::Intention => intention.clone(),
        Of::Query => query.clone(),
        Of::Token => token.clone(),
        Of::Policy => policy.clone(),
        Of::Role => role.clone(),
        Of::Rule => rule.clone(),
    }
}

/// Status and body of the response about an object with this name, in which `$` stands for the name.
async fn ask(client: &Client, case: &Case, name: &str) -> String {
    let (route, method, rest, body) = case;
    let path = route.split('/').map(|part| match part {
        "{kind}" => "service-defaults",
        part if part.starts_with('{') => "$",
        part => part,
    });
    let path = path.collect::<Vec<_>>().join("/") + rest;
    let mut request = Request::builder()
        .method(*method)
        .uri(path.replace('$', name));
    if !client.token.is_empty() {
        request = request.header("x-consul-token", &client.token);
    }
    let body = Bytes::from(body.replace('$', name));
    let reply = client
        .exchange(request.body(Full::new(body)).unwrap())
        .await;
    format!("{} {}", reply.status, reply.text().replace(name, "$"))
}

#[test]
fn every_route_with_a_name_has_a_case() {
    let texts = ROUTES.split('"').skip(1).step_by(2);
    let routes: BTreeSet<&str> = texts
        .filter(|text| text.starts_with('/') && text.contains('{'))
        .collect();
    let cases = CASES.iter().flat_map(|(_, cases)| *cases);
    let cases: BTreeSet<&str> = cases.map(|case| case.0).chain(FIXED).collect();
    let missing: Vec<_> = routes.difference(&cases).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test]
async fn callers_without_permissions_do_not_learn_what_exists() {
    let (_server, client) = start(|config| {
        deny_by_default(config);
        config.node_name = "agent".to_owned();
        config.grpc_tls = Some(([127, 0, 0, 1], 0).into());
    })
    .await;
    let management = client.with_token(MANAGEMENT);
    let names = fixture(&management).await;
    let powerless = management.write("/v1/acl/token", &json!({})).await;
    let powerless = client.with_token(text(&powerless, "SecretID"));
    let mut told = Vec::new();
    for (of, cases) in CASES {
        let name = names(*of);
        let missing = match of {
            Of::Name => "none",
            _ => NOBODY,
        };
        for case in *cases {
            for caller in [&client, &powerless] {
                let known = ask(caller, case, &name).await;
                let unknown = ask(caller, case, missing).await;
                if known != unknown {
                    let (route, method, rest, body) = case;
                    told.push(format!(
                        "{method} {route}{rest} {body}\n  {known}\n  {unknown}"
                    ));
                }
            }
        }
    }
    assert!(told.is_empty(), "{}", told.join("\n"));
}
