//! From what is known to calls, in hand-written and in generated orders, with a clock that tests advance.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use kube::core::DynamicObject;
use legate_model::PeeringToken;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Call, Core, Ended, Item, READ_EVERY, Source, What};
use crate::config::FINALIZER;
use crate::peering::decision::Step;
use crate::peering::kinds::Kind;
use crate::peering::object::{Key, Object};
use crate::peering::secret::{DIGEST_ANNOTATION, OWNER_ANNOTATION, SecretFact, digest, owner};
use crate::peering::servers::Peering;
use crate::peering::status::{Outcome, Reason};
use crate::peering::{TOKEN_LABEL, VERSION_ANNOTATION};
use crate::sync::objects::Change;

const NOW: &str = "2026-01-01T00:00:00Z";
const NAMESPACE: &str = "mesh";

/// A token of the peering with this id. `secret` distinguishes tokens of one peering.
fn token(peering: &str, secret: u64) -> String {
    let token = PeeringToken {
        server_addresses: vec!["192.0.2.1:8502".to_owned()],
        server_name: "server.dc1.peering.x".to_owned(),
        peer_id: peering.to_owned(),
        establishment_secret: format!("secret-{secret}").into(),
        ..PeeringToken::default()
    };
    token.encode().expose().to_owned()
}

/// A peering of the fake servers.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    peering: Peering,
    /// The token that can be used once, of an acceptor.
    token: Option<String>,
    /// How many reads of a deleted peering still find it.
    leaving: u32,
}

/// A Kubernetes API server and servers as simple tables, and the core between them. Watches may be behind.
struct World {
    core: Core,
    now: Instant,
    version: u64,
    objects: BTreeMap<(Kind, String), Value>,
    secrets: BTreeMap<String, Secret>,
    peerings: BTreeMap<String, Held>,
    /// The tokens of another cluster that were not used yet.
    foreign: Vec<String>,
    /// What the watches have not reported yet.
    late: Vec<(Source, Change<Item>)>,
    /// Calls that were made, whose end the core does not know yet.
    open: Vec<(Call, Ended)>,
    /// All that was done.
    log: Vec<String>,
    /// Every call fails while it is set.
    away: bool,
}

impl World {
    fn new() -> World {
        let mut world = World {
            core: Core::new(1),
            now: Instant::now(),
            version: 0,
            objects: BTreeMap::new(),
            secrets: BTreeMap::new(),
            peerings: BTreeMap::new(),
            foreign: Vec::new(),
            late: Vec::new(),
            open: Vec::new(),
            log: Vec::new(),
            away: false,
        };
        world.list();
        world
    }

    /// Another operator leads, which knows nothing.
    fn restart(&mut self) {
        self.core = Core::new(1);
        self.late.clear();
        self.open.clear();
        self.list();
    }

