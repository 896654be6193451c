//! The gRPC layer of the service: frames and trailers, independent of the messages' content.
//!
//! Tonic's own layer keeps a buffer of the size of the largest response for the life of a stream.
//! There is one stream for each proxy, and most are silent for days. Here each response has its own
//! buffer, which is freed when it has been sent.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready as done};

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body::Frame;
use legate_api::codec::Codec;
use legate_api::discovery::aggregated_discovery_service_server::SERVICE_NAME;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::metadata;
use prost::Message;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codec::{Codec as _, Streaming};
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use crate::XdsService;
use crate::service::MAX_REQUEST;

/// The only method, without the name of the service.
const METHOD: &str = "DeltaAggregatedResources";

/// Length of the prefix of a message: compression flag and message length.
const PREFIX: usize = 5;

/// [`XdsService`] for a gRPC server. Clones share the service.
#[derive(Clone)]
pub struct XdsServer {
    service: Arc<XdsService>,
}

impl XdsServer {
    /// A server for `service`.
    pub fn new(service: XdsService) -> Self {
        Self {
            service: Arc::new(service),
        }
    }

    fn open(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let method = request.uri().path().rsplit('/').next();
        if method != Some(METHOD) {
            return Err(Status::unimplemented("xDS is served as delta ADS only"));
        }
        let (head, body) = request.into_parts();
        let token = head.headers.get(metadata::TOKEN);
        let token = token.and_then(|value| value.to_str().ok());
        let token = token.unwrap_or_default().to_owned();
        let decoder = Codec::<DeltaDiscoveryResponse, DeltaDiscoveryRequest>::default().decoder();
        let requests = Streaming::new_request(decoder, body, None, Some(MAX_REQUEST));
        let responses = Responses {
            stream: Some(Box::pin(self.service.serve(token, requests)?)),
        };
        let mut response = http::Response::new(Body::new(responses));
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, grpc);
        Ok(response)
    }
}

impl NamedService for XdsServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for XdsServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let response = self.open(request);
        ready(Ok(response.unwrap_or_else(Status::into_http)))
    }
}

/// The body of a response: a frame for each message, and the status at the end.
struct Responses<S> {
    /// `None` after the end.
    stream: Option<Pin<Box<S>>>,
}

impl<S> http_body::Body for Responses<S>
where
    S: Stream<Item = Result<DeltaDiscoveryResponse, Status>>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(None);
        };
        let status = match done!(stream.as_mut().poll_next(context)) {
            Some(Ok(response)) => match message(&response) {
                Ok(message) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Err(status) => status,
            },
            Some(Err(status)) => status,
            None => Status::new(Code::Ok, ""),
        };
        self.stream = None;
        let mut trailers = HeaderMap::new();
        let added = status.add_header(&mut trailers);
        Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))))
    }
}

fn message(response: &DeltaDiscoveryResponse) -> Result<Bytes, Status> {
    let failed = |error: &dyn std::fmt::Display| Status::internal(error.to_string());
    let length = response.encoded_len();
    let mut message = BytesMut::with_capacity(PREFIX + length);
    message.put_u8(0);
    message.put_u32(u32::try_from(length).map_err(|error| failed(&error))?);
    let encoded = response.encode(&mut message);
    encoded.map_err(|error| failed(&error))?;
    Ok(message.freeze())
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use http_body::Body as _;

    use super::*;

    fn frames(answers: Vec<Result<DeltaDiscoveryResponse, Status>>) -> Vec<Frame<Bytes>> {
        let mut body = Box::pin(Responses {
            stream: Some(Box::pin(tokio_stream::iter(answers))),
        });
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut frames = Vec::new();
        while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut context) {
            frames.push(frame.unwrap());
        }
        frames
    }

    fn status(frame: Frame<Bytes>) -> Status {
        let trailers = frame.into_trailers().unwrap();
        Status::from_header_map(&trailers).unwrap()
    }

    #[test]
    fn a_response_is_one_message_and_the_end_has_a_status() {
        let response = DeltaDiscoveryResponse {
            nonce: "1".to_owned(),
            ..DeltaDiscoveryResponse::default()
        };
        let mut frames = frames(vec![Ok(response.clone())]).into_iter();
        let mut message = frames.next().unwrap().into_data().unwrap();
        assert_eq!(message.get_u8(), 0);
        assert_eq!(message.get_u32() as usize, message.len());
        assert_eq!(DeltaDiscoveryResponse::decode(message).unwrap(), response);
        assert_eq!(status(frames.next().unwrap()).code(), Code::Ok);
        assert!(frames.next().is_none());
    }

    #[test]
    fn an_error_ends_the_stream() {
        let answers = vec![
            Err(Status::permission_denied("no")),
            Ok(DeltaDiscoveryResponse::default()),
        ];
        let mut frames = frames(answers);
        let status = status(frames.remove(0));
        assert_eq!(
            (status.code(), status.message()),
            (Code::PermissionDenied, "no")
        );
        assert!(frames.is_empty());
    }
}
