//! The rules of an open stream, one by one.

use std::time::Duration;

use legate_api::internal::peerstream::ExportedServiceList;
use legate_api::internal::peerstream::replication_message::{Heartbeat, Response, Terminated};
use legate_api::internal::status::Status as Error;
use prost::Message;
use prost_types::Any;

use super::*;
use crate::export::mesh_id;
use crate::import::Import;
use crate::{
    End, Exports, IMPORTS, Payload, RESPONSES_IN_FLIGHT, Refusal, ResourceType, ServiceList, code,
};

const START: Duration = Duration::ZERO;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn plain_payload(service: &str, number: usize) -> Payload {
    let instances = [instance(service, number, CheckStatus::Passing)];
    Payload::service(&crate::export::plain(service, &instances).unwrap())
}

fn mesh_payload(service: &str) -> Payload {
    Payload::service(&mesh_of(service, &[gateway(1)], "tcp"))
}

/// Exports of services with one instance, and one gateway.
fn exports(names: &[&str]) -> Exports {
    let owned = names.iter().map(|name| (*name).to_owned());
    let services = names.iter().flat_map(|name| {
        let plain = (Arc::from(*name), plain_payload(name, 1));
        [plain, (mesh_id(name).into(), mesh_payload(name))]
    });
    Exports {
        list: Some(ServiceList::new(owned)),
        services: services.collect(),
        ..Exports::default()
    }
}

fn subscribe(session: &mut Session, kinds: &[ResourceType]) {
    for kind in kinds {
        session.receive(message(Content::Request(request(kind.url()))), START);
    }
}

/// An acceptor whose first messages were sent, with all subscriptions of a peer.
fn subscribed() -> Session {
    let mut session = acceptor();
    sent(&mut session);
    subscribe(&mut session, &ResourceType::ALL);
    events(&mut session);
    session
}

fn answer(response: &Response, error: Option<&str>) -> ReplicationMessage {
    message(Content::Request(Request {
        response_nonce: response.nonce.clone(),
        error: error.map(|text| Error {
            code: 13,
            message: text.to_owned(),
            details: Vec::new(),
        }),
        ..request(&response.resource_url)
    }))
}

fn responses(session: &mut Session) -> Vec<Response> {
    let all = sent(session).into_iter();
    all.map(|content| match content {
        Content::Response(response) => response,
        other => panic!("not a response: {other:?}"),
    })
    .collect()
}

fn ids(responses: &[Response]) -> Vec<&str> {
    responses
        .iter()
        .map(|one| one.resource_id.as_str())
        .collect()
}

/// A valid response with a list of services.
fn list_response() -> Response {
    let list = ExportedServiceList {
        services: vec!["web".to_owned()],
    };
    let any = Any {
        type_url: ResourceType::ServiceList.url().to_owned(),
        value: list.encode_to_vec(),
    };
    Response {
        nonce: "00000001".to_owned(),
        resource_url: any.type_url.clone(),
        resource_id: "exported-service-list".to_owned(),
        resource: Some(any.encode_to_vec().into()),
        operation: 1,
    }
}

#[test]
fn each_end_subscribes_to_what_it_takes() {
    let urls = |session: &mut Session, id: &str| -> Vec<String> {
        let requests = sent(session)
            .into_iter()
            .filter_map(|content| match content {
                Content::Request(request) => Some(request),
                _ => None,
            });
        requests
            .map(|sent| {
                let expected = Request {
                    peer_id: id.to_owned(),
                    ..request(&sent.resource_url)
                };
                assert_eq!(sent, expected);
                sent.resource_url
            })
            .collect()
    };
    let all = ResourceType::ALL.map(|kind| kind.url().to_owned());
    assert_eq!(urls(&mut acceptor(), ""), all[..3]);
    let mut dialer = dialer();
    let open = dialer.next_message().unwrap();
    assert_eq!(open, message(Content::Open(opening_message())));
    assert_eq!(urls(&mut dialer, "peering-id"), all);
}

