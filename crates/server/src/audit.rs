//! The audit log: a JSON line for every write and every denied request of the HTTP API, in Consul Enterprise's
//! format. A thread per file writes lines from a bounded queue, so that requests never wait for the disk. Lines
//! that do not fit into the queue are counted in a line of their own.
//!
//! Tokens appear by accessor id only. URLs are logged without parameters, which may contain secrets. Bodies are
//! not logged.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, Method, StatusCode, header};
use legate_model::acl::{ANONYMOUS_SECRET, Token};
use legate_model::{Tenancy, timestamp};
use legate_runtime::Clock;
use legate_runtime::logging::LineQueue;
use legate_runtime::rotating_file::RotatingFile;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::acl::{Rights, is_anonymous};
use crate::operations::AuditSink;

/// Default mode of the files.
const MODE: u32 = 0o600;

/// How long shutdown waits for each file to be flushed.
const FLUSH: Duration = Duration::from_secs(1);

/// Maximum length of each logged client header, in characters.
const SAID: usize = 1024;

/// A log file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the audit log {} cannot be opened: {source}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// The audit log files of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Audit {
    files: Vec<LineQueue>,
    clock: Option<Clock>,
}

/// A request that is logged.
pub(crate) struct Event {
    auth: Value,
    request: Value,
}

/// The logged parts of a request.
pub(crate) struct Asked<'r> {
    pub(crate) method: &'r Method,
    pub(crate) path: &'r str,
    pub(crate) headers: &'r HeaderMap,
    pub(crate) client: String,
}

impl Audit {
    /// Opens all files.
    pub(crate) fn open(sinks: &[AuditSink], clock: &Clock) -> Result<Self, AuditError> {
        let files = sinks.iter().map(|sink| {
            let mode = sink.mode.unwrap_or(MODE);
            let failed = |source| AuditError {
                path: sink.path.clone(),
                source,
            };
            let file =
                RotatingFile::open(sink.path.clone(), mode, sink.rotation).map_err(failed)?;
            let at = clock.clone();
            let lost = move |lost: u64| line(&at, json!({ "type": "LostEvents", "count": lost }));
            LineQueue::start(file, lost).map_err(failed)
        });
        Ok(Self {
            files: files.collect::<Result<_, _>>()?,
            clock: Some(clock.clone()),
        })
    }

    /// Whether the audit log is enabled.
    pub(crate) fn is_on(&self) -> bool {
        !self.files.is_empty()
    }

    /// Prepares the log entry of a request with this token.
    pub(crate) fn event(&self, rights: &Rights, token: &str, asked: &Asked<'_>) -> Event {
        let said = |name: header::HeaderName| {
            let value = asked.headers.get(name)?;
            let text = String::from_utf8_lossy(value.as_bytes());
            Some(text.chars().take(SAID).collect::<String>())
        };
        Event {
            auth: auth(rights, token),
            request: json!({
                "operation": asked.method.as_str(),
                "endpoint": asked.path,
                "remote_addr": asked.client,
                "user_agent": said(header::USER_AGENT).unwrap_or_default(),
                "host": said(header::HOST).unwrap_or_default(),
            }),
        }
    }

    /// Logs the start of a request.
    pub(crate) fn begin(&self, event: &Event) {
        self.write(event, event.request.clone(), None);
    }

    /// Logs the end of a request, and its tenancy if known.
    pub(crate) fn end(&self, event: &Event, tenancy: Option<&Tenancy>, status: StatusCode) {
        let mut request = event.request.clone();
        if let Some(Tenancy {
            partition,
            namespace,
            ..
        }) = tenancy
        {
            request["partition"] = Value::from(&**partition);
            request["namespace"] = Value::from(&**namespace);
        }
        self.write(event, request, Some(status));
    }

    fn write(&self, event: &Event, request: Value, status: Option<StatusCode>) {
        let Some(clock) = &self.clock else { return };
        let mut payload = json!({
            "id": Uuid::new_v4().to_string(),
            "version": "1",
            "type": "HTTPEvent",
            "timestamp": now(clock),
            "auth": event.auth,
            "request": request,
            "stage": if status.is_some() { "OperationComplete" } else { "OperationStart" },
        });
        if let Some(status) = status {
            payload["response"] = json!({ "status": status.as_str() });
        }
        let line = line(clock, payload);
        for file in &self.files {
            file.push(line.as_bytes());
        }
    }

    /// Waits until all lines are written, up to a timeout.
    pub(crate) fn flush(&self) {
        for file in &self.files {
            if !file.flush(FLUSH) {
                tracing::warn!("the audit log could not be flushed in time");
            }
        }
    }
}

fn line(clock: &Clock, payload: Value) -> String {
    let event = json!({ "created_at": now(clock), "event_type": "audit", "payload": payload });
    format!("{event}\n")
}

fn now(clock: &Clock) -> String {
    timestamp::format(clock.now()).unwrap_or_default()
}

/// The caller, by accessor id. Unknown tokens are logged as such.
fn auth(rights: &Rights, token: &str) -> Value {
    let owner = rights.owner(token);
    let anonymous = is_anonymous(token) || token == ANONYMOUS_SECRET;
    let created = |token: &Token| {
        let at = token.create_time.unwrap_or(SystemTime::UNIX_EPOCH);
        timestamp::format(at).unwrap_or_default()
    };
    match owner {
        Some(token) => json!({
            "accessor_id": token.accessor_id,
            "description": token.description,
            "create_time": created(&token),
            "partition": *token.tenancy().partition,
            "namespace": *token.tenancy().namespace,
        }),
        None if anonymous => {
            let token = Token::anonymous();
            json!({ "accessor_id": token.accessor_id, "description": token.description })
        }
        None if rights.is_recovery(token) => {
            json!({ "accessor_id": "", "description": "Agent Recovery Token" })
        }
        None => json!({ "accessor_id": "", "description": "a token that is not known" }),
    }
}
