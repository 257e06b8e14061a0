//! Authenticates requests: API key, admin token, or loopback.
//!
//! While no API key exists, requests without one are accepted, but the server then starts on a loopback address only.
//! Once a key was created, every request needs one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use gapless_config::{Api, Secret};
use gapless_domain::{ApiKeyId, PresentedKey, Rights, Scope};
use gapless_store::{ApiKeyRow, Store, StoreError};
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::failed_auth_limiter::FailedAuthLimiter;
use super::key_lookup::KeyLookup;
use super::key_rate_limiter::KeyRateLimiter;
use crate::error::ApiError;

/// How often to check whether the first key exists.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyMode {
    /// The database has not answered yet: requests without a key are refused.
    Unknown,
    /// No key was ever created.
    Optional,
    Required,
}

#[derive(Debug)]
pub(crate) struct Authenticator {
    admin_token: Secret,
    /// `api.bind` is a loopback address.
    loopback: bool,
    /// Requests without a key have all rights.
    admin_on_loopback: bool,
    key_mode: watch::Sender<KeyMode>,
    key_lookup: KeyLookup,
    key_rate_limiter: KeyRateLimiter,
    failed_auth_limiter: FailedAuthLimiter,
    all_rights: Arc<Rights>,
    /// Rights of a request without a key while none is required.
    anonymous_rights: Arc<Rights>,
}

/// How the caller was authenticated.
#[derive(Clone, Debug)]
pub(super) enum Credential {
    Anonymous,
    AdminToken,
    Loopback,
    Key { id: ApiKeyId, name: String },
}

impl Credential {
    /// The request was accepted without a key or token.
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Credential::Anonymous | Credential::Loopback)
    }
}

/// An authenticated caller.
#[derive(Clone, Debug)]
pub(super) struct Authenticated {
    pub(super) credential: Credential,
    pub(super) rights: Arc<Rights>,
}

impl Authenticator {
    pub(crate) fn new(api: &Api, store: &Store) -> Authenticator {
        let loopback = api.bind.ip().is_loopback();
        let anonymous_rights = Rights { scopes: [Scope::TxRead, Scope::TxWrite].into(), submitters: None };
        Authenticator {
            admin_token: api.admin_token.clone(),
            loopback,
            admin_on_loopback: api.admin_on_loopback && loopback,
            key_mode: watch::Sender::new(KeyMode::Unknown),
            key_lookup: KeyLookup::start(store.clone()),
            key_rate_limiter: KeyRateLimiter::start(api, store.clone()),
            failed_auth_limiter: FailedAuthLimiter::default(),
            all_rights: Arc::new(Rights::everything()),
            anonymous_rights: Arc::new(anonymous_rights),
        }
    }

    /// Reads whether any key exists. Once required, keys stay required: they are revoked, never deleted.
    pub(crate) async fn check_for_keys(&self, store: &Store) -> Result<(), StoreError> {
        let found = if store.has_api_keys().await? { KeyMode::Required } else { KeyMode::Optional };
        let before = self.key_mode.send_replace(found);
        match (before, found) {
            (KeyMode::Unknown, KeyMode::Optional) if self.loopback => {
                tracing::info!("no API key exists: every local user can use the API");
            }
            (KeyMode::Optional, KeyMode::Required) => {
                tracing::info!("the first API key was created: requests now need a key")
            }
            _ => {}
        }
        Ok(())
    }

    /// Fails if clients on other machines could connect without a key.
    pub(crate) fn check_bind_address(&self) -> anyhow::Result<()> {
        if !self.loopback && *self.key_mode.borrow() == KeyMode::Optional {
            bail!(
                "api.bind is not a loopback address and no API key exists: anyone could send transactions. \
                 Create a key first (`gapless api-keys create --name NAME`), or listen on 127.0.0.1"
            );
        }
        Ok(())
    }

