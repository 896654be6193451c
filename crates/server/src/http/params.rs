//! The query string, and the parameters common to many endpoints. Parameters that are not supported are
//! rejected if ignoring them would change the result.

use std::time::Duration;

use axum::extract::Query;
use http::Uri;
use http::header::{CACHE_CONTROL, HeaderMap};
use legate_model::{InvalidTenancyName, TenancyName, duration};
use legate_store::BlockingQuery;

use crate::api_error::ApiError;
use crate::operations::QueryTimes;

/// How the paths of endpoints start that read services of peers.
const OF_PEERS: [&str; 12] = [
    "/v1/health/node/",
    "/v1/health/service/",
    "/v1/health/connect/",
    "/v1/health/checks/",
    "/v1/health/state/",
    "/v1/catalog/nodes",
    "/v1/catalog/node/",
    "/v1/catalog/node-services/",
    "/v1/catalog/service/",
    "/v1/catalog/connect/",
    "/v1/internal/ui/node",
    "/v1/internal/ui/services",
];

/// Up to 1/16 of the wait is added as jitter, so that clients do not return at the same time.
const JITTER_FRACTION: f64 = 16.0;

/// The parameters of a request, in their original order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Params(Vec<(String, String)>);

/// The consistency mode of a read. With a single store, all three give the same result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consistency {
    Leader,
    Stale,
    Consistent,
}

impl Consistency {
    /// Its name in the response header.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Stale => "stale",
            Self::Consistent => "consistent",
        }
    }
}

/// The request's `Cache-Control` directives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheControl {
    /// Whether a cached response must not be used.
    pub(crate) must_revalidate: bool,
}

impl CacheControl {
    /// Parses the `Cache-Control` header.
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Self, ApiError> {
        let mut found = Self::default();
        let Some(value) = headers.get(CACHE_CONTROL) else {
            return Ok(found);
        };
        let invalid = || ApiError::bad_request("Invalid Cache-Control header.");
        let text = value.to_str().map_err(|_| invalid())?.to_ascii_lowercase();
        for directive in text.split(',').map(str::trim) {
            if directive == "must-revalidate" {
                found.must_revalidate = true;
            } else if let Some(age) = directive.strip_prefix("max-age=") {
                let age: i64 = age.parse().map_err(|_| invalid())?;
                found.must_revalidate |= age == 0;
            } else if let Some(age) = directive.strip_prefix("stale-if-error=") {
                age.parse::<i64>().map_err(|_| invalid())?;
            }
        }
        Ok(found)
    }
}