    fn list(&mut self) {
        for source in Source::ALL {
            self.core.changed(0, source, Change::Begin);
        }
        for ((kind, _), object) in &self.objects {
            let change = Change::Listed(item(*kind, object));
            self.core.changed(0, Source::Objects(*kind), change);
        }
        for secret in self.secrets.values().filter(|it| is_labelled(it)) {
            let fact = Item::Secret(Box::new(SecretFact::of(secret)));
            self.core.changed(0, Source::Secrets, Change::Listed(fact));
        }
        for source in Source::ALL {
            self.core.changed(0, source, Change::Complete);
        }
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn put(&mut self, kind: Kind, name: &str, secret: (&str, &str)) {
        let spec = json!({"peer": {"secret": {
            "name": secret.0, "key": secret.1, "backend": "kubernetes",
        }}});
        let version = self.next_version();
        let id = (kind, name.to_owned());
        let new = json!({
            "apiVersion": "consul.hashicorp.com/v1alpha1", "kind": kind.as_str(),
            "metadata": {
                "name": name, "namespace": NAMESPACE, "uid": format!("{}-{version}", kind.as_str()),
                "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": spec,
        });
        let mut object = self.objects.get(&id).cloned().unwrap_or(new);
        if object["spec"] != spec {
            let generation = object["metadata"]["generation"].as_i64().unwrap();
            object["metadata"]["generation"] = json!(generation + 1);
            object["spec"] = spec;
        }
        self.store(&id, object);
    }

    fn store(&mut self, id: &(Kind, String), mut object: Value) {
        object["metadata"]["resourceVersion"] = json!(self.next_version());
        let held = object["metadata"]["finalizers"].as_array();
        let held = held.is_some_and(|all| !all.is_empty());
        let gone = !held && !object["metadata"]["deletionTimestamp"].is_null();
        let item = item(id.0, &object);
        let change = match gone {
            true => Change::Gone(item),
            false => Change::Applied(item),
        };
        match gone {
            true => drop(self.objects.remove(id)),
            false => drop(self.objects.insert(id.clone(), object)),
        }
        self.late.push((Source::Objects(id.0), change));
    }

    fn change(&mut self, kind: Kind, name: &str, change: Value) {
        let id = (kind, name.to_owned());
        if let Some(mut object) = self.objects.get(&id).cloned() {
            json_patch::merge(&mut object, &change);
            self.store(&id, object);
        }
    }

    fn raise(&mut self, kind: Kind, name: &str, version: i64) {
        let annotation = json!({ VERSION_ANNOTATION: version.to_string() });
        self.change(kind, name, json!({"metadata": {"annotations": annotation}}));
    }

    fn delete(&mut self, kind: Kind, name: &str) {
        let deleted = json!({"deletionTimestamp": "2026-01-01T01:00:00Z"});
        self.change(kind, name, json!({"metadata": deleted}));
    }

    fn put_secret(&mut self, mut secret: Secret) {
        let version = self.next_version();
        let name = secret.metadata.name.clone().unwrap();
        let uid = self.secrets.get(&name).map(|it| it.metadata.uid.clone());
        secret.metadata.namespace = Some(NAMESPACE.to_owned());
        secret.metadata.uid = uid.unwrap_or_else(|| Some(format!("secret-{version}")));
        secret.metadata.resource_version = Some(version);
        let fact = Item::Secret(Box::new(SecretFact::of(&secret)));
        let was = self.secrets.get(&name).is_some_and(is_labelled);
        match (was, is_labelled(&secret)) {
            (_, true) => self.late.push((Source::Secrets, Change::Applied(fact))),
            (true, false) => self.late.push((Source::Secrets, Change::Gone(fact))),
            (false, false) => {}
        }
        self.secrets.insert(name, secret);
    }

    /// A copy of another cluster's Secret.
    fn copy(&mut self, name: &str, key: &str, token: &str) {
        let token = ByteString(token.as_bytes().to_owned());
        self.put_secret(Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some([(TOKEN_LABEL.to_owned(), "true".to_owned())].into()),
                ..ObjectMeta::default()
            },
            data: Some([(key.to_owned(), token)].into()),
            ..Secret::default()
        });
    }

    fn remove_secret(&mut self, name: &str) {
        if let Some(secret) = self.secrets.remove(name)
            && is_labelled(&secret)
        {
            let fact = Item::Secret(Box::new(SecretFact::of(&secret)));
            self.late.push((Source::Secrets, Change::Gone(fact)));
        }
    }

    /// The watches report what has happened, up to some events.
    fn report(&mut self, up_to: usize) {
        let up_to = up_to.min(self.late.len());
        for (source, change) in self.late.drain(..up_to) {
            self.core.changed(0, source, change);
        }
    }

    /// Makes the calls that are due. Returns whether there were some.
    fn turn(&mut self) -> bool {
        self.start();
        let some = !self.open.is_empty();
        self.end(usize::MAX);
        some
    }

    /// Makes the calls that are due, whose end comes later.
    fn start(&mut self) {
        for call in self.core.poll(self.now, NOW) {
            let ended = self.perform(&call);
            self.open.push((call, ended));
        }
    }

    /// Some calls end.
    fn end(&mut self, up_to: usize) {
        let up_to = up_to.min(self.open.len());
        for (call, ended) in self.open.drain(..up_to) {
            self.core.ended(&call, ended, self.now);
        }
    }

    /// Until nothing is left to do, within a bounded time.
    fn settle(&mut self) {
        for _ in 0..400 {
            self.report(usize::MAX);
            if self.turn() {
                continue;
            }
            if self.late.is_empty() {
                let wake = self.core.wake(self.now);
                // Objects are read again every half minute for ever: that is not waited for.
                if wake > self.now + Duration::from_secs(20) {
                    return;
                }
                self.now = wake;
            }
        }
        panic!("it does not come to rest: {:#?}", self.log);
    }

