//! Sessions: what locks of the key-value store are held by, and what ends them. Consul's fields,
//! defaults and texts.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

use crate::duration::GoDuration;
use crate::name;
use crate::tenancy::TenancyName;

/// The longest time to live.
const MAX_TTL: GoDuration = GoDuration::from_secs(24 * 60 * 60);

/// How long locks stay closed after their session was ended, unless the session says otherwise.
const DEFAULT_LOCK_DELAY: GoDuration = GoDuration::from_secs(15);

/// How long locks stay closed at most.
const MAX_LOCK_DELAY: Duration = Duration::from_secs(60);

/// A lock delay of fewer nanoseconds is one in seconds.
const SECONDS_BELOW: i64 = 1000;

/// How many checks a session may depend on.
const MAX_CHECKS: usize = 128;

/// What happens to the keys that a session has locked when it ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionBehavior {
    /// Their locks are released.
    #[default]
    Release,
    /// They are deleted.
    Delete,
}

/// A session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Session {
    /// UUID, made by the server.
    #[serde(rename = "ID")]
    pub id: String,
    /// Free text for operators; not interpreted.
    pub name: String,
    /// The node that it belongs to, and ends with.
    pub node: String,
    /// How long its locks stay closed after it was ended.
    #[serde(with = "crate::duration::nanos")]
    pub lock_delay: Duration,
    /// What happens to its locks then.
    pub behavior: SessionBehavior,
    /// How long it lives without being renewed, in Go's notation; empty for ever.
    #[serde(rename = "TTL")]
    pub ttl: String,
    /// Checks of the node that it ends with.
    pub node_checks: Vec<String>,
    /// Checks of instances on the node that it ends with.
    pub service_checks: Option<Vec<ServiceCheck>>,
    /// Checks in the field that Consul had before 1.7.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<String>,
    /// Namespace; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Index of the write that created it.
    pub create_index: u64,
    /// The same: nobody changes a session.
    pub modify_index: u64,
}

/// A check of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceCheck {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// The namespace that it is of; empty for that of the session. Shown as Consul shows it.
    pub namespace: TenancyName,
}

impl Session {
    /// The ids of all checks that it ends with.
    pub fn check_ids(&self) -> impl Iterator<Item = &str> {
        let of_services = self.service_checks.iter().flatten();
        let all = self.checks.iter().chain(&self.node_checks);
        all.map(String::as_str)
            .chain(of_services.map(|check| check.id.as_str()))
    }

    /// How long it lives without being renewed. `None`: for ever.
    pub fn time_to_live(&self) -> Option<Duration> {
        let ttl: GoDuration = self.ttl.parse().ok()?;
        Some(ttl.to_duration()).filter(|ttl| !ttl.is_zero())
    }

    /// How long its locks really stay closed.
    pub fn closed_for(&self) -> Duration {
        self.lock_delay.min(MAX_LOCK_DELAY)
    }
}

/// Body of `PUT /v1/session/create`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SessionRequest {
    /// Accepted and not used: the server makes it.
    #[serde(rename = "ID")]
    pub id: String,
    /// Free text for operators; not interpreted.
    pub name: String,
    /// The node that it belongs to; empty means the server's own.
    pub node: Option<String>,
    /// How long its locks stay closed after it was ended; 15 seconds when it is left out.
    pub lock_delay: Option<LockDelay>,
    /// `release`, `delete`, or empty for `release`.
    pub behavior: String,
    /// From 10 seconds to 24 hours in Go's notation; empty for ever.
    #[serde(rename = "TTL")]
    pub ttl: String,
    /// Checks of the node; that of its agent when it is left out.
    pub node_checks: Option<Vec<String>>,
    /// Checks of instances on the node.
    pub service_checks: Option<Vec<ServiceCheck>>,
    /// Checks in the field that Consul had before 1.7.
    pub checks: Option<Vec<String>>,
    /// Accepted and not used.
    pub create_index: u64,
    /// Accepted and not used.
    pub modify_index: u64,
    /// The namespace that it is about; empty for that of the request.
    pub namespace: TenancyName,
    /// The partition that it is about; empty for that of the request.
    pub partition: TenancyName,
}

/// A duration in Go's notation, or a number of nanoseconds, or of seconds when it is a small one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockDelay(Duration);

impl<'de> Deserialize<'de> for LockDelay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DelayVisitor)
    }
}

struct DelayVisitor;

