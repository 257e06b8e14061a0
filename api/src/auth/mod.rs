//! Authentication and authorization. A handler that takes a `Caller<R>` runs only for requests with the scope of `R`:
//! the extractor is the only way to get one.

mod authenticator;
mod bucket;
mod failed_auth_limiter;
mod key_lookup;
mod key_rate_limiter;
mod local_request;
mod middleware;

use std::marker::PhantomData;
use std::net::SocketAddr;

use gapless_domain::{ApiKeyId, Scope, SubmitterKey};
use gapless_store::TxView;
use poem::{Request, RequestBody};
use poem_openapi::registry::{MetaSecurityScheme, Registry};
use poem_openapi::{ApiExtractor, ApiExtractorType, ExtractParamOptions};

pub(crate) use self::authenticator::Authenticator;
use self::authenticator::{Authenticated, Credential};
pub(crate) use self::middleware::AuthMiddleware;
use crate::app::SharedApp;
use crate::error::ApiError;

const SCHEME: &str = "apiKey";

/// The scope that a route requires.
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

/// An authenticated caller with the scope of `R`, limited to the submitters of its key.
#[derive(Debug)]
pub(crate) struct Caller<R> {
    authenticated: Authenticated,
    from: Option<SocketAddr>,
    right: PhantomData<fn() -> R>,
}

impl<R: Right> Caller<R> {
    /// The caller of an authenticated request.
    pub(crate) fn of(request: &Request) -> Result<Caller<R>, ApiError> {
        // Set by the server before any route runs.
        let app = request.data::<SharedApp>().ok_or(ApiError::Internal)?;
        let authenticated = request.data::<Authenticated>().cloned().ok_or(ApiError::Internal)?;
        if !authenticated.rights.scopes.contains(&R::SCOPE) {
            return Err(app.authenticator.missing_scope_error(&authenticated, R::SCOPE));
        }
        let from = request.remote_addr().as_socket_addr().copied();
        Ok(Caller { authenticated, from, right: PhantomData })
    }
}

impl<R> Caller<R> {
    /// For the audit log: credential and client address.
    pub(crate) fn actor(&self) -> String {
        // `SocketAddr`, because the framework's own type prints a `socket://` prefix.
        let from = self.from.map(|from| from.to_string()).unwrap_or_default();
        match &self.authenticated.credential {
            Credential::Anonymous => format!("client {from}"),
            Credential::AdminToken => format!("admin token from {from}"),
            Credential::Loopback => format!("loopback from {from}"),
            Credential::Key { id, name } => format!("key {id} ({name}) from {from}"),
        }
    }

    /// Refuses a submitter outside the caller's key, whether or not it exists.
    pub(crate) fn own(&self, submitter: SubmitterKey) -> Result<SubmitterKey, ApiError> {
        if self.authenticated.rights.covers(&submitter) {
            Ok(submitter)
        } else {
            Err(ApiError::SubmitterNotAllowed(submitter))
        }
    }

    /// A transaction of a submitter outside the caller's key is reported as not found.
    pub(crate) fn own_tx(&self, found: Option<TxView>) -> Result<TxView, ApiError> {
        found.filter(|view| self.authenticated.rights.covers(&view.submitter)).ok_or(ApiError::UnknownTx)
    }

    /// `None`: all submitters.
    pub(crate) fn submitters(&self) -> Option<Vec<SubmitterKey>> {
        self.authenticated.rights.submitters.as_ref().map(|own| own.iter().copied().collect())
    }

    /// The API key of the request, which owns what it creates.
    pub(crate) fn key_id(&self) -> Option<&ApiKeyId> {
        match &self.authenticated.credential {
            Credential::Key { id, .. } => Some(id),
            Credential::Anonymous | Credential::AdminToken | Credential::Loopback => None,
        }
    }

    /// Whose webhooks the caller may see and change; `None`: all. A webhook delivers what its own key may see: an admin
    /// key that is limited to some submitters must not redirect the events of others.
    pub(crate) fn webhooks_of(&self) -> Option<&ApiKeyId> {
        let rights = &self.authenticated.rights;
        let is_unlimited_admin = rights.scopes.contains(&Scope::Admin) && rights.submitters.is_none();
        self.key_id().filter(|_| !is_unlimited_admin)
    }

    /// Requires a presented key or admin token: loopback access alone does not show nonces.
    pub(crate) fn sees_nonces(&self) -> bool {
        self.authenticated.rights.scopes.contains(&Scope::Admin)
            && matches!(self.authenticated.credential, Credential::AdminToken | Credential::Key { .. })
    }

    /// Call after a long wait: the key may have been revoked meanwhile.
    pub(crate) async fn recheck(&self, authenticator: &Authenticator) -> Result<(), ApiError> {
        authenticator.recheck(&self.authenticated).await
    }

    /// Charges the key for `requests` more requests.
    pub(crate) fn charge(&self, authenticator: &Authenticator, requests: usize) {
        authenticator.charge(&self.authenticated, requests);
    }
}

// Not derived: the derived extractor refuses a request without an Authorization header, also where no key is
// required, and it could not answer `admin_disabled`.
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
                    "API key created by `gapless api-keys create`: `gpl_…`. Each route requires one scope: \
                     `tx:read`, `tx:write` or `admin`. The token `api.admin_token` has all scopes. While no \
                     key was ever created, only admin routes require one, and the server listens on a \
                     loopback address only.",
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
        Ok(Caller::of(request)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gapless_domain::{Address, ChainId, Rights};

    use super::*;

    fn caller(credential: Credential, scopes: &[Scope], is_limited: bool) -> Caller<Write> {
        let own = SubmitterKey { chain_id: ChainId(1), address: Address::repeat_byte(1) };
        let rights =
            Rights { scopes: scopes.iter().copied().collect(), submitters: is_limited.then(|| [own].into()) };
        let authenticated = Authenticated { credential, rights: Arc::new(rights) };
        Caller { authenticated, from: None, right: PhantomData }
    }

    #[test]
    fn only_admins_of_all_submitters_use_the_webhooks_of_others() {
        let id: ApiKeyId = "3f9a1c2b4d5e6f70".parse().unwrap();
        let key = || Credential::Key { id: id.clone(), name: "n".into() };
        let client = [Scope::TxRead, Scope::TxWrite];
        assert_eq!(caller(key(), &client, false).webhooks_of(), Some(&id));
        assert_eq!(caller(key(), &Scope::ALL, true).webhooks_of(), Some(&id));
        assert_eq!(caller(key(), &Scope::ALL, false).webhooks_of(), None);
        assert_eq!(caller(Credential::AdminToken, &Scope::ALL, false).webhooks_of(), None);
        assert_eq!(caller(Credential::Anonymous, &client, false).webhooks_of(), None);
        assert_eq!(caller(key(), &Scope::ALL, false).key_id(), Some(&id));
        assert_eq!(caller(Credential::Loopback, &Scope::ALL, false).key_id(), None);
    }
}
