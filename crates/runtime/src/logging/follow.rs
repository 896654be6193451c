//! Followers of the log of a running process, each with its own level, which may be lower than that
//! of the log. A slow follower misses lines and gets their number; it never blocks the program.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::mpsc;
use tracing_core::callsite::rebuild_interest_cache;

use super::format::Entry;
use super::level::Level;
use super::lost::lost_lines;

/// The maximum number of followers, since lines are formatted for each of them.
const MAX_FOLLOWERS: usize = 32;
/// The maximum number of queued lines per follower.
const MAX_LINES: usize = 512;

/// The followers; global, since a process has a single log.
static FOLLOWERS: RwLock<Vec<Arc<Follower>>> = RwLock::new(Vec::new());
/// The most verbose level of all followers, by [`number`].
static LEVEL: AtomicU8 = AtomicU8::new(0);

#[derive(Debug)]
struct Follower {
    level: Level,
    json: bool,
    lines: mpsc::Sender<String>,
    lost: AtomicU64,
}

/// There are too many followers already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_FOLLOWERS} clients follow the log already: end one of them")]
pub struct TooManyFollowers;

/// The lines that are logged from now on. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Lines {
    follower: Arc<Follower>,
    lines: mpsc::Receiver<String>,
}

/// Follows the log of this process from now on.
///
/// # Errors
/// [`TooManyFollowers`] at the limit.
pub fn follow(level: Level, json: bool) -> Result<Lines, TooManyFollowers> {
    let (sender, lines) = mpsc::channel(MAX_LINES);
    let follower = Arc::new(Follower {
        level,
        json,
        lines: sender,
        lost: AtomicU64::new(0),
    });
    let mut all = FOLLOWERS.write().unwrap_or_else(PoisonError::into_inner);
    if all.len() >= MAX_FOLLOWERS {
        return Err(TooManyFollowers);
    }
    all.push(Arc::clone(&follower));
    publish(&all);
    drop(all);
    rebuild_interest_cache();
    Ok(Lines { follower, lines })
}

impl Lines {
    /// The next line, including the line break. Missed lines are reported by a line with their
    /// number. Cancel safe.
    pub async fn next(&mut self) -> Option<String> {
        if self.lines.is_empty() {
            let lost = self.follower.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                return Some(lost_lines("log", self.follower.json, lost));
            }
        }
        self.lines.recv().await
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let mut all = FOLLOWERS.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| !Arc::ptr_eq(one, &self.follower));
        publish(&all);
        drop(all);
        rebuild_interest_cache();
    }
}

fn publish(all: &[Arc<Follower>]) {
    let level = all.iter().map(|one| number(one.level)).max();
    LEVEL.store(level.unwrap_or_default(), Ordering::Relaxed);
}

fn number(level: Level) -> u8 {
    match level {
        Level::Trace => 5,
        Level::Debug => 4,
        Level::Info => 3,
        Level::Warn => 2,
        Level::Error => 1,
    }
}

/// The more verbose of a level and the followers' levels.
pub(super) fn with_followers(own: Level) -> Level {
    match LEVEL.load(Ordering::Relaxed).max(number(own)) {
        5 => Level::Trace,
        4 => Level::Debug,
        3 => Level::Info,
        2 => Level::Warn,
        _ => Level::Error,
    }
}

/// Sends an entry to the followers of its level. `allowed` is whether a level includes the entry.
pub(super) fn hand_out(entry: &Entry, allowed: impl Fn(Level) -> bool) {
    if LEVEL.load(Ordering::Relaxed) == 0 {
        return;
    }
    let all = FOLLOWERS.read().unwrap_or_else(PoisonError::into_inner);
    for follower in all.iter().filter(|one| allowed(one.level)) {
        if follower.lines.try_send(entry.line(follower.json)).is_err() {
            follower.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
