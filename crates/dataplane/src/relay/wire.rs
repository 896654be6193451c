//! The responses of a stream as the bytes of HTTP/2.
//!
//! The usual encoder writes a whole message into one buffer before the first byte of it leaves. A
//! response may be large and its resources are encoded already, so that here a message is made in
//! pieces while Envoy takes them: small resources are written into a piece, large ones leave as the
//! bytes that they arrived in. A response costs no second copy of itself, whatever its size.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::{BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use legate_api::discovery::{DeltaDiscoveryResponse, Resource};
use prost::Message;
use tonic::Status;

/// Bytes of a piece: two HTTP/2 frames of the usual size, and nothing left over.
const PIECE: usize = 32 * 1024;

/// Bodies from this size on are sent as they are; a smaller one costs less to copy than a frame.
const WHOLE_FROM: usize = 16 * 1024;

/// Compression flag and length of a gRPC message.
pub(super) const PREFIX: usize = 5;

/// Tag of `DeltaDiscoveryResponse.resources` and of `Resource.resource`: field 2, with a length.
const FIELD: u8 = 2 << 3 | 2;

/// Refuses a call.
pub(super) fn refuse(mut respond: SendResponse<Bytes>, status: Status) {
    // Fails for a call that has been given up.
    let _ = respond.send_response(status.into_http(), true);
}

/// What a stream that HTTP/2 has ended is closed with.
pub(super) fn broken(error: &h2::Error) -> Status {
    Status::cancelled(error.to_string())
}

/// The responses of one stream. When it is dropped the stream ends with its status.
pub(super) struct Responses {
    stream: SendStream<Bytes>,
    /// What Envoy has not taken yet.
    queue: VecDeque<Pieces>,
    /// A piece that waits for room in Envoy's windows.
    next: Option<Bytes>,
    /// How the stream ends: with success unless something else is set.
    pub(super) status: Status,
}

impl Responses {
    /// Accepts a call.
    pub(super) fn start(mut respond: SendResponse<Bytes>) -> Result<Responses, h2::Error> {
        let mut response = Response::new(());
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, grpc);
        Ok(Responses {
            stream: respond.send_response(response, false)?,
            queue: VecDeque::new(),
            next: None,
            status: Status::ok(""),
        })
    }

    /// Sends a response as soon as Envoy takes it: see [`Responses::poll`].
    ///
    /// # Errors
    /// When no gRPC message can hold it.
    pub(super) fn send(&mut self, response: DeltaDiscoveryResponse) -> Result<(), Status> {
        self.queue.push_back(Pieces::new(response)?);
        Ok(())
    }

    /// Hands over what Envoy's windows have room for, and wakes when there is more.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        while let Some(response) = self.queue.front_mut() {
            let Some(piece) = self.next.take().or_else(|| response.next()) else {
                self.queue.pop_front();
                continue;
            };
            // Any room will do: HTTP/2 keeps the rest of a piece.
            self.stream.reserve_capacity(1);
            while self.stream.capacity() == 0 {
                match self.stream.poll_capacity(cx) {
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(Some(Err(error))) => return Err(broken(&error)),
                    Poll::Ready(None) => return Err(Status::cancelled("the stream has ended")),
                    Poll::Pending => {
                        self.next = Some(piece);
                        return Ok(());
                    }
                }
            }
            let sent = self.stream.send_data(piece, false);
            sent.map_err(|error| broken(&error))?;
        }
        Ok(())
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        let ended = self.poll(&mut Context::from_waker(Waker::noop()));
        // After a part of a response there is no place for a status.
        if ended.is_ok() && !self.queue.is_empty() {
            return self.stream.send_reset(Reason::CANCEL);
        }
        // Fails when the stream has ended.
        let _ = self.stream.send_trailers(trailers(&self.status));
    }
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    // Fails only for a message that no header can hold; the code is in by then.
    if status.add_header(&mut trailers).is_err() {
        trailers.insert(Status::GRPC_STATUS, (status.code() as i32).into());
    }
    trailers
}

