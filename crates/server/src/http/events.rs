//! `/v1/event`: user events. Each server keeps its latest ones in memory; they are lost when it stops.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Path, State};
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use legate_filter::Pattern;
use legate_model::ServiceInstance;
use serde::{Serialize, Serializer};
use tokio::sync::watch;
use uuid::Uuid;

use super::call::{Call, visible};
use crate::api_error::ApiError;

/// Maximum events in memory.
const KEPT: usize = 256;

/// Maximum size of an event, in bytes of all fields set by the sender. Consul's.
const SIZE_LIMIT: usize = 512;

/// Consul's version number of events.
const VERSION: u32 = 1;

/// Index of an empty list. Greater than 0, so that the next blocking query waits.
const NO_EVENTS: u64 = 1;

/// The latest events, and a notification of new ones.
#[derive(Clone)]
pub(super) struct Events {
    recent: Arc<Mutex<Recent>>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Recent {
    events: VecDeque<Arc<UserEvent>>,
    /// Number of events so far.
    count: u64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
struct UserEvent {
    #[serde(rename = "ID", serialize_with = "as_text")]
    id: Uuid,
    name: String,
    /// In base64.
    payload: Option<String>,
    node_filter: String,
    service_filter: String,
    tag_filter: String,
    version: u32,
    /// Sequence number of the event; 0 if not assigned yet.
    #[serde(rename = "LTime")]
    time: u64,
}

fn as_text<S: Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

impl Events {
    pub(super) fn new() -> Self {
        let (changed, _) = watch::channel(());
        Self {
            recent: Arc::default(),
            changed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        // No code under the lock can panic between related changes.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, mut event: UserEvent) {
        let mut recent = self.lock();
        recent.count += 1;
        event.time = recent.count;
        recent.events.push_back(Arc::new(event));
        if recent.events.len() > KEPT {
            recent.events.pop_front();
        }
        drop(recent);
        self.changed.send_replace(());
    }

    fn all(&self) -> Vec<Arc<UserEvent>> {
        self.lock().events.iter().cloned().collect()
    }
}

/// `PUT /v1/event/fire/:name`
pub(super) async fn fire(
    Path(name): Path<String>,
    State(events): State<Events>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let text = |param| call.params.get(param).unwrap_or_default().to_owned();
    let payload = call.body();
    let event = UserEvent {
        id: Uuid::new_v4(),
        name,
        payload: (!payload.is_empty()).then(|| BASE64_STANDARD.encode(payload)),
        node_filter: text("node"),
        service_filter: text("service"),
        tag_filter: text("tag"),
        version: VERSION,
        time: 0,
    };
    let texts = [
        &event.name,
        &event.node_filter,
        &event.service_filter,
        &event.tag_filter,
    ];
    let size = payload.len() + texts.iter().map(|text| text.len()).sum::<usize>();
    if size > SIZE_LIMIT {
        return Err(ApiError::internal(format!(
            "user event exceeds configured limit of {SIZE_LIMIT} bytes before encoding: it has {size}"
        )));
    }
    let audience = Audience::of(&event)?;
    ApiError::require(
        authorizer.event_write(&event.name),
        "event:write",
        &event.name,
    )?;
    let own = &call.config.node_name;
    let state = call.reader.state();
    let services = state.read().in_every_tenancy(|txn| txn.instances_on(own));
    if audience.includes(own, &services) {
        events.add(event.clone());
    }
    call.json(&event)
}

/// The audience of an event, as name patterns.
struct Audience {
    node: Option<Pattern>,
    service: Option<Pattern>,
    tag: Option<Pattern>,
}

impl Audience {
    fn of(event: &UserEvent) -> Result<Self, ApiError> {
        let pattern = |what: &str, text: &str| {
            let pattern = (!text.is_empty()).then(|| Pattern::new(text)).transpose();
            pattern.map_err(|error| ApiError::internal(format!("Invalid {what} filter: {error}")))
        };
        if !event.tag_filter.is_empty() && event.service_filter.is_empty() {
            return Err(ApiError::internal(
                "Cannot provide tag filter without service filter",
            ));
        }
        Ok(Self {
            node: pattern("node", &event.node_filter)?,
            service: pattern("service", &event.service_filter)?,
            tag: pattern("tag", &event.tag_filter)?,
        })
    }

    fn includes(&self, node: &str, services: &[Arc<ServiceInstance>]) -> bool {
        let fits = |pattern: &Option<Pattern>, text: &str| {
            pattern
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(text))
        };
        let has_tag =
            |tags: &[String]| self.tag.is_none() || tags.iter().any(|tag| fits(&self.tag, tag));
        fits(&self.node, node)
            && (self.service.is_none()
                || services
                    .iter()
                    .any(|one| fits(&self.service, &one.service) && has_tag(&one.tags)))
    }
}

/// `GET /v1/event/list`
pub(super) async fn list(State(events): State<Events>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let name = call.params.get("name").filter(|name| !name.is_empty());
    let changed = events.changed.subscribe();
    let read = || {
        let mut found = events.all();
        found.retain(|event| name.is_none_or(|name| event.name == name));
        let found = visible(found, |event| authorizer.event_read(&event.name));
        let last = found.0.last();
        (last.map_or(NO_EVENTS, |event| index(event.id)), found)
    };
    let (index, (found, filtered)) = call.read_changing(changed, read).await?;
    call.answer(index, &found, filtered)
}

/// The index of a list: the halves of its last event's id, combined with XOR.
fn index(id: Uuid) -> u64 {
    let (high, low) = id.as_u64_pair();
    high ^ low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str) -> UserEvent {
        UserEvent {
            id: Uuid::new_v4(),
            name: name.to_owned(),
            payload: None,
            node_filter: String::new(),
            service_filter: String::new(),
            tag_filter: String::new(),
            version: VERSION,
            time: 0,
        }
    }

    #[test]
    fn the_last_events_are_kept() {
        let events = Events::new();
        for i in 0..KEPT + 10 {
            events.add(event(&i.to_string()));
        }
        let kept = events.all();
        assert_eq!(kept.len(), KEPT);
        assert_eq!((kept[0].name.as_str(), kept[0].time), ("10", 11));
    }

    #[test]
    fn an_event_is_for_the_nodes_and_services_that_fit() {
        let web = ServiceInstance {
            service: "web".to_owned(),
            tags: vec!["v1".to_owned()],
            ..ServiceInstance::default()
        };
        let services = [Arc::new(web)];
        let includes = |node: &str, service: &str, tag: &str| {
            let event = UserEvent {
                node_filter: node.to_owned(),
                service_filter: service.to_owned(),
                tag_filter: tag.to_owned(),
                ..event("e")
            };
            Audience::of(&event).map(|audience| audience.includes("n1", &services))
        };
        assert_eq!(includes("", "", ""), Ok(true));
        assert_eq!(includes("^n", "", ""), Ok(true));
        assert_eq!(includes("^m", "", ""), Ok(false));
        assert_eq!(includes("", "we", ""), Ok(true));
        assert_eq!(includes("", "we", "v[12]"), Ok(true));
        assert_eq!(includes("", "we", "v2"), Ok(false));
        assert_eq!(includes("", "api", ""), Ok(false));
        assert!(includes("", "", "v1").is_err());
        assert!(includes("(", "", "").is_err());
    }
}