impl Params {
    pub(crate) fn parse(uri: &Uri) -> Result<Self, ApiError> {
        let Query(all) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|e| ApiError::bad_request(format!("Invalid query string: {e}")))?;
        // The decoder replaces invalid UTF-8 with this character, which no valid name contains.
        let broken = |text: &String| text.contains(char::REPLACEMENT_CHARACTER);
        if let Some((name, _)) = all.iter().find(|(n, v)| broken(n) || broken(v)) {
            return Err(ApiError::bad_request(format!(
                "Invalid query string: parameter {name:?} is not UTF-8; encode names as UTF-8 \
                 before percent-encoding them"
            )));
        }
        Ok(Self(all))
    }

    /// The first value of a parameter; empty if it has no value, `None` if it is missing.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(key, _)| key == name);
        pair.map(|(_, value)| value.as_str())
    }

    /// All values of a parameter that may be repeated.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let pairs = self.0.iter().filter(move |(key, _)| key == name);
        pairs.map(|(_, value)| value.as_str())
    }

    /// Whether a parameter without a value is present, such as `?stale` or `?pretty`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A boolean parameter. Present without a value means true.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None => Ok(false),
            Some("" | "true" | "1" | "t" | "T" | "TRUE" | "True") => Ok(true),
            Some("false" | "0" | "f" | "F" | "FALSE" | "False") => Ok(false),
            Some(other) => Err(ApiError::bad_request(format!(
                "Invalid value for ?{name}: {other:?} is neither true nor false"
            ))),
        }
    }

    /// A parameter that must be present with a value.
    pub(crate) fn required(&self, name: &str) -> Result<&str, ApiError> {
        self.get(name)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| {
                ApiError::bad_request(format!("Missing ?{name}=: this endpoint needs it"))
            })
    }

    /// The index of a compare-and-set write (`?cas`).
    pub(crate) fn cas(&self) -> Result<Option<u64>, ApiError> {
        self.get("cas")
            .map(|text| {
                text.parse().map_err(|_| {
                    ApiError::bad_request(format!(
                        "Invalid ?cas={text}: send the ModifyIndex that was read, or 0 for an \
                         object that must not exist"
                    ))
                })
            })
            .transpose()
    }

    /// The consistency mode. `?leader` is the default and needs no parsing.
    pub(crate) fn consistency(&self) -> Result<Consistency, ApiError> {
        let consistent = self.has("consistent");
        let stale = self.has("stale") || !self.max_stale()?.is_zero();
        for (other, given) in [("stale", stale), ("cached", self.has("cached"))] {
            if consistent && given {
                return Err(ApiError::bad_request(format!(
                    "Cannot specify ?{other} with ?consistent, conflicting semantics."
                )));
            }
        }
        Ok(match (consistent, stale) {
            (true, _) => Consistency::Consistent,
            (false, true) => Consistency::Stale,
            (false, false) => Consistency::Leader,
        })
    }

    /// The maximum staleness. It has no effect, because responses are always current.
    fn max_stale(&self) -> Result<Duration, ApiError> {
        match self.get("max_stale").unwrap_or_default() {
            "" => Ok(Duration::ZERO),
            text => duration::parse(text)
                .map_err(|_| ApiError::bad_request(format!("Invalid max_stale value {text:?}"))),
        }
    }

    /// The index and the wait time of a blocking query. `random` is from 0 to 1.
    pub(crate) fn blocking(
        &self,
        times: QueryTimes,
        random: f64,
    ) -> Result<BlockingQuery, ApiError> {
        let min_index = match self.get("index").unwrap_or_default() {
            "" => 0,
            text => text.parse().map_err(|_| {
                ApiError::bad_request(format!(
                    "Invalid index: {text:?} is not a number; send the X-Consul-Index of the last \
                     response"
                ))
            })?,
        };
        let wait = match self.get("wait").unwrap_or_default() {
            "" => Duration::ZERO,
            text => duration::parse(text).map_err(|e| {
                ApiError::bad_request(format!("Invalid wait time: {e}; write it as 30s or 5m"))
            })?,
        };
        let wait = match wait {
            Duration::ZERO => times.default,
            some => some.min(times.max),
        };
        let extra = wait.mul_f64(random.clamp(0.0, 1.0) / JITTER_FRACTION);
        Ok(BlockingQuery {
            min_index,
            wait: wait + extra,
        })
    }

    /// A namespace or partition in a parameter; empty if it is missing.
    pub(crate) fn tenancy_name(&self, name: &str) -> Result<TenancyName, ApiError> {
        let text = self.get(name).unwrap_or_default();
        text.parse().map_err(|error: InvalidTenancyName| {
            ApiError::bad_request(format!("Invalid query parameter ?{name}: {error}"))
        })
    }

    /// Rejects other datacenters and peers, which would otherwise be ignored and give a wrong result.
    /// [`super::call::Call::refuse_filter`] does the same for filters.
    pub(crate) fn refuse_unserved(&self, local: &str) -> Result<(), ApiError> {
        for name in ["dc", "datacenter"] {
            if let Some(dc) = self.get(name)
                && !dc.is_empty()
                && !dc.eq_ignore_ascii_case(local)
            {
                return Err(ApiError::internal(format!(
                    "No path to datacenter {dc:?}: this server serves {local:?} only; ask a \
                     server of that datacenter, or leave ?{name} out"
                )));
            }
        }
        for name in ["sg", "sameness-group"] {
            if self.get(name).is_some_and(|value| !value.is_empty()) {
                return Err(ApiError::bad_request(format!(
                    "Invalid query parameter ?{name}: sameness groups are not served here, leave it out"
                )));
            }
        }
        Ok(())
    }

    /// The peer whose services the request is about, in lower case; empty for those of this cluster.
    ///
    /// # Errors
    /// For an endpoint that reads no services of peers.
    pub(crate) fn peer(&self, path: &str) -> Result<String, ApiError> {
        let peer = self.get("peer").unwrap_or_default().to_ascii_lowercase();
        if peer.is_empty() || OF_PEERS.iter().any(|prefix| path.starts_with(prefix)) {
            return Ok(peer);
        }
        Err(match path {
            "/v1/catalog/services" => {
                ApiError::bad_request("listing service names imported from a peer is not supported")
            }
            _ => ApiError::bad_request(
                "Invalid query parameter ?peer: this endpoint is about services of this cluster, leave it out",
            ),
        })
    }

    /// The filter expression, if there is one.
    pub(crate) fn filter(&self) -> Option<&str> {
        self.get("filter").filter(|text| !text.is_empty())
    }

    /// The `node-meta=key:value` pairs. The value may be missing.
    pub(crate) fn node_meta(&self) -> Vec<(&str, &str)> {
        self.all("node-meta")
            .map(|pair| pair.split_once(':').unwrap_or((pair, "")))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(query: &str) -> Params {
        let uri = format!("/v1/x?{query}").parse().expect("a valid URI");
        Params::parse(&uri).expect("a valid query")
    }

    #[test]
    fn waits_are_bounded_and_stretched_by_at_most_a_sixteenth() {
        let wait = |query: &str, random| {
            params(query)
                .blocking(QueryTimes::default(), random)
                .map(|q| q.wait)
        };
        assert_eq!(wait("index=1", 0.0), Ok(QueryTimes::default().default));
        assert_eq!(wait("index=1&wait=10s", 0.0), Ok(Duration::from_secs(10)));
        assert_eq!(wait("wait=16s", 1.0), Ok(Duration::from_secs(17)));
        assert_eq!(wait("wait=24h", 0.0), Ok(QueryTimes::default().max));
        assert_eq!(wait("wait=0s", 0.0), Ok(QueryTimes::default().default));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let text = |error: ApiError| format!("{error:?}");
        let bad = |query: &str| {
            text(
                params(query)
                    .blocking(QueryTimes::default(), 0.0)
                    .expect_err(query),
            )
        };
        assert!(bad("index=-1").contains("Invalid index"));
        assert!(bad("index=abc").contains("Invalid index"));
        assert!(bad("wait=soon").contains("Invalid wait time"));
        assert!(bad("wait=-3s").contains("Invalid wait time"));
        assert!(params("cas=x").cas().is_err());
        assert!(params("passing=maybe").flag("passing").is_err());
    }

    #[test]
    fn consistency_modes_exclude_each_other() {
        assert_eq!(params("").consistency(), Ok(Consistency::Leader));
        assert_eq!(params("stale").consistency(), Ok(Consistency::Stale));
        assert_eq!(
            params("consistent").consistency(),
            Ok(Consistency::Consistent)
        );
        assert!(params("stale&consistent").consistency().is_err());
        assert!(params("cached&consistent").consistency().is_err());
        assert!(params("max_stale=1s&consistent").consistency().is_err());
        assert_eq!(
            params("max_stale=0s&consistent").consistency(),
            Ok(Consistency::Consistent)
        );
        assert_eq!(params("max_stale=1s").consistency(), Ok(Consistency::Stale));
        let error = params("max_stale=old").consistency().expect_err("no time");
        assert_eq!(error.text(), "Invalid max_stale value \"old\"");
    }

    #[test]
    fn cache_control_is_parsed() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, http::HeaderValue::from_static(text));
            CacheControl::parse(&headers).map(|cache| cache.must_revalidate)
        };
        assert_eq!(read("max-age=30, stale-if-error=60"), Ok(false));
        assert_eq!(read("Max-Age=0"), Ok(true));
        assert_eq!(read("no-store,must-revalidate"), Ok(true));
        assert!(read("max-age=soon").is_err());
    }

    #[test]
    fn repeated_parameters_keep_their_order() {
        let params = params("node-meta=a:1&tag=x&node-meta=b&tag=y");
        assert_eq!(params.node_meta(), [("a", "1"), ("b", "")]);
        assert_eq!(params.all("tag").collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(params.flag("passing"), Ok(false));
    }
}
