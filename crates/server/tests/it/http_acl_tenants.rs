//! ACLs in namespaces and partitions, over HTTP.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use hickory_proto::op::Message;
use http::{Method, StatusCode};
use legate_api::dataplane::GetEnvoyBootstrapParamsRequest;
use legate_api::dataplane::dataplane_service_client::DataplaneServiceClient;
use legate_api::dataplane::get_envoy_bootstrap_params_request::NodeSpec;
use legate_api::dns::dns_service_client::DnsServiceClient;
use legate_api::dns::{Protocol, QueryRequest};
use legate_server::ServerConfig;
use legate_testkit::jwt::TestSigner;
use serde_json::{Value, json};
use tonic::Code;

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::dns::question;
use crate::grpc::{channel, with_token};
use crate::http_acl_policies::text;
use crate::http_client::{Client, Reply, start};
use crate::running::Running;

/// A server with the namespaces `team` and `shop`, a client without a token, and one with the management token.
async fn server() -> (Running, Client, Client) {
    let (server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    for name in ["team", "shop"] {
        management
            .write("/v1/namespace", &json!({"Name": name}))
            .await;
    }
    (server, client, management)
}

/// Whether a token has a permission in a namespace.
async fn may(client: &Client, namespace: &str, resource: &str, access: &str) -> bool {
    let question = json!([{
        "Resource": resource, "Access": access, "Segment": "x", "Namespace": namespace,
    }]);
    let path = "/v1/internal/acl/authorize";
    let reply = client.send(Method::POST, path, &question.to_string()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    let answer = &reply.json()[0];
    assert_eq!(answer["Namespace"], json!(namespace));
    answer["Allow"].as_bool().unwrap()
}

/// A client with ACL permissions in the namespace `team` only.
async fn manager_of_team(management: &Client) -> Client {
    let rules = "acl = \"write\" key_prefix \"\" { policy = \"write\" }";
    let body = json!({"Name": "manage", "Rules": rules});
    let policy = management.write("/v1/acl/policy?ns=team", &body).await;
    assert_eq!(policy["Namespace"], json!("team"));
    let body = json!({"Namespace": "team", "Policies": [{"Name": "manage"}]});
    let token = management.write("/v1/acl/token", &body).await;
    assert_eq!(token["Namespace"], json!("team"));
    management.with_token(text(&token, "SecretID"))
}

fn refused(reply: &Reply, status: StatusCode, part: &str) {
    assert_eq!(reply.status, status, "{}", reply.text());
    assert!(reply.text().contains(part), "{}", reply.text());
}

#[tokio::test]
async fn a_namespace_has_policies_and_tokens_of_its_own() {
    let (_server, _, management) = server().await;
    let manager = manager_of_team(&management).await;
    assert!(may(&manager, "team", "key", "write").await);
    assert!(may(&manager, "team", "acl", "write").await);
    for elsewhere in ["shop", "default2"] {
        assert!(!may(&manager, elsewhere, "key", "read").await);
        assert!(!may(&manager, elsewhere, "acl", "read").await);
    }
    assert!(may(&management, "team", "acl", "write").await);

    // In another namespace, the same name is another policy.
    let body = json!({"Name": "manage", "Rules": "acl = \"read\""});
    let main = management.write("/v1/acl/policy", &body).await;
    assert_eq!(main["Namespace"], Value::Null);
    let names = async |path: &str| {
        let listed = management.get(path).await.json();
        let listed = listed.as_array().unwrap().iter();
        listed
            .map(|row| text(row, "Name").to_owned())
            .collect::<Vec<_>>()
    };
    assert!(
        names("/v1/acl/policies?ns=team")
            .await
            .contains(&"manage".to_owned())
    );
    assert_eq!(names("/v1/acl/policies").await.len(), 3);
    let of_team = management
        .get("/v1/acl/policy/name/manage?ns=team")
        .await
        .json();
    assert_ne!(of_team["ID"], main["ID"]);
    let path = format!("/v1/acl/policy/{}", text(&of_team, "ID"));
    assert_eq!(management.get(&path).await.status, StatusCode::NOT_FOUND);

    // Requests default to the token's own namespace.
    let own = manager.get("/v1/acl/token/self").await.json();
    assert_eq!(text(&own, "Namespace"), "team");
    let body = json!({"Name": "more", "Rules": "key \"k\" { policy = \"read\" }"});
    assert_eq!(
        manager.write("/v1/acl/policy", &body).await["Namespace"],
        json!("team")
    );
    let reply = manager.put("/v1/acl/policy?ns=default", &body).await;
    refused(&reply, StatusCode::FORBIDDEN, "acl:write");
    let body = json!({"Name": "more", "Namespace": "shop"});
    refused(
        &manager.put("/v1/acl/policy", &body).await,
        StatusCode::FORBIDDEN,
        "acl:write",
    );
    let reply = management.put("/v1/acl/policy?ns=team", &body).await;
    refused(&reply, StatusCode::BAD_REQUEST, "shop");
    let body = json!({"Name": "far", "Rules": "operator = \"write\""});
    let reply = manager.put("/v1/acl/policy", &body).await;
    refused(&reply, StatusCode::BAD_REQUEST, "Invalid operator policy");
}

#[tokio::test]
async fn a_call_is_about_the_namespace_of_its_token() {
    let change = |config: &mut ServerConfig| {
        deny_by_default(config);
        config.grpc = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    };
    let (server, client) = start(change).await;
    let management = client.with_token(MANAGEMENT);
    management
        .write("/v1/namespace", &json!({"Name": "team"}))
        .await;
    let proxy = json!({ "Node": "vm-1", "Address": "10.0.0.1", "Service": {
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": { "DestinationServiceName": "web" }, "Address": "10.0.0.7",
    } });
    management
        .write("/v1/catalog/register?ns=team", &proxy)
        .await;
    let identities = json!([{"ServiceName": "web"}]);
    let body = json!({"Namespace": "team", "ServiceIdentities": identities});
    let token = management.write("/v1/acl/token", &body).await;
    let token = text(&token, "SecretID");

    let mut dataplane = DataplaneServiceClient::new(channel(&server).await);
    let mut asked = async |namespace: &str, token: &str| {
        let request = GetEnvoyBootstrapParamsRequest {
            node_spec: Some(NodeSpec::NodeName("vm-1".to_owned())),
            proxy_id: "web-proxy".to_owned(),
            namespace: namespace.to_owned(),
            ..GetEnvoyBootstrapParamsRequest::default()
        };
        let request = with_token(request, token);
        let answer = dataplane.get_envoy_bootstrap_params(request).await;
        answer.map(|answer| answer.into_inner().namespace)
    };
    assert_eq!(asked("", token).await.unwrap(), "team");
    assert_eq!(asked("team", token).await.unwrap(), "team");
    let elsewhere = asked("", MANAGEMENT).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::NotFound);
    let elsewhere = asked("default", token).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::NotFound);

    let mut dns = DnsServiceClient::new(channel(&server).await);
    let mut found = async |token: &str| {
        let request = QueryRequest {
            msg: question("web-proxy.service.consul.", None).into(),
            protocol: Protocol::Udp.into(),
        };
        let answer = dns.query(with_token(request, token)).await.unwrap();
        let message = Message::from_vec(&answer.into_inner().msg).unwrap();
        message.answers.len()
    };
    assert_eq!((found(token).await, found(MANAGEMENT).await), (1, 0));
}

