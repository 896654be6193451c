//! Servers of two datacenters that have joined: requests with `?dc=` are answered by the other one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use http::{Method, StatusCode};
use legate_identity::tls::ServerPolicy;
use legate_model::Secret;
use legate_server::{AclConfig, AgentFiles, ServerConfig, WanSettings};
use legate_testkit::certs::{CertFiles, TestCa};
use legate_testkit::wait;
use serde_json::json;

use crate::dns::{over_udp, question, question_of};
use crate::http_client::{Client, start};
use crate::running::Running;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The settings of a server of a datacenter.
pub(crate) fn of_datacenter(
    ca: &TestCa,
    datacenter: &'static str,
) -> impl FnOnce(&mut ServerConfig) {
    let CertFiles { cert, key, .. } = ca.agent(&[&format!("server.{datacenter}.consul")]);
    let files = AgentFiles {
        certificate: cert,
        key,
        policy: ServerPolicy {
            client_authorities: vec![ca.ca_file()],
            ..ServerPolicy::default()
        },
    };
    move |config| {
        config.datacenter = datacenter.to_owned();
        config.node_name = format!("node-{datacenter}");
        config.wan = Some(WanSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: IpAddr::V4(Ipv4Addr::LOCALHOST),
            files: Some(files),
            join: Vec::new(),
            retry_interval: Duration::from_secs(1),
            retry_max: 0,
            through_gateways: None,
        });
    }
}

