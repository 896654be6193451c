//! Keys that are fetched from a URL and cached. Fetched again, at a limited rate, when a token is signed by an
//! unknown key. Signatures are verified elsewhere.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jsonwebtoken::jwk::Jwk;
use legate_model::acl::{KeySource, Location};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::fetch::Client;

/// Timeout of a fetch. Shorter than the timeout of a login, so that the login reports the fetch's error.
const FETCH_TIME: Duration = Duration::from_secs(8);
/// Minimum time between two fetches, so that forged tokens do not cause load on the key server.
const REST: Duration = Duration::from_secs(5);
/// Maximum age of keys in the cache, so that withdrawn keys expire.
const MAX_AGE: Duration = Duration::from_secs(3_600);
/// Maximum keys in a set.
const MAX_KEYS: usize = 100;

/// The keys of one auth method.
pub(super) struct Keys {
    client: Client,
    /// Held during a fetch.
    turn: tokio::sync::Mutex<()>,
    known: Mutex<Known>,
}

/// The cached keys and the time of the last fetch. Pure.
#[derive(Default)]
struct Known {
    keys: Option<Arc<Vec<Jwk>>>,
    /// End of the last fetch, and its error if it failed.
    last: Option<(Instant, Option<String>)>,
}

/// The next step for a token.
#[derive(Debug, PartialEq)]
enum Next {
    Fetch,
    Use(Arc<Vec<Jwk>>),
    Fail(String),
}

impl Known {
    /// `unfit` are keys that were tried without success.
    fn next(&self, now: Instant, unfit: Option<&Arc<Vec<Jwk>>>) -> Next {
        let rested = |time: Duration| {
            let ended = self.last.as_ref().map(|(ended, _)| *ended);
            ended.is_none_or(|ended| now.duration_since(ended) >= time)
        };
        let failure = self.last.as_ref().and_then(|(_, failure)| failure.clone());
        match &self.keys {
            None if rested(REST) => Next::Fetch,
            None => Next::Fail(failure.unwrap_or_default()),
            Some(keys) if unfit.is_some_and(|unfit| Arc::ptr_eq(unfit, keys)) => {
                match (rested(REST), failure) {
                    (true, _) => Next::Fetch,
                    (false, Some(failure)) => Next::Fail(failure),
                    // They were fetched just now.
                    (false, None) => Next::Use(keys.clone()),
                }
            }
            Some(_) if rested(MAX_AGE) => Next::Fetch,
            Some(keys) => Next::Use(keys.clone()),
        }
    }

    /// After a failed fetch, the previous keys stay in use.
    fn fetched(&mut self, now: Instant, result: Result<Vec<Jwk>, String>) {
        match result {
            Ok(keys) => {
                self.keys = Some(Arc::new(keys));
                self.last = Some((now, None));
            }
            Err(error) => self.last = Some((now, Some(error))),
        }
    }
}

impl Keys {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            turn: tokio::sync::Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// The keys to try. Pass keys that did not verify the token as `unfit`; the same are returned if there are
    /// no newer ones.
    ///
    /// # Errors
    /// Why there are no keys, as a text for users.
    pub(super) async fn get(
        &self,
        source: KeySource<'_>,
        unfit: Option<&Arc<Vec<Jwk>>>,
    ) -> Result<Arc<Vec<Jwk>>, String> {
        if let Some(done) = self.without_fetching(unfit) {
            return done;
        }
        let _turn = self.turn.lock().await;
        // Another login may have fetched the keys meanwhile.
        if let Some(done) = self.without_fetching(unfit) {
            return done;
        }
        let fetched = timeout(FETCH_TIME, fetch(&self.client, source)).await;
        let fetched = fetched.unwrap_or_else(|_| Err(too_slow(source)));
        let failure = fetched.as_ref().err().cloned();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.fetched(Instant::now(), fetched);
        match (&known.keys, failure) {
            (Some(keys), Some(error)) if unfit.is_none() => {
                tracing::warn!(
                    error,
                    "the keys of an auth method cannot be refreshed; the previous ones stay in use"
                );
                Ok(keys.clone())
            }
            (_, Some(error)) => Err(error),
            (Some(keys), None) => Ok(keys.clone()),
            (None, None) => Err("there are no keys".to_owned()),
        }
    }