    fn perform(&mut self, call: &Call) -> Ended {
        if self.away {
            return Ended::Failed(Outcome::Unknown(Reason::Servers, "away".to_owned()));
        }
        match &call.what {
            What::Status { change, .. } => self.patch(call, json!({ "status": change })),
            What::Step(step) => self.step(call, &step.clone()),
        }
    }

    fn patch(&mut self, call: &Call, change: Value) -> Ended {
        let id = (call.id.0, call.id.1.name.clone());
        let object = self.objects.get(&id);
        let current = object.is_some_and(|object| {
            let metadata = &object["metadata"];
            metadata["uid"] == call.uid && metadata["resourceVersion"] == call.resource_version
        });
        if current {
            self.change(id.0, &id.1, change);
        }
        Ended::Done
    }

    fn step(&mut self, call: &Call, step: &Step) -> Ended {
        let name = call.id.1.name.clone();
        let reads = matches!(step, Step::ReadPeering | Step::ReadSecret(_));
        if !reads {
            self.log
                .push(format!("{} {name} {step:?}", call.id.0.as_str()));
        }
        match step {
            Step::ReadPeering => {
                let held = self.peerings.get(&name).map(|held| held.peering.clone());
                if let Some(held) = self.peerings.get_mut(&name)
                    && held.peering.is_leaving()
                {
                    match held.leaving.checked_sub(1) {
                        Some(left) => held.leaving = left,
                        None => drop(self.peerings.remove(&name)),
                    }
                }
                Ended::Peering(held)
            }
            Step::ReadSecret(key) => Ended::Secret(self.secrets.get(&key.name).map(SecretFact::of)),
            Step::Hold => {
                let mut names = call.finalizers.clone();
                names.push(FINALIZER.to_owned());
                self.patch(call, json!({"metadata": {"finalizers": names}}))
            }
            Step::Release => self.patch(call, json!({"metadata": {"finalizers": []}})),
            Step::DeletePeering => {
                if let Some(held) = self.peerings.get_mut(&name) {
                    let was = &held.peering;
                    held.peering = match was.dials() {
                        true => Peering::dialing(&was.peer_id, "DELETING"),
                        false => Peering::accepting(&was.id, "DELETING"),
                    };
                }
                Ended::Done
            }
            Step::DeleteSecret { key, uid } => {
                let secret = self.secrets.get(&key.name);
                if secret.is_some_and(|secret| secret.metadata.uid.as_ref() == Some(uid)) {
                    self.remove_secret(&key.name);
                }
                Ended::Done
            }
            Step::Generate { secret, .. } => self.generate(call, &secret.name, &secret.key),
            Step::Establish { secret, .. } => self.establish(&name, &secret.name, &secret.key),
        }
    }

    fn generate(&mut self, call: &Call, secret: &str, key: &str) -> Ended {
        let name = &call.id.1.name;
        let version = self.next_version();
        let held = self.peerings.entry(name.clone()).or_insert_with(|| Held {
            peering: Peering::accepting(&format!("id-{version}"), "PENDING"),
            token: None,
            leaving: 1,
        });
        // It may have changed since it was read.
        let was = &held.peering;
        if was.dials() || was.is_leaving() || was.is_terminated() {
            let text = format!("cannot make a token of {was:?}");
            return Ended::Failed(Outcome::Refused(Reason::Servers, text));
        }
        let token = token(&held.peering.id, self.version);
        held.token = Some(token.clone());
        let there = self.secrets.get(secret).cloned().unwrap_or_default();
        let bytes = token.as_bytes().to_owned();
        let labels = BTreeMap::from([(TOKEN_LABEL.to_owned(), "true".to_owned())]);
        let annotations = BTreeMap::from([
            (DIGEST_ANNOTATION.to_owned(), digest(&bytes)),
            (OWNER_ANNOTATION.to_owned(), owner(&call.uid, secret)),
        ]);
        self.put_secret(Secret {
            metadata: ObjectMeta {
                name: Some(secret.to_owned()),
                labels: Some(labels),
                annotations: Some(annotations),
                ..there.metadata
            },
            data: Some([(key.to_owned(), ByteString(bytes))].into()),
            ..Secret::default()
        });
        Ended::Generated(SecretFact::of(&self.secrets[secret]))
    }

