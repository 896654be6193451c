//! One test for each rule of the protocol.

use std::collections::HashMap;
use std::sync::Arc;

use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::rpc::Status;
use legate_resources::{EncodedResource, ResourceSet};

use super::{MAX_NAME_BYTES, MAX_NAMES, Received, Session};
use crate::ResourceType::{self, Cluster, Endpoint, Listener, Route, Secret};

/// A resource with only a name and a version, and the names of its children, which is all that a
/// session uses.
pub(super) fn resource(name: &str, version: &str, children: &[&str]) -> EncodedResource {
    EncodedResource {
        name: name.into(),
        version: version.into(),
        body: format!("{name}@{version}").into(),
        children: children.iter().map(|child| Arc::from(*child)).collect(),
    }
}

pub(super) fn set(
    resources: impl IntoIterator<Item = (ResourceType, EncodedResource)>,
) -> ResourceSet {
    ResourceSet::from_resources(
        resources
            .into_iter()
            .map(|(kind, resource)| (kind.url(), resource)),
    )
}

pub(super) fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

pub(super) fn request(kind: ResourceType) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: kind.url().to_owned(),
        ..Default::default()
    }
}

fn subscribe(kind: ResourceType, wanted: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        resource_names_subscribe: names(wanted),
        ..request(kind)
    }
}

fn unsubscribe(kind: ResourceType, unwanted: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        resource_names_unsubscribe: names(unwanted),
        ..request(kind)
    }
}

fn resume(kind: ResourceType, wanted: &[&str], held: &[(&str, &str)]) -> DeltaDiscoveryRequest {
    let versions: HashMap<String, String> = held
        .iter()
        .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()))
        .collect();
    DeltaDiscoveryRequest {
        initial_resource_versions: versions,
        ..subscribe(kind, wanted)
    }
}

pub(super) fn ack(response: &DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        ..Default::default()
    }
}

pub(super) fn nack(response: &DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        error_detail: Some(Status {
            code: 13,
            message: "no such thing".to_owned(),
            details: Vec::new(),
        }),
        ..ack(response)
    }
}

/// A response in one line: its type, `name@version` for each upsert, `-name` for each removal.
fn line(response: &DeltaDiscoveryResponse) -> String {
    let kind = ResourceType::from_url(&response.type_url).unwrap();
    let added = response
        .resources
        .iter()
        .map(|one| format!(" {}@{}", one.name, one.version));
    let removed = response
        .removed_resources
        .iter()
        .map(|one| format!(" -{one}"));
    let parts: String = added.chain(removed).collect();
    format!("{kind}:{parts}")
}

struct Stream {
    session: Session,
    /// Responses that are not answered yet.
    open: Vec<DeltaDiscoveryResponse>,
}

impl Stream {
    fn new(resources: ResourceSet) -> Self {
        let mut session = Session::new();
        session.on_snapshot(resources);
        Self {
            session,
            open: Vec::new(),
        }
    }

    fn poll(&mut self) -> Vec<String> {
        let responses = self.session.poll();
        let lines = responses.iter().map(line).collect();
        self.open.extend(responses);
        lines
    }

    fn request(&mut self, request: DeltaDiscoveryRequest) -> Vec<String> {
        assert_eq!(self.session.on_request(request), Received::Noted);
        self.poll()
    }

    fn snapshot(&mut self, resources: ResourceSet) -> Vec<String> {
        self.session.on_snapshot(resources);
        self.poll()
    }

    /// Accepts all responses until there are no more.
    fn accept(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while !self.open.is_empty() {
            let response = self.open.remove(0);
            lines.extend(self.request(ack(&response)));
        }
        lines
    }

    /// Rejects the oldest unanswered response.
    fn refuse(&mut self) -> (Received, Vec<String>) {
        let response = self.open.remove(0);
        let received = self.session.on_request(nack(&response));
        (received, self.poll())
    }
}

const NOTHING: [&str; 0] = [];

/// One cluster with endpoints, one listener with a route, one secret; all with the same version.
fn mesh(version: &str) -> ResourceSet {
    set([
        (Secret, resource("leaf", version, &[])),
        (Cluster, resource("api", version, &["api"])),
        (Endpoint, resource("api", version, &[])),
        (Listener, resource("out", version, &["r"])),
        (Route, resource("r", version, &[])),
    ])
}

