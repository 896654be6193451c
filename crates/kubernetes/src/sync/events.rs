//! Events on pods, for people: written a few at a time, and only so many wait.

use std::collections::VecDeque;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1 as k8s;
use kube::runtime::events::{Event, EventType, Recorder};

use super::core::Notice;
use super::metrics::SyncMetrics;

/// Events that wait to be written; further ones are left out.
const EVENTS: usize = 1_000;
/// Events that are written at a time.
const EVENTS_AT_A_TIME: usize = 4;

/// Events on pods, written a few at a time.
pub(super) struct Events {
    recorder: Recorder,
    waiting: VecDeque<Notice>,
    writing: FuturesUnordered<futures_util::future::BoxFuture<'static, ()>>,
    metrics: SyncMetrics,
}

impl Events {
    pub(super) fn new(recorder: Recorder, metrics: SyncMetrics) -> Events {
        Events {
            recorder,
            waiting: VecDeque::new(),
            writing: FuturesUnordered::new(),
            metrics,
        }
    }

    pub(super) fn add(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            tracing::warn!(pod = %notice.pod, reason = notice.reason.reason, "{}", notice.reason.message);
            if self.waiting.len() < EVENTS {
                self.waiting.push_back(notice);
            } else {
                self.metrics.event("dropped");
            }
        }
        while self.writing.len() < EVENTS_AT_A_TIME {
            let Some(notice) = self.waiting.pop_front() else {
                return;
            };
            let recorder = self.recorder.clone();
            let metrics = self.metrics.clone();
            self.writing.push(write(recorder, notice, metrics).boxed());
        }
    }

    /// Waits until one is written; for ever where there is none.
    pub(super) async fn written(&mut self) {
        if self.writing.next().await.is_none() {
            std::future::pending().await
        }
    }
}

async fn write(recorder: Recorder, notice: Notice, metrics: SyncMetrics) {
    // Longer notes are refused by the API server.
    const LONGEST: usize = 1000;
    let note: String = notice.reason.message.chars().take(LONGEST).collect();
    let event = Event {
        type_: EventType::Warning,
        reason: notice.reason.reason.to_owned(),
        note: Some(note),
        action: "Register".to_owned(),
        secondary: None,
    };
    let pod = k8s::ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(notice.pod.name),
        namespace: Some(notice.pod.namespace),
        uid: Some(notice.uid),
        ..k8s::ObjectReference::default()
    };
    match recorder.publish(&event, &pod).await {
        Ok(()) => metrics.event("written"),
        Err(error) => {
            metrics.event("failed");
            tracing::debug!(%error, "cannot write an event");
        }
    }
}
