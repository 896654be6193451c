//! Subscriptions by name, message by message.

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use legate_api::rpc;
use legate_api::type_url::{ENDPOINT, LISTENER};

use super::super::core::{Action, Core, EnvoyStreamId, Event, Role, ServerStreamId};
use super::super::types::ResourceType;

const SERVER: ServerStreamId = ServerStreamId(1);
const FIRST: EnvoyStreamId = EnvoyStreamId(1);
const SECOND: EnvoyStreamId = EnvoyStreamId(2);

fn subscribe(url: &str, names: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        node: Bytes::from_static(b"node"),
        type_url: url.to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn send(core: &mut Core, envoy: EnvoyStreamId, request: DeltaDiscoveryRequest) -> Vec<Action> {
    core.handle(Event::EnvoyRequest(envoy, Box::new(request)))
}

fn accept(core: &mut Core, envoy: EnvoyStreamId, response: &DeltaDiscoveryResponse) -> Vec<Action> {
    let answer = DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        ..DeltaDiscoveryRequest::default()
    };
    send(core, envoy, answer)
}

fn serve(core: &mut Core, names: &[&str], removed: &[&str]) -> Vec<Action> {
    let resources = names.iter().map(|name| Resource {
        name: (*name).to_owned(),
        version: "v1".to_owned(),
        resource: Bytes::from_static(b"body"),
        aliases: Vec::new(),
    });
    let response = DeltaDiscoveryResponse {
        type_url: ENDPOINT.to_owned(),
        nonce: "n1".to_owned(),
        resources: resources.collect(),
        removed_resources: removed.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaDiscoveryResponse::default()
    };
    core.handle(Event::ServerResponse(SERVER, Box::new(response)))
}

#[track_caller]
fn sent(actions: &[Action], envoy: EnvoyStreamId) -> DeltaDiscoveryResponse {
    let sent = actions.iter().find_map(|action| match action {
        Action::ToEnvoy(id, response) if *id == envoy => Some(response.clone()),
        _ => None,
    });
    sent.unwrap_or_else(|| panic!("nothing for {envoy:?} in {actions:?}"))
}

fn asked(actions: &[Action]) -> Vec<&DeltaDiscoveryRequest> {
    let asked = actions.iter().filter_map(|action| match action {
        Action::ToServer(_, request) => Some(request),
        _ => None,
    });
    asked.collect()
}

/// A server, and an Envoy that is subscribed to endpoints with these names.
fn subscribed(names: &[&str]) -> Core {
    let mut core = Core::new();
    core.handle(Event::ServerConnected(SERVER));
    core.handle(Event::EnvoyConnected(FIRST));
    let actions = send(&mut core, FIRST, subscribe(ENDPOINT, names));
    assert_eq!(asked(&actions)[0].resource_names_subscribe, names);
    core
}

#[test]
fn a_missing_name_is_reported_to_every_envoy() {
    let mut core = subscribed(&["a", "b"]);
    let actions = serve(&mut core, &["a"], &["b"]);
    let response = sent(&actions, FIRST);
    assert_eq!(
        (response.resources.len(), &response.removed_resources[..]),
        (1, &["b".to_owned()][..])
    );
    accept(&mut core, FIRST, &response);
    core.handle(Event::EnvoyConnected(SECOND));
    let actions = send(&mut core, SECOND, subscribe(ENDPOINT, &["a", "b"]));
    assert!(
        asked(&actions).is_empty(),
        "the server has answered that before"
    );
    let response = sent(&actions, SECOND);
    assert_eq!(response.resources.len(), 1);
    // Removals are sent after the upserts are acknowledged.
    let response = sent(&accept(&mut core, SECOND, &response), SECOND);
    assert_eq!(response.removed_resources, ["b"]);
}

#[test]
fn subscribing_again_resends_from_the_cache() {
    let mut core = subscribed(&["a"]);
    let actions = serve(&mut core, &["a"], &[]);
    let response = sent(&actions, FIRST);
    accept(&mut core, FIRST, &response);
    let actions = send(&mut core, FIRST, subscribe(ENDPOINT, &["a"]));
    assert_eq!(sent(&actions, FIRST).resources[0].name, "a");
    assert!(asked(&actions).is_empty());
}

