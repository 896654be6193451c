//! A terminating gateway represents the services whose certificates its token may have, and no others.

use legate_api::type_url::CLUSTER;
use legate_model::acl::{Policy, PolicyLink, Token};
use legate_model::{ConfigEntry, Secret, ServiceInstance, ServiceKind};
use legate_server::Server;
use legate_store::Command;
use serde_json::json;

use crate::acl::deny_by_default;
use crate::grpc::{STOP, register, start};
use crate::grpc_xds::{Ads, first_of, names};

const TOKEN: &str = "3c9f4f7e-0c43-4a39-9c9a-6d2b7b1c2f10";

/// Gives the token of the gateway these rights on services.
async fn permit(server: &Server, services: &[(&str, &str)]) {
    let rule =
        |(name, policy): &(&str, &str)| format!("service \"{name}\" {{ policy = \"{policy}\" }}\n");
    let policy = Policy {
        id: "p".to_owned(),
        name: "egress".to_owned(),
        rules: services.iter().map(rule).collect(),
        ..Policy::default()
    };
    let command = Command::UpsertPolicy(Box::new(policy));
    server.store().apply(command).await.unwrap();
}

async fn service(server: &Server, kind: ServiceKind, name: &str, port: u16) {
    let instance = ServiceInstance {
        kind,
        id: format!("{name}-1"),
        service: name.to_owned(),
        port,
        ..ServiceInstance::default()
    };
    register(server, instance).await;
}

/// A gateway `egress` for `db` and `mail`, and its token without rights on either.
async fn mesh(server: &Server) {
    service(server, ServiceKind::TerminatingGateway, "egress", 8_443).await;
    service(server, ServiceKind::Typical, "db", 5_432).await;
    service(server, ServiceKind::Typical, "mail", 25).await;
    let entry: ConfigEntry = serde_json::from_value(json!({
        "Kind": "terminating-gateway", "Name": "egress",
        "Services": [{"Name": "db"}, {"Name": "mail"}],
    }))
    .unwrap();
    let entry = Box::new(entry);
    let token = Token {
        accessor_id: "t".to_owned(),
        secret_id: Secret::new(TOKEN),
        policies: vec![PolicyLink {
            name: "egress".to_owned(),
            ..PolicyLink::default()
        }],
        ..Token::default()
    };
    permit(server, &[("egress", "write")]).await;
    for command in [
        Command::UpsertConfigEntry { entry, cas: None },
        Command::UpsertToken(Box::new(token)),
    ] {
        server.store().apply(command).await.unwrap();
    }
}

#[tokio::test]
async fn a_service_whose_certificate_is_refused_does_not_affect_the_others() {
    let server = start(deny_by_default).await;
    mesh(&server).await;
    let domain = server.ca().trust_domain();
    let cluster = |service: &str| format!("{service}.default.dc1.internal.{domain}");
    permit(
        &server,
        &[("egress", "write"), ("db", "write"), ("mail", "read")],
    )
    .await;
    let mut ads = Ads::open(&server, TOKEN).await.unwrap();
    ads.send(first_of("egress-1", CLUSTER)).await;
    assert_eq!(names(&ads.accept().await), [cluster("db")]);

    // Changes of the permitted service arrive, and with them what the token has got since.
    permit(
        &server,
        &[("egress", "write"), ("db", "write"), ("mail", "write")],
    )
    .await;
    service(&server, ServiceKind::Typical, "db", 5_433).await;
    let mut changed = Vec::new();
    while !changed.contains(&cluster("mail")) {
        let response = ads.accept().await;
        changed.extend(names(&response).into_iter().map(str::to_owned));
        assert_eq!(response.removed_resources, Vec::<String>::new());
    }
    permit(
        &server,
        &[("egress", "write"), ("db", "write"), ("mail", "read")],
    )
    .await;
    service(&server, ServiceKind::Typical, "db", 5_434).await;
    let mut removed = Vec::new();
    while removed.is_empty() {
        removed.extend(ads.accept().await.removed_resources);
    }
    assert_eq!(removed, [cluster("mail")]);
    server.stop(STOP).await.unwrap();
}
