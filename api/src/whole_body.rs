//! Reads the body before the routes see the request: so much, and not for ever.

use std::time::Duration;

use poem::error::ReadBodyError;
use poem::{Body, Endpoint, Middleware, Request};

use crate::error::ApiError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeBody {
    pub(crate) max_bytes: usize,
    pub(crate) timeout: Duration,
}

impl<E: Endpoint> Middleware<E> for WholeBody {
    type Output = WholeBodyEndpoint<E>;

    fn transform(&self, inner: E) -> Self::Output {
        WholeBodyEndpoint { inner, limits: *self }
    }
}

pub(crate) struct WholeBodyEndpoint<E> {
    inner: E,
    limits: WholeBody,
}

impl<E: Endpoint> Endpoint for WholeBodyEndpoint<E> {
    type Output = E::Output;

    async fn call(&self, mut request: Request) -> poem::Result<E::Output> {
        let body = request.take_body().into_bytes_limit(self.limits.max_bytes);
        let bytes = match tokio::time::timeout(self.limits.timeout, body).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(ReadBodyError::PayloadTooLarge)) => return Err(ApiError::BodyTooLarge.into()),
            Ok(Err(error)) => {
                return Err(ApiError::InvalidRequest(format!("the body cannot be read: {error}")).into());
            }
            Err(_) => return Err(ApiError::BodyTooSlow.into()),
        };
        request.set_body(Body::from_bytes(bytes));
        self.inner.call(request).await
    }
}