/// A client that has all resources of `mesh(version)`.
fn connected(version: &str) -> Stream {
    let mut stream = Stream::new(mesh(version));
    stream.request(request(Cluster));
    stream.request(subscribe(Endpoint, &["api"]));
    stream.request(subscribe(Secret, &["leaf"]));
    stream.request(request(Listener));
    stream.request(subscribe(Route, &["r"]));
    stream.accept();
    assert_eq!(stream.poll(), NOTHING);
    stream
}

#[test]
fn nothing_is_sent_before_a_snapshot_or_a_subscription() {
    let mut session = Session::new();
    assert_eq!(session.poll(), []);
    session.on_request(request(Cluster));
    assert_eq!(session.poll(), []);
    session.on_snapshot(mesh("1"));
    let nonces: Vec<String> = session.poll().into_iter().map(|one| one.nonce).collect();
    assert_eq!(nonces, ["00000001"]);

    let mut silent = Stream::new(mesh("1"));
    assert_eq!(silent.poll(), NOTHING);
}

#[test]
fn a_request_for_another_type_changes_nothing() {
    let mut session = Session::new();
    session.on_snapshot(mesh("1"));
    let runtime = DeltaDiscoveryRequest {
        type_url: "type.googleapis.com/envoy.service.runtime.v3.Runtime".to_owned(),
        ..Default::default()
    };
    assert_eq!(session.on_request(runtime), Received::UnknownType);
    assert_eq!(session.poll(), []);
}

#[test]
fn a_wildcard_delivers_everything_and_names_deliver_those_resources() {
    let both = || {
        set([
            (Cluster, resource("api", "1", &[])),
            (Cluster, resource("web", "1", &[])),
        ])
    };
    let mut all = Stream::new(both());
    assert_eq!(all.request(request(Cluster)), ["cluster: api@1 web@1"]);
    let mut explicit = Stream::new(both());
    assert_eq!(
        explicit.request(subscribe(Cluster, &["*"])),
        ["cluster: api@1 web@1"]
    );
    let mut named = Stream::new(both());
    assert_eq!(
        named.request(subscribe(Cluster, &["web"])),
        ["cluster: web@1"]
    );
}

#[test]
fn an_empty_first_response_lets_the_client_continue() {
    let mut stream = Stream::new(set([]));
    assert_eq!(stream.request(request(Cluster)), ["cluster:"]);
    assert_eq!(stream.accept(), NOTHING);
    assert_eq!(stream.request(request(Listener)), ["listener:"]);
    assert_eq!(stream.accept(), NOTHING);
    assert_eq!(stream.snapshot(set([])), NOTHING);
}

#[test]
fn referenced_types_are_updated_first() {
    let mut stream = connected("1");
    assert_eq!(
        stream.snapshot(mesh("2")),
        ["secret: leaf@2", "cluster: api@2", "endpoint: api@2"]
    );
    assert_eq!(stream.accept(), ["listener: out@2", "route: r@2"]);
}

#[test]
fn listeners_wait_for_endpoints_too() {
    let mut stream = connected("1");
    stream.snapshot(mesh("2"));
    let [_secret, cluster, endpoint] = &stream.open[..] else {
        panic!("{:?}", stream.open);
    };
    let (cluster, endpoint) = (ack(cluster), ack(endpoint));
    assert_eq!(stream.request(cluster), NOTHING);
    assert_eq!(stream.request(endpoint), ["listener: out@2", "route: r@2"]);
}

#[test]
fn clusters_are_removed_after_their_users() {
    let mut stream = connected("1");
    let without_api = set([(Listener, resource("other", "1", &[]))]);
    assert_eq!(
        stream.snapshot(without_api),
        ["listener: other@1 -out", "cluster: -api"],
        "endpoints, routes and secrets go when the client unsubscribes"
    );
}

#[test]
fn clusters_stay_while_the_listeners_that_stop_using_them_wait() {
    let mut stream = connected("1");
    stream.snapshot(set([
        (Cluster, resource("api", "1", &["api"])),
        (Endpoint, resource("api", "1", &[])),
        (Listener, resource("out", "2", &[])),
    ]));
    assert_eq!(line(&stream.open[0]), "listener: out@2");
    let last = set([(Listener, resource("out", "3", &[]))]);
    assert_eq!(stream.snapshot(last), NOTHING);
    assert_eq!(stream.accept(), ["listener: out@3", "cluster: -api"]);
}

