//! Policies, roles, templated policies and the resulting permissions, over HTTP.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, start};

const GLOBAL_MANAGEMENT: &str = "00000000-0000-0000-0000-000000000001";
pub(crate) const ANONYMOUS: &str = "00000000-0000-0000-0000-000000000002";

pub(crate) fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field]
        .as_str()
        .unwrap_or_else(|| panic!("{field} of {value}"))
}

pub(crate) async fn policy(management: &Client, name: &str, rules: &str) -> Value {
    let body = json!({ "Name": name, "Rules": rules });
    management.write("/v1/acl/policy", &body).await
}

/// Creates a token with these links, and a client that sends it.
pub(crate) async fn token(management: &Client, body: Value) -> (Value, Client) {
    let made = management.write("/v1/acl/token", &body).await;
    let client = management.with_token(text(&made, "SecretID"));
    (made, client)
}

/// Whether the server grants a token a permission.
pub(crate) async fn may(client: &Client, resource: &str, access: &str, segment: &str) -> bool {
    let question = json!([{ "Resource": resource, "Access": access, "Segment": segment }]);
    let path = "/v1/internal/acl/authorize";
    let reply = client.send(Method::POST, path, &question.to_string()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    reply.json()[0]["Allow"].as_bool().unwrap()
}

#[tokio::test]
async fn a_policy_is_made_read_changed_and_removed() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let made = policy(
        &management,
        "team/web",
        "service \"web\" { policy = \"read\" }",
    )
    .await;
    let path = format!("/v1/acl/policy/{}", text(&made, "ID"));
    assert_eq!(management.get(&path).await.json(), made);
    for name in ["team/web", "team%2Fweb", "team%252Fweb", "TEAM/web"] {
        let by_name = management.get(&format!("/v1/acl/policy/name/{name}")).await;
        assert_eq!(by_name.json(), made, "{name}");
    }
    let listed = management.get("/v1/acl/policies").await.json();
    let mut names: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|p| text(p, "Name"))
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["builtin/global-read-only", "global-management", "team/web"]
    );
    assert_eq!(listed[0]["Datacenters"], Value::Null);
    assert_eq!(listed[0]["Rules"], Value::Null, "a list has no rules");

    let changed = json!({ "Name": "web", "Rules": "acl = \"read\"", "Datacenters": ["dc1"] });
    let changed = management.write(&path, &changed).await;
    assert_eq!(text(&changed, "Name"), "web");
    assert_eq!(changed["CreateIndex"], made["CreateIndex"]);
    assert_eq!(management.delete(&path).await.json(), json!(true));
    let gone = management.get(&path).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    assert_eq!(
        gone.text(),
        "Requested policy does not exist: ACL not found"
    );
    assert_eq!(
        management.delete(&path).await.text(),
        "Cannot find policy to delete"
    );
}

