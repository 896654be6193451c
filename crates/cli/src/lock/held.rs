//! A lock, or a slot of a semaphore, stored in keys in the format of the Go client, so that both can be
//! used together.
//!
//! A lock is a key held by a session. A semaphore is a list of sessions in a key that is updated by
//! compare-and-set. Each holder also has a key of its own that its session holds, so that an expired
//! session frees its slot.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::output::{number, text};
use crate::server_api::{Api, Ask, encoded, encoded_path};

/// The name of a lock's key under its prefix.
const LOCK_KEY: &str = ".lock";

/// The flags that mark the keys of locks and of semaphores.
const LOCK: u64 = 0x2ddc_cbc0_58a5_0c18;
const SEMAPHORE: u64 = 0xe0f6_9a2b_aa41_4de0;

/// The TTL of a session.
const TTL: &str = "15s";
const RENEW: Duration = Duration::from_millis(7500);
/// The wait time of blocking queries.
const WAIT: Duration = Duration::from_secs(15);
const SLACK: Duration = Duration::from_secs(15);
/// The delay before a lock that was just lost is tried again.
const DELAY: Duration = Duration::from_secs(5);
const MONITOR_DELAY: Duration = Duration::from_secs(1);

/// The result of releasing a lock.
pub(super) enum Released {
    Removed,
    /// Another session holds it.
    InUse,
}

/// The content of a semaphore's key.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Places {
    limit: u32,
    holders: BTreeMap<String, bool>,
}

/// A lock with its own session.
pub(super) struct Lock<'a> {
    api: &'a Api,
    session: String,
    prefix: String,
    limit: u32,
}

/// Keys as last read, and the index to wait for.
struct LastRead {
    pairs: Vec<Value>,
    index: u64,
}

