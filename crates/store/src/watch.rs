//! Who waits for what. Waking costs work in proportion to the topics that changed and to those who
//! watch them; nobody else is looked at.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::topic::Topic;

/// The waiting list of a store.
#[derive(Default)]
pub(crate) struct Registry {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    by_topic: HashMap<Topic, HashMap<u64, Arc<Notify>>>,
    next_id: u64,
}

impl Registry {
    pub(crate) fn watch(self: &Arc<Self>, topics: impl IntoIterator<Item = Topic>) -> TopicWatch {
        let mut all: Vec<Topic> = Vec::new();
        for topic in topics {
            let topic = topic.folded();
            all.extend(topic.implied());
            all.push(topic);
        }
        all.sort_unstable();
        all.dedup();

        let bell = Arc::new(Notify::new());
        let mut waiting = self.lock();
        let id = waiting.next_id;
        waiting.next_id += 1;
        for topic in &all {
            waiting
                .by_topic
                .entry(topic.clone())
                .or_default()
                .insert(id, bell.clone());
        }
        drop(waiting);
        TopicWatch {
            registry: self.clone(),
            id,
            topics: all,
            bell,
        }
    }

    pub(crate) fn wake<'a>(&self, topics: impl IntoIterator<Item = &'a Topic>) {
        let waiting = self.lock();
        for topic in topics {
            for bell in waiting
                .by_topic
                .get(topic)
                .into_iter()
                .flat_map(HashMap::values)
            {
                bell.notify_one();
            }
        }
    }

    /// How many watches there are for a topic.
    #[cfg(test)]
    pub(crate) fn watchers(&self, topic: &Topic) -> usize {
        self.lock().by_topic.get(topic).map_or(0, HashMap::len)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Every change of the lists is complete before anything can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for changes of some topics. Dropping it ends the waiting.
///
/// Take the watch first and the state after it: then no change can fall between the two. Changes
/// that happen while nobody waits are remembered as one.
pub struct TopicWatch {
    registry: Arc<Registry>,
    id: u64,
    topics: Vec<Topic>,
    bell: Arc<Notify>,
}

impl TopicWatch {
    /// Returns when something in the topics has changed since the watch was made or since this
    /// returned last. Cancel safe: a change is not lost when the future is dropped.
    pub async fn changed(&mut self) {
        self.bell.notified().await;
    }
}

impl Drop for TopicWatch {
    fn drop(&mut self) {
        let mut waiting = self.registry.lock();
        for topic in &self.topics {
            if let Some(watchers) = waiting.by_topic.get_mut(topic) {
                watchers.remove(&self.id);
                if watchers.is_empty() {
                    waiting.by_topic.remove(topic);
                }
            }
        }
    }
}

impl std::fmt::Debug for TopicWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TopicWatch")
            .field("topics", &self.topics)
            .finish_non_exhaustive()
    }
}
