//! Readers of the log of a running process, each from a level of its own on, which may be below that
//! of the log itself. A reader that is too slow misses lines, and learns how many; it holds up nobody.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::mpsc;
use tracing_core::callsite::rebuild_interest_cache;

use super::format::Entry;
use super::level::Level;
use super::lost::lost_lines;

/// How many may read at one time: each of them formats every line.
const MAX_FOLLOWERS: usize = 32;
/// How many lines wait for a reader.
const MAX_LINES: usize = 512;

/// The log of a process is one, and so is the list of those who read it.
static FOLLOWERS: RwLock<Vec<Arc<Follower>>> = RwLock::new(Vec::new());
/// The most talkative level that anybody reads, by [`number`].
static LEVEL: AtomicU8 = AtomicU8::new(0);

#[derive(Debug)]
struct Follower {
    level: Level,
    json: bool,
    lines: mpsc::Sender<String>,
    lost: AtomicU64,
}

/// Too many read the log already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_FOLLOWERS} clients follow the log already: end one of them")]
pub struct TooManyFollowers;

/// The lines that are logged from now on. Dropping it ends the reading.
#[derive(Debug)]
pub struct Lines {
    follower: Arc<Follower>,
    lines: mpsc::Receiver<String>,
}

/// Reads the log of this process from now on.
///
/// # Errors
/// [`TooManyFollowers`]
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
    /// The next line, with its end. Lines that were missed are counted in a line of their own. Cancel
    /// safe.
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

/// The more talkative of a level and those that are read.
pub(super) fn with_followers(own: Level) -> Level {
    match LEVEL.load(Ordering::Relaxed).max(number(own)) {
        5 => Level::Trace,
        4 => Level::Debug,
        3 => Level::Info,
        2 => Level::Warn,
        _ => Level::Error,
    }
}

/// Hands an entry to those who read its level. `allowed` says whether a level has the entry.
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
