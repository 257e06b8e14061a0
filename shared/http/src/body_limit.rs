//! Reads the request body before the route runs, within a size limit and a timeout.

use std::time::Duration;

use poem::error::ReadBodyError;
use poem::{Body, Endpoint, Middleware, Request};

#[derive(Clone, Copy, Debug)]
pub struct BodyLimit {
    pub max_bytes: usize,
    pub timeout: Duration,
    /// Makes the response to a request whose body was not read: its form is the program's choice.
    pub refuse: fn(BodyError) -> poem::Error,
}

/// Why the body was not read.
#[derive(Debug)]
pub enum BodyError {
    TooLarge,
    TooSlow,
    Unreadable(ReadBodyError),
}

impl<E: Endpoint> Middleware<E> for BodyLimit {
    type Output = BodyLimitEndpoint<E>;

    fn transform(&self, inner: E) -> Self::Output {
        BodyLimitEndpoint { inner, limits: *self }
    }
}

#[derive(Debug)]
pub struct BodyLimitEndpoint<E> {
    inner: E,
    limits: BodyLimit,
}

impl<E: Endpoint> Endpoint for BodyLimitEndpoint<E> {
    type Output = E::Output;

    async fn call(&self, mut request: Request) -> poem::Result<E::Output> {
        let body = self.limits.read(request.take_body()).await.map_err(self.limits.refuse)?;
        request.set_body(body);
        self.inner.call(request).await
    }
}

impl BodyLimit {
    async fn read(&self, body: Body) -> Result<Body, BodyError> {
        match tokio::time::timeout(self.timeout, body.into_bytes_limit(self.max_bytes)).await {
            Ok(Ok(bytes)) => Ok(Body::from_bytes(bytes)),
            Ok(Err(ReadBodyError::PayloadTooLarge)) => Err(BodyError::TooLarge),
            Ok(Err(error)) => Err(BodyError::Unreadable(error)),
            Err(_) => Err(BodyError::TooSlow),
        }
    }
}

#[cfg(test)]
mod tests {
    use poem::http::StatusCode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_too_large_or_too_slow_is_not_read() {
        let refuse = |_| StatusCode::BAD_REQUEST.into();
        let limit = BodyLimit { max_bytes: 10, timeout: Duration::from_secs(30), refuse };
        let read = limit.read(Body::from_bytes(vec![1; 10].into())).await.unwrap();
        assert_eq!(read.into_vec().await.unwrap(), [1; 10]);
        let large = limit.read(Body::from_bytes(vec![1; 11].into())).await;
        assert!(matches!(large, Err(BodyError::TooLarge)), "{large:?}");
        let (_open, never_ends) = tokio::io::duplex(8);
        let slow = limit.read(Body::from_async_read(never_ends)).await;
        assert!(matches!(slow, Err(BodyError::TooSlow)), "{slow:?}");
    }
}