    fn establish(&mut self, name: &str, secret: &str, key: &str) -> Ended {
        let refused =
            |text: &str| Ended::Failed(Outcome::Refused(Reason::Servers, text.to_owned()));
        let Some(secret) = self.secrets.get(secret) else {
            return refused("no Secret");
        };
        let data = secret.data.as_ref().and_then(|data| data.get(key));
        let text = data.and_then(|data| String::from_utf8(data.0.clone()).ok());
        let text = text.unwrap_or_default();
        let Ok(token) = PeeringToken::decode(&text.clone().into()) else {
            return refused("failed to decode token");
        };
        let Some(at) = self.foreign.iter().position(|known| *known == text) else {
            return refused(
                "a new peering token must be generated: invalid peering establishment secret",
            );
        };
        let held = Held {
            peering: Peering::dialing(&token.peer_id, "ACTIVE"),
            token: None,
            leaving: 1,
        };
        let fact = SecretFact::of(secret);
        if self
            .peerings
            .get(name)
            .is_some_and(|held| !held.peering.dials())
        {
            return refused("there is an existing peering expecting to be dialed");
        }
        self.foreign.remove(at);
        self.peerings.insert(name.to_owned(), held);
        Ended::Established(fact)
    }

    /// The status, reason and message of the condition.
    fn condition(&self, kind: Kind, name: &str) -> (String, String, String) {
        let object = &self.objects[&(kind, name.to_owned())];
        let condition = &object["status"]["conditions"][0];
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"), text("message"))
    }

    fn assert_synced(&self, kind: Kind, name: &str) {
        let condition = self.condition(kind, name);
        assert_eq!(condition.0, "True", "{condition:?} {:#?}", self.log);
    }

    fn assert_refused(&self, kind: Kind, name: &str, reason: Reason, part: &str) {
        let condition = self.condition(kind, name);
        let expected = ("False", reason.as_str());
        assert_eq!((&*condition.0, &*condition.1), expected, "{condition:?}");
        assert!(condition.2.contains(part), "{condition:?}");
    }

    /// How often something was done.
    fn count(&self, what: &str) -> usize {
        self.log.iter().filter(|line| line.contains(what)).count()
    }

    fn token_in(&self, secret: &str, key: &str) -> String {
        let data = self.secrets[secret].data.as_ref().unwrap();
        String::from_utf8(data[key].0.clone()).unwrap()
    }

    /// The token in the Secret is the one that the servers accept.
    fn assert_usable(&self, name: &str, secret: &str, key: &str) {
        let held = self.peerings[name].token.clone();
        assert_eq!(held.unwrap(), self.token_in(secret, key), "{:#?}", self.log);
    }
}

fn is_labelled(secret: &Secret) -> bool {
    let labels = secret.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(TOKEN_LABEL))
}

fn item(kind: Kind, object: &Value) -> Item {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    Item::Object(Box::new(Object::of(kind, &object)))
}

/// An acceptor that has made its token.
fn accepting() -> World {
    let mut world = World::new();
    world.put(Kind::Acceptor, "west", ("token", "data"));
    world.settle();
    world.assert_synced(Kind::Acceptor, "west");
    world.assert_usable("west", "token", "data");
    world
}

/// A dialer that has used another cluster's token.
fn dialing() -> World {
    let mut world = World::new();
    world.foreign = vec![token("there", 1)];
    world.copy("token", "data", &token("there", 1));
    world.put(Kind::Dialer, "east", ("token", "data"));
    world.settle();
    world.assert_synced(Kind::Dialer, "east");
    world
}

#[test]
fn an_acceptor_makes_one_token_and_removes_all_with_itself() {
    let mut world = accepting();
    assert_eq!(world.count("Generate"), 1);
    let status = &world.objects[&(Kind::Acceptor, "west".to_owned())]["status"];
    let secret = json!({"name": "token", "key": "data", "backend": "kubernetes"});
    assert_eq!(status["secret"], secret);
    assert_eq!(status["lastSyncedTime"], NOW);
    // A copy belongs to nobody.
    let mut copy = world.secrets["token"].clone();
    copy.metadata.name = Some("copy".to_owned());
    world.put_secret(copy);
    world.now += Duration::from_secs(600);
    world.settle();
    world.restart();
    world.settle();
    assert_eq!(world.count("Generate"), 1, "nothing has changed");
    world.delete(Kind::Acceptor, "west");
    world.settle();
    assert!(world.objects.is_empty() && world.peerings.is_empty());
    assert_eq!(world.secrets.keys().collect::<Vec<_>>(), ["copy"]);
}

