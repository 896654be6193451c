//! What is known of objects, Secrets and peerings, and the calls to make. Pure: the driver makes the calls.
//!
//! Each object has one call at a time. A call that failed is made again after a delay, or as soon as the object or its
//! Secret has changed. Peerings are read again after a while, because their state changes at the servers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::decision::{Done, Known, Next, Step, View, next};
use super::kinds::Kind;
use super::object::{Key, Object};
use super::secret::SecretFact;
use super::servers::Peering;
use super::status::{Outcome, Reason, Record, SecretRef};
use crate::config::decision::retry_after;
use crate::sync::objects::{Change, Objects};

/// How many calls are made at a time.
const CALLS: usize = 8;
/// After which time a peering or an unlabelled Secret is read again.
const READ_EVERY: Duration = Duration::from_secs(30);
/// The same of a peering that is being removed.
const LEAVING_EVERY: Duration = Duration::from_secs(1);
/// How long the watch may take to report a change that was made here.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);
/// When to poll if nothing is due.
const IDLE: Duration = Duration::from_mins(10);

/// What the servers answer to a token that was used before. Consul's words.
const USED_TOKEN: &str = "a new peering token must be generated";

/// An object: its kind, namespace and name.
pub(super) type Id = (Kind, Key);

/// The source of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Objects(Kind),
    /// The Secrets that are labelled.
    Secrets,
}

impl Source {
    pub(super) const ALL: [Source; 3] = [
        Source::Objects(Kind::Acceptor),
        Source::Objects(Kind::Dialer),
        Source::Secrets,
    ];
}

/// What has changed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Object(Box<Object>),
    Secret(Box<SecretFact>),
}

/// A call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) id: Id,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) finalizers: Vec<String>,
    pub(super) what: What,
}

/// What a call does.
#[derive(Clone, Debug)]
pub(super) enum What {
    Step(Step),
    /// Changes fields of the status, and writes an event with a reason and a message.
    Status {
        change: Value,
        notice: Option<(Reason, String)>,
    },
}

impl What {
    /// The Secret that it is about, for the object with this key.
    fn secret(&self, object: &Key) -> Option<Key> {
        match self {
            What::Step(Step::ReadSecret(key) | Step::DeleteSecret { key, .. }) => Some(key.clone()),
            What::Step(Step::Generate { secret, .. } | Step::Establish { secret, .. }) => {
                Some(Key::new(&object.namespace, &secret.name))
            }
            _ => None,
        }
    }
}

/// How a call has ended.
#[derive(Clone, Debug)]
pub(super) enum Ended {
    /// The peering as it was read, if there is one.
    Peering(Option<Peering>),
    /// The Secret as it was read, if there is one.
    Secret(Option<SecretFact>),
    /// The token was made, and this Secret has it.
    Generated(SecretFact),
    /// The token of this Secret was used.
    Established(SecretFact),
    /// All else was done.
    Done,
    /// It failed, with this outcome.
    Failed(Outcome),
}

/// What was read, and when.
#[derive(Debug)]
struct Read<T> {
    value: Option<T>,
    until: Instant,
}

/// The objects of one watched namespace, or of all.
#[derive(Debug, Default)]
struct Scope {
    objects: BTreeMap<Kind, Objects<Key, Object>>,
    secrets: Objects<Key, SecretFact>,
}

/// What is being done for an object.
#[derive(Debug, Default)]
struct Work {
    uid: String,
    busy: bool,
    /// The Secret that the open call is about.
    secret: Option<Key>,
    /// Whether a watch has reported a change of that Secret since the call was started.
    overtaken: bool,
    done: Option<Done>,
    /// The outcome of the last call, if it failed.
    failure: Option<Outcome>,
    failures: u32,
    /// When the next attempt is due.
    until: Option<Instant>,
    /// What the attempts depend on.
    seen: Option<Seen>,
    /// When the status may be written again after a failure.
    status_until: Option<Instant>,
    status_failures: u32,
    /// The version of the object that was changed here: another one is to come.
    changed: Option<(String, Instant)>,
    synced: bool,
}