#[test]
fn one_response_per_type_is_in_flight() {
    let mut stream = connected("1");
    stream.snapshot(mesh("2"));
    assert_eq!(stream.snapshot(mesh("3")), NOTHING);
    let third = stream.accept();
    assert_eq!(
        third,
        [
            "secret: leaf@3",
            "cluster: api@3",
            "endpoint: api@3",
            "listener: out@3",
            "route: r@3"
        ],
        "versions that were passed over are never sent"
    );
}

#[test]
fn children_are_sent_again_with_their_parent() {
    let mut stream = connected("1");
    stream.snapshot(set([
        (Cluster, resource("api", "2", &["api"])),
        (Endpoint, resource("api", "1", &[])),
        (Listener, resource("out", "2", &["r"])),
        (Route, resource("r", "1", &[])),
        (Secret, resource("leaf", "1", &[])),
    ]));
    assert_eq!(
        stream.open.iter().map(line).collect::<Vec<_>>(),
        ["cluster: api@2", "endpoint: api@1"]
    );
    assert_eq!(stream.accept(), ["listener: out@2", "route: r@1"]);
}

#[test]
fn a_child_in_flight_is_sent_again_after_its_parent() {
    let mut stream = connected("1");
    let endpoints_changed = set([
        (Secret, resource("leaf", "1", &[])),
        (Cluster, resource("api", "1", &["api"])),
        (Endpoint, resource("api", "2", &[])),
        (Listener, resource("out", "1", &["r"])),
        (Route, resource("r", "1", &[])),
    ]);
    assert_eq!(stream.snapshot(endpoints_changed), ["endpoint: api@2"]);
    let cluster_changed = set([
        (Secret, resource("leaf", "1", &[])),
        (Cluster, resource("api", "2", &["api"])),
        (Endpoint, resource("api", "2", &[])),
        (Listener, resource("out", "1", &["r"])),
        (Route, resource("r", "1", &[])),
    ]);
    assert_eq!(stream.snapshot(cluster_changed), ["cluster: api@2"]);
    assert_eq!(stream.accept(), ["endpoint: api@2"]);
}

#[test]
fn a_refused_response_is_reported_and_not_repeated() {
    let mut stream = connected("1");
    let with_listener = |version| {
        set([
            (Secret, resource("leaf", "1", &[])),
            (Cluster, resource("api", "1", &["api"])),
            (Endpoint, resource("api", "1", &[])),
            (Listener, resource("out", version, &["r"])),
            (Route, resource("r", "1", &[])),
        ])
    };
    stream.snapshot(with_listener("2"));
    let (received, sent) = stream.refuse();
    let Received::Refused(nack) = received else {
        panic!("{received:?}");
    };
    assert_eq!((nack.kind, nack.code), (Listener, 13));
    assert_eq!(nack.resources, ["out".into()]);
    assert_eq!(nack.message, "no such thing");
    assert_eq!(sent, NOTHING);
    stream.accept();
    assert_eq!(stream.snapshot(with_listener("2")), NOTHING);
    assert_eq!(
        stream.snapshot(with_listener("3")),
        ["listener: out@3", "route: r@1"]
    );
}

#[test]
fn a_client_has_all_once_it_has_what_its_listeners_refer_to() {
    let all = |_: &str| true;
    let mut stream = Stream::new(mesh("1"));
    assert!(!stream.session.has_all(all), "it has asked for nothing");
    stream.request(request(Cluster));
    stream.request(subscribe(Endpoint, &["api"]));
    stream.request(request(Listener));
    assert!(stream.session.is_waiting());
    stream.accept();
    // It is in sync with all that it has asked for, which is not all.
    assert!(!stream.session.is_waiting());
    assert!(!stream.session.has_all(|_| false), "the route is missing");
    stream.request(subscribe(Route, &["r"]));
    assert!(!stream.session.has_all(|_| false), "it is on its way");
    stream.accept();
    assert!(stream.session.has_all(|_| false));
    assert!(!stream.session.has_all(all), "the secret is missing");
    stream.request(subscribe(Secret, &["leaf"]));
    stream.accept();
    assert!(stream.session.has_all(all));
    stream.snapshot(mesh("1"));
    assert!(stream.session.has_all(all), "nothing has changed");
    stream.snapshot(mesh("2"));
    assert!(!stream.session.has_all(all));
    stream.accept();
    assert!(stream.session.has_all(all));
}