#[test]
fn a_token_is_made_again_when_its_secret_is_deleted_or_changed() {
    let mut world = accepting();
    world.remove_secret("token");
    world.settle();
    assert_eq!(world.count("Generate"), 2);
    world.assert_usable("west", "token", "data");
    let mut secret = world.secrets["token"].clone();
    let annotations = secret.metadata.annotations.as_mut().unwrap();
    annotations.insert("by".to_owned(), "somebody".to_owned());
    world.put_secret(secret.clone());
    world.settle();
    assert_eq!(world.count("Generate"), 2, "the token is the same");
    secret.data = Some([("data".to_owned(), ByteString(b"other".to_vec()))].into());
    world.put_secret(secret);
    world.settle();
    assert_eq!(world.count("Generate"), 3);
    world.assert_usable("west", "token", "data");
    world.peerings.clear();
    world.now += Duration::from_secs(60);
    world.settle();
    assert_eq!(
        world.count("Generate"),
        4,
        "the peering was deleted by hand"
    );
    world.assert_usable("west", "token", "data");
}

#[test]
fn a_token_is_made_again_when_the_annotation_is_increased() {
    let mut world = accepting();
    for (version, times, latest) in [(1, 2, 1), (1, 2, 1), (0, 2, 1), (7, 3, 7)] {
        world.raise(Kind::Acceptor, "west", version);
        world.settle();
        assert_eq!(world.count("Generate"), times, "{version}");
        let object = &world.objects[&(Kind::Acceptor, "west".to_owned())];
        assert_eq!(object["status"]["latestPeeringVersion"], json!(latest));
    }
    world.change(
        Kind::Acceptor,
        "west",
        json!({"metadata": {"annotations": {VERSION_ANNOTATION: "1.5"}}}),
    );
    world.settle();
    world.assert_refused(Kind::Acceptor, "west", Reason::Invalid, "a whole number");
}

#[test]
fn another_secret_replaces_the_first_one() {
    let mut world = accepting();
    world.put(Kind::Acceptor, "west", ("other", "data"));
    world.settle();
    world.assert_synced(Kind::Acceptor, "west");
    assert_eq!(world.secrets.keys().collect::<Vec<_>>(), ["other"]);
    world.assert_usable("west", "other", "data");
    world.put(Kind::Acceptor, "west", ("other", "key"));
    world.settle();
    world.assert_usable("west", "other", "key");
    assert_eq!(world.secrets["other"].data.as_ref().unwrap().len(), 1);
}

#[test]
fn secrets_and_peerings_of_others_are_left_alone() {
    let mut world = World::new();
    world.copy("token", "data", "a secret of somebody");
    world.put(Kind::Acceptor, "west", ("token", "data"));
    world.settle();
    let kind = Kind::Acceptor;
    world.assert_refused(
        kind,
        "west",
        Reason::SecretTaken,
        "the Secret mesh/token exists",
    );
    world.delete(kind, "west");
    world.settle();
    assert!(world.objects.is_empty());
    assert_eq!(world.token_in("token", "data"), "a secret of somebody");
    assert_eq!(world.count("Generate") + world.count("DeletePeering"), 0);

    let held = |peering| Held {
        peering,
        token: None,
        leaving: 1,
    };
    for (kind, peering) in [
        (Kind::Acceptor, Peering::dialing("there", "ACTIVE")),
        (Kind::Dialer, Peering::accepting("here", "PENDING")),
    ] {
        let mut world = World::new();
        world.foreign = vec![token("there", 1)];
        world.copy("copied", "data", &token("there", 1));
        world
            .peerings
            .insert("west".to_owned(), held(peering.clone()));
        let secret = if kind == Kind::Dialer {
            "copied"
        } else {
            "own"
        };
        world.put(kind, "west", (secret, "data"));
        world.settle();
        world.assert_refused(
            kind,
            "west",
            Reason::OtherRole,
            "the servers have a peering west",
        );
        world.delete(kind, "west");
        world.settle();
        assert!(world.objects.is_empty());
        assert_eq!(world.peerings["west"].peering, peering);
    }
}

