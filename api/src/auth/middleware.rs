//! Authenticates every request below `/api/` and `/rpc/` before its body is read, and checks where requests without a key
//! come from.

use std::net::IpAddr;

use gapless_http::ClientConnection;
use poem::web::headers::authorization::Bearer;
use poem::web::headers::{Authorization, HeaderMapExt};
use poem::{Endpoint, Middleware, Request};

use super::local_request::check_local;
use crate::app::SharedApp;
use crate::error::ApiError;
use crate::json_rpc::{self, PathKey};

/// Routes outside this prefix need no authentication: they expose no transactions and take no `Caller`.
const PROTECTED_PREFIX: &str = "/api/";

fn is_protected(path: &str) -> bool {
    path.starts_with(PROTECTED_PREFIX) || json_rpc::is_rpc(path)
}

pub(crate) struct AuthMiddleware {
    pub(crate) app: SharedApp,
}

impl<E: Endpoint> Middleware<E> for AuthMiddleware {
    type Output = AuthEndpoint<E>;

    fn transform(&self, inner: E) -> Self::Output {
        AuthEndpoint { inner, app: self.app.clone() }
    }
}

pub(crate) struct AuthEndpoint<E> {
    inner: E,
    app: SharedApp,
}

impl<E: Endpoint> Endpoint for AuthEndpoint<E> {
    type Output = E::Output;

    async fn call(&self, mut request: Request) -> poem::Result<E::Output> {
        let authenticator = &self.app.authenticator;
        if authenticator.is_open() {
            check_local(&request)?;
        }
        if is_protected(request.uri().path()) {
            let presented = request.headers().typed_get::<Authorization<Bearer>>();
            let from: Option<IpAddr> = request.remote_addr().as_socket_addr().map(|from| from.ip());
            let in_path = request.data::<PathKey>();
            if in_path.is_some() && !self.app.json_rpc.key_in_path {
                return Err(ApiError::Unauthorized.into());
            }
            let token = presented.as_ref().map(|header| header.token());
            let token = token.or(in_path.map(PathKey::expose));
            let authenticated = authenticator.authenticate(token, from).await?;
            if authenticated.credential.is_none() {
                check_local(&request)?;
            }
            if let Some(connection) = request.data::<ClientConnection>() {
                connection.set_authenticated();
            }
            request.set_data(authenticated);
        }
        self.inner.call(request).await
    }
}
