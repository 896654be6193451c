//! Reads an Envoy's requests from the wire. A request is measured before it is decoded: a few bytes
//! on the wire can become many in memory.
//!
//! It looks at one message at a time; what a stream asks for in all is the core's to judge.

use bytes::Buf;
use legate_api::discovery::DeltaDiscoveryRequest;
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};

use super::limits::{Limits, MAX_ERROR, MAX_NODE, Usage};

// Fields of `DeltaDiscoveryRequest`.
const NODE: usize = 1;
const SUBSCRIBE: usize = 3;
const UNSUBSCRIBE: usize = 4;
const VERSIONS: usize = 5;
const ERROR: usize = 7;

/// Decodes requests that keep to the limits; the first other one ends the stream.
#[derive(Debug)]
pub(super) struct RequestDecoder {
    limits: Limits,
}

impl RequestDecoder {
    pub(super) fn new(limits: Limits) -> RequestDecoder {
        RequestDecoder { limits }
    }
}

impl Decoder for RequestDecoder {
    type Item = DeltaDiscoveryRequest;
    type Error = Status;

    /// Holds an Envoy's first request, 56 KiB with its node, and a frame of the next without growing.
    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(80 * 1024, 32 * 1024)
    }

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        // The buffer is one piece, and stays whole: what is split off it makes it grow.
        let message = buffer.chunk();
        debug_assert_eq!(
            message.len(),
            buffer.remaining(),
            "the message is in one piece"
        );
        let request = decode(&self.limits, message)?;
        buffer.advance(buffer.remaining());
        Ok(Some(request))
    }
}

fn decode(limits: &Limits, message: &[u8]) -> Result<DeltaDiscoveryRequest, Status> {
    measure(limits, message)?;
    DeltaDiscoveryRequest::decode(message)
        .map_err(|error| Status::invalid_argument(format!("not an xDS request: {error}")))
}

/// Goes over the fields of a message without decoding them.
fn measure(limits: &Limits, mut rest: &[u8]) -> Result<(), Status> {
    let (mut subscribe, mut unsubscribe, mut versions) = <(Usage, Usage, Usage)>::default();
    while !rest.is_empty() {
        let (field, length) = next_field(&mut rest)
            .ok_or_else(|| Status::invalid_argument("not an xDS request: a field is cut off"))?;
        let (what, limit) = match field {
            NODE => ("the node", MAX_NODE),
            ERROR => ("the error", MAX_ERROR),
            // A name and a version.
            VERSIONS => ("a resource's name with its version", 2 * limits.name),
            _ => ("a resource's name, type or nonce", limits.name),
        };
        if length > limit {
            return Err(Status::invalid_argument(format!(
                "{what} in an xDS request may have {limit} bytes, this one has {length}"
            )));
        }
        let usage = match field {
            SUBSCRIBE => &mut subscribe,
            UNSUBSCRIBE => &mut unsubscribe,
            VERSIONS => &mut versions,
            _ => continue,
        };
        usage.add(length);
        limits.check(*usage)?;
    }
    Ok(())
}

/// Number and length in bytes of the next field, which is taken from the front.
fn next_field(rest: &mut &[u8]) -> Option<(usize, usize)> {
    // A number of variable length, as lengths are.
    let mut varint = || prost::decode_length_delimiter(&mut *rest).ok();
    let key = varint()?;
    let length = match key & 7 {
        0 => {
            varint()?;
            0
        }
        1 => 8,
        2 => varint()?,
        5 => 4,
        _ => return None,
    };
    *rest = rest.get(length..)?;
    Some((key >> 3, length))
}

#[cfg(test)]
mod tests {
    use legate_api::rpc;
    use proptest::prelude::*;
    use tonic::Code;

    use super::*;

    const LIMITS: Limits = Limits {
        types: 2,
        names: 3,
        bytes: 40,
        name: 20,
    };

    fn refused(request: &DeltaDiscoveryRequest) -> Option<(Code, String)> {
        let status = decode(&LIMITS, &request.encode_to_vec()).err()?;
        Some((status.code(), status.message().to_owned()))
    }

    fn named(names: &[String]) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest {
            type_url: "type".to_owned(),
            resource_names_subscribe: names.to_vec(),
            ..DeltaDiscoveryRequest::default()
        }
    }

    #[track_caller]
    fn assert_refused(request: &DeltaDiscoveryRequest, code: Code, words: &str) {
        let (found, message) = refused(request).expect("a refusal");
        assert_eq!(found, code, "{message}");
        assert!(message.contains(words), "{message}");
    }

    #[test]
    fn each_bound_is_named() {
        let full = named(&["a".repeat(20), "b".repeat(20)]);
        assert_eq!(refused(&full), None);
        let request = named(&["a".repeat(21)]);
        assert_refused(&request, Code::InvalidArgument, "20 bytes");
        let request = named(&["a".repeat(20), "b".repeat(20), "c".to_owned()]);
        assert_refused(&request, Code::ResourceExhausted, "40 bytes");
        let request = named(&[const { String::new() }; 4]);
        assert_refused(&request, Code::ResourceExhausted, "3 resources");
        let request = DeltaDiscoveryRequest {
            node: vec![0; MAX_NODE + 1].into(),
            ..full.clone()
        };
        assert_refused(&request, Code::InvalidArgument, "the node");
        let details = vec![rpc::Status::default().details.pop().unwrap_or_default(); MAX_ERROR];
        let error_detail = Some(rpc::Status {
            details,
            ..rpc::Status::default()
        });
        let request = DeltaDiscoveryRequest {
            error_detail,
            ..full
        };
        assert_refused(&request, Code::InvalidArgument, "the error");
    }

    proptest! {
        #[test]
        fn what_is_small_passes(
            names in proptest::collection::vec("[a-z]{0,3}", 0..4),
            versions in proptest::collection::hash_map("[a-z]{0,3}", "[0-9]{0,3}", 0..4),
            code in any::<i32>(),
        ) {
            let request = DeltaDiscoveryRequest {
                resource_names_unsubscribe: names.clone(),
                initial_resource_versions: versions,
                node: bytes::Bytes::from_static(b"node"),
                response_nonce: "nonce".to_owned(),
                error_detail: Some(rpc::Status { code, ..rpc::Status::default() }),
                ..named(&names)
            };
            let decoded = decode(&LIMITS, &request.encode_to_vec());
            prop_assert_eq!(decoded.unwrap(), request);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&LIMITS, &bytes);
        }
    }
}
