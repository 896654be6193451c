//! Errors that end a stream or refuse a resource, with Consul's codes and texts.

/// The codes of gRPC that are used here.
pub mod code {
    /// An error without a code in Consul.
    pub const UNKNOWN: i32 = 2;
    /// The other cluster has sent what it must not send.
    pub const INVALID_ARGUMENT: i32 = 3;
    /// The secret is not the right one.
    pub const PERMISSION_DENIED: i32 = 7;
    /// A message is too large.
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    /// The server is not the leader.
    pub const FAILED_PRECONDITION: i32 = 9;
    /// The peering is deleted.
    pub const ABORTED: i32 = 10;
    /// The server has failed.
    pub const INTERNAL: i32 = 13;
    /// The server is not ready.
    pub const UNAVAILABLE: i32 = 14;
}

/// A code of gRPC with a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// See [`code`].
    pub code: i32,
    /// What is wrong.
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(code::INVALID_ARGUMENT, message)
    }

    /// A stream whose server has ceased to be the leader, or stops. The other cluster tries another server at once.
    pub fn no_longer_leader() -> Self {
        let text = "node is not a leader anymore; cannot continue streaming";
        Self::new(code::FAILED_PRECONDITION, text)
    }
}

/// The start of a text that the other cluster has a part in, for messages: at most 512 bytes.
pub(crate) fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(512)]
}