#[test]
fn resources_wait_for_subscriptions() {
    let mut session = acceptor();
    sent(&mut session);
    session.set_exports(Arc::new(Exports {
        trust_bundle: Some(Payload::trust_bundle(&Default::default())),
        server_addresses: Some(Payload::server_addresses(vec!["a:1".to_owned()])),
        ..exports(&["web"])
    }));
    subscribe(&mut session, &[ResourceType::ServiceList]);
    assert_eq!(responses(&mut session), []);
    subscribe(&mut session, &[ResourceType::Service]);
    let services = responses(&mut session);
    assert_eq!(
        ids(&services),
        ["web", "web-sidecar-proxy", "exported-service-list"]
    );
    assert_eq!(services[0].nonce, "00000001");
    assert_eq!(services[0].operation, 1);
    subscribe(&mut session, &[ResourceType::ServerAddresses]);
    assert_eq!(ids(&responses(&mut session)), ["server-addrs"]);
    subscribe(&mut session, &[ResourceType::TrustBundle]);
    let roots = responses(&mut session);
    assert_eq!(
        (ids(&roots), roots[0].nonce.as_str()),
        (vec!["roots"], "00000005")
    );
    // Again: an ACK, and nothing is sent again.
    subscribe(&mut session, &ResourceType::ALL);
    assert_eq!(responses(&mut session), []);
    assert!(events(&mut session).contains(&Event::Acked));
}

#[test]
fn wrong_subscriptions_end_the_stream() {
    let url = ResourceType::Service.url();
    let with_nonce = Request {
        response_nonce: "1".to_owned(),
        ..request(url)
    };
    let with_error = Request {
        error: Some(Error::default()),
        ..request(url)
    };
    let of_other = Request {
        peer_id: "other".to_owned(),
        ..request(url)
    };
    for (mut session, request, text) in [
        (
            acceptor(),
            request("type.googleapis.com/x"),
            "subscription request to unknown resource URL: type.googleapis.com/x",
        ),
        (
            acceptor(),
            with_nonce,
            "initial subscription requests for a resource type must not contain a nonce",
        ),
        (
            acceptor(),
            with_error,
            "initial subscription request for a resource type must not contain an error",
        ),
        (
            dialer(),
            of_other,
            "initial subscription requests for a resource type must have consistent PeerID values: got=\"other\" expected=\"peering-id\"",
        ),
    ] {
        session.receive(message(Content::Request(request)), START);
        let refusal = Refusal {
            code: code::INVALID_ARGUMENT,
            message: text.to_owned(),
        };
        assert_eq!(events(&mut session), [Event::End(End::Failed(refusal))]);
        assert_eq!(session.next_message(), None);
    }
}

#[test]
fn changes_are_sent_and_what_is_equal_is_not() {
    let mut session = subscribed();
    session.set_exports(Arc::new(exports(&["a", "b"])));
    assert_eq!(
        ids(&responses(&mut session)),
        [
            "a",
            "a-sidecar-proxy",
            "b",
            "b-sidecar-proxy",
            "exported-service-list"
        ]
    );
    session.set_exports(Arc::new(exports(&["a", "b"])));
    assert_eq!(responses(&mut session), []);
    let mut changed = exports(&["a", "b"]);
    changed.services.insert("b".into(), plain_payload("b", 2));
    session.set_exports(Arc::new(changed));
    assert_eq!(ids(&responses(&mut session)), ["b"]);
    // Nothing is sent for the plain form of a service that leaves. One that returns is sent again.
    session.set_exports(Arc::new(exports(&["a"])));
    let left = ["b-sidecar-proxy", "exported-service-list"];
    assert_eq!(ids(&responses(&mut session)), left);
    session.set_exports(Arc::new(exports(&["a", "b"])));
    assert_eq!(
        ids(&responses(&mut session)),
        ["b", "b-sidecar-proxy", "exported-service-list"]
    );
}

#[test]
fn a_mesh_form_that_leaves_is_emptied() {
    let mut session = subscribed();
    session.set_exports(Arc::new(exports(&["web"])));
    responses(&mut session);
    let id = mesh_id("web");
    let mut without = exports(&["web"]);
    without.services.remove(id.as_str());
    session.set_exports(Arc::new(without.clone()));
    let left = responses(&mut session);
    assert_eq!(ids(&left), [&id]);
    let any = Any::decode(left[0].resource.clone().unwrap()).unwrap();
    assert_eq!(any.value, b"", "no instances");
    assert_eq!(responses(&mut session), []);
    // After a new stream the peer may have it, too.
    let mut session = subscribed();
    session.set_exports(Arc::new(without));
    let again = responses(&mut session);
    assert_eq!(ids(&again), ["web", &id, "exported-service-list"]);
    assert_eq!(again[1].resource, left[0].resource);
}

#[test]
fn a_mesh_form_without_a_listed_service_follows_the_list() {
    let mut session = subscribed();
    let only = mesh_id("router");
    let mut exported = exports(&["web"]);
    exported
        .services
        .insert(only.as_str().into(), mesh_payload("router"));
    session.set_exports(Arc::new(exported.clone()));
    let first = responses(&mut session);
    assert_eq!(
        ids(&first),
        ["web", "web-sidecar-proxy", "exported-service-list", &only]
    );
    // The peer removes it with each list.
    exported.list = Some(ServiceList::new(["web".to_owned(), "api".to_owned()]));
    session.set_exports(Arc::new(exported));
    assert_eq!(
        ids(&responses(&mut session)),
        ["api-sidecar-proxy", "exported-service-list", &only]
    );
}

