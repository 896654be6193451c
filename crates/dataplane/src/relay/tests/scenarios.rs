//! Single rules, each with a sequence of events that demonstrates it.

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET};

use super::super::core::{Action, Core, EnvoyStreamId, Event};
use super::super::status::UpstreamStatus;
use super::mesh::{LIMITS, Mesh};
use super::other_client::{
    ALL_CLUSTERS, INVENTED_NAMES, INVENTED_TYPE, ONE_ENDPOINT, REQUESTS, TOO_MANY_NAMES,
};

fn running() -> Mesh {
    let mut mesh = Mesh::new();
    mesh.open_server_stream();
    mesh.run();
    mesh.assert_converged("at the start");
    mesh
}

#[test]
fn a_cold_start_configures_envoy() {
    let mesh = running();
    assert_eq!(mesh.core.missing(), None);
    let status = mesh.core.status(UpstreamStatus::default());
    let counts: Vec<(&str, usize)> = status
        .types
        .iter()
        .map(|t| (t.type_url.as_str(), t.resources))
        .collect();
    assert_eq!(
        counts,
        [
            (SECRET, 2),
            (CLUSTER, 2),
            (ENDPOINT, 2),
            (LISTENER, 1),
            (ROUTE, 1)
        ]
    );
}

#[test]
fn the_missing_part_is_reported() {
    let mut mesh = Mesh::new();
    let missing = |mesh: &Mesh| mesh.core.missing().expect("something is missing");
    assert_eq!(missing(&mesh), "Envoy has not asked for its configuration");
    mesh.run();
    assert_eq!(missing(&mesh), "no server has sent Envoy's clusters yet");
    mesh.open_server_stream();
    mesh.relay_to_server(0);
    mesh.server_to_relay();
    assert_eq!(missing(&mesh), "Envoy has not acknowledged its clusters");
}

#[test]
fn a_new_server_gets_the_versions_and_resends_nothing() {
    let mut mesh = running();
    mesh.lose_server_stream(0);
    mesh.open_server_stream();
    let versions: Vec<usize> = mesh.server_streams[0]
        .to_server
        .iter()
        .map(|request| request.initial_resource_versions.len())
        .collect();
    assert_eq!(versions, [2, 2, 2, 1, 1]);
    let nodes = mesh.server_streams[0]
        .to_server
        .iter()
        .filter(|request| !request.node.is_empty())
        .count();
    assert_eq!(nodes, 1);
    let received = mesh.envoys[0].received.len();
    mesh.run();
    assert_eq!(
        mesh.envoys[0].received.len(),
        received,
        "Envoy was sent something that it has"
    );
}

#[test]
fn a_rejection_reaches_the_server_and_the_last_good_version_stays() {
    let mut mesh = running();
    let good = mesh.snapshot.get(LISTENER)["l0"];
    mesh.change(|snapshot| snapshot.invalid(LISTENER, "l0"));
    mesh.server_to_relay();
    mesh.relay_to_envoy(0);
    mesh.envoy_to_relay(0);
    let nack = mesh.server_streams[0]
        .to_server
        .pop_back()
        .expect("a rejection for the server");
    assert_eq!(nack.error_detail.expect("a reason").message, "invalid");
    assert_eq!(mesh.rejected, [LISTENER]);
    // A restarted Envoy gets the accepted version while the server is down.
    mesh.lose_server_stream(0);
    mesh.stop_envoy(0);
    mesh.start_envoy();
    mesh.run();
    assert_eq!(
        mesh.envoys[0].held[LISTENER]["l0"],
        super::server::version(good)
    );
}