    fn without_fetching(
        &self,
        unfit: Option<&Arc<Vec<Jwk>>>,
    ) -> Option<Result<Arc<Vec<Jwk>>, String>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.next(Instant::now(), unfit) {
            Next::Fetch => None,
            Next::Use(keys) => Some(Ok(keys)),
            Next::Fail(error) => Some(Err(error)),
        }
    }
}

fn too_slow(source: KeySource<'_>) -> String {
    let url = match source {
        KeySource::Static(_) => "",
        KeySource::Jwks(at) | KeySource::Discovery(at) => at.url,
    };
    format!("{url}: no response within {} s", FETCH_TIME.as_secs())
}

/// OpenID provider metadata.
#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    jwks_uri: String,
}

/// A JSON Web Key Set. It may contain keys of unknown types.
#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

async fn fetch(client: &Client, source: KeySource<'_>) -> Result<Vec<Jwk>, String> {
    match source {
        KeySource::Static(_) => Err("its keys are static".to_owned()),
        KeySource::Jwks(Location { url, .. }) => fetch_set(client, url).await,
        KeySource::Discovery(Location { url: issuer, .. }) => {
            let base = issuer.trim_end_matches('/');
            let url = format!("{base}/.well-known/openid-configuration");
            let metadata: Metadata = fetch_json(client, &url).await?;
            if metadata.issuer != issuer {
                return Err(format!(
                    "{url}: its issuer {:?} differs from OIDCDiscoveryURL, {issuer:?}",
                    metadata.issuer
                ));
            }
            fetch_set(client, &metadata.jwks_uri).await
        }
    }
}

async fn fetch_set(client: &Client, url: &str) -> Result<Vec<Jwk>, String> {
    let set: Set = fetch_json(client, url).await?;
    if set.keys.len() > MAX_KEYS {
        return Err(format!(
            "{url}: it has {} keys; the maximum is {MAX_KEYS}",
            set.keys.len()
        ));
    }
    let keys = set.keys.into_iter();
    // Keys of unknown types are ignored.
    Ok(keys
        .filter_map(|key| serde_json::from_value(key).ok())
        .collect())
}

async fn fetch_json<T: serde::de::DeserializeOwned>(
    client: &Client,
    url: &str,
) -> Result<T, String> {
    let reply = client.get(url, None).await;
    let reply = reply.map_err(|error| format!("{url}: {error}"))?;
    if !reply.status.is_success() {
        return Err(format!("{url}: {}", reply.summary()));
    }
    reply.json().map_err(|error| format!("{url}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn fetches_for_unknown_keys_are_limited_and_old_keys_refreshed() {
        let mut known = Known::default();
        let now = Instant::now();
        assert_eq!(known.next(now, None), Next::Fetch);
        known.fetched(now, Err("down".to_owned()));
        assert_eq!(known.next(now, None), Next::Fail("down".to_owned()));
        let now = now + REST;
        assert_eq!(known.next(now, None), Next::Fetch);
        known.fetched(now, Ok(vec![]));
        let Next::Use(first) = known.next(now, None) else {
            panic!("it has keys");
        };
        // Just fetched, so they are not fetched again.
        assert_eq!(known.next(now, Some(&first)), Next::Use(first.clone()));
        assert_eq!(known.next(now + REST, None), Next::Use(first.clone()));
        assert_eq!(known.next(now + REST, Some(&first)), Next::Fetch);
        known.fetched(now + REST, Ok(vec![]));
        let Next::Use(second) = known.next(now + REST, Some(&first)) else {
            panic!("others have come");
        };
        assert!(!Arc::ptr_eq(&first, &second));
        let now = now + REST + MAX_AGE;
        assert_eq!(known.next(now, None), Next::Fetch);
        known.fetched(now, Err("down".to_owned()));
        assert_eq!(known.next(now, None), Next::Use(second.clone()));
        let failed = Next::Fail("down".to_owned());
        assert_eq!(known.next(now, Some(&second)), failed);
    }
}
