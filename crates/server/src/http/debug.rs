//! `/debug/pprof`: profiles in the format of Go's profiler, for `consul debug` and `go tool pprof`: memory of
//! the process, CPU time by thread, and threads. Goroutines and heap profiles by location do not exist for a
//! Rust program, and the execution trace is empty.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use legate_runtime::CancellationToken;
use prost::Message;

use super::call::Call;
use crate::api_error::ApiError;
use axum::extract::State;

/// The maximum duration of a profile.
const LONGEST: Duration = Duration::from_secs(300);
/// The default duration of a profile, as in Go.
const USUAL: Duration = Duration::from_secs(30);
/// Clock ticks per second in which the kernel reports CPU time.
const TICKS: u64 = 100;
/// Header of a Go execution trace. No events follow, because there is no Go scheduler.
const TRACE: &[u8] = b"go 1.22 trace\0\0\0";

/// `GET /debug/pprof/`
pub(super) async fn index(call: Call) -> Result<Response, ApiError> {
    may_see(&call)?;
    Ok(
        "heap: memory of the process\nprofile?seconds=30: processor time by thread\n\
        goroutine: threads\ntrace: of Go's scheduler, always empty\ncmdline\n"
            .into_response(),
    )
}

/// `GET /debug/pprof/:name`
pub(super) async fn profile(
    Path(name): Path<String>,
    State(stop): State<CancellationToken>,
    call: Call,
) -> Result<Response, ApiError> {
    may_see(&call)?;
    let failed = |error: io::Error| {
        ApiError::internal(format!("The kernel's statistics cannot be read: {error}"))
    };
    let profile = match name.as_str() {
        "heap" | "allocs" => Profile::of(("space", "bytes"), memory().map_err(failed)?),
        "goroutine" | "threadcreate" => {
            Profile::of(("threads", "count"), threads().map_err(failed)?)
        }
        "profile" => {
            let before = times().map_err(failed)?;
            let time = seconds(&call)?;
            if stop
                .run_until_cancelled(tokio::time::sleep(time))
                .await
                .is_none()
            {
                return Err(ApiError::unavailable("The server is shutting down"));
            }
            let mut used = times().map_err(failed)?;
            for (thread, ticks) in &mut used {
                let earlier = before.get(thread).copied().unwrap_or_default();
                let ticks_used = ticks.saturating_sub(earlier);
                *ticks = ticks_used.saturating_mul(1_000_000_000 / TICKS);
            }
            let mut profile = Profile::of(("cpu", "nanoseconds"), used);
            profile.duration_nanos = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
            profile
        }
        "cmdline" => {
            // The program's name only: arguments may contain tokens.
            let line = fs::read("/proc/self/cmdline").map_err(failed)?;
            let name = line.split(|byte| *byte == 0).next().unwrap_or_default();
            return Ok(String::from_utf8_lossy(name).into_owned().into_response());
        }
        "trace" => return Ok(binary(TRACE.to_vec())),
        other => {
            return Err(ApiError::new(
                StatusCode::NOT_IMPLEMENTED,
                format!("/debug/pprof/{other} is not served: it applies to Go programs only"),
            ));
        }
    };
    Ok(binary(profile.encode_to_vec()))
}

fn binary(body: Vec<u8>) -> Response {
    let mut response = Response::new(body.into());
    let bytes = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, bytes);
    response
}

/// As in Consul: requires `enable_debug` if ACLs are off, and `operator:read` if they are on.
fn may_see(call: &Call) -> Result<(), ApiError> {
    if !call.config.acl.enabled {
        return match call.config.debug {
            true => Ok(()),
            false => Err(ApiError::not_found(
                "Profiles are not served: set enable_debug = true",
            )),
        };
    }
    let may = call.authorizer()?.permits("operator", "read", "");
    ApiError::require(may == Ok(true), "operator:read", "")
}

fn seconds(call: &Call) -> Result<Duration, ApiError> {
    let Some(text) = call.params.get("seconds").filter(|text| !text.is_empty()) else {
        return Ok(USUAL);
    };
    let time = text.parse().ok().map(Duration::from_secs);
    time.filter(|time| *time <= LONGEST).ok_or_else(|| {
        ApiError::bad_request(format!(
            "Invalid ?seconds={text}: it must be from 0 to {}",
            LONGEST.as_secs()
        ))
    })
}

/// The kernel's count of this process's memory, by kind, in bytes.
fn memory() -> io::Result<BTreeMap<String, u64>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kinds = [
        ("RssAnon:", "anonymous"),
        ("RssFile:", "files"),
        ("RssShmem:", "shared"),
    ];
    let found = status.lines().filter_map(|line| {
        let (key, name) = kinds.iter().find(|(key, _)| line.starts_with(key))?;
        let kilobytes = line.strip_prefix(key)?.split_whitespace().next()?;
        let bytes = kilobytes.parse::<u64>().ok()?.saturating_mul(1024);
        Some(((*name).to_owned(), bytes))
    });
    Ok(found.collect())
}

/// The number of threads by name.
fn threads() -> io::Result<BTreeMap<String, u64>> {
    let mut threads = BTreeMap::new();
    for (name, _) in stats()? {
        *threads.entry(name).or_default() += 1;
    }
    Ok(threads)
}

/// The CPU time of threads by name, in ticks.
fn times() -> io::Result<BTreeMap<String, u64>> {
    let mut times = BTreeMap::new();
    for (name, ticks) in stats()? {
        *times.entry(name).or_default() += ticks;
    }
    Ok(times)
}

/// Name and CPU time of each thread. Threads that end meanwhile are skipped.
fn stats() -> io::Result<Vec<(String, u64)>> {
    let mut all = Vec::new();
    for thread in fs::read_dir("/proc/self/task")? {
        let stat = fs::read_to_string(thread?.path().join("stat"));
        all.extend(stat.ok().as_deref().and_then(stat_of));
    }
    Ok(all)
}

/// `17 (name) S 1 …`: user and kernel time are fields 14 and 15.
fn stat_of(line: &str) -> Option<(String, u64)> {
    let (start, rest) = line.rsplit_once(") ")?;
    let (_, name) = start.split_once('(')?;
    let mut fields = rest.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some((name.to_owned(), user.saturating_add(kernel)))
}

/// The used subset of pprof's profile message.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

impl Profile {
    /// A profile with one value per name.
    fn of((kind, unit): (&str, &str), values: BTreeMap<String, u64>) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut profile = Profile {
            sample_type: vec![ValueType { r#type: 1, unit: 2 }],
            // pprof requires the first string to be empty.
            string_table: vec![String::new(), kind.to_owned(), unit.to_owned()],
            time_nanos: i64::try_from(now.as_nanos()).unwrap_or_default(),
            ..Profile::default()
        };
        for (id, (name, value)) in (1_u64..).zip(values) {
            let text = i64::try_from(profile.string_table.len()).unwrap_or_default();
            profile.string_table.push(name);
            profile.function.push(Function { id, name: text });
            profile.location.push(Location {
                id,
                line: vec![Line { function_id: id }],
            });
            profile.sample.push(Sample {
                location_id: vec![id],
                value: vec![i64::try_from(value).unwrap_or(i64::MAX)],
            });
        }
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_read_whatever_their_names_hold() {
        let line = "17 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14 15 16";
        assert_eq!(stat_of(line), Some(("a) b (c".to_owned(), 42)));
        assert_eq!(stat_of("17 (a) S 1"), None);
        assert!(threads().unwrap().values().sum::<u64>() > 0);
        assert!(memory().unwrap()["anonymous"] > 0);
    }
}