#[test]
fn current_rejections_have_their_reasons() {
    let mut stream = connected("1");
    let rejections = |stream: &Stream| {
        let all = stream.session.rejections();
        let all = all.map(|(kind, name, reason)| (kind, name.to_string(), reason.to_string()));
        all.collect::<Vec<_>>()
    };
    assert_eq!(rejections(&stream), []);
    let with_route = |version| {
        set([
            (Secret, resource("leaf", "1", &[])),
            (Cluster, resource("api", "1", &["api"])),
            (Endpoint, resource("api", "1", &[])),
            (Listener, resource("out", "1", &["r"])),
            (Route, resource("r", version, &[])),
        ])
    };
    stream.snapshot(with_route("2"));
    stream.refuse();
    let expected = (Route, "r".to_owned(), "no such thing".to_owned());
    assert_eq!(rejections(&stream), [expected]);
    stream.snapshot(with_route("3"));
    assert_eq!(rejections(&stream), [], "of an earlier version");
    stream.accept();
    assert!(stream.session.has_all(|_| true));
}

#[test]
fn partially_applied_changes_of_a_refused_response_are_undone() {
    let mut stream = connected("1");
    let clusters = |api| {
        set([
            (Cluster, resource("api", api, &[])),
            (Listener, resource("out", "1", &[])),
            (Route, resource("r", "1", &[])),
            (Endpoint, resource("api", "1", &[])),
            (Secret, resource("leaf", "1", &[])),
        ])
    };
    assert_eq!(stream.snapshot(clusters("2")), ["cluster: api@2"]);
    assert_eq!(stream.refuse().1, NOTHING);
    assert_eq!(stream.snapshot(clusters("1")), ["cluster: api@1"]);
}

#[test]
fn a_refused_update_and_a_refused_removal_do_not_alternate_endlessly() {
    let mut stream = Stream::new(set([
        (Cluster, resource("api", "1", &[])),
        (Cluster, resource("old", "1", &[])),
    ]));
    stream.request(request(Cluster));
    stream.accept();
    assert_eq!(
        stream.snapshot(set([(Cluster, resource("api", "2", &[]))])),
        ["cluster: api@2"]
    );
    assert_eq!(stream.refuse().1, ["cluster: -old"]);
    assert_eq!(stream.refuse().1, NOTHING);
    assert_eq!(stream.poll(), NOTHING);
}

#[test]
fn a_refused_removal_is_retried_with_the_next_snapshot_alone() {
    let mut stream = connected("1");
    let changed = || {
        set([
            (Secret, resource("leaf", "1", &[])),
            (Cluster, resource("api", "1", &["api"])),
            (Endpoint, resource("api", "1", &[])),
            (Listener, resource("new", "1", &[])),
        ])
    };
    assert_eq!(stream.snapshot(changed()), ["listener: new@1 -out"]);
    assert_eq!(stream.refuse().1, ["listener: new@1"]);
    assert_eq!(stream.refuse().1, ["listener: -out"]);
    assert_eq!(stream.refuse().1, NOTHING);
    assert_eq!(stream.snapshot(changed()), ["listener: -out"]);
    assert_eq!(stream.accept(), NOTHING);
}

#[test]
fn clusters_stay_while_a_listener_is_refused() {
    let mut stream = connected("1");
    let moved = || {
        set([
            (Listener, resource("out", "2", &[])),
            (Secret, resource("leaf", "1", &[])),
        ])
    };
    assert_eq!(
        stream.snapshot(moved()),
        ["listener: out@2", "cluster: -api"]
    );
    // The removal was in flight when the listener was rejected; later ones wait.
    let mut stream = connected("1");
    let kept = set([
        (Cluster, resource("api", "1", &[])),
        (Listener, resource("out", "2", &[])),
    ]);
    assert_eq!(stream.snapshot(kept), ["listener: out@2"]);
    assert_eq!(stream.refuse().1, NOTHING);
    assert_eq!(stream.snapshot(moved()), NOTHING);
    let repaired = set([(Listener, resource("out", "3", &[]))]);
    assert_eq!(
        stream.snapshot(repaired),
        ["listener: out@3", "cluster: -api"]
    );
}

#[test]
fn an_unknown_nonce_is_ignored() {
    let mut stream = connected("1");
    stream.snapshot(mesh("2"));
    let stale = DeltaDiscoveryResponse {
        type_url: Cluster.url().to_owned(),
        nonce: "ffffffff".to_owned(),
        ..Default::default()
    };
    assert_eq!(stream.request(ack(&stale)), NOTHING);
    assert_eq!(stream.session.on_request(nack(&stale)), Received::Noted);
    assert_eq!(stream.snapshot(mesh("3")), NOTHING, "still unanswered");
}