/// A write that is rejected: path, body, status, text.
type Refused = (String, Value, u16, &'static str);

fn refused_policies() -> Vec<Refused> {
    let builtin = format!("/v1/acl/policy/{GLOBAL_MANAGEMENT}");
    let unknown = "/v1/acl/policy/11111111-1111-1111-1111-111111111112";
    let rows = [
        // Clients match on this status and text.
        (
            "/v1/acl/policy",
            json!({ "Name": "p" }),
            500,
            "Invalid Policy: A Policy with Name \"p\" already exists",
        ),
        (
            "/v1/acl/role",
            json!({ "Name": "r" }),
            500,
            "Invalid Role: A Role with Name \"r\" already exists",
        ),
        (
            "/v1/acl/policy",
            json!({ "ID": "x", "Name": "q" }),
            400,
            "Cannot specify the ID",
        ),
        (
            "/v1/acl/policy",
            json!({ "Name": "builtin/x" }),
            400,
            "builtin/",
        ),
        (
            "/v1/acl/policy",
            json!({ "Name": "q", "Rules": "service \"a\" { policy = \"x\" }" }),
            400,
            "Invalid service policy",
        ),
        (
            "/v1/acl/policy",
            json!({ "Name": "q", "Rules": "service {" }),
            400,
            "Failed to parse ACL rules: At 1:10",
        ),
        (unknown, json!({ "Name": "q" }), 404, "cannot find policy"),
        (
            unknown,
            json!({ "ID": "x", "Name": "q" }),
            400,
            "do not match",
        ),
        (
            builtin.as_str(),
            json!({ "Name": "all", "Rules": "" }),
            400,
            "Changing the Rules for the builtin global-management policy",
        ),
    ];
    rows.map(|(path, body, status, says)| (path.to_owned(), body, status, says))
        .into()
}

fn refused_roles_and_tokens() -> Vec<Refused> {
    let rows = [
        ("/v1/acl/role", json!({ "Name": "a/b" }), 400, "Name"),
        (
            "/v1/acl/role",
            json!({ "Name": "q", "Policies": [{ "Name": "x" }] }),
            400,
            "No such ACL policy with name \"x\"",
        ),
        (
            "/v1/acl/role",
            json!({ "Name": "q", "Policies": [{ "ID": "x" }] }),
            400,
            "No such ACL policy with ID \"x\"",
        ),
        (
            "/v1/acl/role",
            json!({ "Name": "q", "TemplatedPolicies": [{ "TemplateName": "builtin/x" }] }),
            400,
            "no such ACL templated policy",
        ),
        (
            "/v1/acl/role/x",
            json!({ "Name": "q" }),
            404,
            "cannot find role",
        ),
        (
            "/v1/acl/token",
            json!({ "AccessorID": GLOBAL_MANAGEMENT }),
            400,
            "reserved",
        ),
        (
            "/v1/acl/token",
            json!({ "ExpirationTTL": "1h", "ExpirationTime": "2099-01-01T00:00:00Z" }),
            400,
            "cannot both be set",
        ),
    ];
    rows.map(|(path, body, status, says)| (path.to_owned(), body, status, says))
        .into()
}

#[tokio::test]
async fn bad_policies_and_roles_are_refused() {
    let (server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    policy(&management, "p", "").await;
    management
        .write("/v1/acl/role", &json!({ "Name": "r" }))
        .await;
    let before = server.store().state().index();
    let builtin = format!("/v1/acl/policy/{GLOBAL_MANAGEMENT}");
    for (path, body, status, says) in refused_policies()
        .into_iter()
        .chain(refused_roles_and_tokens())
    {
        let reply = management.put(&path, &body).await;
        assert_eq!(reply.status.as_u16(), status, "{body}: {}", reply.text());
        assert!(reply.text().contains(says), "{body}: {}", reply.text());
    }
    let kept = management.delete(&builtin).await;
    assert_eq!(kept.status, StatusCode::BAD_REQUEST, "{}", kept.text());
    let kept = management
        .delete(&format!("/v1/acl/token/{ANONYMOUS}"))
        .await;
    assert_eq!(kept.status, StatusCode::BAD_REQUEST, "{}", kept.text());
    assert_eq!(server.store().state().index(), before);
}

#[tokio::test]
async fn a_role_grants_its_current_links() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let web = policy(&management, "web", "service \"web\" { policy = \"write\" }").await;
    let role = json!({
        "Name": "ops",
        "Policies": [{ "Name": "web" }],
        "NodeIdentities": [{ "NodeName": "n1", "Datacenter": "dc1" }],
        "TemplatedPolicies": [{ "TemplateName": "builtin/service", "TemplateVariables": { "name": "api" } }],
    });
    let role = management.write("/v1/acl/role", &role).await;
    assert_eq!(text(&role["Policies"][0], "ID"), text(&web, "ID"));
    assert_eq!(
        text(&role["TemplatedPolicies"][0], "TemplateID"),
        "00000000-0000-0000-0000-000000000003"
    );
    let (made, ops) = token(&management, json!({ "Roles": [{ "Name": "ops" }] })).await;
    assert_eq!(made["Roles"], json!([{ "ID": role["ID"], "Name": "ops" }]));
    assert!(may(&ops, "service", "write", "web").await);
    assert!(may(&ops, "service", "write", "api-sidecar-proxy").await);
    assert!(may(&ops, "node", "write", "n1").await && !may(&ops, "node", "write", "n2").await);

    // The new name and the new rules apply everywhere.
    let path = format!("/v1/acl/policy/{}", text(&web, "ID"));
    let changed = json!({ "Name": "db", "Rules": "service \"db\" { policy = \"write\" }" });
    management.write(&path, &changed).await;
    assert!(
        may(&ops, "service", "write", "db").await && !may(&ops, "service", "write", "web").await
    );
    let role_path = format!("/v1/acl/role/{}", text(&role, "ID"));
    let shown = management.get(&role_path).await.json();
    assert_eq!(text(&shown["Policies"][0], "Name"), "db");
    assert_eq!(management.get("/v1/acl/role/name/OPS").await.json(), shown);
    let of_policy = |id: &str| format!("/v1/acl/roles?policy={id}");
    assert_eq!(
        management.get(&of_policy(text(&web, "ID"))).await.json(),
        json!([shown])
    );
    assert_eq!(
        management.get(&of_policy(GLOBAL_MANAGEMENT)).await.json(),
        json!([])
    );

    // Deleted policies grant nothing and are not shown.
    assert_eq!(management.delete(&path).await.json(), json!(true));
    assert!(
        !may(&ops, "service", "write", "db").await && may(&ops, "service", "write", "api").await
    );
    assert_eq!(
        management.get(&role_path).await.json()["Policies"],
        Value::Null
    );
    assert_eq!(management.delete(&role_path).await.json(), json!(true));
    assert!(!may(&ops, "service", "read", "api").await);
    assert_eq!(
        ops.get("/v1/acl/token/self").await.json()["Roles"],
        Value::Null
    );
    assert_eq!(
        management.get(&role_path).await.text(),
        "Requested role does not exist: ACL not found"
    );
}

#[tokio::test]
async fn a_token_is_cloned_and_shown_with_all_that_it_has() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let web = policy(&management, "web", "service \"web\" { policy = \"write\" }").await;
    let role = json!({ "Name": "ops", "ServiceIdentities": [{ "ServiceName": "api" }] });
    management.write("/v1/acl/role", &role).await;
    let body = json!({
        "Description": "first", "ExpirationTTL": "87600h", "Local": true,
        "Policies": [{ "Name": "web" }, { "ID": web["ID"] }], "Roles": [{ "Name": "ops" }],
    });
    let (made, _) = token(&management, body).await;
    assert_eq!(made["Policies"].as_array().unwrap().len(), 1, "linked once");
    let path = format!("/v1/acl/token/{}", text(&made, "AccessorID"));
    let whole = management
        .get(&format!("{path}?expanded=true"))
        .await
        .json();
    let names: Vec<&str> = whole["ExpandedPolicies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| text(p, "Name"))
        .collect();
    assert_eq!(names[0], "web");
    assert!(names[1].starts_with("synthetic-policy-"), "{names:?}");
    assert_eq!(text(&whole["ExpandedRoles"][0], "Name"), "ops");
    assert_eq!(text(&whole, "AgentACLDefaultPolicy"), "deny");
    assert_eq!(
        management.get(&path).await.json()["ExpandedRoles"],
        Value::Null
    );

    let clone = management
        .write(
            &format!("{path}/clone"),
            &json!({ "Description": "second" }),
        )
        .await;
    for field in ["Policies", "Roles", "Local", "ExpirationTime"] {
        assert_eq!(clone[field], made[field], "{field}");
    }
    assert_eq!(text(&clone, "Description"), "second");
    for field in ["AccessorID", "SecretID"] {
        assert_ne!(clone[field], made[field], "{field}");
    }
    let unknown = management.put("/v1/acl/token/x/clone", &json!({})).await;
    assert_eq!(
        (unknown.status, unknown.text()),
        (StatusCode::FORBIDDEN, "token does not exist: ACL not found")
    );

    let count = async |query: &str| {
        let listed = management
            .get(&format!("/v1/acl/tokens?{query}"))
            .await
            .json();
        listed.as_array().unwrap().len()
    };
    assert_eq!(count(&format!("policy={}", text(&web, "ID"))).await, 2);
    assert_eq!(count(&format!("policy={GLOBAL_MANAGEMENT}")).await, 1);
    assert_eq!(
        count(&format!("role={}", text(&made["Roles"][0], "ID"))).await,
        2
    );
    assert_eq!(count("").await, 4, "with the anonymous one");
    let both = management.get("/v1/acl/tokens?policy=x&role=y").await;
    assert_eq!(both.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_query_that_waits_ends_when_a_policy_of_its_token_changes() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    let read = "node_prefix \"\" { policy = \"read\" } service_prefix \"\" { policy = \"read\" }";
    let made = policy(&management, "read", read).await;
    let (_, reader) = token(&management, json!({ "Policies": [{ "Name": "read" }] })).await;
    let node = json!({ "Node": "n1", "Address": "10.0.0.1", "Service": { "Service": "web" } });
    management.write("/v1/catalog/register", &node).await;
    let index = reader.get("/v1/catalog/service/web").await.index();
    let waits = format!("/v1/catalog/service/web?index={index}&wait=60s");
    let change = async {
        // After a round trip of another request, the query is waiting.
        reader.get("/v1/catalog/nodes").await;
        let path = format!("/v1/acl/policy/{}", text(&made, "ID"));
        management.delete(&path).await;
        let moved = json!({ "Node": "n1", "Address": "10.0.0.2", "Service": { "Service": "web" } });
        management.write("/v1/catalog/register", &moved).await;
    };
    let (reply, ()) = tokio::join!(reader.get(&waits), change);
    assert_eq!(
        reply.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        reply.text()
    );
    assert_eq!(
        reader.get("/v1/catalog/service/web").await.json(),
        json!([])
    );
}