#[test]
fn an_answer_for_a_lost_server_is_not_sent_to_the_next() {
    let mut mesh = running();
    mesh.change(|snapshot| {
        snapshot.bump(ENDPOINT, "c0");
    });
    mesh.server_to_relay();
    mesh.lose_server_stream(0);
    mesh.open_server_stream();
    // Envoy has not answered yet, so endpoints are not requested from the new server yet.
    let asked = |mesh: &Mesh| {
        mesh.server_streams[0]
            .to_server
            .iter()
            .filter(|request| request.type_url == ENDPOINT)
            .count()
    };
    assert_eq!(asked(&mesh), 0);
    mesh.relay_to_envoy(0);
    mesh.envoy_to_relay(0);
    assert_eq!(asked(&mesh), 1);
    let request = mesh.server_streams[0].to_server.back().expect("a request");
    assert_eq!(request.response_nonce, "");
    let current = super::server::version(mesh.snapshot.get(ENDPOINT)["c0"]);
    assert_eq!(request.initial_resource_versions["c0"], current);
    mesh.run();
    mesh.assert_converged("after the change");
}

#[test]
fn a_response_is_kept_for_a_reconnecting_envoy() {
    let mut mesh = running();
    mesh.stop_envoy(0);
    mesh.change(|snapshot| {
        snapshot.add_cluster("c2");
        snapshot.bump(ENDPOINT, "c0");
    });
    mesh.run();
    assert!(
        mesh.core.wants_upstream(),
        "what waits for Envoy must not stop the rest"
    );
    mesh.start_envoy();
    mesh.run();
    mesh.assert_converged("after the restart");
}

#[test]
fn a_server_that_ignores_answers_is_not_read_endlessly() {
    let mut mesh = running();
    mesh.stop_envoy(0);
    let server = mesh.server_streams[0].id;
    let mut sent = 0;
    while mesh.core.wants_upstream() {
        sent += 1;
        assert!(sent < 10, "every response is taken in");
        let response = DeltaDiscoveryResponse {
            type_url: CLUSTER.to_owned(),
            nonce: sent.to_string(),
            removed_resources: vec![format!("c{}", sent - 1)],
            ..DeltaDiscoveryResponse::default()
        };
        mesh.handle(Event::ServerResponse(server, Box::new(response)));
    }
    mesh.start_envoy();
    for _ in 0..50 {
        mesh.envoy_to_relay(0);
        mesh.relay_to_envoy(0);
    }
    let answers = mesh.server_streams[0].to_server.iter();
    let nonces = answers.map(|one| one.response_nonce.clone());
    let nonces: Vec<String> = nonces.filter(|nonce| !nonce.is_empty()).collect();
    let expected: Vec<String> = (1..=sent).map(|number| number.to_string()).collect();
    assert_eq!(nonces, expected);
    assert!(mesh.core.wants_upstream());
}

#[test]
fn listeners_wait_for_clusters_and_endpoints_from_the_cache() {
    let mut mesh = running();
    mesh.lose_server_stream(0);
    mesh.start_envoy();
    mesh.run();
    let received = &mesh.envoys[1].received;
    let place = |url| {
        received
            .iter()
            .position(|other| other == url)
            .expect("type was sent")
    };
    assert!(place(CLUSTER) < place(LISTENER));
    mesh.assert_converged("second Envoy");
}

#[test]
fn names_without_subscribers_are_unsubscribed() {
    let mut mesh = running();
    mesh.start_envoy();
    mesh.run();
    mesh.change(|snapshot| snapshot.remove_cluster("c1"));
    let mut gone = Vec::new();
    for _ in 0..20 {
        mesh.server_to_relay();
        for place in 0..2 {
            mesh.relay_to_envoy(place);
            mesh.envoy_to_relay(place);
        }
        let requests = mesh.server_streams[0].to_server.iter();
        gone.extend(requests.flat_map(|request| request.resource_names_unsubscribe.clone()));
        mesh.relay_to_server(0);
        gone.dedup();
    }
    assert_eq!(gone, ["c1"]);
}