    /// Polls for the first key until `shutdown`. Fails as `check_bind_address` does.
    pub(crate) async fn watch_for_keys(
        &self,
        store: &Store,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<()> {
        while *self.key_mode.borrow() != KeyMode::Required {
            if let Err(error) = self.check_for_keys(store).await {
                tracing::debug!(%error, "could not check whether API keys exist");
            }
            self.check_bind_address()?;
            if tokio::time::timeout(KEY_CHECK_INTERVAL, shutdown.cancelled()).await.is_ok() {
                return Ok(());
            }
        }
        shutdown.cancelled().await;
        Ok(())
    }

    /// No key was ever created: every client that can connect may use the API.
    pub(super) fn is_open(&self) -> bool {
        *self.key_mode.borrow() == KeyMode::Optional
    }

    /// `presented` is the bearer token of the request. A wrong token is refused even where none is required.
    pub(super) async fn authenticate(
        &self,
        presented: Option<&str>,
        from: Option<IpAddr>,
    ) -> Result<Authenticated, ApiError> {
        if let Some(presented) = presented {
            if self.is_admin_token(presented) {
                return Ok(Authenticated {
                    credential: Credential::AdminToken,
                    rights: self.all_rights.clone(),
                });
            }
            if let Some(key) = PresentedKey::parse(presented) {
                return self.authenticate_key(&key, from).await;
            }
            // Without an admin token and keys, no token can be valid: it is ignored.
            if !self.admin_token.is_empty() || *self.key_mode.borrow() == KeyMode::Required {
                return Err(ApiError::Unauthorized);
            }
        }
        if self.admin_on_loopback {
            return Ok(Authenticated { credential: Credential::Loopback, rights: self.all_rights.clone() });
        }
        match *self.key_mode.borrow() {
            KeyMode::Unknown => Err(ApiError::DatabaseUnavailable),
            KeyMode::Optional => {
                let rights = self.anonymous_rights.clone();
                Ok(Authenticated { credential: Credential::Anonymous, rights })
            }
            KeyMode::Required => Err(ApiError::Unauthorized),
        }
    }

    async fn authenticate_key(
        &self,
        key: &PresentedKey,
        from: Option<IpAddr>,
    ) -> Result<Authenticated, ApiError> {
        let limited = |wait| ApiError::RateLimited { retry_after: wait };
        let is_first_use = !self.key_rate_limiter.has_seen(key);
        if is_first_use {
            self.failed_auth_limiter.try_key(from, Instant::now()).map_err(limited)?;
        }
        let found = self.verify_key(key).await;
        if is_first_use && !matches!(found, Err(ApiError::Unauthorized)) {
            self.failed_auth_limiter.refund(from);
        }
        let row = found?;
        // Only after the secret was verified: knowing a key's id must not be enough to use up its rate.
        self.key_rate_limiter.take(&row, Instant::now()).map_err(limited)?;
        let credential = Credential::Key { id: row.id.clone(), name: row.name.clone() };
        Ok(Authenticated { credential, rights: Arc::new(row.rights.clone()) })
    }

    async fn verify_key(&self, key: &PresentedKey) -> Result<Arc<ApiKeyRow>, ApiError> {
        let row = self.find_usable_key(&key.id).await?;
        if bool::from(row.secret_hash.ct_eq(&key.secret_hash)) {
            Ok(row)
        } else {
            Err(ApiError::Unauthorized)
        }
    }

    async fn find_usable_key(&self, id: &ApiKeyId) -> Result<Arc<ApiKeyRow>, ApiError> {
        let row = self.key_lookup.find(id).await?.filter(|row| row.usable);
        row.ok_or_else(|| {
            self.key_rate_limiter.remove(id);
            ApiError::Unauthorized
        })
    }

    /// Checks again that the caller's key is usable.
    pub(super) async fn recheck(&self, authenticated: &Authenticated) -> Result<(), ApiError> {
        match &authenticated.credential {
            Credential::Key { id, .. } => self.find_usable_key(id).await.map(|_| ()),
            // Keys may have been created meanwhile.
            Credential::Anonymous if !self.is_open() => Err(ApiError::Unauthorized),
            Credential::Anonymous | Credential::AdminToken | Credential::Loopback => Ok(()),
        }
    }

    /// Charges the key for `requests` more requests.
    pub(super) fn charge(&self, authenticated: &Authenticated, requests: usize) {
        if let Credential::Key { id, .. } = &authenticated.credential {
            self.key_rate_limiter.charge(id, requests);
        }
    }

    /// The error for an authenticated caller that lacks `scope`.
    pub(super) fn missing_scope_error(&self, authenticated: &Authenticated, scope: Scope) -> ApiError {
        match authenticated.credential {
            Credential::Key { .. } => ApiError::ScopeMissing(scope),
            _ if self.admin_token.is_empty() => ApiError::AdminDisabled,
            _ => ApiError::Unauthorized,
        }
    }

    fn is_admin_token(&self, presented: &str) -> bool {
        !self.admin_token.is_empty()
            && bool::from(presented.as_bytes().ct_eq(self.admin_token.expose().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use gapless_store::Timeouts;

    use super::*;

    /// The store is never queried: these tests present no API key.
    fn authenticator(bind: &str, token: &str, admin_on_loopback: bool, key_mode: KeyMode) -> Authenticator {
        let api = Api {
            bind: bind.parse().unwrap(),
            admin_token: Secret::new(token),
            admin_on_loopback,
            ..Api::default()
        };
        let url = Secret::new("postgres://nobody@127.0.0.1:1/none");
        let store = Store::new(&url, "test", 1, Timeouts::default()).unwrap();
        let authenticator = Authenticator::new(&api, &store);
        authenticator.key_mode.send_replace(key_mode);
        authenticator
    }

    async fn may(
        authenticator: &Authenticator,
        presented: Option<&str>,
        scope: Scope,
    ) -> Result<(), &'static str> {
        match authenticator.authenticate(presented, None).await {
            Ok(authenticated) if authenticated.rights.scopes.contains(&scope) => Ok(()),
            Ok(authenticated) => Err(authenticator.missing_scope_error(&authenticated, scope).code()),
            Err(error) => Err(error.code()),
        }
    }

    #[tokio::test]
    async fn without_keys_clients_are_accepted_and_without_a_token_admin_is_disabled() {
        let open = authenticator("127.0.0.1:1", "", false, KeyMode::Optional);
        for presented in [None, Some(""), Some("guess")] {
            assert_eq!(may(&open, presented, Scope::TxWrite).await, Ok(()), "{presented:?}");
            assert_eq!(may(&open, presented, Scope::Admin).await, Err("admin_disabled"), "{presented:?}");
        }
    }

    #[tokio::test]
    async fn only_the_admin_token_grants_admin_and_a_wrong_one_is_always_refused() {
        let open = authenticator("127.0.0.1:1", "s3cret", false, KeyMode::Optional);
        assert_eq!(may(&open, Some("s3cret"), Scope::Admin).await, Ok(()));
        assert_eq!(may(&open, None, Scope::TxRead).await, Ok(()));
        assert_eq!(may(&open, None, Scope::Admin).await, Err("unauthorized"));
        for wrong in ["", "s3cre", "s3cret ", "guess"] {
            assert_eq!(may(&open, Some(wrong), Scope::TxRead).await, Err("unauthorized"), "{wrong}");
        }
    }

    #[tokio::test]
    async fn where_keys_are_required_a_request_without_one_is_refused() {
        let locked = authenticator("127.0.0.1:1", "", false, KeyMode::Required);
        for presented in [None, Some(""), Some("guess")] {
            assert_eq!(may(&locked, presented, Scope::TxRead).await, Err("unauthorized"), "{presented:?}");
        }
        let with_token = authenticator("0.0.0.0:1", "s3cret", false, KeyMode::Required);
        for scope in Scope::ALL {
            assert_eq!(may(&with_token, Some("s3cret"), scope).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn admin_on_loopback_applies_to_loopback_addresses_only() {
        for bind in ["127.0.0.1:1", "[::1]:1"] {
            for key_mode in [KeyMode::Optional, KeyMode::Required] {
                let trusting = authenticator(bind, "", true, key_mode);
                assert_eq!(may(&trusting, None, Scope::Admin).await, Ok(()));
            }
        }
        assert_eq!(
            may(&authenticator("0.0.0.0:1", "", true, KeyMode::Required), None, Scope::Admin).await,
            Err("unauthorized")
        );
        let with_token = authenticator("127.0.0.1:1", "s3cret", true, KeyMode::Optional);
        assert_eq!(may(&with_token, Some("guess"), Scope::Admin).await, Err("unauthorized"));
    }

    #[tokio::test]
    async fn before_the_database_answers_requests_without_a_key_are_refused() {
        let unknown = authenticator("127.0.0.1:1", "s3cret", false, KeyMode::Unknown);
        assert_eq!(may(&unknown, None, Scope::TxRead).await, Err("database_unavailable"));
        assert_eq!(may(&unknown, Some("s3cret"), Scope::TxRead).await, Ok(()));
    }

    #[tokio::test]
    async fn a_non_loopback_address_needs_a_key() {
        let accepted = |bind, token, admin_on_loopback, key_mode| {
            authenticator(bind, token, admin_on_loopback, key_mode).check_bind_address().is_ok()
        };
        assert!(!accepted("0.0.0.0:1", "s3cret", true, KeyMode::Optional), "an admin token is not a key");
        assert!(accepted("0.0.0.0:1", "", false, KeyMode::Required));
        assert!(accepted("127.0.0.1:1", "", false, KeyMode::Optional));
        assert!(accepted("0.0.0.0:1", "", false, KeyMode::Unknown), "not known yet");
    }
}
