//! What a server answers, whatever it was asked.

use bytes::Bytes;
use http::StatusCode;

/// Largest answer that is read, in bytes: some 30,000 instances in one list.
pub const ANSWER_SIZE: usize = 32 << 20;

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status, of any class.
    pub status: StatusCode,
    /// The body, at most [`ANSWER_SIZE`].
    pub body: Bytes,
}

impl Answer {
    /// The body as text, shortened: servers say there why they refuse.
    #[must_use]
    pub fn text(&self) -> String {
        const LONGEST: usize = 1024;
        let text = String::from_utf8_lossy(&self.body);
        match text.trim().char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &text.trim()[..end]),
            None => text.trim().to_owned(),
        }
    }

    /// Whether the server says that it knows no such token, as both Legate's and Consul's do.
    pub(super) fn token_is_gone(&self) -> bool {
        self.status == StatusCode::FORBIDDEN && self.text().contains("ACL not found")
    }
}
