//! Work that only one of several servers does. The servers run in this process, which observes the
//! leader.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, UNIX_EPOCH};

use legate_model::Secret;
use legate_model::acl::Token;
use legate_server::{
    AclConfig, DefaultPolicy, EtcdConfig, Parts, Server, ServerConfig, StoreConfig,
};
use legate_store::Command;
use legate_testkit::etcd::Cluster;
use legate_tests::mesh::MANAGEMENT;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::Client;

const STOP: Duration = Duration::from_secs(10);
/// A lease expires after three seconds. Its holder checks for expired tokens at once and every minute.
const PATIENCE: Duration = Duration::from_secs(30);

fn config(etcd: &Cluster) -> ServerConfig {
    ServerConfig {
        http: None,
        grpc: None,
        grpc_tls: None,
        dns: None,
        store: StoreConfig::Etcd(EtcdConfig::new(etcd.endpoints(), etcd.key_file())),
        acl: AclConfig {
            enabled: true,
            default_policy: DefaultPolicy::Deny,
            initial_management: Some(Secret::new(MANAGEMENT)),
            key_list_policy: false,
        },
        ..ServerConfig::default()
    }
}

async fn start(config: ServerConfig) -> Server {
    let server = Server::start(config, Parts::default()).await;
    server.expect("a server starts")
}

/// The index of the leading server, once there is one.
async fn leader(servers: &[Server]) -> usize {
    let end = Instant::now() + PATIENCE;
    loop {
        let leads = |server: &Server| server.store().leadership().is_held();
        assert!(servers.iter().filter(|server| leads(server)).count() <= 1);
        if let Some(leader) = servers.iter().position(leads) {
            return leader;
        }
        assert!(Instant::now() < end, "no server leads");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Writes an expired token.
async fn put_expired(server: &Server, name: &str) {
    let token = Token {
        accessor_id: name.to_owned(),
        secret_id: Secret::new(format!("the secret of {name}")),
        expiration_time: Some(UNIX_EPOCH),
        ..Token::default()
    };
    let put = Command::UpsertToken(Box::new(token));
    server.store().apply(put).await.expect("a token is written");
}

/// Waits until the token is gone in every server.
async fn removed(servers: &[Server], name: &str) {
    let end = Instant::now() + PATIENCE;
    for server in servers {
        let there = || {
            server
                .store()
                .state()
                .read()
                .token_by_accessor(name)
                .is_some()
        };
        while there() {
            assert!(Instant::now() < end, "{name} is still there");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn a_new_leader_removes_expired_tokens() {
    let etcd = Cluster::start(3).await;
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(start(config(&etcd)).await);
    }
    while servers.len() > 1 {
        let leader = leader(&servers).await;
        let name = format!("in the time of {} servers", servers.len());
        put_expired(&servers[0], &name).await;
        if servers.len() == 3 {
            // Like a killed process: its lease expires by itself.
            drop(servers.remove(leader));
        } else {
            let stopped = servers.remove(leader).stop(STOP).await;
            stopped.expect("the leader stops");
        }
        removed(&servers, &name).await;
    }
    for server in servers {
        server.stop(STOP).await.expect("the last server stops");
    }
}

/// Renews the session at a server. Returns whether it exists.
async fn renew(client: &mut Client, id: &str) -> bool {
    let path = format!("/v1/session/renew/{id}");
    client.put(&path, &Value::Null).await.is_ok()
}

#[tokio::test]
async fn sessions_are_renewed_at_servers_that_do_not_lead() {
    let etcd = Cluster::start(1).await;
    let mut servers = Vec::new();
    let ttl = Duration::from_secs(2);
    for n in 0..2 {
        let config = ServerConfig {
            http: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            acl: AclConfig::default(),
            node_name: format!("server-{n}"),
            session_ttl_min: ttl,
            ..config(&etcd)
        };
        servers.push(start(config).await);
    }
    let leader = leader(&servers).await;
    let [leader, follower] = [leader, 1 - leader].map(|n| &servers[n]);
    let address = follower.http_addr().expect("it serves HTTP");
    let mut client = Client::connect(address).await.expect("a connection");
    let session = json!({ "TTL": "2s", "NodeChecks": [] });
    let created = client.put("/v1/session/create", &session).await;
    let created: Value = serde_json::from_slice(&created.expect("a session")).expect("JSON");
    let id = created["ID"].as_str().expect("an id");
    let exists = || leader.store().state().read().session(id).is_some();
    // A session expires after twice its TTL without a renewal.
    let end = Instant::now() + 4 * ttl;
    while Instant::now() < end {
        assert!(renew(&mut client, id).await);
        sleep(ttl / 4).await;
    }
    assert!(exists(), "it was renewed");
    let end = Instant::now() + PATIENCE;
    while exists() {
        assert!(Instant::now() < end, "it does not expire");
        sleep(Duration::from_millis(50)).await;
    }
    assert!(!renew(&mut client, id).await);
    for server in servers {
        server.stop(STOP).await.expect("a server stops");
    }
}
