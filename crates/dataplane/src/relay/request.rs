//! Reads an Envoy's requests from the wire. A request is measured before it is decoded, because a
//! few bytes on the wire can become many in memory.
//!
//! Each message is checked by itself; the core checks the total of a stream.

use std::task::{Context, Poll, ready};

use h2::RecvStream;
use legate_api::discovery::DeltaDiscoveryRequest;
use prost::Message;
use tonic::Status;

use super::limits::{Limits, MAX_ERROR, MAX_NODE, Usage};
use super::wire::PREFIX;

/// Buffer capacity retained between requests. Envoy's first requests have 56 KiB, later ones are
/// small.
const BUFFER: usize = 4 * 1024;

// Fields of `DeltaDiscoveryRequest`.
const NODE: usize = 1;
const SUBSCRIBE: usize = 3;
const UNSUBSCRIBE: usize = 4;
const VERSIONS: usize = 5;
const ERROR: usize = 7;

/// The requests of a stream that are within the limits. The first one that is not ends the stream.
pub(super) struct Requests {
    stream: RecvStream,
    limits: Limits,
    /// Received bytes that are not decoded yet: less than a message.
    buffer: Vec<u8>,
}

impl Requests {
    pub(super) fn new(stream: RecvStream) -> Requests {
        Requests {
            stream,
            limits: Limits::default(),
            buffer: Vec::new(),
        }
    }

    /// The next request; `None` at the end of the stream.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<DeltaDiscoveryRequest, Status>>> {
        loop {
            if let Some(request) = self.take().transpose() {
                return Poll::Ready(Some(request));
            }
            let data = match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => data,
                Some(Err(error)) => {
                    return Poll::Ready(Some(Err(Status::cancelled(error.to_string()))));
                }
                None => return Poll::Ready(None),
            };
            // Fails only if more is released than was received.
            let _ = self.stream.flow_control().release_capacity(data.len());
            self.buffer.extend_from_slice(&data);
        }
    }

    /// Takes a request from the buffer once it is complete.
    fn take(&mut self) -> Result<Option<DeltaDiscoveryRequest>, Status> {
        let Some((prefix, rest)) = self.buffer.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let [compressed, length @ ..] = *prefix;
        if compressed != 0 {
            return Err(Status::unimplemented(
                "compressed xDS requests are not supported",
            ));
        }
        let (length, limit) = (u32::from_be_bytes(length) as usize, self.limits.request());
        if length > limit {
            return Err(Status::resource_exhausted(format!(
                "an xDS request of {length} bytes is too large, it may have {limit}"
            )));
        }
        let Some(message) = rest.get(..length) else {
            return Ok(None);
        };
        let request = decode(&self.limits, message)?;
        self.buffer.drain(..PREFIX + length);
        self.buffer.shrink_to(BUFFER);
        Ok(Some(request))
    }
}

fn decode(limits: &Limits, message: &[u8]) -> Result<DeltaDiscoveryRequest, Status> {
    measure(limits, message)?;
    DeltaDiscoveryRequest::decode(message)
        .map_err(|error| Status::invalid_argument(format!("not an xDS request: {error}")))
}

/// Checks the fields of a message against the limits without decoding them.
fn measure(limits: &Limits, mut rest: &[u8]) -> Result<(), Status> {
    let (mut subscribe, mut unsubscribe, mut versions) = <(Usage, Usage, Usage)>::default();
    while !rest.is_empty() {
        let (field, length) = next_field(&mut rest)
            .ok_or_else(|| Status::invalid_argument("not an xDS request: a field is cut off"))?;
        let (what, limit) = match field {
            NODE => ("the node", MAX_NODE),
            ERROR => ("the error", MAX_ERROR),
            // One entry of the map: a name and a version.
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

/// Removes the next field from the front. Returns its number and its length in bytes.
fn next_field(rest: &mut &[u8]) -> Option<(usize, usize)> {
    // Field keys are varints, like lengths.
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
        fn small_requests_pass(
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
        fn arbitrary_bytes_cause_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&LIMITS, &bytes);
        }
    }
}
