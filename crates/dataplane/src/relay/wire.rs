//! Encodes the responses of a stream for HTTP/2.
//!
//! The usual encoder writes a whole message into one buffer before its first byte is sent. A
//! response may be large, and its resources are encoded already, so here their bodies are sent as
//! the bytes that arrived. No response is copied as a whole, whatever its size.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::SendStream;
use h2::server::SendResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use legate_api::discovery::DeltaDiscoveryResponse;
use prost::Message as _;
use tonic::Status;

/// Minimum size of bodies that are sent without a copy; copying a smaller one is cheaper.
const WHOLE_FROM: usize = 512;

/// Length of the prefix of a gRPC message: compression flag and message length.
pub(super) const PREFIX: usize = 5;

/// Tag of `DeltaDiscoveryResponse.resources` and of `Resource.resource`: field 2, length-delimited.
const FIELD: u8 = 2 << 3 | 2;

/// Refuses a call.
pub(super) fn refuse(mut respond: SendResponse<Message>, status: Status) {
    // Fails if the call has been cancelled.
    let _ = respond.send_response(status.into_http(), true);
}

/// The responses of one stream. Dropping it ends the stream with its status.
pub(super) struct Responses {
    stream: SendStream<Message>,
    /// The final status of the stream; OK unless it is changed.
    pub(super) status: Status,
}

impl Responses {
    /// Accepts a call.
    pub(super) fn start(mut respond: SendResponse<Message>) -> Result<Responses, h2::Error> {
        let mut response = Response::new(());
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, grpc);
        Ok(Responses {
            stream: respond.send_response(response, false)?,
            status: Status::ok(""),
        })
    }

    /// Sends a response. It is buffered here until Envoy has received it.
    ///
    /// # Errors
    /// When it is too large for a gRPC message, or the stream has ended.
    pub(super) fn send(&mut self, response: DeltaDiscoveryResponse) -> Result<(), Status> {
        let message = Message::new(response)?;
        let sent = self.stream.send_data(message, false);
        sent.map_err(|error| Status::cancelled(error.to_string()))
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        let mut trailers = HeaderMap::new();
        // Fails only if the message is not valid in a header; the code has been added by then.
        if self.status.add_header(&mut trailers).is_err() {
            trailers.insert(Status::GRPC_STATUS, (self.status.code() as i32).into());
        }
        // Fails if the stream has ended.
        let _ = self.stream.send_trailers(trailers);
    }
}

/// A response as a gRPC message in parts: small fields are encoded into one buffer, and large
/// bodies are inserted between its pieces as they arrived.
pub struct Message {
    parts: VecDeque<Bytes>,
    remaining: usize,
}

impl Message {
    /// Encodes a response.
    ///
    /// # Errors
    /// When it has 2 GiB or more, the limit of Protocol Buffers.
    pub fn new(mut response: DeltaDiscoveryResponse) -> Result<Message, Status> {
        let resources = std::mem::take(&mut response.resources);
        let (mut length, mut whole) = (response.encoded_len(), 0);
        for resource in &resources {
            let content = resource.encoded_len();
            length += 1 + prost::length_delimiter_len(content) + content;
            if resource.resource.len() >= WHOLE_FROM {
                whole += resource.resource.len();
            }
        }
        let Ok(prefix) = i32::try_from(length) else {
            let message = format!("a response of {length} bytes exceeds the limit of a message");
            return Err(Status::out_of_range(message));
        };
        let mut small = BytesMut::with_capacity(PREFIX + length - whole);
        let mut parts = VecDeque::new();
        small.put_u8(0);
        small.put_i32(prefix);
        // Fields may be in any order: the small ones first.
        append(&response, &mut small);
        for mut resource in resources {
            start_field(resource.encoded_len(), &mut small);
            if resource.resource.len() < WHOLE_FROM {
                append(&resource, &mut small);
                continue;
            }
            let body = std::mem::take(&mut resource.resource);
            append(&resource, &mut small);
            start_field(body.len(), &mut small);
            parts.extend([small.split().freeze(), body]);
        }
        if !small.is_empty() {
            parts.push_back(small.freeze());
        }
        let remaining = PREFIX + length;
        Ok(Message { parts, remaining })
    }
}

fn start_field(content: usize, small: &mut BytesMut) {
    small.put_u8(FIELD);
    prost::encode_length_delimiter(content, small).expect("the buffer grows");
}

fn append(message: &impl prost::Message, small: &mut BytesMut) {
    message.encode(small).expect("the buffer grows");
}