/// The parts of the state whose change makes another attempt sensible.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    generation: i64,
    leaving: bool,
    version: Option<i64>,
    secret: Option<String>,
    taken: bool,
}

/// The state.
#[derive(Debug)]
pub(super) struct Core {
    scopes: Vec<Scope>,
    peerings: BTreeMap<String, Read<Peering>>,
    /// Secrets that were written here, or read because the watch does not report them.
    secrets: BTreeMap<Key, Read<SecretFact>>,
    work: BTreeMap<Id, Work>,
}

impl Core {
    /// Without anything known, of so many watched namespaces.
    pub(super) fn new(scopes: usize) -> Core {
        let scope = || Scope {
            objects: Kind::ALL.map(|kind| (kind, Objects::default())).into(),
            secrets: Objects::default(),
        };
        Core {
            scopes: (0..scopes).map(|_| scope()).collect(),
            peerings: BTreeMap::new(),
            secrets: BTreeMap::new(),
            work: BTreeMap::new(),
        }
    }

    /// An object or a Secret of a watched namespace has changed.
    pub(super) fn changed(&mut self, scope: usize, source: Source, change: Change<Item>) {
        let Some(scope) = self.scopes.get_mut(scope) else {
            return;
        };
        match source {
            Source::Objects(kind) => {
                let objects = scope.objects.entry(kind).or_default();
                if let Some(change) = only(change, as_object) {
                    objects.apply(change, |object| object.key.clone());
                }
            }
            Source::Secrets => {
                let Some(change) = only(change, as_secret) else {
                    return;
                };
                for key in scope.secrets.apply(change, |it| it.key.clone()) {
                    let about = |work: &&mut Work| work.secret.as_ref() == Some(&key);
                    for work in self.work.values_mut().filter(about) {
                        work.overtaken = true;
                    }
                    let watched = scope.secrets.get(&key);
                    let read = self.secrets.get(&key);
                    let read = read.and_then(|read| read.value.as_ref());
                    // A watch reports what was written here only after what was there before.
                    let late = matches!((watched, read), (Some(watched), Some(read)) if is_older(watched, read));
                    if !late {
                        self.secrets.remove(&key);
                    }
                }
            }
        }
    }

    /// The calls to start. `now` is also given as Kubernetes writes it.
    pub(super) fn poll(&mut self, now: Instant, text: &str) -> Vec<Call> {
        let complete = self.scopes.iter().all(|scope| {
            let mut objects = scope.objects.values();
            objects.all(Objects::complete) && scope.secrets.complete()
        });
        if !complete {
            return Vec::new();
        }
        self.peerings.retain(|_, read| read.until > now);
        self.secrets.retain(|_, read| read.until > now);
        let mut work = std::mem::take(&mut self.work);
        let all: Vec<&Object> = self.objects().collect();
        let holders = Holders::of(&all, &work);
        work.retain(|id, work| {
            work.busy || all.iter().any(|one| (one.kind, &one.key) == (id.0, &id.1))
        });
        let mut busy = work.values().filter(|work| work.busy).count();
        let mut calls = Vec::new();
        for object in all {
            if busy >= CALLS {
                break;
            }
            let id = (object.kind, object.key.clone());
            let work = work.entry(id).or_default();
            if work.busy {
                continue;
            }
            if work.uid != object.uid {
                *work = Work {
                    uid: object.uid.clone(),
                    ..Work::default()
                };
            }
            if let Some(what) = self.call(object, work, &holders, (now, text)) {
                work.busy = true;
                (work.secret, work.overtaken) = (what.secret(&object.key), false);
                busy += 1;
                calls.push(Call {
                    id: (object.kind, object.key.clone()),
                    uid: object.uid.clone(),
                    resource_version: object.resource_version.clone(),
                    finalizers: object.finalizers.clone(),
                    what,
                });
            }
        }
        self.work = work;
        calls
    }

