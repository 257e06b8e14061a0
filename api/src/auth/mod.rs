//! Who may do what. A handler that takes a `Caller` cannot be reached by anybody who lacks its right: there is no other way
//! to get one.

mod authenticator;
mod bucket;
mod failed_auth_limiter;
mod key_lookup;
mod key_rate_limiter;
mod middleware;

use std::marker::PhantomData;
use std::net::SocketAddr;

use gapless::domain::{Scope, SubmitterKey};
use gapless::store::TxView;
use poem::{Request, RequestBody};
use poem_openapi::registry::{MetaSecurityScheme, Registry};
use poem_openapi::{ApiExtractor, ApiExtractorType, ExtractParamOptions};

pub(crate) use self::authenticator::Authenticator;
use self::authenticator::{Authenticated, Proof};
pub(crate) use self::middleware::AuthMiddleware;
use crate::app::SharedApp;
use crate::error::ApiError;

const SCHEME: &str = "apiKey";

/// What a route wants of its caller.
pub(crate) trait Right: Send + Sync + 'static {
    const SCOPE: Scope;
}

macro_rules! rights {
    ($($name:ident: $scope:ident;)*) => {
        $(#[derive(Debug)] pub(crate) enum $name {}
        impl Right for $name { const SCOPE: Scope = Scope::$scope; })*
    };
}

rights! {
    Read: TxRead;
    Write: TxWrite;
    Administer: Admin;
}

/// Somebody who may do what the route does, to the submitters that are theirs.
#[derive(Debug)]
pub(crate) struct Caller<R> {
    authenticated: Authenticated,
    from: Option<SocketAddr>,
    right: PhantomData<fn() -> R>,
}

impl<R> Caller<R> {
    /// For the audit log: how they proved who they are, and where they came from.
    pub(crate) fn actor(&self) -> String {
        // The plain address, without the framework's `socket://`.
        let from = self.from.map(|from| from.to_string()).unwrap_or_default();
        match &self.authenticated.proof {
            Proof::Nothing => format!("client {from}"),
            Proof::AdminToken => format!("admin token from {from}"),
            Proof::Loopback => format!("loopback from {from}"),
            Proof::Key { id, name } => format!("key {id} ({name}) from {from}"),
        }
    }

    /// A submitter that the caller named: theirs, or refused. The same whether there is such a submitter or not.
    pub(crate) fn own(&self, submitter: SubmitterKey) -> Result<SubmitterKey, ApiError> {
        if self.authenticated.rights.covers(&submitter) {
            Ok(submitter)
        } else {
            Err(ApiError::SubmitterNotAllowed(submitter))
        }
    }

    /// A transaction that the caller named: one of somebody else's does not exist for them.
    pub(crate) fn own_tx(&self, found: Option<TxView>) -> Result<TxView, ApiError> {
        found.filter(|view| self.authenticated.rights.covers(&view.submitter)).ok_or(ApiError::UnknownTx)
    }

    /// `None`: everything is theirs.
    pub(crate) fn submitters(&self) -> Option<Vec<SubmitterKey>> {
        self.authenticated.rights.submitters.as_ref().map(|own| own.iter().copied().collect())
    }

    /// Only who presents a proof is shown more than others, even where none is needed.
    pub(crate) fn sees_nonces(&self) -> bool {
        self.authenticated.rights.scopes.contains(&Scope::Admin)
            && matches!(self.authenticated.proof, Proof::AdminToken | Proof::Key { .. })
    }

    /// After a long wait: a key that was revoked meanwhile learns nothing more.
    pub(crate) async fn recheck(&self, authenticator: &Authenticator) -> Result<(), ApiError> {
        authenticator.recheck(&self.authenticated).await
    }

    /// What the request costs beyond one.
    pub(crate) fn charge(&self, authenticator: &Authenticator, requests: usize) {
        authenticator.charge(&self.authenticated, requests);
    }
}

// Written out instead of derived: the derived extractor refuses a request without a header before anybody can say that
// none is needed here, or that admin routes are off.
impl<'a, R: Right> ApiExtractor<'a> for Caller<R> {
    const TYPES: &'static [ApiExtractorType] = &[ApiExtractorType::SecurityScheme];
    type ParamType = ();
    type ParamRawType = ();

    fn register(registry: &mut Registry) {
        registry.create_security_scheme(
            SCHEME,
            MetaSecurityScheme {
                ty: "http",
                description: Some(
                    "A key made by `gapless api-keys create`: `gpl_…`. Each route wants one of its scopes: `tx:read`, \
                     `tx:write` or `admin`. The token of `api.admin_token` has all of them. Not needed while no key was \
                     ever made, but for admin routes; the server then listens on a loopback address only.",
                ),
                name: None,
                key_in: None,
                scheme: Some("bearer"),
                bearer_format: None,
                flows: None,
                openid_connect_url: None,
            },
        );
    }

    fn security_schemes() -> Vec<&'static str> {
        vec![SCHEME]
    }

    async fn from_request(
        request: &'a Request,
        _body: &mut RequestBody,
        _options: ExtractParamOptions<()>,
    ) -> poem::Result<Self> {
        // Both are put there by the server before any route; without them nobody comes in.
        let app = request.data::<SharedApp>().ok_or(ApiError::Internal)?;
        let authenticated = request.data::<Authenticated>().cloned().ok_or(ApiError::Internal)?;
        if !authenticated.rights.scopes.contains(&R::SCOPE) {
            return Err(app.authenticator.refusal(&authenticated, R::SCOPE).into());
        }
        let from = request.remote_addr().as_socket_addr().copied();
        Ok(Caller { authenticated, from, right: PhantomData })
    }
}
