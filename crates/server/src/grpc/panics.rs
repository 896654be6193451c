//! Confines a panic to the gRPC call in which it occurs. The connection and its other calls go on.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

/// Wraps a service in [`Contained`].
#[derive(Debug, Clone, Copy)]
pub(super) struct ContainPanics;

impl<S> Layer<S> for ContainPanics {
    type Service = Contained<S>;

    fn layer(&self, inner: S) -> Contained<S> {
        Contained { inner }
    }
}

/// Responds with `INTERNAL` if the inner service panics before it responds.
#[derive(Debug, Clone)]
pub(super) struct Contained<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for Contained<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.uri().path().to_owned();
        let answer = AssertUnwindSafe(self.inner.call(request)).catch_unwind();
        Box::pin(async move {
            answer.await.unwrap_or_else(|_| {
                // The panic hook has logged the details.
                tracing::error!(method, "a gRPC call panicked");
                Ok(Status::internal("grpc: panic serving request").into_http())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::service_fn;

    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_a_status() {
        let mut service = ContainPanics.layer(service_fn(|request: Request<()>| async move {
            assert_ne!(request.uri().path(), "/bad", "as asked");
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }));
        let mut call = async |path: &str| {
            let request = Request::builder().uri(path).body(()).unwrap();
            let response = service.call(request).await.unwrap();
            Status::from_header_map(response.headers()).map(|status| status.code())
        };
        assert_eq!(call("/bad").await, Some(tonic::Code::Internal));
        assert_eq!(call("/good").await, None);
    }
}