#[test]
fn each_envoy_gets_its_subscriptions_and_the_rest_needs_no_answer() {
    let mut core = subscribed(&["a"]);
    core.handle(Event::EnvoyConnected(SECOND));
    let actions = send(&mut core, SECOND, subscribe(ENDPOINT, &["b"]));
    assert_eq!(asked(&actions)[0].resource_names_subscribe, ["b"]);
    // The newest subscriber decides.
    let actions = serve(&mut core, &["a", "b"], &[]);
    let response = sent(&actions, SECOND);
    assert_eq!(response.resources.len(), 1);
    let actions = accept(&mut core, SECOND, &response);
    assert_eq!(asked(&actions)[0].response_nonce, "n1");
    assert_eq!(sent(&actions, FIRST).resources[0].name, "a");
    // Resources without a subscriber are acknowledged and dropped.
    let actions = serve(&mut core, &["c"], &[]);
    assert_eq!(asked(&actions)[0].response_nonce, "n1");
    assert_eq!(core.cache[ResourceType::Endpoint].held(), (2, 8));
}

#[test]
fn names_of_a_disconnected_envoy_are_kept_until_the_next_has_subscribed() {
    let mut core = subscribed(&["a", "b"]);
    let actions = serve(&mut core, &["a", "b"], &[]);
    let response = sent(&actions, FIRST);
    accept(&mut core, FIRST, &response);
    core.handle(Event::EnvoyGone(FIRST));
    assert!(
        asked(&core.handle(Event::Forget)).is_empty(),
        "Envoy is coming back"
    );
    core.handle(Event::EnvoyConnected(SECOND));
    let actions = send(&mut core, SECOND, subscribe(ENDPOINT, &["a"]));
    assert_eq!(sent(&actions, SECOND).resources.len(), 1);
    let actions = core.handle(Event::Forget);
    assert_eq!(asked(&actions)[0].resource_names_unsubscribe, ["b"]);
    assert_eq!(core.cache[ResourceType::Endpoint].held().0, 1);
}

#[test]
fn a_first_request_that_only_cancels_the_wildcard_subscribes_to_nothing() {
    let mut core = Core::new();
    core.handle(Event::ServerConnected(SERVER));
    core.handle(Event::EnvoyConnected(FIRST));
    let request = DeltaDiscoveryRequest {
        resource_names_unsubscribe: vec!["*".to_owned()],
        ..subscribe(LISTENER, &[])
    };
    assert!(asked(&send(&mut core, FIRST, request)).is_empty());
    let actions = send(&mut core, FIRST, subscribe(LISTENER, &["*"]));
    let requests = asked(&actions);
    assert!(
        requests[0].resource_names_subscribe.is_empty(),
        "a wildcard in the form that every server supports"
    );
    assert_eq!(&requests[0].node[..], b"node");
}

#[test]
fn the_first_node_of_a_stream_is_kept() {
    let mut core = subscribed(&["db"]);
    // The same node may be encoded differently, because maps are unordered.
    let node = Bytes::from(b"the same node".to_vec());
    let request = DeltaDiscoveryRequest {
        node: node.clone(),
        ..subscribe(LISTENER, &["web"])
    };
    let actions = send(&mut core, FIRST, request);
    assert_eq!(
        asked(&actions)[0].node,
        Bytes::new(),
        "the server has it already"
    );
    assert!(node.is_unique());
}

#[test]
fn what_the_one_that_observes_does_not_answer_is_offered_to_the_next_envoy() {
    let mut core = subscribed(&["a"]);
    let mut response = sent(&serve(&mut core, &["a"], &[]), FIRST);
    let actions = core.handle(Event::Role(FIRST, Role::Observes));
    assert!(actions.is_empty(), "{actions:?}");
    let refused = |response: &DeltaDiscoveryResponse| DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        error_detail: Some(rpc::Status::default()),
        ..DeltaDiscoveryRequest::default()
    };
    let actions = send(&mut core, FIRST, refused(&response));
    assert!(actions.is_empty(), "no server learns of it: {actions:?}");
    core.handle(Event::EnvoyConnected(SECOND));
    let actions = send(&mut core, SECOND, subscribe(ENDPOINT, &["a"]));
    let actions = accept(&mut core, SECOND, &sent(&actions, SECOND));
    assert_eq!(asked(&actions)[0].response_nonce, "n1");
    response = sent(&actions, FIRST);
    assert_eq!(response.resources[0].name, "a", "it is compared again");
    assert!(send(&mut core, FIRST, refused(&response)).is_empty());
}

#[test]
fn the_one_that_decides_does_so_before_a_newer_envoy() {
    let mut core = subscribed(&["a"]);
    core.handle(Event::EnvoyConnected(SECOND));
    send(&mut core, SECOND, subscribe(ENDPOINT, &["a"]));
    core.handle(Event::Role(FIRST, Role::Decides));
    let response = sent(&serve(&mut core, &["a"], &[]), FIRST);
    let actions = accept(&mut core, FIRST, &response);
    assert_eq!(asked(&actions)[0].response_nonce, "n1");
    assert_eq!(sent(&actions, SECOND).resources[0].name, "a");
}
