//! Which bodies in the cache are still slices of the message that they arrived in.
//!
//! A slice keeps its whole message in memory. While most of the message is in the cache that saves
//! a copy, which for a large configuration is a second configuration; when most of it has been
//! replaced, what is left has to be copied out. So the cache never holds more than twice the bytes
//! of its bodies. This module counts; it never touches a body.

use std::collections::{BTreeMap, HashMap};

use super::cache::Name;

/// A message of fewer bytes is never kept: what counts there is the buffer that it was read into.
const KEPT_FROM: usize = 64 * 1024;

/// A kept message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BufferId(u64);

#[derive(Debug)]
struct Usage {
    size: usize,
    used: usize,
}

impl Usage {
    fn is_wasteful(&self) -> bool {
        self.used < self.size - self.used
    }
}

/// The messages of one type that are kept.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    next: u64,
    usage: BTreeMap<BufferId, Usage>,
    of: HashMap<Name, BufferId>,
}

impl Buffers {
    /// Whether to keep a message with bodies of `size` bytes, `used` of which enter the cache.
    /// `None` when their bodies have to be copied.
    pub(super) fn keep(&mut self, size: usize, used: usize) -> Option<BufferId> {
        let usage = Usage { size, used: 0 };
        if size < KEPT_FROM || used < size - used {
            return None;
        }
        self.next += 1;
        let id = BufferId(self.next);
        self.usage.insert(id, usage);
        Some(id)
    }

    /// A body of a kept message has entered the cache.
    pub(super) fn enter(&mut self, id: BufferId, name: &Name, length: usize) {
        if let Some(usage) = self.usage.get_mut(&id) {
            usage.used += length;
            self.of.insert(Name::clone(name), id);
        }
    }

    /// A body has left the cache.
    pub(super) fn leave(&mut self, name: &Name, length: usize) {
        if let Some(id) = self.of.remove(name)
            && let Some(usage) = self.usage.get_mut(&id)
        {
            usage.used -= length;
        }
    }

    /// Lets go of messages that are mostly not in the cache. The bodies of these names have to get
    /// buffers of their own.
    pub(super) fn dissolve(&mut self) -> Vec<Name> {
        let mut gone = self.usage.extract_if(.., |_, usage| usage.is_wasteful());
        if gone.next().is_none() {
            return Vec::new();
        }
        gone.for_each(drop);
        let usage = &self.usage;
        let left = self.of.extract_if(|_, id| !usage.contains_key(id));
        left.map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 4 * KEPT_FROM;

    #[test]
    fn keeps_what_is_mostly_used_until_it_no_longer_is() {
        let mut buffers = Buffers::default();
        assert_eq!(buffers.keep(KEPT_FROM - 1, KEPT_FROM - 1), None);
        assert_eq!(buffers.keep(SIZE, SIZE / 2 - 1), None);
        let id = buffers.keep(SIZE, SIZE).unwrap();
        let names: Vec<Name> = ["a", "b", "c", "d"].map(Name::from).to_vec();
        for name in &names {
            buffers.enter(id, name, KEPT_FROM);
        }
        for name in &names[..2] {
            buffers.leave(name, KEPT_FROM);
            assert!(buffers.dissolve().is_empty());
        }
        buffers.leave(&names[2], KEPT_FROM);
        assert_eq!(buffers.dissolve(), [Name::from("d")]);
        // It has a buffer of its own now.
        buffers.leave(&names[3], KEPT_FROM);
        assert!(buffers.dissolve().is_empty());
        assert!(buffers.of.is_empty() && buffers.usage.is_empty());
    }
}
