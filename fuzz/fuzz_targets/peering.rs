//! A peer that sends arbitrary messages: each response has one answer, everything stays bounded, and what is imported
//! can be exported again.
//!
//! Input: one byte for the end of the stream, then messages of the peer or resources in them; see [`next`].
#![no_main]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use legate_api::internal::peerstream::ReplicationMessage;
use legate_api::internal::peerstream::replication_message::{Payload as Content, Response};
use legate_model::{CheckServiceNode, Secret, TrustDomain};
use legate_peering::import::{Import, Rules, service};
use legate_peering::{
    Event, Exports, IMPORTS, Payload, RESPONSES_IN_FLIGHT, ResourceType, ServiceList, Session,
    export, opening,
};
use libfuzzer_sys::fuzz_target;
use prost::Message;
use prost_types::Any;

fuzz_target!(|input: &[u8]| {
    let Some((end, mut input)) = input.split_first() else {
        return;
    };
    let mut session = match end % 2 {
        0 => Session::acceptor(rules(), BTreeMap::new()),
        _ => {
            let open = opening::open("id", &Secret::new("secret"), Default::default());
            Session::dialer(open, rules(), BTreeMap::new())
        }
    };
    session.set_exports(exports().into());
    let mut waiting = VecDeque::new();
    let (mut received, mut answered, mut unanswered) = (0_usize, 0_usize, 0_usize);
    let mut now = Duration::ZERO;
    while let Some((step, message)) = next(&mut input) {
        now += Duration::from_secs(u64::from(step >> 4));
        session.tick(now);
        if let Some(message) = message
            && session.wants_messages()
        {
            match &message.payload {
                Some(Content::Response(_)) => received += 1,
                Some(Content::Request(_)) => unanswered = unanswered.saturating_sub(1),
                _ => {}
            }
            session.receive(message, now);
        } else if let Some(id) = waiting.pop_front() {
            let works = step & 8 == 0;
            session.imported(id, works.then_some(()).ok_or_else(|| "no space".to_owned()));
        }
        let mut ended = false;
        while let Some(event) = session.next_event() {
            match event {
                Event::Import(pending) => {
                    waiting.push_back(pending.id);
                    export_again(pending.import);
                }
                Event::Received(_) => answered += 1,
                Event::End(_) => ended = true,
                _ => {}
            }
        }
        assert!(waiting.len() <= IMPORTS, "too many imports wait");
        if ended {
            assert_eq!(session.next_message(), None, "a message after the end");
            return;
        }
        assert_eq!(
            answered + waiting.len(),
            received,
            "a response has no answer"
        );
        while let Some(message) = session.next_message() {
            if let Some(Content::Response(_)) = message.payload {
                unanswered += 1;
            }
        }
        assert!(unanswered <= RESPONSES_IN_FLIGHT, "too many responses");
        while session.next_event().is_some() {}
    }
});

fn rules() -> Rules {
    Rules {
        own: TrustDomain::of_cluster("own"),
        others: BTreeMap::from([(TrustDomain::of_cluster("third"), "third".to_owned())]),
    }
}

fn exports() -> Exports {
    let empty = Payload::service(&Default::default());
    Exports {
        list: Some(ServiceList::new(["web".to_owned()])),
        services: ["web", "web-sidecar-proxy", "other-sidecar-proxy"]
            .map(|id| (id.into(), empty.clone()))
            .into(),
        trust_bundle: Some(Payload::trust_bundle(&Default::default())),
        server_addresses: Some(Payload::server_addresses(vec!["a:1".to_owned()])),
    }
}

/// Takes a step and its message, if any, from the input: one byte for both, one for the length, and the body. The body
/// is that of a message or, more often, of a resource of one of the types, with a second length and its id.
fn next(input: &mut &[u8]) -> Option<(u8, Option<ReplicationMessage>)> {
    let (step, rest) = input.split_first()?;
    *input = rest;
    let message = match step % 8 {
        0 => None,
        1..=3 => ReplicationMessage::decode(bytes(input)?).ok(),
        kind => {
            let kind = ResourceType::ALL[usize::from(kind - 4)];
            let id = bytes(input)?;
            let any = Any {
                type_url: kind.url().to_owned(),
                value: bytes(input)?.to_vec(),
            };
            Some(ReplicationMessage {
                payload: Some(Content::Response(Response {
                    nonce: "00000001".to_owned(),
                    resource_url: any.type_url.clone(),
                    resource_id: String::from_utf8_lossy(id).into_owned(),
                    resource: Some(any.encode_to_vec().into()),
                    operation: 1,
                })),
            })
        }
    };
    Some((*step, message))
}

/// Bytes that follow their length in two bytes.
fn bytes<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = input.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (taken, rest) = rest.split_at(length);
    *input = rest;
    Some(taken)
}

/// An imported instance of the plain form is valid as that of this cluster's exports, and stays the same.
fn export_again(import: Import) {
    let Import::Service(imported) = import else {
        return;
    };
    let Some(message) = export::plain(&imported.name, &imported.instances) else {
        return;
    };
    // The id of the check in it is longer than that of the instance.
    let long = |one: &CheckServiceNode| one.service.id.len() > 490;
    if imported.instances.iter().any(long) {
        return;
    }
    let again = service(&imported.name, message.clone(), &rules()).expect("it was imported");
    assert_eq!(again.instances.len(), imported.instances.len());
    assert_eq!(export::plain(&again.name, &again.instances), Some(message));
}