/// A response in pieces, which are what gRPC calls a message when they are put together.
pub struct Pieces {
    piece: BytesMut,
    ready: VecDeque<Bytes>,
    resources: std::vec::IntoIter<Resource>,
}

impl Pieces {
    /// Starts a response.
    ///
    /// # Errors
    /// When it has 4 GiB or more, which no gRPC message can have.
    pub fn new(mut response: DeltaDiscoveryResponse) -> Result<Pieces, Status> {
        let resources = std::mem::take(&mut response.resources);
        let resources_length: usize = resources
            .iter()
            .map(|resource| field_length(resource.encoded_len()))
            .sum();
        let length = response.encoded_len() + resources_length;
        let Ok(prefix) = u32::try_from(length) else {
            let message = format!("a response of {length} bytes is more than gRPC can carry");
            return Err(Status::out_of_range(message));
        };
        let mut piece = BytesMut::with_capacity(PREFIX + length.min(PIECE + WHOLE_FROM));
        piece.put_u8(0);
        piece.put_u32(prefix);
        // Fields may come in any order: the small ones first.
        append(&response, &mut piece);
        Ok(Pieces {
            piece,
            ready: VecDeque::new(),
            resources: resources.into_iter(),
        })
    }

    fn push(&mut self, mut resource: Resource) {
        start_field(resource.encoded_len(), &mut self.piece);
        if resource.resource.len() < WHOLE_FROM {
            append(&resource, &mut self.piece);
            return;
        }
        let body = std::mem::take(&mut resource.resource);
        append(&resource, &mut self.piece);
        start_field(body.len(), &mut self.piece);
        self.ready.push_back(self.piece.split().freeze());
        self.ready.push_back(body);
    }
}

impl std::fmt::Debug for Pieces {
    /// Without the bodies: private keys are among them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces").finish_non_exhaustive()
    }
}

/// The length of a field with its tag and the length that it starts with.
fn field_length(content: usize) -> usize {
    1 + prost::length_delimiter_len(content) + content
}

fn start_field(content: usize, piece: &mut BytesMut) {
    piece.put_u8(FIELD);
    prost::encode_length_delimiter(content, piece).expect("the buffer grows");
}

fn append(message: &impl Message, piece: &mut BytesMut) {
    message.encode(piece).expect("the buffer grows");
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            if self.piece.len() >= PIECE {
                return Some(self.piece.split_to(PIECE).freeze());
            }
            match self.resources.next() {
                Some(resource) => self.push(resource),
                None => {
                    let last = std::mem::take(&mut self.piece);
                    return (!last.is_empty()).then(|| last.freeze());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use proptest::prelude::*;

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

    fn pieces(response: &DeltaDiscoveryResponse) -> Vec<Bytes> {
        Pieces::new(response.clone()).unwrap().collect()
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_message(sizes in prop::collection::vec(
            prop_oneof![0_usize..200, 10_000_usize..20_000, 60_000_usize..70_000], 0..20,
        )) {
            let response = response(&sizes);
            let mut message: Bytes = pieces(&response).concat().into();
            prop_assert_eq!(message.get_u8(), 0);
            prop_assert_eq!(message.get_u32() as usize, message.len());
            prop_assert_eq!(DeltaDiscoveryResponse::decode(message).unwrap(), response);
        }

        #[test]
        fn no_piece_of_small_resources_is_large(sizes in prop::collection::vec(
            0_usize..WHOLE_FROM, 0..50,
        )) {
            for piece in pieces(&response(&sizes)) {
                prop_assert!(!piece.is_empty());
                prop_assert!(piece.len() <= PIECE, "{}", piece.len());
            }
        }
    }

    #[test]
    fn a_large_body_is_not_copied() {
        let response = response(&[10, WHOLE_FROM, 10]);
        let body = response.resources[1].resource.as_ptr();
        assert!(pieces(&response).iter().any(|piece| piece.as_ptr() == body));
    }
}
