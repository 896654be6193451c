//! The resources of an API gateway with many certificates: the cost of a changed one.

use std::sync::Arc;

use legate_proxycfg::gateways::api::{CertificateSource, GatewayCertificate};
use legate_proxycfg::{ApiGateway, Kind, Snapshot};
use legate_resources::Generator;
use legate_routes::{Certificate, Chain, ServerTls, Tls};
use serde_json::json;

use crate::describe::type_urls;
use crate::golden_cases::documents::Documents;

const CERTIFICATES: usize = 1_000;

fn own(snapshot: &mut Snapshot) -> &mut ApiGateway {
    match &mut snapshot.kind {
        Kind::ApiGateway(own) => own,
        other => panic!("{other:?}"),
    }
}

fn certificate(number: usize, content: &str) -> Arc<Option<GatewayCertificate>> {
    Arc::new(Some(GatewayCertificate {
        secret: format!("inline-certificate/{number}"),
        source: CertificateSource::Inline {
            certificate: content.to_owned(),
            key: format!("key of {content}").into(),
        },
        expires: None,
    }))
}

/// A gateway with a port for requests, which presents a certificate for each of many names.
fn gateway() -> Snapshot {
    let documents: Documents = serde_json::from_value(json!({
        "Gateway": {"Kind": "api-gateway", "Service": "edge"},
        "Entries": [
            {"Kind": "service-defaults", "Name": "api", "Protocol": "http"},
            {"Kind": "api-gateway", "Name": "edge", "Listeners": [
                {"Name": "one", "Port": 8443, "Protocol": "http"},
            ]},
            {"Kind": "http-route", "Name": "a", "Parents": [{"Name": "edge"}], "Rules": [
                {"Services": [{"Name": "api"}]},
            ]},
        ],
    }))
    .unwrap();
    let mut snapshot = documents.snapshot().unwrap();
    let served = Arc::make_mut(&mut own(&mut snapshot).served);
    let all = 0..CERTIFICATES;
    served.certificates = all.clone().map(|at| certificate(at, "first")).collect();
    Arc::make_mut(&mut served.listeners[0]).chains = all
        .map(|at| Chain {
            name: Some(format!("{at}")),
            server_names: vec![format!("{at}.example")],
            tls: Tls::Terminated(ServerTls {
                certificates: vec![Certificate::Secret(format!("inline-certificate/{at}"))],
                ..ServerTls::default()
            }),
            content: 0,
        })
        .collect();
    snapshot
}

#[test]
fn of_a_thousand_certificates_a_changed_one_is_one_secret() {
    let generator = Generator::new();
    let before = gateway();
    let first = generator.generate(&before, None);
    assert!(first.failures().is_empty(), "{:?}", first.failures());
    let [.., secrets] = type_urls();
    let computed = generator.work().computed;

    let mut after = before.clone();
    let served = Arc::make_mut(&mut own(&mut after).served);
    served.certificates[500] = certificate(500, "second");
    let second = generator.generate(&after, Some((&before, &first)));
    assert_eq!(generator.work().computed - computed, 1);
    let mut changed = Vec::new();
    for url in type_urls() {
        let (first, second) = (first.get(&url), second.get(&url));
        assert_eq!(first.len(), second.len(), "{url}");
        for (name, now) in second {
            if !Arc::ptr_eq(now, first.get(name).unwrap()) {
                changed.push((url.clone(), name.to_string()));
            }
        }
    }
    assert_eq!(changed, [(secrets, "inline-certificate/500".to_owned())]);
}