/// Joins the second server.
pub(crate) async fn join(client: &Client, other: &Running) {
    let path = format!("/v1/agent/join/{}?wan=1", other.servers_addr().unwrap());
    let joined = client.send(Method::PUT, &path, "").await;
    assert_eq!(joined.status, StatusCode::OK, "{}", joined.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_answered_by_the_datacenter_that_they_name() {
    let ca = TestCa::new();
    let (one, client) = start(of_datacenter(&ca, "dc1")).await;
    let (two, other) = start(of_datacenter(&ca, "dc2")).await;
    let unknown = client.get("/v1/kv/a?dc=dc2").await;
    assert_eq!(unknown.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        unknown.text().starts_with("No path to datacenter \"dc2\""),
        "{}",
        unknown.text()
    );
    assert_eq!(
        client.get("/v1/catalog/datacenters").await.json(),
        json!(["dc1"])
    );
    join(&client, &two).await;
    assert_eq!(
        client.get("/v1/catalog/datacenters").await.json(),
        json!(["dc1", "dc2"])
    );

    // Written there, and only there.
    let written = client
        .send(Method::PUT, "/v1/kv/a?dc=DC2&flags=7", "value")
        .await;
    assert_eq!(written.json(), json!(true));
    assert_eq!(other.get("/v1/kv/a?raw").await.text(), "value");
    assert_eq!(client.get("/v1/kv/a").await.status, StatusCode::NOT_FOUND);
    let read = client.get("/v1/kv/a?dc=dc2").await;
    assert_eq!(read.json()[0]["Flags"], json!(7));
    let nodes = client.get("/v1/catalog/nodes?dc=dc2").await.json();
    assert_eq!(nodes[0]["Node"], json!("node-dc2"));
    let named = json!({"Node": "n", "Address": "10.0.0.1", "Datacenter": "dc2"});
    client.write("/v1/catalog/register", &named).await;
    assert_eq!(
        other.get("/v1/catalog/node/n").await.json()["Node"]["Datacenter"],
        json!("dc2")
    );
    client.write("/v1/catalog/deregister", &named).await;
    assert_eq!(other.get("/v1/catalog/node/n").await.json(), json!(null));
    // Errors of the other datacenter are answered as they are.
    assert_eq!(
        client.get("/v1/kv/b?dc=dc2").await.status,
        StatusCode::NOT_FOUND
    );
    let wrong = client.get("/v1/kv/a?dc=dc2&index=x").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    // What is about this server stays here.
    assert_eq!(
        client.get("/v1/agent/self?dc=dc1").await.json()["Config"]["Datacenter"],
        json!("dc1")
    );

    // A blocking query waits there, and wakes once.
    let path = format!("/v1/kv/a?dc=dc2&index={}&wait=60s", read.index());
    let unchanged = client.get(&path.replace("60s", "10ms")).await;
    assert_eq!(unchanged.index(), read.index(), "it waits for a change");
    let write = other.send(Method::PUT, "/v1/kv/a", "newer");
    let (woken, _) = tokio::join!(client.get(&path), write);
    assert!(woken.index() > read.index());
    assert_eq!(woken.json()[0]["Value"], json!("bmV3ZXI="));

    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_all_datacenters_are_listed_and_removed() {
    let ca = TestCa::new();
    let (one, client) = start(of_datacenter(&ca, "dc1")).await;
    let (two, _) = start(of_datacenter(&ca, "dc2")).await;
    join(&client, &two).await;
    let coordinates = wait::until(async || {
        let all = client.get("/v1/coordinate/datacenters").await.json();
        match all.as_array().map(Vec::len) {
            Some(2) => Ok(all),
            _ => Err(all.to_string()),
        }
    });
    let coordinates = coordinates.await;
    let coord = |at: usize| coordinates[at]["Coordinates"][0].clone();
    assert_eq!(coord(0)["Node"], "node-dc1");
    assert_eq!(coord(0)["Coord"]["Height"].as_f64(), Some(0.0));
    assert_eq!(coordinates[1]["Datacenter"], "dc2");
    assert_eq!(coord(1)["Node"], "node-dc2");
    assert!(coord(1)["Coord"]["Height"].as_f64() > Some(0.0));
    let members = client.get("/v1/agent/members?wan=1").await.json();
    let shown = |at: usize, field: &str| members[at][field].clone();
    assert_eq!(
        [shown(0, "Name"), shown(1, "Name")],
        [json!("node-dc1.dc1"), json!("node-dc2.dc2")]
    );
    assert_eq!(shown(1, "Port"), json!(two.servers_addr().unwrap().port()));
    assert_eq!(
        (shown(1, "Status"), &members[1]["Tags"]["dc"]),
        (json!(1), &json!("dc2"))
    );
    let local = client.get("/v1/agent/members").await.json();
    assert_eq!(local.as_array().map(Vec::len), Some(1));

    let seen = client.get("/v1/internal/legate/status").await.json()["Datacenters"].clone();
    assert_eq!(
        (&seen[0]["Name"], &seen[0]["Servers"], &seen[0]["Alive"]),
        (&json!("dc2"), &json!(1), &json!(1))
    );
    let two_at = two.servers_addr().unwrap();
    two.stop(PATIENCE).await.unwrap();
    let gone = client.get("/v1/kv/a?dc=dc2").await;
    assert_eq!(gone.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(gone.text().contains("node-dc2.dc2: "), "{}", gone.text());
    let removed = client.send(
        Method::PUT,
        "/v1/agent/force-leave/node-dc2.dc2?wan=1&prune=1",
        "",
    );
    assert_eq!(removed.await.status, StatusCode::OK);
    assert_eq!(
        client.get("/v1/catalog/datacenters").await.json(),
        json!(["dc1"])
    );
    let missing = client
        .send(Method::PUT, &format!("/v1/agent/join/{two_at}?wan=1"), "")
        .await;
    assert!(
        missing.text().starts_with("Failed to join "),
        "{}",
        missing.text()
    );
    one.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_authorizes_and_its_default_token_is_not_for_others() {
    let ca = TestCa::new();
    let (one, client) = start(of_datacenter(&ca, "dc1")).await;
    let with_acls = |config: &mut ServerConfig| {
        of_datacenter(&ca, "dc2")(config);
        config.acl = AclConfig {
            enabled: true,
            default_policy: legate_server::DefaultPolicy::Deny,
            initial_management: Some(Secret::new("5c8e9a0e-8d0e-4a57-9f1e-2f3a3c1f5b11")),
            key_list_policy: false,
        };
        config.agent.tokens.default = config.acl.initial_management.clone();
    };
    let (two, other) = start(with_acls).await;
    join(&client, &two).await;
    let put =
        |client: Client| async move { client.send(Method::PUT, "/v1/kv/a?dc=dc2", "x").await };
    // There it is the token of requests without one.
    assert_eq!(
        other.send(Method::PUT, "/v1/kv/a", "x").await.json(),
        json!(true)
    );
    let denied = put(client.clone()).await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN, "{}", denied.text());
    let allowed = put(client.with_token("5c8e9a0e-8d0e-4a57-9f1e-2f3a3c1f5b11")).await;
    assert_eq!(allowed.json(), json!(true));
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_other_datacenters_are_answered_there() {
    let ca = TestCa::new();
    let with_dns = |config: &mut ServerConfig| {
        of_datacenter(&ca, "dc1")(config);
        config.dns = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    };
    let (one, client) = start(with_dns).await;
    let (two, other) = start(of_datacenter(&ca, "dc2")).await;
    let web = json!({
        "Node": "n", "Address": "10.2.0.7", "Service": {"Service": "web", "Tags": ["v1"], "Port": 80},
    });
    other.write("/v1/catalog/register", &web).await;
    let query = json!({"Name": "geo", "Service": {"Service": "web"}});
    let created = other
        .send(Method::POST, "/v1/query", &query.to_string())
        .await;
    assert_eq!(created.status, StatusCode::OK);
    let at = one.dns_addr().unwrap();
    let ask = |name: &'static str| async move { over_udp(at, &question(name, None)).await };
    let name = "web.service.dc2.consul.";
    assert_eq!(
        ask(name).await.metadata.response_code,
        ResponseCode::NXDomain
    );
    join(&client, &two).await;
    for name in [
        name,
        "v1.web.service.dc2.dc.consul.",
        "geo.query.dc2.consul.",
        "n.node.dc2.consul.",
    ] {
        let answer = ask(name).await;
        let found: Vec<_> = answer
            .answers
            .iter()
            .map(|record| record.data.to_string())
            .collect();
        assert_eq!(found, ["10.2.0.7"], "{name}");
        assert!(answer.metadata.authoritative, "{name}");
    }
    for name in ["web.service.dc3.consul.", "db.service.dc2.consul."] {
        assert_eq!(
            ask(name).await.metadata.response_code,
            ResponseCode::NXDomain,
            "{name}"
        );
    }
    // Only servers ask like this.
    let path = "/v1/internal/legate/servers/dns";
    let refused = client.send(Method::POST, path, "").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text());
    two.stop(PATIENCE).await.unwrap();
    assert_eq!(
        ask(name).await.metadata.response_code,
        ResponseCode::ServFail
    );
    one.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_queries_fail_over_to_other_datacenters() {
    let ca = TestCa::new();
    let (one, client) = start(|config| {
        of_datacenter(&ca, "dc1")(config);
        config.dns = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    })
    .await;
    let (two, other) = start(of_datacenter(&ca, "dc2")).await;
    join(&client, &two).await;
    let web = |node: &str, address: &str| json!({"Node": node, "Address": address, "Service": {"Service": "web"}});
    other
        .write("/v1/catalog/register", &web("there", "10.0.0.7"))
        .await;
    let query = json!({
        "Name": "geo", "Service": {"Service": "web", "Failover": {"Datacenters": ["dc3", "dc2"]}},
    });
    let created = client
        .send(Method::POST, "/v1/query", &query.to_string())
        .await;
    assert_eq!(created.status, StatusCode::OK);
    let execute = || async { client.get("/v1/query/geo/execute").await.json() };
    let found = execute().await;
    assert_eq!(
        (&found["Datacenter"], &found["Failovers"]),
        (&json!("dc2"), &json!(1))
    );
    assert_eq!(found["Nodes"][0]["Node"]["Node"], json!("there"));
    let at = one.dns_addr().unwrap();
    let addresses = || async {
        let answer = over_udp(at, &question("geo.query.consul.", None)).await;
        let data = answer.answers.iter().map(|record| record.data.to_string());
        data.collect::<Vec<_>>()
    };
    assert_eq!(addresses().await, ["10.0.0.7"]);
    client
        .write("/v1/catalog/register", &web("here", "10.0.0.8"))
        .await;
    assert_eq!(addresses().await, ["10.0.0.8"]);
    let found = execute().await;
    assert_eq!(
        (&found["Datacenter"], &found["Failovers"]),
        (&json!("dc1"), &json!(0))
    );
    assert_eq!(found["Nodes"][0]["Node"]["Node"], json!("here"));
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_of_other_datacenters_are_translated() {
    let ca = TestCa::new();
    let (one, client) = start(|config| {
        of_datacenter(&ca, "dc1")(config);
        config.translate_wan_addrs = true;
        config.dns = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    })
    .await;
    let (two, other) = start(of_datacenter(&ca, "dc2")).await;
    join(&client, &two).await;
    let node = json!({
        "Node": "n", "Address": "10.0.0.7", "TaggedAddresses": {"wan": "192.0.2.7"}, "Service": {
            "Service": "web", "Address": "10.0.0.8", "Port": 80,
            "TaggedAddresses": {"wan": {"Address": "192.0.2.8", "Port": 443}},
        },
    });
    other.write("/v1/catalog/register", &node).await;
    client.write("/v1/catalog/register", &node).await;
    let query = json!({
        "Name": "geo", "Service": {"Service": "far", "Failover": {"Datacenters": ["dc2"]}},
    });
    let query = query.to_string();
    assert_eq!(
        client.send(Method::POST, "/v1/query", &query).await.status,
        StatusCode::OK
    );
    let far = json!({"Node": "n", "SkipNodeUpdate": true, "Service": {
        "Service": "far", "Port": 80, "TaggedAddresses": {"wan": {"Address": "192.0.2.9", "Port": 0}},
    }});
    other.write("/v1/catalog/register", &far).await;

    let [here, there] = ["10.0.0.8", "192.0.2.8"].map(|address| json!(address));
    let service = |datacenter: &str| {
        let path = format!("/v1/health/service/web?dc={datacenter}&filter=Service.Port==80");
        let client = &client;
        async move { client.get(&path).await }
    };
    let found = service("dc2").await;
    assert_eq!(found.header("x-consul-translate-addresses"), "true");
    let found = found.json();
    assert_eq!(
        [
            &found[0]["Service"]["Address"],
            &found[0]["Service"]["Port"],
            &found[0]["Node"]["Address"]
        ],
        [&there, &json!(443), &json!("192.0.2.7")]
    );
    assert_eq!(service("dc1").await.json()[0]["Service"]["Address"], here);
    let get = async |path: &str| client.get(path).await.json();
    let row = &get("/v1/catalog/service/web?dc=dc2").await[0];
    assert_eq!(
        [&row["ServiceAddress"], &row["ServicePort"], &row["Address"]],
        [&there, &json!(443), &json!("192.0.2.7")]
    );
    let on_node = get("/v1/catalog/node/n?dc=dc2").await;
    assert_eq!(on_node["Services"]["web"]["Address"], there);
    assert_eq!(on_node["Node"]["Address"], "192.0.2.7");
    let nodes = get("/v1/catalog/nodes?dc=dc2&filter=Node==n").await;
    assert_eq!(nodes[0]["Address"], "192.0.2.7");
    let executed = get("/v1/query/geo/execute").await;
    assert_eq!(executed["Nodes"][0]["Service"]["Address"], "192.0.2.9");
    // Who asks there is there.
    let own = other.get("/v1/health/service/web").await.json();
    assert_eq!(own[0]["Service"]["Address"], here);

    let at = one.dns_addr().unwrap();
    let asked = async |name: &str, kind: RecordType| {
        let answer = over_udp(at, &question_of(kind, name)).await;
        let data = answer.answers.iter().map(|record| record.data.to_string());
        data.collect::<Vec<_>>()
    };
    let address = async |name: &str| asked(name, RecordType::A).await;
    assert_eq!(address("web.service.dc2.consul.").await, ["192.0.2.8"]);
    assert_eq!(address("web.service.consul.").await, ["10.0.0.8"]);
    assert_eq!(address("n.node.dc2.consul.").await, ["192.0.2.7"]);
    assert_eq!(address("geo.query.consul.").await, ["192.0.2.9"]);
    let port = &asked("web.service.dc2.consul.", RecordType::SRV).await[0];
    assert!(
        port.starts_with("1 1 443 c0000208.addr.dc2.consul"),
        "{port}"
    );
    one.stop(PATIENCE).await.unwrap();
    two.stop(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_port_for_servers_nothing_is_joined() {
    let (server, client) = start(|_| ()).await;
    let refused = client
        .send(Method::PUT, "/v1/agent/join/192.0.2.1?wan=1", "")
        .await;
    assert!(
        refused.text().contains("tls.internal_rpc"),
        "{}",
        refused.text()
    );
    let other = client.get("/v1/kv/a?dc=dc2").await;
    assert!(
        other.text().starts_with("No path to datacenter"),
        "{}",
        other.text()
    );
    server.stop(PATIENCE).await.unwrap();
}