    /// The call for an object, if one is necessary and due.
    fn call(
        &self,
        object: &Object,
        work: &mut Work,
        holders: &Holders<'_>,
        (now, text): (Instant, &str),
    ) -> Option<What> {
        if let Some((version, at)) = &work.changed {
            if *version == object.resource_version && now < *at + REPORTED_WITHIN {
                return None;
            }
            work.changed = None;
        }
        let seen = self.seen(object, holders);
        if work.seen.as_ref() != Some(&seen) {
            (work.failures, work.until) = (0, None);
            work.seen = Some(seen);
        }
        let waits = work.until.is_some_and(|until| now < until);
        let outcome = match work.failure.clone().filter(|_| waits) {
            Some(failure) => failure,
            None => match self.next(object, work.done.as_ref(), holders) {
                Next::Call(step) => return Some(What::Step(step)),
                Next::Nothing => return None,
                Next::Rest(outcome) => {
                    (work.failures, work.until, work.failure) = (0, None, None);
                    outcome
                }
            },
        };
        work.synced = matches!(outcome, Outcome::Synced(_));
        if work.status_until.is_some_and(|until| now < until) {
            return None;
        }
        let record = work.done.as_ref().map(|done| &done.record);
        let status = &object.status;
        let change = status.change(&outcome, record, (&object.conditions, text))?;
        let notice = match outcome {
            Outcome::Synced(_) | Outcome::Unknown(Reason::Removing, _) => None,
            Outcome::Refused(reason, text) | Outcome::Unknown(reason, text) => Some((reason, text)),
        };
        Some(What::Status { change, notice })
    }

    fn next(&self, object: &Object, done: Option<&Done>, holders: &Holders<'_>) -> Next {
        let peering = self.peerings.get(&object.key.name);
        next(&View {
            object,
            name_taken: holders.name_taken(object),
            secret_taken: holders.secret_taken(object),
            peering: peering.map(|read| read.value.as_ref()),
            secret: &|key| self.secret(key),
            owned: self.owned(object),
            done,
        })
    }