#[test]
fn a_reconnecting_client_is_sent_the_differences() {
    let mut stream = Stream::new(mesh("2"));
    let held = [("api", "2"), ("gone", "1")];
    assert_eq!(
        stream.request(resume(Cluster, &[], &held)),
        ["cluster:"],
        "the first response is sent, without changes"
    );
    assert_eq!(stream.accept(), ["cluster: -gone"]);
    stream.accept();
    assert_eq!(
        stream.request(resume(Endpoint, &["api"], &[("api", "1")])),
        ["endpoint: api@2"]
    );
    stream.accept();
    assert_eq!(
        stream.request(resume(Secret, &["leaf"], &[("leaf", "2")])),
        ["secret:"]
    );
    assert_eq!(stream.accept(), NOTHING);
    assert_eq!(
        stream.request(resume(Listener, &[], &[("old", "1")])),
        ["listener: out@2 -old"]
    );
}

#[test]
fn a_parent_sent_before_its_children_are_requested_resends_them() {
    let mut stream = Stream::new(mesh("2"));
    assert_eq!(
        stream.request(resume(Cluster, &[], &[("api", "1")])),
        ["cluster: api@2"]
    );
    // Sent before the client has read the cluster, which makes it drop the endpoints.
    let endpoints = resume(Endpoint, &["api"], &[("api", "2")]);
    assert_eq!(stream.request(endpoints), ["endpoint: api@2"]);
}

#[test]
fn removals_of_named_resources_are_not_sent() {
    let mut stream = connected("1");
    let without_endpoints = set([
        (Secret, resource("other", "1", &[])),
        (Cluster, resource("api", "1", &["api"])),
        (Listener, resource("out", "1", &["r"])),
    ]);
    assert_eq!(stream.snapshot(without_endpoints), NOTHING);
}

/// Envoy acknowledges a cluster once it has the endpoints; without this rule it waits for 15 s.
#[test]
fn missing_endpoints_are_removed_when_requested() {
    let mut stream = connected("1");
    let with_another = set([
        (Secret, resource("leaf", "1", &[])),
        (Cluster, resource("api", "1", &["api"])),
        (Cluster, resource("new", "1", &["new"])),
        (Endpoint, resource("api", "1", &[])),
        (Endpoint, resource("new", "1", &[])),
        (Listener, resource("out", "1", &["r"])),
        (Route, resource("r", "1", &[])),
    ]);
    assert_eq!(stream.snapshot(with_another), ["cluster: new@1"]);
    assert_eq!(stream.snapshot(mesh("1")), NOTHING);
    assert_eq!(
        stream.request(subscribe(Endpoint, &["new"])),
        ["endpoint: -new"]
    );
    assert_eq!(stream.accept(), ["cluster: -new"]);
    assert_eq!(stream.accept(), NOTHING);
    // Envoy ignores removals of routes, and rejects those of secrets.
    for kind in [Route, Secret] {
        assert_eq!(stream.request(subscribe(kind, &["new"])), NOTHING);
    }
}

/// Envoy subscribes only once to endpoints that it continues to need.
#[test]
fn missing_endpoints_are_removed_when_their_cluster_is_sent_again() {
    let mut stream = connected("1");
    let with_api = |version, endpoints: bool| {
        let endpoints = endpoints.then(|| (Endpoint, resource("api", version, &[])));
        let others = [
            (Secret, resource("leaf", "1", &[])),
            (Cluster, resource("api", version, &["api"])),
            (Listener, resource("out", "1", &["r"])),
            (Route, resource("r", "1", &[])),
        ];
        set(others.into_iter().chain(endpoints))
    };
    assert_eq!(
        stream.request(subscribe(Endpoint, &["gone", "api"])),
        ["endpoint: api@1 -gone"]
    );
    stream.accept();
    for version in ["2", "3"] {
        assert_eq!(
            stream.snapshot(with_api(version, false)),
            [&format!("cluster: api@{version}"), "endpoint: -api"]
        );
        while stream.accept() != NOTHING {}
    }
}

#[test]
fn a_name_subscribed_to_again_is_sent_again() {
    let mut stream = connected("1");
    assert_eq!(
        stream.request(subscribe(Endpoint, &["api"])),
        ["endpoint: api@1"]
    );
}

#[test]
fn a_name_subscribed_to_again_while_in_flight_is_sent_twice() {
    let mut stream = connected("1");
    stream.snapshot(mesh("2"));
    assert_eq!(stream.request(subscribe(Secret, &["leaf"])), NOTHING);
    assert!(stream.accept().contains(&"secret: leaf@2".to_owned()));
}