#[test]
fn of_several_objects_of_a_name_or_a_secret_the_oldest_counts() {
    let mut world = accepting();
    world.copy("copied", "data", &token("there", 1));
    world.put(Kind::Dialer, "west", ("copied", "data"));
    world.put(Kind::Acceptor, "north", ("token", "data"));
    world.put(Kind::Acceptor, "zone", ("own", "data"));
    world.settle();
    let reason = Reason::Duplicate;
    let older = "PeeringAcceptor mesh/west is older and has the peering west";
    world.assert_refused(Kind::Dialer, "west", reason, older);
    // All were created in the same second.
    let both = [("west", "north"), ("north", "west")];
    let refused = both.iter().filter(|(name, other)| {
        let condition = world.condition(Kind::Acceptor, name);
        condition.1 == reason.as_str() && condition.2.contains(&format!("mesh/{other} is older"))
    });
    assert_eq!(refused.count(), 1);
    world.assert_synced(Kind::Acceptor, "zone");
    world.foreign = vec![token("there", 1)];
    world.delete(Kind::Acceptor, "west");
    world.settle();
    world.assert_synced(Kind::Dialer, "west");
    world.assert_synced(Kind::Acceptor, "north");
    assert!(world.peerings["west"].peering.dials());
}

#[test]
fn names_that_peers_cannot_have_are_refused() {
    let mut world = World::new();
    world.put(Kind::Acceptor, "west.one", ("token", "data"));
    world.put(Kind::Acceptor, "west", ("to/ken", "data"));
    world.settle();
    let (kind, reason) = (Kind::Acceptor, Reason::Invalid);
    world.assert_refused(kind, "west.one", reason, "is not a valid peer name");
    world.assert_refused(kind, "west", reason, "spec.peer.secret.name");
    assert!(world.log.is_empty(), "{:?}", world.log);
}

#[test]
fn a_dialer_uses_each_token_once_and_removes_the_peering_with_itself() {
    let mut world = dialing();
    assert_eq!(world.count("Establish"), 1);
    let secret = &world.objects[&(Kind::Dialer, "east".to_owned())]["status"]["secret"];
    let version = world.secrets["token"].metadata.resource_version.clone();
    assert_eq!(secret["resourceVersion"], json!(version));
    // Written again without a change, here and while another operator leads.
    let secret = world.secrets["token"].clone();
    world.put_secret(secret.clone());
    world.settle();
    assert_eq!(world.count("Establish"), 1);
    world.put_secret(secret);
    world.restart();
    world.settle();
    world.assert_synced(Kind::Dialer, "east");
    assert_eq!(world.count("Establish"), 2, "it was refused as used");
    world.foreign = vec![token("there", 2)];
    world.copy("token", "data", &token("there", 2));
    world.settle();
    world.assert_synced(Kind::Dialer, "east");
    assert_eq!((world.count("Establish"), world.foreign.len()), (3, 0));
    world.delete(Kind::Dialer, "east");
    world.settle();
    assert!(world.objects.is_empty() && world.peerings.is_empty());
    assert_eq!(world.secrets.len(), 1, "it is the user's");
}

#[test]
fn a_dialer_waits_for_its_secret_and_says_so() {
    let mut world = World::new();
    world.put(Kind::Dialer, "east", ("token", "data"));
    world.settle();
    let (kind, reason) = (Kind::Dialer, Reason::SecretMissing);
    world.assert_refused(kind, "east", reason, "the Secret mesh/token does not exist");
    world.copy("token", "other", &token("there", 1));
    world.settle();
    world.assert_refused(kind, "east", reason, "has no key \"data\"");
    world.copy("token", "data", &token("there", 1));
    world.settle();
    let refused = "a new peering token must be generated";
    world.assert_refused(kind, "east", Reason::Servers, refused);
    // The label is not necessary.
    world.foreign = vec![token("there", 2)];
    world.copy("token", "data", &token("there", 2));
    let secret = world.secrets.get_mut("token").unwrap();
    secret.metadata.labels = None;
    let secret = secret.clone();
    world.put_secret(secret);
    world.now += Duration::from_secs(60);
    world.settle();
    world.assert_synced(kind, "east");
}