#[tokio::test]
async fn links_to_another_namespace_require_permission_there() {
    let (_server, _, management) = server().await;
    let manager = manager_of_team(&management).await;
    let shared = json!({"Name": "shared", "Rules": "key \"k\" { policy = \"read\" }"});
    management.write("/v1/acl/policy", &shared).await;
    for links in [
        json!({"Policies": [{"Name": "global-management"}]}),
        json!({"Policies": [{"ID": "00000000-0000-0000-0000-000000000001"}]}),
        json!({"Policies": [{"Name": "shared"}]}),
    ] {
        let reply = manager.put("/v1/acl/token", &links).await;
        refused(&reply, StatusCode::FORBIDDEN, "acl:write");
        let mut role = links.clone();
        role["Name"] = json!("r");
        refused(
            &manager.put("/v1/acl/role", &role).await,
            StatusCode::FORBIDDEN,
            "acl:write",
        );
    }
    // Linking requires permission in both namespaces; others may keep existing links.
    let body = json!({"Namespace": "team", "Policies": [{"Name": "shared"}]});
    let token = management.write("/v1/acl/token", &body).await;
    assert_eq!(text(&token["Policies"][0], "Name"), "shared");
    let path = format!("/v1/acl/token/{}", text(&token, "AccessorID"));
    let kept = manager.write(&path, &token).await;
    assert_eq!(kept["Policies"], token["Policies"]);
    // The policy's rules apply in its own namespace.
    let client = management.with_token(text(&token, "SecretID"));
    assert!(!may(&client, "team", "key", "read").await);
    let node = json!({"NodeIdentities": [{"NodeName": "n", "Datacenter": "dc1"}]});
    let reply = management.put("/v1/acl/token?ns=team", &node).await;
    refused(&reply, StatusCode::BAD_REQUEST, "NodeIdentities");
}

