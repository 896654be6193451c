//! After any order of events, every Envoy holds the server's resources.

use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ROUTE};
use proptest::prelude::*;

use super::super::core::{Event, Role};
use super::mesh::Mesh;
use super::other_client::REQUESTS;
use super::server::route_of;

const CLUSTERS: [&str; 4] = ["c0", "c1", "c2", "c3"];
const LISTENERS: [&str; 3] = ["l0", "l1", "l2"];

/// One event; the number selects its target.
#[derive(Debug, Clone, Copy)]
enum Step {
    EnvoyToRelay(usize),
    RelayToEnvoy(usize),
    RelayToServer(usize),
    ServerToRelay,
    Change(usize, usize),
    LoseServerStream(usize),
    OpenServerStream,
    RestartEnvoy(usize),
    ReconnectEnvoy(usize),
    SecondEnvoy,
    Role(usize, bool),
    Forget,
    RestartRelay,
    OtherClientConnects,
    OtherClientAsks(usize, usize, usize),
    OtherClientAnswers(usize, bool),
    OtherClientLeaves(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..2_usize).prop_map(Step::EnvoyToRelay),
        12 => (0..2_usize).prop_map(Step::RelayToEnvoy),
        8 => (0..2_usize).prop_map(Step::RelayToServer),
        8 => Just(Step::ServerToRelay),
        5 => (0..9_usize, 0..4_usize).prop_map(|(what, which)| Step::Change(what, which)),
        1 => (0..2_usize).prop_map(Step::LoseServerStream),
        2 => Just(Step::OpenServerStream),
        1 => (0..2_usize).prop_map(Step::RestartEnvoy),
        1 => (0..2_usize).prop_map(Step::ReconnectEnvoy),
        1 => Just(Step::SecondEnvoy),
        2 => (0..2_usize, any::<bool>()).prop_map(|(which, decides)| Step::Role(which, decides)),
        1 => Just(Step::Forget),
        1 => Just(Step::RestartRelay),
        1 => Just(Step::OtherClientConnects),
        4 => (0..2_usize, 0..REQUESTS, 0..4_usize)
            .prop_map(|(place, what, which)| Step::OtherClientAsks(place, what, which)),
        3 => (0..2_usize, any::<bool>())
            .prop_map(|(place, accepts)| Step::OtherClientAnswers(place, accepts)),
        1 => (0..2_usize).prop_map(Step::OtherClientLeaves),
    ];
    proptest::collection::vec(step, 0..250)
}

fn change(mesh: &mut Mesh, what: usize, which: usize) {
    let cluster = CLUSTERS[which % CLUSTERS.len()];
    let listener = LISTENERS[which % LISTENERS.len()];
    mesh.change(|snapshot| match what {
        0 => snapshot.add_cluster(cluster),
        1 => snapshot.remove_cluster(cluster),
        2 => snapshot.add_listener(listener),
        3 => snapshot.remove_listener(listener),
        4 if snapshot.get(ENDPOINT).contains_key(cluster) => {
            snapshot.bump(ENDPOINT, cluster);
        }
        5 if snapshot.get(ROUTE).contains_key(&route_of(listener)) => {
            snapshot.bump(ROUTE, &route_of(listener));
        }
        6 => snapshot.bump_secret("leaf"),
        7 => snapshot.invalid(CLUSTER, cluster),
        8 if which > 1 => snapshot.invalid(ENDPOINT, cluster),
        8 => snapshot.invalid(LISTENER, listener),
        _ => {}
    });
}

fn apply(mesh: &mut Mesh, step: Step) {
    let envoys = mesh.envoys.len().max(1);
    match step {
        Step::EnvoyToRelay(which) => drop(mesh.envoy_to_relay(which % envoys)),
        Step::RelayToEnvoy(which) => drop(mesh.relay_to_envoy(which % envoys)),
        Step::RelayToServer(which) => drop(mesh.relay_to_server(which)),
        Step::ServerToRelay => drop(mesh.server_to_relay()),
        Step::Change(what, which) => change(mesh, what, which),
        Step::LoseServerStream(which) => mesh.lose_server_stream(which),
        Step::OpenServerStream if mesh.server_streams.len() < 2 => mesh.open_server_stream(),
        Step::OpenServerStream => mesh.lose_server_stream(0),
        Step::RestartEnvoy(which) => {
            mesh.stop_envoy(which % envoys);
            mesh.start_envoy();
        }
        Step::ReconnectEnvoy(which) => {
            mesh.disconnect_envoy(which % envoys);
            mesh.connect_envoy(which % envoys);
        }
        Step::SecondEnvoy if envoys < 2 => mesh.start_envoy(),
        Step::SecondEnvoy => mesh.stop_envoy(0),
        Step::Role(which, decides) => set_role(mesh, which % envoys, decides),
        Step::Forget => mesh.handle(Event::Forget),
        Step::RestartRelay => mesh.restart_relay(),
        Step::OtherClientConnects if mesh.other_clients.len() < 2 => mesh.other_client_connects(),
        Step::OtherClientConnects => mesh.other_client_leaves(0),
        Step::OtherClientAsks(place, what, which) => mesh.other_client_asks(place, what, which),
        Step::OtherClientAnswers(place, accepts) => mesh.other_client_answers(place, accepts),
        Step::OtherClientLeaves(place) => mesh.other_client_leaves(place),
    }
}