#[test]
fn an_unsubscribed_name_is_sent_only_after_a_new_subscription() {
    let mut stream = connected("1");
    assert_eq!(stream.request(unsubscribe(Secret, &["leaf"])), NOTHING);
    let rotated = set([
        (Secret, resource("leaf", "2", &[])),
        (Cluster, resource("api", "1", &["api"])),
        (Listener, resource("out", "1", &["r"])),
    ]);
    assert_eq!(stream.snapshot(rotated), NOTHING);
    assert_eq!(
        stream.request(subscribe(Secret, &["leaf"])),
        ["secret: leaf@2"]
    );
}

#[test]
fn a_wildcard_can_be_added_and_cancelled() {
    let three = || {
        set([
            (Cluster, resource("a", "1", &[])),
            (Cluster, resource("b", "1", &[])),
            (Cluster, resource("c", "1", &[])),
        ])
    };
    let mut stream = Stream::new(three());
    assert_eq!(stream.request(subscribe(Cluster, &["a"])), ["cluster: a@1"]);
    stream.accept();
    assert_eq!(
        stream.request(subscribe(Cluster, &["*"])),
        ["cluster: b@1 c@1"]
    );
    stream.accept();
    assert_eq!(stream.request(unsubscribe(Cluster, &["*"])), NOTHING);
    let updated = set([
        (Cluster, resource("a", "2", &[])),
        (Cluster, resource("b", "2", &[])),
    ]);
    assert_eq!(stream.snapshot(updated), ["cluster: a@2"]);
}

#[test]
fn under_a_wildcard_every_name_gets_an_answer() {
    let mut stream = Stream::new(set([(Cluster, resource("a", "1", &[]))]));
    assert_eq!(stream.request(request(Cluster)), ["cluster: a@1"]);
    stream.accept();
    assert_eq!(
        stream.request(subscribe(Cluster, &["missing"])),
        ["cluster: -missing"]
    );
    stream.accept();
    assert_eq!(
        stream.request(unsubscribe(Cluster, &["a"])),
        ["cluster: a@1"]
    );
}

#[test]
fn a_stream_with_too_many_names_is_closed() {
    let ask = |session: &mut Session, name: String| {
        session.on_request(DeltaDiscoveryRequest {
            resource_names_subscribe: vec![name],
            ..request(Endpoint)
        })
    };
    let mut session = Session::new();
    let many = (0..MAX_NAMES).map(|number| number.to_string()).collect();
    let allowed = DeltaDiscoveryRequest {
        resource_names_subscribe: many,
        ..request(Endpoint)
    };
    assert_eq!(session.on_request(allowed), Received::Noted);
    assert_eq!(ask(&mut session, "7".to_owned()), Received::Noted, "again");
    let one_more = ask(&mut session, "one more".to_owned());
    let Received::TooManyNames(asked) = one_more else {
        panic!("{one_more:?}");
    };
    assert_eq!(asked.names, MAX_NAMES + 1);
    // Unsubscribed names do not count.
    session.on_request(unsubscribe(Endpoint, &["1", "2", "one more"]));
    assert_eq!(ask(&mut session, "another".to_owned()), Received::Noted);

    let mut session = Session::new();
    assert_eq!(
        ask(&mut session, "x".repeat(MAX_NAME_BYTES)),
        Received::Noted
    );
    let long = ask(&mut session, "y".to_owned());
    assert!(matches!(long, Received::TooManyNames(_)), "{long:?}");

    let versions = (0..=MAX_NAMES).map(|number| (number.to_string(), "1".to_owned()));
    let resumed = DeltaDiscoveryRequest {
        initial_resource_versions: versions.collect(),
        ..request(Cluster)
    };
    let resumed = Session::new().on_request(resumed);
    assert!(matches!(resumed, Received::TooManyNames(_)), "{resumed:?}");
}

#[test]
fn stored_error_messages_are_truncated() {
    let mut stream = Stream::new(mesh("1"));
    stream.request(request(Cluster));
    let mut refusal = nack(&stream.open.remove(0));
    refusal.error_detail.as_mut().unwrap().message = "é".repeat(1_000_000);
    let Received::Refused(nack) = stream.session.on_request(refusal) else {
        panic!("it is a refusal");
    };
    assert_eq!(nack.message.len(), 4_096);
}
