//! What to do next for one object, from what is known. Pure.

use super::kinds::{Kind, SecretSpec};
use super::object::{Key, Object, Wanted};
use super::secret::{SecretFact, Token};
use super::servers::Peering;
use super::status::{Outcome, Reason, Record, SecretRef};

/// What was read: `None` if it has to be read first, `Some(None)` if it does not exist.
pub(super) type Known<'a, T> = Option<Option<&'a T>>;

/// What is known about an object.
pub(super) struct View<'a> {
    pub(super) object: &'a Object,
    /// Why the peering of this name belongs to an older object.
    pub(super) name_taken: Option<String>,
    /// Why the Secret belongs to an older object of this kind.
    pub(super) secret_taken: Option<String>,
    pub(super) peering: Known<'a, Peering>,
    pub(super) secret: &'a dyn Fn(&Key) -> Known<'a, SecretFact>,
    /// The names of the Secrets that were made for it.
    pub(super) owned: Vec<&'a str>,
    /// What this process has done last, which the status may not have yet.
    pub(super) done: Option<&'a Done>,
}

/// A token that was made or used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) record: Record,
    /// The SHA-256 of the token.
    pub(super) digest: String,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Make a call.
    Call(Step),
    /// Nothing, and the status has to have this.
    Rest(Outcome),
    /// Nothing: the object is somebody else's.
    Nothing,
}

/// A call for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Reads the peering.
    ReadPeering,
    /// Reads a Secret.
    ReadSecret(Key),
    /// Adds the finalizer.
    Hold,
    /// Removes the finalizer.
    Release,
    /// Deletes the peering.
    DeletePeering,
    /// Deletes a Secret with this uid.
    DeleteSecret { key: Key, uid: String },
    /// Makes a token and stores it in a Secret.
    Generate {
        secret: SecretSpec,
        /// The largest value of the annotation so far.
        version: Option<i64>,
        /// Whether the status names the Secret.
        recorded: bool,
    },
    /// Uses the token in a Secret.
    Establish {
        secret: SecretSpec,
        /// The largest value of the annotation so far.
        version: Option<i64>,
        /// Whether the clusters are connected with a token of the same peering: then it may have been used before.
        connected: bool,
    },
}

/// Decides what to do next.
pub(super) fn next(view: &View<'_>) -> Next {
    let object = view.object;
    if object.leaving {
        return leave(view);
    }
    let wanted = match &object.wanted {
        Ok(wanted) => wanted,
        Err(reason) => return refuse(Reason::Invalid, reason.clone()),
    };
    if let Some(taken) = view.name_taken.as_ref().or(view.secret_taken.as_ref()) {
        return refuse(Reason::Duplicate, taken.clone());
    }
    if !object.is_held() {
        return Next::Call(Step::Hold);
    }
    match object.kind {
        Kind::Acceptor => accept(view, wanted),
        Kind::Dialer => dial(view, wanted),
    }
}

/// A deleted object: what was made for it is removed, and then its finalizer.
fn leave(view: &View<'_>) -> Next {
    let object = view.object;
    if !object.is_held() {
        return Next::Nothing;
    }
    let record = view.record();
    if view.name_taken.is_some() || (object.wanted.is_err() && record.is_none()) {
        // Nothing was made for it.
        return Next::Call(Step::Release);
    }
    let Some(peering) = view.peering else {
        return Next::Call(Step::ReadPeering);
    };
    let own = peering.filter(|peering| {
        let made_for_it = record.is_some() || peering.is_from_kubernetes();
        made_for_it && peering.dials() == (object.kind == Kind::Dialer)
    });
    match own {
        Some(peering) if peering.is_leaving() => {
            let text = "the servers are removing the peering and what was imported";
            return Next::Rest(Outcome::Unknown(Reason::Removing, text.to_owned()));
        }
        Some(_) => return Next::Call(Step::DeletePeering),
        None => {}
    }
    let wanted = object.wanted.as_ref().ok();
    let wanted = wanted.map(|wanted| &*wanted.secret.name);
    if let Some(step) = view.discard_all(wanted, |_| true) {
        return Next::Call(step);
    }
    Next::Call(Step::Release)
}

fn accept(view: &View<'_>, wanted: &Wanted) -> Next {
    let (object, spec) = (view.object, &wanted.secret);
    let name = &object.key.name;
    let Some(peering) = view.peering else {
        return Next::Call(Step::ReadPeering);
    };
    if peering.is_some_and(Peering::dials) {
        let text = format!(
            "the servers have a peering {name} that uses another cluster's token: delete it, or give this object \
             another name"
        );
        return refuse(Reason::OtherRole, text);
    }
    if peering.is_some_and(Peering::is_leaving) {
        return earlier();
    }
    let record = view.record();
    if let Some(step) = view.discard_all(None, |name| name != spec.name) {
        return Next::Call(step);
    }
    let key = Key::new(&object.key.namespace, &spec.name);
    let Some(secret) = (view.secret)(&key) else {
        return Next::Call(Step::ReadSecret(key));
    };
    let recorded = record.is_some_and(|record| record.secret.name == spec.name);
    if secret.is_some_and(|secret| !secret.belongs_to(&object.uid, recorded)) {
        let text = format!(
            "the Secret {key} exists and does not belong to this object: delete it, or name another one in \
             spec.peer.secret.name"
        );
        return refuse(Reason::SecretTaken, text);
    }
    let stored = record.filter(|record| record.secret.is(spec) && !is_raised(record, wanted));
    let is_current = |peering: &Peering| {
        let mut secret = secret.iter();
        secret.any(|secret| secret.is_current(&spec.key, &peering.id))
    };
    match (peering, stored) {
        (Some(peering), Some(record)) if is_current(peering) => {
            rest(peering, (record, wanted), None)
        }
        (Some(peering), _) if peering.is_terminated() => Next::Call(Step::DeletePeering),
        _ => Next::Call(Step::Generate {
            secret: spec.clone(),
            version: latest(record, wanted),
            recorded,
        }),
    }
}

