//! JWT providers and the intentions that name them, over HTTP.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, start};

const OKTA: &str = "/v1/config/jwt-provider/okta";
const EXACT: &str = "/v1/connect/intentions/exact?source=web&destination=api";

fn provider() -> Value {
    json!({
        "Kind": "jwt-provider", "Name": "okta", "Issuer": "https://okta.example/",
        "JSONWebKeySet": {"Local": {"Filename": "/etc/keys.json"}},
    })
}

fn intentions(jwt: bool, permission_jwt: bool) -> Value {
    let required = json!({"Providers": [{"Name": "okta"}]});
    let mut entry = json!({"Kind": "service-intentions", "Name": "api", "Sources": [
        {"Name": "web", "Permissions": [{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]},
        {"Name": "cron", "Action": "allow"},
    ]});
    if jwt {
        entry["JWT"] = required.clone();
    }
    if permission_jwt {
        entry["Sources"][0]["Permissions"][0]["JWT"] = required;
    }
    entry
}

async fn speaks(client: &Client, protocol: &str) {
    let defaults = json!({"Kind": "service-defaults", "Name": "api", "Protocol": protocol});
    client.write("/v1/config", &defaults).await;
}

#[tokio::test]
async fn a_provider_is_written_before_the_intentions_that_name_it_and_removed_after() {
    for (jwt, permission_jwt) in [(true, false), (false, true)] {
        let (server, client) = start(|_| {}).await;
        speaks(&client, "http").await;
        let intentions = intentions(jwt, permission_jwt);
        let refused = client.put("/v1/config", &intentions).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        let reason = "Referenced JWT Provider does not exist. Provider Name: okta";
        assert!(refused.text().contains(reason), "{}", refused.text());

        client.write("/v1/config", &provider()).await;
        assert_eq!(client.write("/v1/config", &intentions).await, json!(true));
        let index = server.store().state().index();
        let refused = client.delete(OKTA).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        let reason = "cannot delete jwt provider config entry referenced by an intention. Provider \
                      name: okta, intention name: api";
        assert!(refused.text().contains(reason), "{}", refused.text());
        assert_eq!(server.store().state().index(), index);

        let without = self::intentions(false, false);
        client.write("/v1/config", &without).await;
        assert_eq!(client.delete(OKTA).await.status, StatusCode::OK);
        assert_eq!(client.get(OKTA).await.status, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn a_requirement_is_shown_and_kept_when_a_source_is_written() {
    let (_server, client) = start(|_| {}).await;
    speaks(&client, "http").await;
    client.write("/v1/config", &provider()).await;
    client.write("/v1/config", &intentions(true, true)).await;
    let shown = client.get(EXACT).await.json();
    assert_eq!(shown["JWT"]["Providers"][0]["Name"], "okta");
    assert_eq!(shown["Permissions"][0]["JWT"], shown["JWT"]);

    client.write(EXACT, &json!({"Action": "allow"})).await;
    let entry = client.get("/v1/config/service-intentions/api").await.json();
    assert_eq!(entry["JWT"], shown["JWT"]);
    let refused = client.put(EXACT, &shown).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("JWT"), "{}", refused.text());

    let permission = &shown["Permissions"];
    let unknown = json!([{
        "Action": "allow", "HTTP": {"PathPrefix": "/"},
        "JWT": {"Providers": [{"Name": "other"}]},
    }]);
    let known = json!({"Permissions": permission});
    assert_eq!(client.write(EXACT, &known).await, json!(true));
    let refused = client.put(EXACT, &json!({"Permissions": unknown})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("other"), "{}", refused.text());
}

#[tokio::test]
async fn a_connection_is_not_allowed_where_requests_need_a_token() {
    let (_server, client) = start(|_| {}).await;
    speaks(&client, "http").await;
    client.write("/v1/config", &provider()).await;
    let check = async |source: &str| {
        let path = format!("/v1/connect/intentions/check?source={source}&destination=api");
        client.get(&path).await.json()["Allowed"].clone()
    };
    client.write("/v1/config", &intentions(false, false)).await;
    assert_eq!(
        (check("web").await, check("cron").await),
        (json!(false), json!(true))
    );
    client.write("/v1/config", &intentions(true, false)).await;
    assert_eq!(check("cron").await, false);
}

#[tokio::test]
async fn jwt_requirements_need_an_http_service() {
    let (_server, client) = start(|_| {}).await;
    client.write("/v1/config", &provider()).await;
    let mut entry = intentions(true, false);
    entry["Sources"] = json!([{"Name": "web", "Action": "allow"}]);
    let refused = client.put("/v1/config", &entry).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(
        refused.text().contains(
            "service \"api\" has protocol \"tcp\", which is incompatible with L7 intentions JWT"
        ),
        "{}",
        refused.text()
    );

    speaks(&client, "grpc").await;
    client.write("/v1/config", &entry).await;
    let tcp = json!({"Kind": "service-defaults", "Name": "api", "Protocol": "tcp"});
    let refused = client.put("/v1/config", &tcp).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("JWT"), "{}", refused.text());
    // Intentions for the wildcard destination apply to services of all protocols.
    entry["Name"] = json!("*");
    assert_eq!(client.write("/v1/config", &entry).await, json!(true));
}

#[tokio::test]
async fn reading_providers_needs_service_write_and_writing_mesh_write() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    management.write("/v1/config", &provider()).await;
    for (rules, reads, writes) in [
        ("service \"web\" { policy = \"read\" }", false, false),
        ("service \"web\" { policy = \"write\" }", true, false),
        ("mesh = \"read\"", true, false),
        ("mesh = \"write\"", true, true),
        ("operator = \"write\"", true, true),
    ] {
        let name = format!("p{}", rules.len());
        let policy = json!({"Name": name, "Rules": rules});
        management.write("/v1/acl/policy", &policy).await;
        let token = json!({"Policies": [{"Name": name}]});
        let made = management.write("/v1/acl/token", &token).await;
        let caller = client.with_token(made["SecretID"].as_str().unwrap());
        let status = |allowed| match allowed {
            true => StatusCode::OK,
            false => StatusCode::FORBIDDEN,
        };
        assert_eq!(caller.get(OKTA).await.status, status(reads), "{rules}");
        let list = caller.get("/v1/config/jwt-provider").await.json();
        assert_eq!(
            list.as_array().unwrap().len(),
            usize::from(reads),
            "{rules}"
        );
        let written = caller.put("/v1/config", &provider()).await;
        assert_eq!(written.status, status(writes), "{rules}");
    }
}

#[tokio::test]
async fn a_caller_is_authorized_by_its_certificate() {
    let (_server, client) = start(deny_by_default).await;
    let client = client.with_token(MANAGEMENT);
    speaks(&client, "http").await;
    client.write("/v1/config", &provider()).await;
    let roots = client.get("/v1/connect/ca/roots").await.json();
    let own = roots["TrustDomain"].as_str().unwrap().to_owned();
    let post = async |body: &Value| {
        let path = "/v1/agent/connect/authorize";
        client.send(Method::POST, path, &body.to_string()).await
    };
    let ask = async |mesh: &str, service: &str| {
        let uri = format!("spiffe://{mesh}/ns/default/dc/dc1/svc/{service}");
        let asked = json!({"Target": "api", "ClientCertURI": uri, "ClientCertSerial": "01"});
        let answer = post(&asked).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        (
            answer.json()["Authorized"] == true,
            answer.text().to_owned(),
        )
    };
    let (allowed, reason) = ask(&own, "cron").await;
    assert!(
        !allowed && reason.contains("Default behavior configured by ACLs"),
        "{reason}"
    );
    client.write("/v1/config", &intentions(false, false)).await;
    for (mesh, service, allowed) in [
        (own.as_str(), "cron", true),
        (&own, "web", false),
        (&own, "other", false),
        ("another.consul", "cron", false),
    ] {
        let (authorized, reason) = ask(mesh, service).await;
        assert_eq!(authorized, allowed, "{mesh} {service}: {reason}");
    }
    client.write("/v1/config", &intentions(true, false)).await;
    let (allowed, reason) = ask(&own, "cron").await;
    assert!(!allowed && reason.contains("Token"), "{reason}");

    for (body, part) in [
        (json!({}), "Target service must be specified"),
        (
            json!({"Target": "api"}),
            "ClientCertURI not a valid Connect identifier",
        ),
        (
            json!({"Target": "api", "ClientCertURI": format!("spiffe://{own}")}),
            "ClientCertURI not a valid Service identifier",
        ),
    ] {
        let refused = post(&body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.text().contains(part), "{}", refused.text());
    }
}