#[test]
fn a_slow_peer_gets_the_latest_state_only() {
    let mut session = subscribed();
    let names: Vec<String> = (0..200).map(|i| format!("s{i:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    session.set_exports(Arc::new(exports(&names)));
    let first = responses(&mut session);
    assert_eq!(first.len(), RESPONSES_IN_FLIGHT);
    for number in 2..10 {
        let mut changed = exports(&names);
        for name in &names {
            changed
                .services
                .insert((*name).into(), plain_payload(name, number));
        }
        session.set_exports(Arc::new(changed));
        assert_eq!(session.next_message(), None);
    }
    let mut answered = first;
    let mut total = 0;
    while !answered.is_empty() {
        for response in &answered {
            session.receive(answer(response, None), START);
        }
        answered = responses(&mut session);
        total += answered.len();
    }
    assert_eq!(
        total,
        400 - 128 + 1 + 64,
        "the rest, the list, and each changed service once"
    );
}

#[test]
fn what_is_refused_is_sent_again_later() {
    let mut session = subscribed();
    session.set_exports(Arc::new(exports(&["web"])));
    let first = responses(&mut session);
    session.receive(answer(&first[0], Some("no space")), seconds(5));
    let nacked = Event::Nacked("client peer was unable to apply resource: no space".to_owned());
    assert!(events(&mut session).contains(&nacked));
    session.tick(seconds(64));
    assert!(
        !sent(&mut session)
            .iter()
            .any(|one| matches!(one, Content::Response(_)))
    );
    assert_eq!(session.next_tick(), seconds(65));
    session.tick(seconds(65));
    assert_eq!(ids(&responses(&mut session)), ["web"]);
    // A change is sent at once.
    session.receive(answer(&first[2], Some("no space")), seconds(65));
    session.set_exports(Arc::new(exports(&["web", "api"])));
    assert_eq!(
        ids(&responses(&mut session)),
        ["api", "api-sidecar-proxy", "exported-service-list"]
    );
}

#[test]
fn imports_are_answered_when_they_are_stored() {
    let mut session = acceptor();
    sent(&mut session);
    session.receive(message(Content::Response(list_response())), START);
    let mut events = events(&mut session);
    let Some(Event::Import(pending)) = events.pop() else {
        panic!("an import");
    };
    assert_eq!(pending.import, Import::ServiceList(vec!["web".to_owned()]));
    assert_eq!(session.next_message(), None);
    session.imported(pending.id, Ok(()));
    assert_eq!(
        super::events(&mut session),
        [
            Event::Imported(vec!["web".to_owned()]),
            Event::Received(Ok(()))
        ]
    );
    let ack = answer(&list_response(), None);
    assert_eq!(session.next_message(), Some(ack));
    // A result counts once.
    session.imported(pending.id, Ok(()));
    assert_eq!(session.next_message(), None);

    session.receive(message(Content::Response(list_response())), START);
    let Some(Event::Import(pending)) = session.next_event() else {
        panic!("an import");
    };
    session.imported(pending.id, Err("no space".to_owned()));
    let text = format!(
        "upsert error, ResourceURL: {:?}, ResourceID: \"exported-service-list\": no space",
        ResourceType::ServiceList.url()
    );
    assert_eq!(
        super::events(&mut session),
        [Event::Received(Err(text.clone()))]
    );
    assert_eq!(
        session.next_message(),
        Some(answer(&list_response(), Some(&text)))
    );
}

#[test]
fn each_wrong_response_gets_its_nack() {
    let url = ResourceType::ServiceList.url();
    let with = |change: fn(&mut Response)| {
        let mut response = list_response();
        change(&mut response);
        response
    };
    for (response, code, text) in [
        (
            with(|one| one.resource_url = "x".to_owned()),
            3,
            "received response for unknown resource type \"x\"".to_owned(),
        ),
        (
            with(|one| one.resource_url = ResourceType::ServerAddresses.url().to_owned()),
            3,
            format!(
                "received response for unknown resource type {:?}",
                ResourceType::ServerAddresses.url()
            ),
        ),
        (
            with(|one| one.nonce.clear()),
            3,
            format!("received response without a nonce for: {url}:exported-service-list"),
        ),
        (
            with(|one| one.resource = None),
            3,
            "received upsert response with no content".to_owned(),
        ),
        (
            with(|one| one.operation = 0),
            3,
            "unsupported operation: \"OPERATION_UNSPECIFIED\"".to_owned(),
        ),
        (
            with(|one| one.operation = 9),
            3,
            "unsupported operation: 9".to_owned(),
        ),
        (
            with(|one| one.resource_url = ResourceType::Service.url().to_owned()),
            13,
            format!(
                "upsert error, ResourceURL: {service:?}, ResourceID: \"exported-service-list\": mismatched resourceURL {service:?} and Any typeUrl {url:?}",
                service = ResourceType::Service.url()
            ),
        ),
    ] {
        let mut session = acceptor();
        sent(&mut session);
        session.receive(message(Content::Response(response.clone())), START);
        assert_eq!(events(&mut session), [Event::Received(Err(text.clone()))]);
        let Some(Content::Request(nack)) = session.next_message().unwrap().payload else {
            panic!("a NACK");
        };
        let error = nack.error.unwrap();
        assert_eq!((error.code, error.message), (code, text));
        assert_eq!(nack.response_nonce, response.nonce);
        assert_eq!(nack.resource_url, response.resource_url);
    }
}

#[test]
fn reading_stops_while_imports_wait() {
    let mut session = acceptor();
    for _ in 0..IMPORTS {
        assert!(session.wants_messages());
        session.receive(message(Content::Response(list_response())), START);
    }
    assert!(!session.wants_messages());
    // The peer's heartbeats are not read either.
    session.tick(seconds(1_000));
    let waiting = events(&mut session);
    assert_eq!(waiting.len(), IMPORTS);
    let Event::Import(pending) = &waiting[0] else {
        panic!("an import");
    };
    session.imported(pending.id, Ok(()));
    assert!(session.wants_messages());
    session.tick(seconds(1_119));
    assert!(
        !events(&mut session)
            .iter()
            .any(|event| matches!(event, Event::End(_)))
    );
}

#[test]
fn heartbeats_are_sent_and_expected() {
    let mut session = subscribed();
    let beat = || message(Content::Heartbeat(Heartbeat {}));
    assert_eq!(session.next_tick(), seconds(15));
    session.tick(seconds(14));
    assert_eq!(session.next_message(), None);
    session.tick(seconds(15));
    assert_eq!(sent(&mut session), [Content::Heartbeat(Heartbeat {})]);
    session.receive(beat(), seconds(20));
    assert_eq!(events(&mut session), [Event::Heartbeat]);
    // Other messages do not count, and unsent heartbeats do not pile up.
    for now in 21..140 {
        subscribe(&mut session, &ResourceType::ALL);
        session.tick(seconds(now));
    }
    assert!(
        events(&mut session)
            .iter()
            .all(|event| *event == Event::Acked)
    );
    assert_eq!(sent(&mut session).len(), 1);
    assert_eq!(session.next_tick(), seconds(140));
    session.tick(seconds(140));
    let events = events(&mut session);
    let [Event::End(End::Failed(refusal))] = events.as_slice() else {
        panic!("the end");
    };
    assert_eq!(
        (refusal.code, refusal.message.as_str()),
        (2, "heartbeat timeout")
    );
}

#[test]
fn a_deletion_is_sent_and_received() {
    let mut deleted = subscribed();
    let mut peer = dialer();
    deleted.set_exports(Arc::new(exports(&["web"])));
    deleted.delete();
    assert_eq!(events(&mut deleted), []);
    let last = deleted.next_message().unwrap();
    assert_eq!(last, message(Content::Terminated(Terminated {})));
    assert_eq!(events(&mut deleted), [Event::End(End::Deleted)]);
    assert_eq!(deleted.next_message(), None);
    peer.receive(last, START);
    assert_eq!(events(&mut peer), [Event::End(End::Terminated)]);
    assert_eq!(peer.next_message(), None);
    // Nothing happens after the end.
    peer.receive(message(Content::Response(list_response())), START);
    peer.lost(None);
    peer.delete();
    peer.tick(seconds(1_000));
    assert_eq!((events(&mut peer), peer.next_message()), (vec![], None));
}

#[test]
fn a_lost_stream_ends_with_its_cause() {
    for (error, text) in [
        (None, "stream ended unexpectedly"),
        (
            Some("reset"),
            "unexpected error receiving from the stream: reset",
        ),
    ] {
        let mut session = subscribed();
        session.lost(error);
        let events = events(&mut session);
        let [
            Event::Received(Err(received)),
            Event::End(End::Failed(refusal)),
        ] = events.as_slice()
        else {
            panic!("an error and the end");
        };
        assert_eq!((received.as_str(), refusal.message.as_str()), (text, text));
    }
}