    /// What was read or written here is newer than what the watch reported before.
    fn secret(&self, key: &Key) -> Known<'_, SecretFact> {
        let read = self.secrets.get(key).map(|read| read.value.as_ref());
        read.or_else(|| {
            let mut scopes = self.scopes.iter();
            scopes.find_map(|scope| scope.secrets.get(key)).map(Some)
        })
    }

    /// What a call has seen of a Secret. If a watch has reported a change since the call was started, the watch is believed,
    /// unless what it has reported is older.
    fn saw(&mut self, key: Key, value: Option<SecretFact>, overtaken: bool, now: Instant) {
        let mut scopes = self.scopes.iter();
        let watched = scopes.find_map(|scope| scope.secrets.get(&key));
        let newer =
            matches!((watched, &value), (Some(watched), Some(value)) if is_older(watched, value));
        if overtaken && !newer {
            self.secrets.remove(&key);
            return;
        }
        let until = now + READ_EVERY;
        self.secrets.insert(key, Read { value, until });
    }

    /// The names of the Secrets that were made for an object.
    fn owned(&self, object: &Object) -> Vec<&str> {
        let scopes = self.scopes.iter();
        let watched = scopes.flat_map(|scope| scope.secrets.iter().map(|(_, secret)| secret));
        let owned = watched.filter(|secret| {
            secret.key.namespace == object.key.namespace && secret.was_made_for(&object.uid)
        });
        owned.map(|secret| &*secret.key.name).collect()
    }

    fn seen(&self, object: &Object, holders: &Holders<'_>) -> Seen {
        let wanted = object.wanted.as_ref().ok();
        let secret = wanted.and_then(|wanted| {
            let key = Key::new(&object.key.namespace, &wanted.secret.name);
            self.secret(&key).flatten()
        });
        Seen {
            generation: object.generation,
            leaving: object.leaving,
            version: wanted.and_then(|wanted| wanted.version),
            secret: secret.map(|secret| secret.resource_version.clone()),
            taken: holders.name_taken(object).is_some() || holders.secret_taken(object).is_some(),
        }
    }

    fn objects(&self) -> impl Iterator<Item = &Object> {
        let scopes = self.scopes.iter();
        let kinds = scopes.flat_map(|scope| scope.objects.values());
        kinds.flat_map(|objects| objects.iter().map(|(_, object)| object))
    }

    /// When to poll again if nothing happens.
    pub(super) fn wake(&self, now: Instant) -> Instant {
        let peerings = self.peerings.values().map(|read| read.until);
        let secrets = self.secrets.values().map(|read| read.until);
        let idle = self.work.values().filter(|work| !work.busy);
        let work = idle.flat_map(|work| {
            let changed = work.changed.as_ref().map(|(_, at)| *at + REPORTED_WITHIN);
            [work.until, work.status_until, changed]
        });
        let all = peerings.chain(secrets).chain(work.flatten());
        let due = all.filter(|at| *at > now).min();
        due.unwrap_or(now + IDLE)
    }

    /// How many objects of a kind are not synced.
    pub(super) fn not_synced(&self, kind: Kind) -> usize {
        let work = self.work.iter();
        work.filter(|((of, _), work)| *of == kind && !work.synced)
            .count()
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, call: &Call, ended: Ended, now: Instant) {
        let name = &call.id.1.name;
        let ended = self.used_before(call, &ended).unwrap_or(ended);
        let Some(work) = self.work.get_mut(&call.id) else {
            return;
        };
        work.busy = false;
        work.secret = None;
        let overtaken = work.overtaken;
        let step = match &call.what {
            What::Status { .. } => return work.status_ended(call, &ended, now),
            What::Step(step) => step,
        };
        match (step, ended) {
            (Step::ReadPeering, Ended::Peering(value)) => {
                let leaving = value.as_ref().is_some_and(Peering::is_leaving);
                let every = if leaving { LEAVING_EVERY } else { READ_EVERY };
                let until = now + every;
                self.peerings.insert(name.clone(), Read { value, until });
            }
            (Step::ReadSecret(key), Ended::Secret(value)) => {
                self.saw(key.clone(), value, overtaken, now);
            }
            (_, Ended::Failed(failure)) => {
                self.peerings.remove(name);
                if let Some(key) = call.what.secret(&call.id.1) {
                    self.secrets.remove(&key);
                }
                work.failed(failure, now);
            }
            (Step::DeleteSecret { key, .. }, Ended::Done) => {
                work.succeeded(None);
                self.saw(key.clone(), None, overtaken, now);
            }
            (Step::DeletePeering, Ended::Done) => {
                self.peerings.remove(name);
                work.succeeded(None);
            }
            (Step::Hold | Step::Release, Ended::Done) => {
                work.succeeded(None);
                work.changed = Some((call.resource_version.clone(), now));
            }
            (step, Ended::Generated(fact) | Ended::Established(fact)) => {
                self.peerings.remove(name);
                work.succeeded(done(step, &fact));
                self.saw(fact.key.clone(), Some(fact), overtaken, now);
            }
            (step, ended) => unreachable!("{step:?}: {ended:?}"),
        }
    }

    /// A token that the servers refuse because it was used before, by this object: another operator did not get to note it,
    /// or the Secret was written again without a change. The clusters are connected with a token of this peering.
    fn used_before(&self, call: &Call, ended: &Ended) -> Option<Ended> {
        let (What::Step(step), Ended::Failed(failure)) = (&call.what, ended) else {
            return None;
        };
        let Step::Establish {
            secret,
            connected: true,
            ..
        } = step
        else {
            return None;
        };
        let (Outcome::Refused(_, text) | Outcome::Unknown(_, text)) = failure else {
            return None;
        };
        let key = Key::new(&call.id.1.namespace, &secret.name);
        let fact = self.secret(&key)??;
        text.contains(USED_TOKEN)
            .then(|| Ended::Established(fact.clone()))
    }
}

impl Work {
    fn succeeded(&mut self, done: Option<Done>) {
        (self.failures, self.until, self.failure) = (0, None, None);
        self.done = done.or(self.done.take());
    }