#[test]
fn every_envoy_gets_listeners_before_their_clusters_are_removed() {
    let mut mesh = running();
    mesh.start_envoy();
    mesh.run();
    let before: Vec<usize> = mesh
        .envoys
        .iter()
        .map(|envoy| envoy.received.len())
        .collect();
    mesh.change(|snapshot| {
        snapshot.remove_cluster("c1");
        snapshot.add_listener("l0");
    });
    mesh.run();
    for (envoy, before) in mesh.envoys.iter().zip(before) {
        let received = &envoy.received[before..];
        let place = |url| {
            received
                .iter()
                .position(|other| other == url)
                .expect("type was sent")
        };
        assert!(place(LISTENER) < place(CLUSTER), "{received:?}");
    }
    mesh.assert_converged("after the removal");
}

#[test]
fn a_new_envoy_gets_what_an_earlier_one_rejected() {
    let mut mesh = running();
    mesh.change(|snapshot| snapshot.invalid(CLUSTER, "c0"));
    mesh.run();
    assert!(mesh.envoys[0].rejections > 0);
    let before = mesh.server_streams[0].id;
    mesh.stop_envoy(0);
    mesh.start_envoy();
    // The new Envoy accepts it.
    mesh.snapshot.invalid.clear();
    mesh.run();
    assert_ne!(mesh.server_streams[0].id, before);
    mesh.assert_converged("after the restart");
}

#[test]
fn a_server_that_answers_takes_over_and_one_that_does_not_changes_nothing() {
    let mut mesh = running();
    let old = mesh.server_streams[0].id;
    mesh.open_server_stream();
    mesh.lose_server_stream(1);
    mesh.change(|snapshot| snapshot.add_cluster("c2"));
    mesh.run();
    mesh.assert_converged("with the old server");
    assert_eq!(mesh.server_streams[0].id, old);
    mesh.open_server_stream();
    mesh.run();
    assert_eq!(mesh.server_streams.len(), 1);
    assert_ne!(mesh.server_streams[0].id, old);
    mesh.assert_converged("with the new server");
}

#[test]
fn a_client_with_too_many_types_is_closed() {
    let mut core = Core::new();
    core.handle(Event::EnvoyConnected(EnvoyStreamId(1)));
    let mut closed = false;
    for number in 0..100 {
        let request = DeltaDiscoveryRequest {
            type_url: format!("type {number}"),
            ..DeltaDiscoveryRequest::default()
        };
        let actions = core.handle(Event::EnvoyRequest(EnvoyStreamId(1), Box::new(request)));
        closed |= actions
            .iter()
            .any(|action| matches!(action, Action::CloseEnvoy(..)));
    }
    assert!(closed);
}

#[test]
fn bodies_are_held_once() {
    let mut mesh = running();
    mesh.start_envoy();
    mesh.run();
    let status = mesh.core.status(UpstreamStatus::default());
    let bytes: usize = status.types.iter().map(|t| t.bytes).sum();
    let expected: usize = [CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET]
        .iter()
        .flat_map(|url| {
            let names = mesh.snapshot.get(url).into_iter();
            names.map(move |(name, number)| format!("{url} {name} {number}").len())
        })
        .sum();
    assert_eq!(bytes, expected);
}

#[test]
fn a_server_that_splits_its_state_removes_nothing_from_an_envoy() {
    let mut mesh = running();
    mesh.splits = true;
    mesh.restart_relay();
    mesh.open_server_stream();
    mesh.run();
    assert_eq!(mesh.envoys[0].removed, [""; 0]);
    mesh.assert_converged("after the restart");
}

#[test]
fn resources_removed_during_a_relay_restart_are_removed_from_envoy() {
    for splits in [false, true] {
        let mut mesh = running();
        mesh.splits = splits;
        mesh.lose_server_stream(0);
        mesh.change(|snapshot| snapshot.remove_cluster("c1"));
        mesh.restart_relay();
        mesh.open_server_stream();
        mesh.run();
        assert_eq!(mesh.envoys[0].removed, ["c1"]);
        mesh.assert_converged("after the restart");
    }
}