impl Buf for Message {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&[], |part| part)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pairs = slices.iter_mut().zip(&self.parts);
        pairs
            .map(|(slice, part)| *slice = IoSlice::new(part))
            .count()
    }

    fn advance(&mut self, mut count: usize) {
        self.remaining -= count;
        while let Some(part) = self.parts.front_mut() {
            if count < part.len() {
                return part.advance(count);
            }
            count -= part.len();
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use legate_api::discovery::Resource;
    use proptest::prelude::*;
    use tonic::Code;

    use super::*;

    fn resource(size: usize, number: usize) -> Resource {
        Resource {
            name: format!("name-{number}"),
            version: number.to_string(),
            aliases: vec![format!("alias-{number}")],
            resource: Bytes::from(vec![number as u8; size]),
        }
    }

    fn response(sizes: &[usize]) -> DeltaDiscoveryResponse {
        let resources = sizes.iter().enumerate();
        DeltaDiscoveryResponse {
            system_version_info: "v".to_owned(),
            resources: resources
                .map(|(number, size)| resource(*size, number))
                .collect(),
            type_url: "type".to_owned(),
            nonce: "nonce".to_owned(),
            removed_resources: vec!["gone".to_owned()],
        }
    }

    /// All bytes of a message, consumed like a connection does: up to `step` bytes of some parts at
    /// a time.
    fn bytes(mut message: Message, step: usize) -> Vec<u8> {
        let (mut bytes, length) = (Vec::new(), message.remaining());
        while message.has_remaining() {
            let mut slices = [IoSlice::new(&[]); 3];
            let count = message.chunks_vectored(&mut slices);
            let taken: Vec<u8> = slices[..count]
                .iter()
                .flat_map(|slice| slice.to_vec())
                .collect();
            let taken = &taken[..taken.len().min(step)];
            bytes.extend_from_slice(taken);
            message.advance(taken.len());
            assert_eq!(message.remaining(), length - bytes.len());
        }
        assert!(message.chunk().is_empty());
        bytes
    }

    proptest! {
        #[test]
        fn the_parts_are_the_message(
            sizes in prop::collection::vec(
                prop_oneof![0_usize..200, 500_usize..520, 60_000_usize..70_000], 0..20,
            ),
            step in 1_usize..20_000,
        ) {
            let response = response(&sizes);
            let message = bytes(Message::new(response.clone()).unwrap(), step);
            let (prefix, message) = message.split_at(PREFIX);
            prop_assert_eq!(prefix[0], 0);
            prop_assert_eq!((&prefix[1..]).get_u32() as usize, message.len());
            prop_assert_eq!(DeltaDiscoveryResponse::decode(message).unwrap(), response);
        }
    }

    #[test]
    fn a_large_body_is_not_copied() {
        let response = response(&[10, WHOLE_FROM, 10]);
        let body = response.resources[1].resource.as_ptr();
        let message = Message::new(response).unwrap();
        assert!(message.parts.iter().any(|part| part.as_ptr() == body));
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_status_after_its_responses() {
        let (client, server) = tokio::io::duplex(1024);
        let serve = async {
            let mut http = h2::server::Builder::new().handshake(server).await.unwrap();
            for status in [None, Some(Status::resource_exhausted("full"))] {
                let (_, respond) = http.accept().await.unwrap().unwrap();
                let mut responses = Responses::start(respond).unwrap();
                responses.send(response(&[100_000])).unwrap();
                responses.status = status.unwrap_or(responses.status.clone());
            }
            assert!(http.accept().await.is_none());
        };
        let ask = async {
            let (mut calls, http) = h2::client::handshake(client).await.unwrap();
            let ask = async move {
                for code in [Code::Ok, Code::ResourceExhausted] {
                    let (call, _) = calls.send_request(http::Request::default(), true).unwrap();
                    let mut body = call.await.unwrap().into_body();
                    let mut length = 0;
                    while let Some(data) = body.data().await {
                        let data = data.unwrap().len();
                        length += data;
                        body.flow_control().release_capacity(data).unwrap();
                    }
                    let whole = Message::new(response(&[100_000])).unwrap();
                    assert_eq!(length, whole.remaining());
                    let trailers = body.trailers().await.unwrap().unwrap();
                    assert_eq!(Status::from_header_map(&trailers).unwrap().code(), code);
                }
            };
            tokio::join!(ask, async { http.await.unwrap() });
        };
        tokio::join!(serve, ask);
    }
}
