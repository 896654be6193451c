//! What the command line asks of a dataplane that is already running, at its lifecycle server.
//!
//! It needs no runtime and no setting but the server's address, and works with dataplanes that
//! are older or newer than this program.

mod page;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
// Not paused here; the type is the one whose use the workspace allows.
use tokio::time::Instant;

use crate::ask::{Question, connect};
use crate::restart;

/// How long a question may take, all addresses together.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for a request for a new Envoy, which is answered when it serves, or after
/// [`restart::PATIENCE`].
pub const RESTART_TIMEOUT: Duration = restart::PATIENCE.saturating_add(ASK_TIMEOUT);

/// Where the status document is.
pub(crate) const STATUS_PATH: &str = "/status";

/// Where a new Envoy is asked for.
pub(crate) const RESTART_PATH: &str = "/restart";

/// Where inbound connections are asked to be drained.
pub(crate) const DRAIN_PATH: &str = "/drain";

/// Largest answer that is read, in bytes: the status grows with what Envoy says in rejections.
const ANSWER_LIMIT: usize = 4 * 1024 * 1024;

/// Nobody answered who could know.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers.
    #[error(
        "no dataplane answers at http://{address}{path}: {source}; if one runs, give the \
         -graceful-addr, -graceful-port or -config-file that it was started with"
    )]
    Nobody {
        /// Where it was asked.
        address: SocketAddr,
        /// What it was asked.
        path: &'static str,
        /// What came instead of an answer.
        source: io::Error,
    },
    /// Somebody else answers.
    #[error(
        "what answers at http://{address}{path} is no dataplane ({reason}): check -graceful-addr, \
         -graceful-port and -config-file"
    )]
    Stranger {
        /// Where it was asked.
        address: SocketAddr,
        /// What it was asked.
        path: &'static str,
        /// What is wrong with the answer.
        reason: String,
    },
}

/// What a running dataplane tells of itself.
#[derive(Debug)]
pub struct Status(Value);

/// Asks for the status at the first of `addresses` where someone answers.
///
/// # Errors
/// When nobody answers in time, or with something else than a status document.
pub fn status(addresses: &[SocketAddr], timeout: Duration) -> Result<Status, AskError> {
    let question = Question {
        method: "GET",
        path: STATUS_PATH,
    };
    let answer = first_answer(addresses, question, STATUS_PATH, timeout)?;
    let address = answer.address;
    let stranger = |reason| AskError::Stranger {
        address,
        path: STATUS_PATH,
        reason,
    };
    if answer.status != 200 {
        return Err(stranger(format!("HTTP status {}", answer.status)));
    }
    match serde_json::from_slice(&answer.body) {
        Ok(document @ Value::Object(_)) => Ok(Status(document)),
        Ok(_) => Err(stranger("its status is no object".to_owned())),
        Err(error) => Err(stranger(format!("its status is no JSON: {error}"))),
    }
}

impl Status {
    /// A document that was fetched in another way.
    #[must_use]
    pub fn from_document(document: Value) -> Status {
        Status(document)
    }

    /// Whether it is ready. A document that does not say so is one of a dataplane that is not.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0["ready"] == Value::Bool(true)
    }

    /// Text for people.
    #[must_use]
    pub fn text(&self) -> String {
        page::text(&self.0)
    }

    /// The document, with line breaks.
    #[must_use]
    pub fn json(&self) -> String {
        format!("{:#}", self.0)
    }
}

/// What came of asking for a new Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restart {
    /// One is being started; the dataplane's words.
    Started(String),
    /// None is, and why.
    Refused(String),
}

/// Asks for a new Envoy in place of the running one, at the first of `addresses` that can be
/// connected to.
///
/// # Errors
/// When nobody answers in time. Whether a new Envoy is started is then not known: `-status` tells.
pub fn restart(addresses: &[SocketAddr], timeout: Duration) -> Result<Restart, AskError> {
    let question = Question {
        method: "POST",
        path: RESTART_PATH,
    };
    let answer = first_answer(addresses, question, RESTART_PATH, timeout)?;
    let words = page::printable(&String::from_utf8_lossy(&answer.body));
    let (address, status) = (answer.address, answer.status);
    Ok(match status {
        200..=299 if words.is_empty() => {
            Restart::Started("a new Envoy is being started".to_owned())
        }
        200..=299 => Restart::Started(words),
        404 => Restart::Refused(format!(
            "the dataplane at {address} does not know how to start a new Envoy: it is too old, or \
             it has none because it only answers DNS"
        )),
        _ if words.is_empty() => Restart::Refused(format!(
            "the dataplane at {address} refuses: HTTP status {status}"
        )),
        _ => Restart::Refused(words),
    })
}

/// Asks to drain inbound connections, and to refuse new ones after `accept`.
///
/// # Errors
/// When nobody answers in time, or what answers cannot do it; its words are in the second case.
pub fn drain(
    addresses: &[SocketAddr],
    accept: Duration,
    timeout: Duration,
) -> Result<Result<String, String>, AskError> {
    let path = format!("{DRAIN_PATH}?accept_ms={}", accept.as_millis());
    let question = Question {
        method: "POST",
        path: &path,
    };
    let answer = first_answer(addresses, question, DRAIN_PATH, timeout)?;
    let words = page::printable(&String::from_utf8_lossy(&answer.body));
    Ok(match answer.status {
        200..=299 => Ok(words),
        404 => Err(format!(
            "the dataplane at {} does not know how to drain: it is too old",
            answer.address
        )),
        status if words.is_empty() => Err(format!("HTTP status {status}")),
        _ => Err(words),
    })
}

struct Answer {
    address: SocketAddr,
    status: u16,
    body: Vec<u8>,
}

fn first_answer(
    addresses: &[SocketAddr],
    question: Question<'_>,
    path: &'static str,
    timeout: Duration,
) -> Result<Answer, AskError> {
    let deadline = Instant::now() + timeout;
    let mut first = None;
    for &address in addresses {
        let connection = match connect(address, deadline) {
            Ok(connection) => connection,
            Err(source) => {
                first.get_or_insert((address, source));
                continue;
            }
        };
        // Whoever was asked is not asked again elsewhere: it may be the same dataplane.
        let answer = connection.ask(question).and_then(|reply| {
            let status = reply.status;
            let body = reply.body(ANSWER_LIMIT)?;
            Ok(Answer {
                address,
                status,
                body,
            })
        });
        return answer.map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData => AskError::Stranger {
                address,
                path,
                reason: source.to_string(),
            },
            _ => AskError::Nobody {
                address,
                path,
                source,
            },
        });
    }
    let (address, source) = first.unwrap_or_else(|| {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        (address, io::Error::other("no address to ask"))
    });
    Err(AskError::Nobody {
        address,
        path,
        source,
    })
}