#[test]
fn a_peering_that_the_other_cluster_has_deleted_starts_again_with_a_new_token() {
    let mut world = accepting();
    world.peerings.get_mut("west").unwrap().peering =
        Peering::accepting(&world.peerings["west"].peering.id.clone(), "TERMINATED");
    world.now += Duration::from_secs(60);
    world.settle();
    let kind = Kind::Acceptor;
    world.assert_refused(
        kind,
        "west",
        Reason::Terminated,
        "the other cluster has deleted",
    );
    world.raise(kind, "west", 1);
    world.settle();
    world.assert_synced(kind, "west");
    world.assert_usable("west", "token", "data");
    assert_eq!(world.count("DeletePeering"), 1);
}

#[test]
fn a_secret_that_is_deleted_while_its_token_is_made_is_made_again() {
    let mut world = World::new();
    world.put(Kind::Acceptor, "west", ("token", "data"));
    world.report(usize::MAX);
    while world.count("Generate") == 0 {
        world.end(usize::MAX);
        world.report(usize::MAX);
        world.start();
    }
    world.remove_secret("token");
    // The watch is before the end of the call.
    world.report(usize::MAX);
    world.end(usize::MAX);
    world.settle();
    world.assert_synced(Kind::Acceptor, "west");
    world.assert_usable("west", "token", "data");
}