impl Visitor<'_> for DelayVisitor {
    type Value = LockDelay;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration like 15s, or a number of nanoseconds")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<LockDelay, E> {
        let delay: GoDuration = text.parse().map_err(E::custom)?;
        self.visit_i64(delay.as_nanos())
    }

    fn visit_u64<E: Error>(self, nanos: u64) -> Result<LockDelay, E> {
        self.visit_i64(i64::try_from(nanos).unwrap_or(i64::MAX))
    }

    fn visit_i64<E: Error>(self, nanos: i64) -> Result<LockDelay, E> {
        let delay = match nanos < SECONDS_BELOW {
            true => GoDuration::from_secs(nanos),
            false => GoDuration::from_nanos(nanos),
        };
        match delay.is_negative() {
            true => Err(E::custom("a lock delay must not be negative")),
            false => Ok(LockDelay(delay.to_duration())),
        }
    }

    fn visit_f64<E: Error>(self, nanos: f64) -> Result<LockDelay, E> {
        self.visit_i64(nanos as i64)
    }
}

/// A session that cannot be accepted. Consul's texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSession {
    /// There is no node.
    #[error("Must provide Node")]
    NoNode,
    /// The behavior is neither of the two.
    #[error("Invalid Behavior setting '{0}'")]
    Behavior(String),
    /// The time to live is no duration.
    #[error("Session TTL '{ttl}' invalid: {reason}")]
    Ttl {
        /// What was sent.
        ttl: String,
        /// Why not.
        reason: String,
    },
    /// The time to live is too short or too long.
    #[error("Invalid Session TTL '{nanos}', must be between [{least}={MAX_TTL}]")]
    TtlRange {
        /// What was sent, in nanoseconds.
        nanos: i64,
        /// The shortest that this server allows.
        least: GoDuration,
    },
    /// A name or a list is too long, or names what is not served.
    #[error("{0}")]
    Field(String),
}

/// A session that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// The session, without id and indexes.
    pub session: Session,
    /// Whether its node check is the default one, which is left out where the node has none.
    pub default_check: bool,
}

impl SessionRequest {
    /// Fills in the defaults: `node` and `check` are those of the server.
    ///
    /// # Errors
    ///
    /// [`InvalidSession`] says what is wrong first.
    pub fn into_session(
        self,
        node: &str,
        check: &str,
        least_ttl: Duration,
    ) -> Result<NewSession, InvalidSession> {
        let node = self.node.unwrap_or_else(|| node.to_owned());
        if node.is_empty() {
            return Err(InvalidSession::NoNode);
        }
        let behavior = match self.behavior.as_str() {
            "" | "release" => SessionBehavior::Release,
            "delete" => SessionBehavior::Delete,
            _ => return Err(InvalidSession::Behavior(self.behavior)),
        };
        validate_ttl(&self.ttl, least_ttl)?;
        let (node_checks, checks, default_check) =
            chosen_checks(self.node_checks, self.checks, check);
        let delay = self.lock_delay.map(|LockDelay(delay)| delay);
        let session = Session {
            id: String::new(),
            name: self.name,
            node,
            lock_delay: delay.unwrap_or_else(|| DEFAULT_LOCK_DELAY.to_duration()),
            behavior,
            ttl: self.ttl,
            node_checks,
            service_checks: self.service_checks,
            checks,
            namespace: TenancyName::default(),
            partition: TenancyName::default(),
            create_index: 0,
            modify_index: 0,
        };
        validate_fields(&session)?;
        Ok(NewSession {
            session,
            default_check,
        })
    }
}

fn validate_ttl(ttl: &str, least: Duration) -> Result<(), InvalidSession> {
    if ttl.is_empty() {
        return Ok(());
    }
    let parsed: GoDuration = ttl.parse().map_err(|error| InvalidSession::Ttl {
        ttl: ttl.to_owned(),
        reason: format!("{error}"),
    })?;
    let least = GoDuration::from(least);
    match parsed.is_zero() || (least <= parsed && parsed <= MAX_TTL) {
        true => Ok(()),
        false => Err(InvalidSession::TtlRange {
            nanos: parsed.as_nanos(),
            least,
        }),
    }
}

fn validate_fields(session: &Session) -> Result<(), InvalidSession> {
    let names = [&session.name, &session.node];
    let all = names
        .into_iter()
        .map(String::as_str)
        .chain(session.check_ids());
    for text in all {
        let checked = name::validate_length(text);
        checked.map_err(|error| InvalidSession::Field(error.to_string()))?;
    }
    let mut of_services = session.service_checks.iter().flatten();
    if of_services.any(|check| check.namespace.is_every()) {
        return Err(InvalidSession::Field(
            "ServiceChecks.Namespace: \"*\" names no namespace".to_owned(),
        ));
    }
    match session.check_ids().count() > MAX_CHECKS {
        false => Ok(()),
        true => Err(InvalidSession::Field(format!(
            "a session depends on at most {MAX_CHECKS} checks"
        ))),
    }
}