#[test]
fn an_envoy_that_reconnects_after_another_keeps_resources_not_sent_yet() {
    let mut mesh = running();
    mesh.splits = true;
    mesh.restart_relay();
    mesh.disconnect_envoy(0);
    // The stream of another client makes the server send its first part.
    mesh.other_client_connects();
    mesh.other_client_asks(0, ALL_CLUSTERS, 0);
    mesh.open_server_stream();
    mesh.relay_to_server(0);
    mesh.server_to_relay();
    mesh.other_client_answers(0, true);
    mesh.connect_envoy(0);
    mesh.other_client_leaves(0);
    mesh.run();
    assert_eq!(mesh.envoys[0].removed, [""; 0]);
    mesh.assert_converged("in the end");
}

#[test]
fn only_a_stream_that_exceeds_its_limits_is_closed() {
    let mut mesh = running();
    mesh.other_client_connects();
    mesh.other_client_asks(0, INVENTED_NAMES, 0);
    let names = |mesh: &Mesh| mesh.core.status(UpstreamStatus::default()).types[2].names;
    assert_eq!(names(&mesh), 2 + 4);
    mesh.other_client_asks(0, TOO_MANY_NAMES, 0);
    let [(_, refusal)] = &mesh.refused[..] else {
        panic!("{:?}", mesh.refused)
    };
    let limit = format!("may name at most {} resources", LIMITS.names);
    assert!(refusal.message().contains(&limit), "{refusal}");
    assert_eq!(names(&mesh), 2);
    let requests = mesh.server_streams[0].to_server.iter();
    let gone = requests.flat_map(|request| &request.resource_names_unsubscribe);
    assert_eq!(gone.count(), 4);
    mesh.run();
    mesh.assert_converged("after the refusal");
    mesh.assert_nothing_is_left();
}

#[test]
fn subscriptions_of_another_client_are_dropped() {
    let mut mesh = Mesh::new();
    mesh.disconnect_envoy(0);
    mesh.other_client_connects();
    for what in 0..REQUESTS - 1 {
        mesh.other_client_asks(0, what, 0);
    }
    mesh.open_server_stream();
    mesh.run();
    mesh.connect_envoy(0);
    mesh.other_client_leaves(0);
    mesh.run();
    mesh.assert_converged("without the other_client");
    assert_eq!(mesh.server_streams[0].server.node(), b"node");
    mesh.handle(Event::Forget);
    mesh.run();
    mesh.assert_nothing_is_left();
}

#[test]
fn resources_rejected_by_another_client_reach_envoy_when_it_disconnects() {
    let mut mesh = running();
    mesh.other_client_connects();
    mesh.other_client_asks(0, ALL_CLUSTERS, 0);
    mesh.other_client_answers(0, true);
    mesh.change(|snapshot| snapshot.add_cluster("c2"));
    mesh.run();
    mesh.other_client_answers(0, false);
    mesh.run();
    mesh.other_client_leaves(0);
    mesh.run();
    mesh.assert_converged("without the other_client");
}

#[test]
fn a_client_with_few_subscriptions_does_not_empty_the_cache() {
    let mut mesh = running();
    mesh.disconnect_envoy(0);
    mesh.other_client_connects();
    mesh.other_client_asks(0, ONE_ENDPOINT, 0);
    mesh.other_client_answers(0, true);
    mesh.handle(Event::Forget);
    mesh.lose_server_stream(0);
    mesh.stop_envoy(0);
    mesh.start_envoy();
    mesh.run();
    mesh.assert_converged("without a server");
}

#[test]
fn unused_types_make_room_for_new_ones() {
    let mut mesh = running();
    for number in 0..2 * LIMITS.all_types() {
        mesh.other_client_connects();
        mesh.other_client_asks(0, INVENTED_TYPE, number);
        assert!(mesh.refused.is_empty(), "type {number}");
        mesh.other_client_leaves(0);
        mesh.run();
    }
    mesh.assert_converged("in the end");
}
