//! Reads the request body before the route runs, within a size limit and a timeout.

use std::time::Duration;

use poem::error::ReadBodyError;
use poem::{Body, Endpoint, Middleware, Request};

use crate::error::ApiError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimit {
    pub(crate) max_bytes: usize,
    pub(crate) timeout: Duration,
}

impl<E: Endpoint> Middleware<E> for BodyLimit {
    type Output = BodyLimitEndpoint<E>;

    fn transform(&self, inner: E) -> Self::Output {
        BodyLimitEndpoint { inner, limits: *self }
    }
}

pub(crate) struct BodyLimitEndpoint<E> {
    inner: E,
    limits: BodyLimit,
}

impl<E: Endpoint> Endpoint for BodyLimitEndpoint<E> {
    type Output = E::Output;

    async fn call(&self, mut request: Request) -> poem::Result<E::Output> {
        let body = request.take_body().into_bytes_limit(self.limits.max_bytes);
        let bytes = match tokio::time::timeout(self.limits.timeout, body).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(ReadBodyError::PayloadTooLarge)) => return Err(ApiError::BodyTooLarge.into()),
            Ok(Err(error)) => {
                let problem = format!("could not read the request body: {error}");
                return Err(ApiError::InvalidRequest(problem).into());
            }
            Err(_) => return Err(ApiError::BodyTooSlow.into()),
        };
        request.set_body(Body::from_bytes(bytes));
        self.inner.call(request).await
    }
}