#[tokio::test]
async fn a_namespace_gives_policies_to_its_tokens() {
    let (_server, _, management) = server().await;
    let rules = "namespace_prefix \"\" { key_prefix \"\" { policy = \"read\" } }";
    let shared = json!({"Name": "shared", "Rules": rules});
    let shared = management.write("/v1/acl/policy", &shared).await;
    let token = management.write("/v1/acl/token?ns=team", &json!({})).await;
    let client = management.with_token(text(&token, "SecretID"));
    assert!(!may(&client, "team", "key", "read").await);
    let acls = json!({"ACLs": {"PolicyDefaults": [{"Name": "shared"}]}});
    management.write("/v1/namespace/team", &acls).await;
    assert!(may(&client, "team", "key", "read").await);
    assert!(may(&client, "shop", "key", "read").await);
    let path = format!(
        "/v1/acl/token/{}?ns=team&expanded",
        text(&token, "AccessorID")
    );
    let expanded = management.get(&path).await.json();
    assert_eq!(expanded["NamespaceDefaultPolicyIDs"], json!([shared["ID"]]));
    assert_eq!(expanded["ExpandedPolicies"][0]["ID"], shared["ID"]);
    // A namespace's administrator cannot grant its tokens policies of the default namespace.
    let manager = manager_of_team(&management).await;
    let reply = manager.put("/v1/namespace/team", &acls).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{}", reply.text());
}

#[tokio::test]
async fn lists_of_every_namespace_are_filtered_by_the_token() {
    let (_server, _, management) = server().await;
    let manager = manager_of_team(&management).await;
    let names = async |client: &Client| {
        let listed = client.get("/v1/acl/policies?ns=*").await.json();
        let listed = listed.as_array().unwrap().iter();
        let name = |row: &serde_json::Value| {
            format!(
                "{}/{}",
                row["Namespace"].as_str().unwrap_or("default"),
                text(row, "Name")
            )
        };
        let mut names: Vec<String> = listed.map(name).collect();
        names.sort();
        names
    };
    let of_team = ["team/manage", "team/namespace-management"];
    assert_eq!(names(&manager).await, of_team);
    let all = names(&management).await;
    assert!(
        all.iter().any(|name| name == "default/global-management"),
        "{all:?}"
    );
    assert!(
        all.iter().any(|name| name == "shop/namespace-management"),
        "{all:?}"
    );
    let policy = management
        .get("/v1/acl/policy/name/namespace-management?ns=shop")
        .await;
    let body = json!({"Policies": [{"ID": policy.json()["ID"]}]});
    let token = management.write("/v1/acl/token?ns=shop", &body).await;
    let client = management.with_token(text(&token, "SecretID"));
    assert!(
        may(&client, "shop", "acl", "write").await && !may(&client, "team", "acl", "read").await
    );
    for path in [
        "/v1/acl/roles?ns=*",
        "/v1/acl/auth-methods?ns=*",
        "/v1/acl/binding-rules?ns=*",
    ] {
        assert_eq!(management.get(path).await.json(), json!([]), "{path}");
    }
    assert_eq!(
        management
            .get("/v1/acl/tokens?ns=*")
            .await
            .json()
            .as_array()
            .unwrap()
            .len(),
        4
    );
    let gone = management.get("/v1/acl/policies?ns=nowhere").await;
    assert_eq!(gone.json(), json!([]));
    let reply = management.put("/v1/acl/token?ns=nowhere", &json!({})).await;
    refused(&reply, StatusCode::BAD_REQUEST, "nowhere");
}

