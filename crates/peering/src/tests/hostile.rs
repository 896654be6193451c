//! A peer that sends anything: nothing panics, and each response has one answer.

use std::time::Duration;

use legate_api::internal::peering::PeeringTrustBundle;
use legate_api::internal::peerstream::replication_message::Response;
use proptest::prelude::*;
use prost::Message;
use prost_types::Any;

use super::*;
use crate::export::{mesh_id, plain};
use crate::import::{INSTANCES_OF_PEER, SERVICES};
use crate::{Payload, ResourceType, ServiceList};

fn response(kind: ResourceType, id: &str, payload: &Payload) -> ReplicationMessage {
    message(Content::Response(Response {
        nonce: "00000001".to_owned(),
        resource_url: kind.url().to_owned(),
        resource_id: id.to_owned(),
        resource: Some(payload.any.clone()),
        operation: 1,
    }))
}

fn service(name: &str, count: usize) -> ReplicationMessage {
    let instances: Vec<_> = (0..count)
        .map(|number| instance(name, number, CheckStatus::Passing))
        .collect();
    let payload = Payload::service(&plain(name, &instances).unwrap());
    response(ResourceType::Service, name, &payload)
}

/// One message of each kind.
fn messages() -> Vec<ReplicationMessage> {
    let mesh = Payload::service(&mesh_of("web", &[gateway(1)], "http"));
    let roots = Payload::trust_bundle(&PeeringTrustBundle {
        trust_domain: "exporter.consul".to_owned(),
        root_pems: vec![root()],
        ..PeeringTrustBundle::default()
    });
    let addresses = Payload::server_addresses(vec!["10.0.0.1:8503".to_owned()]);
    let list = ServiceList::new(["web".to_owned()]).payload;
    vec![
        message(Content::Open(opening_message())),
        message(Content::Request(request(ResourceType::Service.url()))),
        service("web", 2),
        response(ResourceType::Service, &mesh_id("web"), &mesh),
        response(ResourceType::ServiceList, "exported-service-list", &list),
        response(ResourceType::TrustBundle, "roots", &roots),
        response(ResourceType::ServerAddresses, "server-addrs", &addresses),
    ]
}

/// Passes a message on and stores what it brings. Returns the reason if it is refused.
fn receive(session: &mut Session, message: ReplicationMessage) -> Option<String> {
    let is_response = matches!(message.payload, Some(Content::Response(_)));
    let mut answers = 0;
    let mut refused = None;
    let mut ended = false;
    session.receive(message, Duration::ZERO);
    while let Some(event) = session.next_event() {
        match event {
            Event::Import(pending) => session.imported(pending.id, Ok(())),
            Event::Received(result) => {
                answers += 1;
                refused = result.err();
            }
            Event::End(_) => ended = true,
            _ => {}
        }
    }
    let requests = sent(session);
    if !ended {
        assert_eq!(answers, usize::from(is_response));
        assert_eq!(requests.len(), answers);
    }
    refused
}

fn started(dials: bool) -> Session {
    let mut session = match dials {
        true => dialer(),
        false => acceptor(),
    };
    sent(&mut session);
    session
}

proptest! {
    #[test]
    fn mutated_messages_never_panic(
        index in 0_usize..7,
        dials in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = messages()[index].encode_to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(message) = ReplicationMessage::decode(bytes.as_slice()) {
            receive(&mut started(dials), message);
        }
    }

    #[test]
    fn mutated_resources_never_panic(
        index in 2_usize..7,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let Some(Content::Response(mut response)) = messages()[index].payload.clone() else {
            panic!("a response");
        };
        let mut any = Any::decode(response.resource.unwrap()).unwrap();
        for (at, byte) in changes {
            let at = at.index(any.value.len());
            any.value[at] = byte;
        }
        response.resource = Some(any.encode_to_vec().into());
        receive(&mut started(true), message(Content::Response(response)));
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = ReplicationMessage::decode(bytes.as_slice()) {
            receive(&mut started(true), message);
        }
        for kind in ResourceType::ALL {
            let any = Any { type_url: kind.url().to_owned(), value: bytes.clone() };
            let response = Response {
                nonce: "1".to_owned(),
                resource_url: any.type_url.clone(),
                resource_id: "web".to_owned(),
                resource: Some(any.encode_to_vec().into()),
                operation: 1,
            };
            receive(&mut started(true), message(Content::Response(response)));
        }
    }
}

#[test]
fn valid_messages_are_accepted() {
    for message in messages() {
        assert_eq!(receive(&mut started(true), message), None);
    }
}

#[test]
fn a_peer_exports_no_more_than_the_most() {
    let stored = (0..2 * SERVICES - 1)
        .map(|i| (format!("s{i}"), 1))
        .collect();
    let mut session = Session::acceptor(rules(), stored);
    sent(&mut session);
    assert_eq!(receive(&mut session, service("last", 1)), None);
    let refused = receive(&mut session, service("more", 1)).unwrap();
    assert!(
        refused.contains("\"more\" is not imported: 10000 services"),
        "{refused}"
    );
    assert_eq!(receive(&mut session, service("S1", 2)), None, "it is there");
    assert_eq!(receive(&mut session, service("s2", 0)), None, "it leaves");
    assert_eq!(receive(&mut session, service("more", 1)), None);
    // The list makes room.
    assert!(receive(&mut session, service("again", 1)).is_some());
    let list = ServiceList::new(["more".to_owned()]).payload;
    let list = response(ResourceType::ServiceList, "exported-service-list", &list);
    assert_eq!(receive(&mut session, list), None);
    assert_eq!(receive(&mut session, service("again", 1)), None);

    let stored = BTreeMap::from([("big".to_owned(), INSTANCES_OF_PEER - 1)]);
    let mut session = Session::acceptor(rules(), stored);
    sent(&mut session);
    let refused = receive(&mut session, service("two", 2)).unwrap();
    assert!(refused.contains("200000 instances"), "{refused}");
    assert_eq!(receive(&mut session, service("one", 1)), None);
    assert_eq!(receive(&mut session, service("BIG", 2)), None);
}

#[test]
fn long_texts_of_a_peer_are_cut() {
    let mut session = started(true);
    let response = Response {
        nonce: "n".repeat(100_000),
        resource_url: "u".repeat(100_000),
        resource_id: "i".repeat(100_000),
        ..Response::default()
    };
    session.receive(message(Content::Response(response)), Duration::ZERO);
    let answer = session.next_message().unwrap();
    assert!(answer.encoded_len() < 4_096);
}
