//! A response of a server.

use bytes::Bytes;
use http::StatusCode;

/// The maximum size of a response, in bytes: some 30,000 instances in one list.
pub const ANSWER_SIZE: usize = 32 << 20;

/// A server's response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status, of any class.
    pub status: StatusCode,
    /// The index of the state that it is about (`X-Consul-Index`), if it has one.
    pub index: Option<u64>,
    /// The body, at most [`ANSWER_SIZE`].
    pub body: Bytes,
}

impl Answer {
    /// The body as text, truncated; it has the server's reason for a refusal.
    #[must_use]
    pub fn text(&self) -> String {
        const LONGEST: usize = 1024;
        let text = String::from_utf8_lossy(&self.body);
        match text.trim().char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &text.trim()[..end]),
            None => text.trim().to_owned(),
        }
    }

    /// Whether the server reports the token as unknown; the text is that of Legate and Consul.
    pub(super) fn token_is_gone(&self) -> bool {
        self.status == StatusCode::FORBIDDEN && self.text().contains("ACL not found")
    }
}