/// The node checks and those of the old field, and whether they are the default. The old field counts
/// where it says something of its own; an empty one means no check of the node.
fn chosen_checks(
    node_checks: Option<Vec<String>>,
    old: Option<Vec<String>>,
    default: &str,
) -> (Vec<String>, Vec<String>, bool) {
    let given = node_checks.is_some();
    let node_checks = node_checks.unwrap_or_else(|| vec![default.to_owned()]);
    match old {
        Some(old) if old.is_empty() => (Vec::new(), Vec::new(), false),
        Some(old) if old != [default] && !node_checks.is_empty() => (node_checks, old, !given),
        _ => (node_checks, Vec::new(), !given),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::json::{UnknownFields, from_value};

    fn made(body: Value) -> Result<Session, InvalidSession> {
        let request: SessionRequest = from_value(body, UnknownFields::Refuse).unwrap();
        let least = Duration::from_secs(10);
        let made = request.into_session("n", "serfHealth", least)?;
        Ok(made.session)
    }

    fn delay(value: Value) -> Result<Duration, String> {
        let delay: Result<LockDelay, _> = from_value(value, UnknownFields::Refuse);
        delay
            .map(|LockDelay(delay)| delay)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn lock_delays_are_read_as_consul_reads_them() {
        let seconds = |seconds| Ok(Duration::from_secs(seconds));
        assert_eq!(delay(json!("15s")), seconds(15));
        assert_eq!(delay(json!(15)), seconds(15));
        assert_eq!(delay(json!(15_000_000_000u64)), seconds(15));
        assert_eq!(delay(json!(15e9)), seconds(15));
        assert_eq!(delay(json!("500ns")), seconds(500));
        assert_eq!(delay(json!("1ms")), Ok(Duration::from_millis(1)));
        assert_eq!(delay(json!(0)), seconds(0));
        for bad in [json!("15"), json!("-5s"), json!(-1), json!([])] {
            assert!(delay(bad.clone()).is_err(), "{bad}");
        }
        let long = made(json!({"LockDelay": "90s"})).unwrap();
        assert_eq!(long.closed_for(), Duration::from_secs(60));
        assert_eq!(made(json!({})).unwrap().lock_delay, Duration::from_secs(15));
    }

    #[test]
    fn checks_come_from_the_new_field_and_the_old_one() {
        let checks = |body| {
            let session = made(body).unwrap();
            (session.node_checks, session.checks)
        };
        let lists = |new: &[&str], old: &[&str]| {
            let owned = |list: &[&str]| list.iter().map(|id| (*id).to_owned()).collect();
            (owned(new), owned(old))
        };
        assert_eq!(checks(json!({})), lists(&["serfHealth"], &[]));
        assert_eq!(checks(json!({"NodeChecks": []})), lists(&[], &[]));
        assert_eq!(checks(json!({"Checks": []})), lists(&[], &[]));
        assert_eq!(checks(json!({"NodeChecks": ["a"]})), lists(&["a"], &[]));
        assert_eq!(
            checks(json!({"Checks": ["serfHealth"]})),
            lists(&["serfHealth"], &[])
        );
        assert_eq!(
            checks(json!({"Checks": ["a"]})),
            lists(&["serfHealth"], &["a"])
        );
        assert_eq!(
            checks(json!({"Checks": ["a"], "NodeChecks": []})),
            lists(&[], &[])
        );
    }

    #[test]
    fn times_to_live_are_bounded() {
        let ttl = |ttl: &str| made(json!({"TTL": ttl}));
        for good in ["", "0s", "0", "10s", "24h"] {
            assert!(ttl(good).is_ok(), "{good}");
        }
        assert_eq!(ttl("0s").unwrap().time_to_live(), None);
        let ten = ttl("10s").unwrap().time_to_live();
        assert_eq!(ten, Some(Duration::from_secs(10)));
        let says = |bad: &str| ttl(bad).unwrap_err().to_string();
        assert_eq!(
            says("1s"),
            "Invalid Session TTL '1000000000', must be between [10s=24h0m0s]"
        );
        assert!(says("25h").contains("must be between"));
        assert!(says("-10s").contains("must be between"));
        assert!(says("x").starts_with("Session TTL 'x' invalid"));
        let behavior = made(json!({"Behavior": "keep"})).unwrap_err();
        assert_eq!(behavior.to_string(), "Invalid Behavior setting 'keep'");
        assert_eq!(made(json!({"Node": ""})), Err(InvalidSession::NoNode));
        assert!(made(json!({"Name": "x".repeat(100_000)})).is_err());
        let many: Vec<_> = (0..200).map(|i| i.to_string()).collect();
        assert!(made(json!({"NodeChecks": many})).is_err());
    }
}