#[tokio::test]
async fn identities_are_of_the_namespace_of_their_token() {
    let (_server, _, management) = server().await;
    let body = json!({"Namespace": "shop", "ServiceIdentities": [{"ServiceName": "x"}]});
    let token = management.write("/v1/acl/token", &body).await;
    let client = management.with_token(text(&token, "SecretID"));
    assert!(may(&client, "shop", "service", "write").await);
    assert!(may(&client, "shop", "node", "read").await);
    for elsewhere in ["team", "other"] {
        assert!(!may(&client, elsewhere, "service", "read").await);
    }
    let role = json!({"Name": "r", "ServiceIdentities": [{"ServiceName": "x"}]});
    let role = management.write("/v1/acl/role?ns=team", &role).await;
    let body = json!({"Roles": [{"ID": role["ID"]}]});
    let reply = management.put("/v1/acl/token?ns=shop", &body).await;
    refused(&reply, StatusCode::BAD_REQUEST, "No such ACL role");
    let token = management.write("/v1/acl/token?ns=team", &body).await;
    let client = management.with_token(text(&token, "SecretID"));
    assert!(may(&client, "team", "service", "write").await);
    assert!(!may(&client, "shop", "service", "write").await);
}

/// An auth method whose logins are in the namespace of the claim `team`.
async fn add_method(management: &Client, signer: &TestSigner) {
    let config = json!({
        "JWTValidationPubKeys": [signer.public_key_pem()],
        "JWTSupportedAlgs": ["ES256"],
        "ClaimMappings": {"team": "team"},
    });
    let mut method = json!({
        "Name": "m", "Type": "jwt", "Config": config,
        "NamespaceRules": [
            {"Selector": "value.team==admins", "BindNamespace": "default"},
            {"BindNamespace": "${value.team}"},
        ],
    });
    let made = management.write("/v1/acl/auth-method", &method).await;
    assert_eq!(made["NamespaceRules"], json!(method["NamespaceRules"]));
    let reply = management.put("/v1/acl/auth-method?ns=team", &method).await;
    refused(&reply, StatusCode::BAD_REQUEST, "NamespaceRules");
    method["NamespaceRules"] = json!([{"BindNamespace": "a b"}]);
    let reply = management.put("/v1/acl/auth-method", &method).await;
    refused(
        &reply,
        StatusCode::BAD_REQUEST,
        "NamespaceRules[0].BindNamespace",
    );
    let rule = json!({"AuthMethod": "m", "BindType": "service", "BindName": "x"});
    management.write("/v1/acl/binding-rule", &rule).await;
}

async fn login(client: &Client, path: &str, signer: &TestSigner, team: &str) -> Reply {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let claims = json!({"team": team, "exp": now.unwrap().as_secs() + 60});
    let body = json!({"AuthMethod": "m", "BearerToken": signer.sign(&claims)});
    client.send(Method::POST, path, &body.to_string()).await
}

#[tokio::test]
async fn logins_make_tokens_in_the_namespaces_of_the_rules() {
    let (_server, client, management) = server().await;
    let signer = TestSigner::generate();
    add_method(&management, &signer).await;
    let token = login(&client, "/v1/acl/login", &signer, "shop")
        .await
        .json();
    assert_eq!(text(&token, "Namespace"), "shop");
    assert_eq!(text(&token, "AuthMethodNamespace"), "default");
    let own = client.with_token(text(&token, "SecretID"));
    assert!(may(&own, "shop", "service", "write").await);
    assert!(!may(&own, "team", "service", "write").await);
    let main = login(&client, "/v1/acl/login", &signer, "admins")
        .await
        .json();
    assert_eq!(
        (&main["Namespace"], &main["AuthMethodNamespace"]),
        (&Value::Null, &Value::Null)
    );
    let reply = login(&client, "/v1/acl/login", &signer, "nowhere").await;
    refused(&reply, StatusCode::FORBIDDEN, "nowhere");
    // The method is looked up in the namespace of the login.
    let reply = login(&client, "/v1/acl/login?ns=team", &signer, "shop").await;
    refused(&reply, StatusCode::FORBIDDEN, "not found");

    let listed = management
        .get("/v1/acl/tokens?ns=shop&authmethod=m")
        .await
        .json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let elsewhere = "/v1/acl/tokens?ns=shop&authmethod=m&authmethod-ns=team";
    assert_eq!(management.get(elsewhere).await.json(), json!([]));
    // A logout deletes a token in any namespace, and so does deleting its auth method.
    assert_eq!(
        own.send(Method::POST, "/v1/acl/logout", "").await.status,
        StatusCode::OK
    );
    assert_eq!(
        management.get("/v1/acl/tokens?ns=shop").await.json(),
        json!([])
    );
    let again = login(&client, "/v1/acl/login", &signer, "shop").await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.text());
    management.delete("/v1/acl/auth-method/m").await;
    assert_eq!(
        management.get("/v1/acl/tokens?ns=shop").await.json(),
        json!([])
    );
}
