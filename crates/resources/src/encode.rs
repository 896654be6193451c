//! Encodes messages. The bytes depend only on the content, because all maps in the messages are
//! sorted or have at most one key.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::Any;
use prost::{Message, Name};
use sha2::{Digest, Sha256};

/// An encoded resource, shared by all proxies that have it.
#[derive(Clone, PartialEq, Eq)]
pub struct EncodedResource {
    /// Its name, unique within its type.
    pub name: Arc<str>,
    /// SHA-256 of the body in lower-case hexadecimal.
    pub version: Arc<str>,
    /// The encoded `google.protobuf.Any`.
    pub body: Bytes,
    /// The resources that Envoy drops when it replaces this one: for a cluster the names of its
    /// endpoints, for a listener the names of its routes.
    pub children: Box<[Arc<str>]>,
}

impl fmt::Debug for EncodedResource {
    /// Omits the body, which may contain a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodedResource")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("bytes", &self.body.len())
            .field("children", &self.children)
            .finish()
    }
}

/// Encodes a resource. `children` as in [`EncodedResource::children`].
pub(crate) fn resource<M: Message + Name>(
    name: &str,
    message: &M,
    children: &[&str],
) -> EncodedResource {
    let children = children.iter().map(|child| Arc::from(*child)).collect();
    let body = Bytes::from(any(message).encode_to_vec());
    from_body(name.into(), body, children)
}

/// A resource from a message that is encoded already.
pub(crate) fn resource_of(name: &str, message: &Any, children: &[&str]) -> EncodedResource {
    let children = children.iter().map(|child| Arc::from(*child)).collect();
    from_body(name.into(), Bytes::from(message.encode_to_vec()), children)
}

/// A resource from an encoded `google.protobuf.Any`.
pub(crate) fn from_body(name: Arc<str>, body: Bytes, children: Box<[Arc<str>]>) -> EncodedResource {
    EncodedResource {
        name,
        version: hex(&Sha256::digest(&body)).into(),
        body,
        children,
    }
}

/// Packs a message.
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
