//! Messages to bytes. The bytes of a message depend on its content only, because no message that
//! is built here has a map with more than one key, save those that are sorted.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::Any;
use prost::{Message, Name};
use sha2::{Digest, Sha256};

/// A resource ready to be sent, shared by every proxy that has it.
#[derive(Clone, PartialEq, Eq)]
pub struct EncodedResource {
    /// Its name, unique within its type.
    pub name: Arc<str>,
    /// SHA-256 of the body in lower-case hexadecimal.
    pub version: Arc<str>,
    /// The encoded `google.protobuf.Any`.
    pub body: Bytes,
    /// What Envoy drops when it replaces this resource: for a cluster the names of its endpoints,
    /// for a listener the names of its routes.
    pub children: Box<[Arc<str>]>,
}

impl fmt::Debug for EncodedResource {
    /// Leaves the body out: it may be a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodedResource")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("bytes", &self.body.len())
            .field("children", &self.children)
            .finish()
    }
}

/// Encodes a resource with its children.
pub(crate) fn resource<M: Message + Name>(
    name: &str,
    message: &M,
    children: &[&str],
) -> EncodedResource {
    let children = children.iter().map(|child| Arc::from(*child)).collect();
    let body = Bytes::from(any(message).encode_to_vec());
    from_body(name.into(), body, children)
}

/// A resource that is encoded already, with its children.
pub(crate) fn resource_of(name: &str, message: &Any, children: &[&str]) -> EncodedResource {
    let children = children.iter().map(|child| Arc::from(*child)).collect();
    from_body(name.into(), Bytes::from(message.encode_to_vec()), children)
}

/// A resource that was encoded already: `body` is a `google.protobuf.Any`.
pub(crate) fn from_body(name: Arc<str>, body: Bytes, children: Box<[Arc<str>]>) -> EncodedResource {
    EncodedResource {
        name,
        version: hex(&Sha256::digest(&body)).into(),
        body,
        children,
    }
}

/// A message with its type.
pub(crate) fn any<M: Message + Name>(message: &M) -> Any {
    Any {
        type_url: M::type_url(),
        value: message.encode_to_vec(),
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}