fn set_role(mesh: &mut Mesh, which: usize, decides: bool) {
    let stream = mesh.envoys.get(which).and_then(|envoy| envoy.stream_id);
    let role = match decides {
        true => Role::Decides,
        false => Role::Observes,
    };
    if let Some(id) = stream {
        mesh.handle(Event::Role(id, role));
    }
}

/// Ends all faults and delivers all messages.
fn calm_down(mesh: &mut Mesh) {
    if mesh.envoys.len() < 2 {
        // With the only one that observes, responses wait for another one.
        set_role(mesh, 0, true);
    }
    while !mesh.other_clients.is_empty() {
        mesh.other_client_leaves(0);
    }
    while mesh.server_streams.len() > 1 {
        mesh.lose_server_stream(0);
    }
    if mesh.server_streams.is_empty() {
        mesh.open_server_stream();
    }
    // A server like Consul's resends a rejected resource whenever something else changes.
    mesh.change(|snapshot| snapshot.heal());
    mesh.run();
    // After a rejection it sends nothing until something else changes.
    mesh.change(|snapshot| {
        snapshot.add_cluster("c0");
        snapshot.add_listener("l0");
    });
    mesh.run();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_order_of_events_converges(
        steps in steps(),
        resends_children in any::<bool>(),
        splits in any::<bool>(),
    ) {
        let mut mesh = Mesh::new();
        mesh.resends_children = resends_children;
        mesh.splits = splits;
        for step in steps {
            apply(&mut mesh, step);
        }
        calm_down(&mut mesh);
        mesh.assert_converged("in the end");
        prop_assert_eq!(mesh.core.missing(), None);

        mesh.handle(Event::Forget);
        mesh.run();
        mesh.assert_converged("after forgetting");
        mesh.assert_nothing_is_left();

        // Without any server, a new Envoy still gets everything.
        mesh.lose_server_stream(0);
        mesh.stop_envoy(0);
        mesh.start_envoy();
        mesh.run();
        mesh.assert_converged("without a server");
        prop_assert_eq!(mesh.core.missing(), None);
    }
}

/// Found by the test above: after a restart of the relay, Envoy had not acknowledged its routes when
/// the listener that uses them was sent, and waited for them forever.
#[test]
fn routes_that_envoy_has_not_acknowledged_are_sent_again_after_their_listener() {
    let mut mesh = Mesh::new();
    for step in [
        Step::SecondEnvoy,
        Step::OpenServerStream,
        Step::EnvoyToRelay(0),
        Step::RelayToServer(0),
        Step::OtherClientConnects,
        Step::ServerToRelay,
        Step::OtherClientAsks(0, 2, 0),
        Step::RestartEnvoy(0),
        Step::OtherClientConnects,
        Step::EnvoyToRelay(1),
        Step::EnvoyToRelay(1),
        Step::EnvoyToRelay(0),
        Step::RelayToServer(0),
        Step::ServerToRelay,
        Step::RestartEnvoy(0),
        Step::RelayToEnvoy(0),
        Step::RestartRelay,
        Step::EnvoyToRelay(0),
        Step::EnvoyToRelay(0),
        Step::Change(7, 0),
        Step::OpenServerStream,
        Step::RelayToServer(0),
    ] {
        apply(&mut mesh, step);
    }
    calm_down(&mut mesh);
    mesh.assert_converged("in the end");
}

/// Found by the test above: the stream that was to replace another one was lost before the server
/// responded on it. The older stream resumed with a subscription to all endpoints, so that the server
/// did not send those that Envoy then subscribed to by name.
#[test]
fn a_lost_renewal_is_repeated() {
    let mut mesh = Mesh::new();
    for step in [
        Step::RestartEnvoy(0),
        Step::OpenServerStream,
        Step::OtherClientConnects,
        Step::OtherClientConnects,
        Step::OtherClientAsks(1, 3, 0),
        Step::EnvoyToRelay(0),
        Step::OtherClientLeaves(1),
        Step::RelayToServer(0),
        Step::ServerToRelay,
        Step::OpenServerStream,
        Step::Forget,
        Step::LoseServerStream(1),
        Step::Change(0, 2),
        Step::EnvoyToRelay(0),
    ] {
        apply(&mut mesh, step);
    }
    calm_down(&mut mesh);
    mesh.assert_converged("in the end");
}
