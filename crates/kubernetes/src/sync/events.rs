//! Kubernetes events on pods, written with limited concurrency from a bounded queue.

use std::collections::VecDeque;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1 as k8s;
use kube::runtime::events::{Event, EventType, Recorder};

use super::core::Notice;
use super::metrics::SyncMetrics;

/// The maximum number of queued events; further ones are dropped.
const EVENTS: usize = 1_000;
/// The maximum number of concurrent writes.
const EVENTS_AT_A_TIME: usize = 4;

/// The queue of events on pods.
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

    /// Waits until one is written; forever if there is none.
    pub(super) async fn written(&mut self) {
        if self.writing.next().await.is_none() {
            std::future::pending().await
        }
    }
}

async fn write(recorder: Recorder, notice: Notice, metrics: SyncMetrics) {
    // The API server refuses longer notes.
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