#[test]
fn what_fails_is_said_and_tried_again() {
    let mut world = World::new();
    world.put(Kind::Acceptor, "west", ("token", "data"));
    world.report(usize::MAX);
    world.turn();
    world.report(usize::MAX);
    world.away = true;
    world.turn();
    let id = (Kind::Acceptor, "west".to_owned());
    world.away = false;
    let calls = world.core.poll(world.now, NOW);
    let What::Status { notice, change } = &calls[0].what else {
        panic!("{calls:?}");
    };
    assert_eq!(notice.as_ref().unwrap().1, "away");
    assert_eq!(change["conditions"][0]["status"], "Unknown");
    let ended = world.perform(&calls[0]);
    world.core.ended(&calls[0], ended, world.now);
    assert_eq!(
        world.objects[&id]["status"]["conditions"][0]["reason"],
        "consulAgentError"
    );
    world.settle();
    world.assert_synced(Kind::Acceptor, "west");
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Act {
    Accept(usize, usize),
    Dial(usize, usize),
    Raise(Kind, usize, i64),
    Delete(Kind, usize),
    RemoveSecret(usize),
    Foreign(usize),
    ForgetPeering(usize),
    Terminate(usize),
    Away(bool),
    Restart,
    Report(usize),
    Start,
    End(usize),
    Turn,
    Pass(u64),
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const SECRETS: [&str; 3] = ["s", "t", "u"];

fn act() -> impl Strategy<Value = Act> {
    let kind = || prop_oneof![Just(Kind::Acceptor), Just(Kind::Dialer)];
    prop_oneof![
        (0..3usize, 0..3usize).prop_map(|(name, secret)| Act::Accept(name, secret)),
        (0..3usize, 0..3usize).prop_map(|(name, secret)| Act::Dial(name, secret)),
        (kind(), 0..3usize, 0..3i64).prop_map(|(kind, name, to)| Act::Raise(kind, name, to)),
        (kind(), 0..3usize).prop_map(|(kind, name)| Act::Delete(kind, name)),
        (0..3usize).prop_map(Act::RemoveSecret),
        (0..3usize).prop_map(Act::Foreign),
        (0..3usize).prop_map(Act::ForgetPeering),
        (0..3usize).prop_map(Act::Terminate),
        any::<bool>().prop_map(Act::Away),
        Just(Act::Restart),
        (0..4usize).prop_map(Act::Report),
        Just(Act::Start),
        (0..3usize).prop_map(Act::End),
        Just(Act::Turn),
        Just(Act::Turn),
        (0..40u64).prop_map(Act::Pass),
    ]
}

fn happen(world: &mut World, act: &Act) {
    match *act {
        Act::Accept(name, secret) => {
            world.put(Kind::Acceptor, NAMES[name], (SECRETS[secret], "k"));
        }
        Act::Dial(name, secret) => world.put(Kind::Dialer, NAMES[name], (SECRETS[secret], "k")),
        Act::Raise(kind, name, to) => world.raise(kind, NAMES[name], to),
        Act::Delete(kind, name) => world.delete(kind, NAMES[name]),
        Act::RemoveSecret(secret) => world.remove_secret(SECRETS[secret]),
        Act::Foreign(secret) => {
            let new = token("there", world.version);
            world.foreign.push(new.clone());
            world.copy(SECRETS[secret], "k", &new);
        }
        Act::ForgetPeering(name) => drop(world.peerings.remove(NAMES[name])),
        Act::Terminate(name) => {
            if let Some(held) = world.peerings.get_mut(NAMES[name]) {
                held.peering = match held.peering.dials() {
                    true => Peering::dialing(&held.peering.peer_id, "TERMINATED"),
                    false => Peering::accepting(&held.peering.id, "TERMINATED"),
                };
            }
        }
        Act::Away(away) => world.away = away,
        Act::Restart => world.restart(),
        Act::Report(count) => world.report(count),
        Act::Start => world.start(),
        Act::End(count) => world.end(count),
        Act::Turn => drop(world.turn()),
        Act::Pass(seconds) => world.now += Duration::from_secs(seconds),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever happens in which order: in the end everything is at rest, each acceptor that is synced has a token that the
    /// servers accept, each synced dialer has a peering, and after the deletion of all objects nothing of them is left.
    #[test]
    fn all_orders_end_in_what_the_objects_describe(acts in proptest::collection::vec(act(), 1..40)) {
        let mut world = World::new();
        for act in &acts {
            happen(&mut world, act);
        }
        world.away = false;
        world.now += Duration::from_secs(120);
        world.settle();
        // A peering that somebody removed since it was read is missed at the next read.
        world.now += READ_EVERY;
        world.settle();
        let objects: Vec<_> = world.objects.iter().map(|(id, it)| (id.clone(), it.clone())).collect();
        for ((kind, name), object) in &objects {
            let (status, reason, message) = world.condition(*kind, name);
            prop_assert!(status == "True" || status == "False", "{kind:?} {name}: {status:?} {message}");
            prop_assert!(status == "True" || !reason.is_empty());
            if status != "True" {
                continue;
            }
            let secret = object["spec"]["peer"]["secret"]["name"].as_str().unwrap();
            prop_assert_eq!(world.peerings[name].peering.dials(), *kind == Kind::Dialer);
            if *kind == Kind::Acceptor {
                world.assert_usable(name, secret, "k");
            }
        }
        let others: Vec<String> = world.secrets.iter()
            .filter(|(_, secret)| SecretFact::of(secret).owner.is_none())
            .map(|(name, _)| name.clone())
            .collect();
        for ((kind, name), _) in &objects {
            world.delete(*kind, name);
        }
        world.settle();
        prop_assert!(world.objects.is_empty(), "{:?} {:#?}", world.objects, world.log);
        prop_assert!(world.peerings.is_empty(), "{:?} {:#?}", world.peerings, world.log);
        prop_assert_eq!(world.secrets.keys().cloned().collect::<Vec<_>>(), others);
    }
}

#[test]
fn several_namespaces_are_complete_when_each_is() {
    let mut core = Core::new(2);
    let now = Instant::now();
    for source in Source::ALL {
        core.changed(0, source, Change::Begin);
        core.changed(0, source, Change::Complete);
    }
    let object = json!({
        "apiVersion": "consul.hashicorp.com/v1alpha1", "kind": "PeeringAcceptor",
        "metadata": {"name": "west", "namespace": NAMESPACE, "uid": "1", "resourceVersion": "1"},
        "spec": {"peer": {"secret": {"name": "token", "key": "data", "backend": "kubernetes"}}},
    });
    let kind = Kind::Acceptor;
    core.changed(
        0,
        Source::Objects(kind),
        Change::Applied(item(kind, &object)),
    );
    assert!(core.poll(now, NOW).is_empty());
    for source in Source::ALL {
        core.changed(1, source, Change::Begin);
        core.changed(1, source, Change::Complete);
    }
    let calls = core.poll(now, NOW);
    assert_eq!(calls[0].id, (kind, Key::new(NAMESPACE, "west")));
}