    fn failed(&mut self, failure: Outcome, now: Instant) {
        self.until = Some(now + retry_after(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(failure);
    }

    fn status_ended(&mut self, call: &Call, ended: &Ended, now: Instant) {
        match ended {
            Ended::Failed(_) => {
                self.status_until = Some(now + retry_after(self.status_failures));
                self.status_failures = self.status_failures.saturating_add(1);
            }
            _ => {
                (self.status_until, self.status_failures) = (None, 0);
                self.changed = Some((call.resource_version.clone(), now));
            }
        }
    }
}

/// Whether a version of a Secret is older than another. Versions of one kind are numbers that grow.
fn is_older(one: &SecretFact, other: &SecretFact) -> bool {
    let number = |fact: &SecretFact| fact.resource_version.parse::<u64>().ok();
    matches!((number(one), number(other)), (Some(one), Some(other)) if one < other)
}

/// What a step has done with the token of a Secret.
fn done(step: &Step, fact: &SecretFact) -> Option<Done> {
    let (secret, version, resource_version) = match step {
        Step::Generate {
            secret, version, ..
        } => (secret, version, None),
        Step::Establish {
            secret, version, ..
        } => (secret, version, Some(fact.resource_version.clone())),
        _ => return None,
    };
    let token = fact.token(&secret.key);
    Some(Done {
        record: Record {
            secret: SecretRef::of(secret, resource_version),
            version: *version,
        },
        digest: token.map(|token| token.digest.clone()).unwrap_or_default(),
    })
}

/// The objects that have the peerings and Secrets: of several for one the oldest.
struct Holders<'a> {
    names: BTreeMap<&'a str, &'a Object>,
    secrets: BTreeMap<(Kind, &'a str, &'a str), &'a Object>,
}

impl<'a> Holders<'a> {
    fn of(all: &[&'a Object], work: &BTreeMap<Id, Work>) -> Holders<'a> {
        let mut sorted: Vec<&'a Object> = all.to_vec();
        // Of those of the same second, the one that has a token already.
        sorted.sort_by_cached_key(|object| {
            let id = (object.kind, object.key.clone());
            let done = work.get(&id).filter(|work| work.uid == object.uid);
            let done = done.is_some_and(|work| work.done.is_some());
            let has_none = !done && object.recorded.is_none();
            (object.created.clone(), has_none, !object.is_held(), id)
        });
        let (mut names, mut secrets) = (BTreeMap::new(), BTreeMap::new());
        // One that is deleted has its peering until that is removed.
        let alive = sorted.iter().filter(|one| !one.leaving || one.is_held());
        for object in alive.copied() {
            names.entry(&*object.key.name).or_insert(object);
            if let Ok(wanted) = &object.wanted {
                let secret = (object.kind, &*object.key.namespace, &*wanted.secret.name);
                secrets.entry(secret).or_insert(object);
            }
        }
        Holders { names, secrets }
    }

    fn name_taken(&self, object: &Object) -> Option<String> {
        let holder = self.names.get(&*object.key.name)?;
        (holder.uid != object.uid).then(|| {
            format!(
                "{} {} is older and has the peering {}: the name of a peering does not include the Kubernetes \
                 namespace, so give this object another name",
                holder.kind.as_str(),
                holder.key,
                object.key.name
            )
        })
    }

    fn secret_taken(&self, object: &Object) -> Option<String> {
        let wanted = object.wanted.as_ref().ok()?;
        let secret = (object.kind, &*object.key.namespace, &*wanted.secret.name);
        let holder = self.secrets.get(&secret)?;
        (holder.uid != object.uid).then(|| {
            format!(
                "{} {} is older and has the Secret {}: name another one in spec.peer.secret.name",
                holder.kind.as_str(),
                holder.key,
                wanted.secret.name
            )
        })
    }
}

fn as_object(item: Item) -> Option<Object> {
    match item {
        Item::Object(object) => Some(*object),
        Item::Secret(_) => None,
    }
}

fn as_secret(item: Item) -> Option<SecretFact> {
    match item {
        Item::Secret(secret) => Some(*secret),
        Item::Object(_) => None,
    }
}

/// A change of items of one type. There are no others in a source.
fn only<T>(change: Change<Item>, of: fn(Item) -> Option<T>) -> Option<Change<T>> {
    Some(match change {
        Change::Begin => Change::Begin,
        Change::Listed(item) => Change::Listed(of(item)?),
        Change::Complete => Change::Complete,
        Change::Applied(item) => Change::Applied(of(item)?),
        Change::Gone(item) => Change::Gone(of(item)?),
    })
}

#[cfg(test)]
mod tests;