impl<'a> Lock<'a> {
    /// Creates the session.
    pub(super) async fn new(
        api: &'a Api,
        prefix: &str,
        limit: u32,
        name: &str,
    ) -> anyhow::Result<Lock<'a>> {
        let body = json!({"Name": name, "TTL": TTL});
        let made = api.put("/v1/session/create").json(&body).value().await;
        let made = made.context("failed to create session")?;
        Ok(Lock {
            api,
            session: text(&made, "ID").to_owned(),
            prefix: prefix.to_owned(),
            limit,
        })
    }

    fn semaphore(&self) -> bool {
        self.limit > 1
    }

    fn key(&self) -> String {
        self.path(LOCK_KEY)
    }

    /// The API path of a key under the prefix.
    fn path(&self, name: &str) -> String {
        format!("/v1/kv/{}", encoded_path(&self.below(name)))
    }

    /// A key under the prefix.
    fn below(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        }
    }

    /// Waits until the lock is held; `false` if the time limit has passed.
    pub(super) async fn acquire(&self, limit: Option<Duration>) -> anyhow::Result<bool> {
        let waiting = async {
            match self.semaphore() {
                true => self.take_place().await,
                false => self.take().await,
            }
        };
        tokio::select! {
            taken = waiting => taken.map(|()| true),
            error = self.renew() => Err(error),
            () = async {
                match limit {
                    Some(limit) => tokio::time::sleep(limit).await,
                    None => std::future::pending().await,
                }
            } => Ok(false),
        }
    }

    /// Renews the session until it is lost.
    async fn renew(&self) -> anyhow::Error {
        let mut valid_until = Instant::now() + 2 * RENEW;
        loop {
            tokio::time::sleep(RENEW).await;
            let path = format!("/v1/session/renew/{}", encoded(&self.session));
            match self.api.put(path).within(RENEW).found().await {
                Ok(Some(_)) => valid_until = Instant::now() + 2 * RENEW,
                Ok(None) => return anyhow!("the session has expired"),
                Err(error) if Instant::now() > valid_until => return error,
                Err(_) => {}
            }
        }
    }

    /// Reads the keys, after `index` unless that is 0.
    async fn read(&self, index: u64) -> anyhow::Result<LastRead> {
        let ask = match self.semaphore() {
            true => self.api.get(self.path("")).flag("recurse", true),
            false => self.api.get(self.key()),
        };
        let mut ask = ask.flag("consistent", true).within(WAIT + SLACK);
        if index > 0 {
            let wait = format!("{}s", WAIT.as_secs());
            ask = ask.query("index", index.to_string()).query("wait", wait);
        }
        let answer = ask.send().await?;
        let pairs = match answer.status {
            http::StatusCode::NOT_FOUND => Vec::new(),
            _ => {
                answer.success()?;
                answer.value()?.as_array().cloned().unwrap_or_default()
            }
        };
        Ok(LastRead {
            pairs,
            index: answer.index(),
        })
    }

    async fn take(&self) -> anyhow::Result<()> {
        let mut index = 0;
        loop {
            let seen = self.read(index).await.context("failed to read lock")?;
            let pair = seen.pairs.first();
            let flags = pair.map(|pair| number(pair, "Flags"));
            ensure!(
                flags.is_none_or(|flags| flags == LOCK),
                "Existing key does not match lock use"
            );
            match pair.map(|pair| text(pair, "Session")).unwrap_or_default() {
                "" => {}
                session if session == self.session => return Ok(()),
                _ => {
                    index = seen.index;
                    continue;
                }
            }
            let taken = self.hold(&self.key(), LOCK).await;
            if taken.context("failed to acquire lock")? {
                return Ok(());
            }
            index = 0;
            let seen = self.read(0).await.context("failed to read lock")?;
            if seen
                .pairs
                .iter()
                .all(|pair| text(pair, "Session").is_empty())
            {
                // It is not held: the previous holder lost it just now.
                tokio::time::sleep(DELAY).await;
            }
        }
    }

    /// Acquires a key for the session, unless another session holds it.
    async fn hold(&self, path: &str, flags: u64) -> anyhow::Result<bool> {
        let ask = self.api.put(path).query("acquire", self.session.as_str());
        let taken = ask.query("flags", flags.to_string()).value().await?;
        Ok(taken == true)
    }

    async fn take_place(&self) -> anyhow::Result<()> {
        let own = self.path(&self.session);
        let made = self.hold(&own, SEMAPHORE).await;
        let made = made.context("failed to make contender entry")?;
        ensure!(
            made,
            "failed to make contender entry: another session holds it"
        );
        let mut index = 0;
        loop {
            let seen = self.read(index).await.context("failed to read prefix")?;
            let (mut places, at) = self.places(&seen.pairs)?;
            ensure!(
                places.limit == self.limit,
                "semaphore limit conflict (lock: {}, local: {})",
                places.limit,
                self.limit
            );
            if places.holders.len() >= places.limit as usize {
                index = seen.index;
                continue;
            }
            places.holders.insert(self.session.clone(), true);
            if self.write_places(&places, at).await? {
                return Ok(());
            }
            // Another contender was faster.
            index = 0;
        }
    }

    /// The holders of the semaphore without expired ones, and the index for compare-and-set.
    fn places(&self, pairs: &[Value]) -> anyhow::Result<(Places, u64)> {
        let key = self.below(LOCK_KEY);
        let Some(pair) = pairs.iter().find(|pair| text(pair, "Key") == key) else {
            let places = Places {
                limit: self.limit,
                holders: BTreeMap::new(),
            };
            return Ok((places, 0));
        };
        ensure!(
            number(pair, "Flags") == SEMAPHORE,
            "Existing key does not match semaphore use"
        );
        let content = STANDARD.decode(text(pair, "Value"));
        let content = content.context("lock decoding failed")?;
        let mut places: Places = match content.is_empty() {
            true => Places {
                limit: self.limit,
                holders: BTreeMap::new(),
            },
            false => serde_json::from_slice(&content).context("lock decoding failed")?,
        };
        let alive = |session: &String| pairs.iter().any(|pair| text(pair, "Session") == session);
        places.holders.retain(|session, _| alive(session));
        Ok((places, number(pair, "ModifyIndex")))
    }

    async fn write_places(&self, places: &Places, at: u64) -> anyhow::Result<bool> {
        let content = serde_json::to_value(places)?;
        let ask = self.api.put(self.key()).query("cas", at.to_string());
        let ask = ask.query("flags", SEMAPHORE.to_string()).json(&content);
        let written = ask.value().await.context("failed to update lock")?;
        Ok(written == true)
    }

    /// Holds the lock and returns when it is lost: another session has it, or the servers were unreachable
    /// for more than `retries` attempts.
    pub(super) async fn lost(&self, retries: u32) {
        tokio::select! {
            _ = self.renew() => {}
            () = self.monitor(retries) => {}
        }
    }

    async fn monitor(&self, retries: u32) {
        let (mut index, mut left) = (0, retries);
        loop {
            match self.read(index).await {
                Ok(seen) if self.holds(&seen.pairs) => {
                    (index, left) = (seen.index, retries);
                }
                Ok(_) => return,
                Err(_) if left == 0 => return,
                Err(_) => {
                    left -= 1;
                    index = 0;
                    tokio::time::sleep(MONITOR_DELAY).await;
                }
            }
        }
    }

    fn holds(&self, pairs: &[Value]) -> bool {
        match self.semaphore() {
            true => {
                let places = self.places(pairs);
                places.is_ok_and(|(places, _)| places.holders.contains_key(&self.session))
            }
            false => pairs
                .iter()
                .any(|pair| text(pair, "Session") == self.session),
        }
    }

    /// Releases the lock, destroys the session, and deletes keys that are no longer used.
    pub(super) async fn release(&self) -> anyhow::Result<Released> {
        let released = match self.semaphore() {
            true => self.release_place().await,
            false => {
                let ask = self
                    .api
                    .put(self.key())
                    .query("release", self.session.as_str());
                let ask: Ask<'_> = ask.query("flags", LOCK.to_string());
                ask.ok().await.map(drop)
            }
        };
        self.abandon().await;
        released?;
        let seen = self.read(0).await?;
        let (empty, at) = match self.semaphore() {
            true => {
                let (places, at) = self.places(&seen.pairs)?;
                (places.holders.is_empty(), at)
            }
            false => {
                let pair = seen.pairs.first();
                let free = pair.is_none_or(|pair| text(pair, "Session").is_empty());
                (free, pair.map_or(0, |pair| number(pair, "ModifyIndex")))
            }
        };
        if at == 0 {
            return Ok(Released::Removed);
        }
        if !empty {
            return Ok(Released::InUse);
        }
        let removed = self
            .api
            .delete(self.key())
            .query("cas", at.to_string())
            .value()
            .await?;
        Ok(match removed == true {
            true => Released::Removed,
            false => Released::InUse,
        })
    }

    async fn release_place(&self) -> anyhow::Result<()> {
        loop {
            let seen = self.read(0).await?;
            let (mut places, at) = self.places(&seen.pairs)?;
            if places.holders.remove(&self.session).is_none() {
                break;
            }
            if self.write_places(&places, at).await? {
                break;
            }
        }
        self.api.delete(self.path(&self.session)).ok().await?;
        Ok(())
    }

    /// Destroys the session, which releases everything it holds.
    pub(super) async fn abandon(&self) {
        if self.semaphore() {
            // The key would remain without a holder.
            let _ = self.api.delete(self.path(&self.session)).ok().await;
        }
        // If this fails, the session expires.
        let path = format!("/v1/session/destroy/{}", encoded(&self.session));
        let _ = self.api.put(path).ok().await;
    }
}