fn dial(view: &View<'_>, wanted: &Wanted) -> Next {
    let (object, spec) = (view.object, &wanted.secret);
    let name = &object.key.name;
    let key = Key::new(&object.key.namespace, &spec.name);
    let Some(secret) = (view.secret)(&key) else {
        return Next::Call(Step::ReadSecret(key));
    };
    let Some(secret) = secret else {
        let text = format!(
            "the Secret {key} does not exist: copy it from the cluster that has the PeeringAcceptor"
        );
        return refuse(Reason::SecretMissing, text);
    };
    let Some(token) = secret.token(&spec.key) else {
        let text = format!("the Secret {key} has no key {:?}", spec.key);
        return refuse(Reason::SecretMissing, text);
    };
    let Some(peering) = view.peering else {
        return Next::Call(Step::ReadPeering);
    };
    if peering.is_some_and(|peering| !peering.dials()) {
        let text = format!(
            "the servers have a peering {name} that another cluster connects to: delete it, or give this object \
             another name"
        );
        return refuse(Reason::OtherRole, text);
    }
    if peering.is_some_and(Peering::is_leaving) {
        return earlier();
    }
    let record = view.record();
    let used = record.filter(|record| {
        record.secret.is(spec) && !is_raised(record, wanted) && view.is_used(record, secret, token)
    });
    match (peering, used) {
        (Some(peering), Some(record)) => {
            let version = secret.resource_version.clone();
            rest(peering, (record, wanted), Some(version))
        }
        (Some(peering), None) if peering.is_terminated() => Next::Call(Step::DeletePeering),
        (peering, _) => Next::Call(Step::Establish {
            secret: spec.clone(),
            version: latest(record, wanted),
            connected: peering.is_some_and(|peering| {
                peering.is_active() && token.peer_id.as_deref() == Some(&*peering.peer_id)
            }),
        }),
    }
}

impl View<'_> {
    /// The token that was made or used last.
    fn record(&self) -> Option<&Record> {
        let done = self.done.map(|done| &done.record);
        done.or(self.object.recorded.as_ref())
    }

    /// Whether this token was used. A Secret whose token is the same may have another version.
    fn is_used(&self, record: &Record, secret: &SecretFact, token: &Token) -> bool {
        let same = record.secret.resource_version.as_ref() == Some(&secret.resource_version);
        same || self.done.is_some_and(|done| done.digest == token.digest)
    }

    /// The call that removes one of several Secrets of an acceptor: those that were made for it, the one that the status
    /// names, and another one.
    fn discard_all(&self, other: Option<&str>, which: impl Fn(&str) -> bool) -> Option<Step> {
        if self.object.kind == Kind::Dialer {
            return None;
        }
        let recorded = self.record().map(|record| &*record.secret.name);
        let names = self.owned.iter().copied().chain(recorded).chain(other);
        let mut names = names.filter(|name| which(name));
        names.find_map(|name| self.discard(name))
    }

    /// The call that removes a Secret of this object, if there is one.
    fn discard(&self, name: &str) -> Option<Step> {
        let key = Key::new(&self.object.key.namespace, name);
        let Some(secret) = (self.secret)(&key) else {
            return Some(Step::ReadSecret(key));
        };
        let recorded = self.record();
        let recorded = recorded.is_some_and(|record| record.secret.name == name);
        let secret = secret.filter(|secret| secret.belongs_to(&self.object.uid, recorded))?;
        Some(Step::DeleteSecret {
            key,
            uid: secret.uid.clone(),
        })
    }
}

/// Whether the annotation was increased.
fn is_raised(record: &Record, wanted: &Wanted) -> bool {
    wanted.version > record.version
}

/// The largest value of the annotation so far.
fn latest(record: Option<&Record>, wanted: &Wanted) -> Option<i64> {
    record.and_then(|record| record.version).max(wanted.version)
}

/// The outcome after the token was made or used.
fn rest(peering: &Peering, (record, wanted): (&Record, &Wanted), version: Option<String>) -> Next {
    if peering.is_terminated() {
        let text = "the other cluster has deleted the peering: delete this object, or have a new token made by \
                    increasing the annotation consul.hashicorp.com/peering-version of the PeeringAcceptor";
        return refuse(Reason::Terminated, text.to_owned());
    }
    Next::Rest(Outcome::Synced(Record {
        secret: SecretRef::of(&wanted.secret, version),
        version: latest(Some(record), wanted),
    }))
}

fn earlier() -> Next {
    let text = "an earlier peering of this name is still being removed";
    Next::Rest(Outcome::Unknown(Reason::Removing, text.to_owned()))
}

fn refuse(reason: Reason, text: String) -> Next {
    Next::Rest(Outcome::Refused(reason, text))
}
