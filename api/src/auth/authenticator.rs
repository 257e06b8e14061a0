//! Who comes in, and as whom.
//!
//! An API without keys is open to its own machine, and to nobody else: it does not start on another address. The first key
//! that is ever made locks it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use gapless::config::{Api, Secret};
use gapless::domain::{ApiKeyId, PresentedKey, Rights, Scope};
use gapless::store::{ApiKeyRow, Store, StoreError};
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::failed_auth_limiter::FailedAuthLimiter;
use super::key_lookup::KeyLookup;
use super::key_rate_limiter::KeyRateLimiter;
use crate::error::ApiError;

/// How soon an open API notices the first key.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    /// The database could not be asked yet: nobody comes in without a key.
    Unknown,
    /// No key was ever made.
    Open,
    Locked,
}

#[derive(Debug)]
pub(crate) struct Authenticator {
    admin_token: Secret,
    /// Nobody else can connect.
    loopback: bool,
    /// This machine's own users may do everything.
    trusting: bool,
    lock: watch::Sender<Lock>,
    key_lookup: KeyLookup,
    key_rate_limiter: KeyRateLimiter,
    failed_auth_limiter: FailedAuthLimiter,
    everything: Arc<Rights>,
    /// Of those who present nothing where nothing is needed.
    unlocked: Arc<Rights>,
}

/// How somebody proved who they are.
#[derive(Clone, Debug)]
pub(super) enum Proof {
    Nothing,
    AdminToken,
    Loopback,
    Key { id: ApiKeyId, name: String },
}

/// Somebody who is in.
#[derive(Clone, Debug)]
pub(super) struct Authenticated {
    pub(super) proof: Proof,
    pub(super) rights: Arc<Rights>,
}

impl Authenticator {
    pub(crate) fn new(api: &Api, store: &Store) -> Authenticator {
        let loopback = api.bind.ip().is_loopback();
        let unlocked = Rights { scopes: [Scope::TxRead, Scope::TxWrite].into(), submitters: None };
        Authenticator {
            admin_token: api.admin_token.clone(),
            loopback,
            trusting: api.admin_on_loopback && loopback,
            lock: watch::Sender::new(Lock::Unknown),
            key_lookup: KeyLookup::start(store.clone()),
            key_rate_limiter: KeyRateLimiter::start(api, store.clone()),
            failed_auth_limiter: FailedAuthLimiter::default(),
            everything: Arc::new(Rights::everything()),
            unlocked: Arc::new(unlocked),
        }
    }

    /// Looks whether there are keys. Once locked it stays so: keys are revoked, never removed.
    pub(crate) async fn look(&self, store: &Store) -> Result<(), StoreError> {
        let found = if store.has_api_keys().await? { Lock::Locked } else { Lock::Open };
        let before = self.lock.send_replace(found);
        match (before, found) {
            (Lock::Unknown, Lock::Open) if self.loopback => {
                tracing::info!("there is no API key: whoever is on this machine may use the API");
            }
            (Lock::Open, Lock::Locked) => {
                tracing::info!("the first API key was made: from now on a key is needed")
            }
            _ => {}
        }
        Ok(())
    }

    /// Fails if others than this machine's users could come in without a key.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if !self.loopback && *self.lock.borrow() == Lock::Open {
            bail!(
                "api.bind is not a loopback address, and there is no API key: anybody could send transactions. \
                 Make a key first (`gapless api-keys create --name NAME`), or listen on 127.0.0.1"
            );
        }
        Ok(())
    }

    /// Until `shutdown`: notices the first key, and fails as `check` does once that is known.
    pub(crate) async fn guard(&self, store: &Store, shutdown: &CancellationToken) -> anyhow::Result<()> {
        while *self.lock.borrow() != Lock::Locked {
            if let Err(error) = self.look(store).await {
                tracing::debug!(%error, "whether there are API keys is not known");
            }
            self.check()?;
            if tokio::time::timeout(LOOK_EVERY, shutdown.cancelled()).await.is_ok() {
                return Ok(());
            }
        }
        shutdown.cancelled().await;
        Ok(())
    }

    /// `presented` is the bearer token of the request. One that is wrong is refused, even where none is needed.
    pub(super) async fn admit(
        &self,
        presented: Option<&str>,
        from: Option<IpAddr>,
    ) -> Result<Authenticated, ApiError> {
        if let Some(presented) = presented {
            if self.is_admin_token(presented) {
                return Ok(Authenticated { proof: Proof::AdminToken, rights: self.everything.clone() });
            }
            if let Some(key) = PresentedKey::parse(presented) {
                return self.admit_key(&key, from).await;
            }
            // Where there is nothing to be right, nothing can be wrong.
            if !self.admin_token.is_empty() || *self.lock.borrow() == Lock::Locked {
                return Err(ApiError::Unauthorized);
            }
        }
        if self.trusting {
            return Ok(Authenticated { proof: Proof::Loopback, rights: self.everything.clone() });
        }
        match *self.lock.borrow() {
            Lock::Unknown => Err(ApiError::DatabaseUnavailable),
            Lock::Open => Ok(Authenticated { proof: Proof::Nothing, rights: self.unlocked.clone() }),
            Lock::Locked => Err(ApiError::Unauthorized),
        }
    }

    async fn admit_key(&self, key: &PresentedKey, from: Option<IpAddr>) -> Result<Authenticated, ApiError> {
        let limited = |wait| ApiError::RateLimited { retry_after: wait };
        let is_stranger = !self.key_rate_limiter.knows(key);
        if is_stranger {
            self.failed_auth_limiter.try_key(from, Instant::now()).map_err(limited)?;
        }
        let found = self.recognise(key).await;
        if is_stranger && !matches!(found, Err(ApiError::Unauthorized)) {
            self.failed_auth_limiter.was_not_wrong(from);
        }
        let row = found?;
        // Only now: who knows no more than an id uses up nobody's rate.
        self.key_rate_limiter.enter(&row, Instant::now()).map_err(limited)?;
        let proof = Proof::Key { id: row.id.clone(), name: row.name.clone() };
        Ok(Authenticated { proof, rights: Arc::new(row.rights.clone()) })
    }

    async fn recognise(&self, key: &PresentedKey) -> Result<Arc<ApiKeyRow>, ApiError> {
        let row = self.usable(&key.id).await?;
        if bool::from(row.secret_hash.ct_eq(&key.secret_hash)) {
            Ok(row)
        } else {
            Err(ApiError::Unauthorized)
        }
    }

    async fn usable(&self, id: &ApiKeyId) -> Result<Arc<ApiKeyRow>, ApiError> {
        let row = self.key_lookup.find(id).await?.filter(|row| row.usable);
        row.ok_or_else(|| {
            self.key_rate_limiter.forget(id);
            ApiError::Unauthorized
        })
    }

    /// Whether somebody who came in some time ago would still.
    pub(super) async fn recheck(&self, authenticated: &Authenticated) -> Result<(), ApiError> {
        match &authenticated.proof {
            Proof::Key { id, .. } => self.usable(id).await.map(|_| ()),
            Proof::Nothing | Proof::AdminToken | Proof::Loopback => Ok(()),
        }
    }

    /// What a request costs beyond one.
    pub(super) fn charge(&self, authenticated: &Authenticated, requests: usize) {
        if let Proof::Key { id, .. } = &authenticated.proof {
            self.key_rate_limiter.charge(id, requests);
        }
    }

    /// Why somebody who is in may not do this.
    pub(super) fn refusal(&self, authenticated: &Authenticated, scope: Scope) -> ApiError {
        match authenticated.proof {
            Proof::Key { .. } => ApiError::ScopeMissing(scope),
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
    use gapless::store::Timeouts;

    use super::*;

    /// A store that nothing asks: only keys are looked up.
    fn authenticator(bind: &str, token: &str, admin_on_loopback: bool, lock: Lock) -> Authenticator {
        let api = Api {
            bind: bind.parse().unwrap(),
            admin_token: Secret::new(token),
            admin_on_loopback,
            ..Api::default()
        };
        let url = Secret::new("postgres://nobody@127.0.0.1:1/none");
        let store = Store::new(&url, "test", 1, Timeouts::default()).unwrap();
        let authenticator = Authenticator::new(&api, &store);
        authenticator.lock.send_replace(lock);
        authenticator
    }

    async fn may(
        authenticator: &Authenticator,
        presented: Option<&str>,
        scope: Scope,
    ) -> Result<(), &'static str> {
        match authenticator.admit(presented, None).await {
            Ok(authenticated) if authenticated.rights.scopes.contains(&scope) => Ok(()),
            Ok(authenticated) => Err(authenticator.refusal(&authenticated, scope).code()),
            Err(error) => Err(error.code()),
        }
    }

    #[tokio::test]
    async fn without_keys_clients_come_in_and_without_a_token_there_are_no_admins() {
        let open = authenticator("127.0.0.1:1", "", false, Lock::Open);
        for presented in [None, Some(""), Some("guess")] {
            assert_eq!(may(&open, presented, Scope::TxWrite).await, Ok(()), "{presented:?}");
            assert_eq!(may(&open, presented, Scope::Admin).await, Err("admin_disabled"), "{presented:?}");
        }
    }

    #[tokio::test]
    async fn with_a_token_only_that_token_makes_an_admin_and_a_wrong_one_is_refused_everywhere() {
        let open = authenticator("127.0.0.1:1", "s3cret", false, Lock::Open);
        assert_eq!(may(&open, Some("s3cret"), Scope::Admin).await, Ok(()));
        assert_eq!(may(&open, None, Scope::TxRead).await, Ok(()));
        assert_eq!(may(&open, None, Scope::Admin).await, Err("unauthorized"));
        for wrong in ["", "s3cre", "s3cret ", "guess"] {
            assert_eq!(may(&open, Some(wrong), Scope::TxRead).await, Err("unauthorized"), "{wrong}");
        }
    }

    #[tokio::test]
    async fn where_keys_are_required_nobody_is_admitted_without_one() {
        let locked = authenticator("127.0.0.1:1", "", false, Lock::Locked);
        for presented in [None, Some(""), Some("guess")] {
            assert_eq!(may(&locked, presented, Scope::TxRead).await, Err("unauthorized"), "{presented:?}");
        }
        let with_token = authenticator("0.0.0.0:1", "s3cret", false, Lock::Locked);
        for scope in Scope::ALL {
            assert_eq!(may(&with_token, Some("s3cret"), scope).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn loopback_is_trusted_where_that_is_configured_and_the_open_network_never() {
        for bind in ["127.0.0.1:1", "[::1]:1"] {
            for lock in [Lock::Open, Lock::Locked] {
                let trusting = authenticator(bind, "", true, lock);
                assert_eq!(may(&trusting, None, Scope::Admin).await, Ok(()));
            }
        }
        assert_eq!(
            may(&authenticator("0.0.0.0:1", "", true, Lock::Locked), None, Scope::Admin).await,
            Err("unauthorized")
        );
        let with_token = authenticator("127.0.0.1:1", "s3cret", true, Lock::Open);
        assert_eq!(may(&with_token, Some("guess"), Scope::Admin).await, Err("unauthorized"));
    }

    #[tokio::test]
    async fn before_the_database_was_asked_nobody_comes_in() {
        let unknown = authenticator("127.0.0.1:1", "s3cret", false, Lock::Unknown);
        assert_eq!(may(&unknown, None, Scope::TxRead).await, Err("database_unavailable"));
        assert_eq!(may(&unknown, Some("s3cret"), Scope::TxRead).await, Ok(()));
    }

    #[tokio::test]
    async fn an_address_that_others_reach_needs_a_key() {
        assert!(authenticator("0.0.0.0:1", "s3cret", true, Lock::Open).check().is_err(), "a token is no key");
        assert!(authenticator("0.0.0.0:1", "", false, Lock::Locked).check().is_ok());
        assert!(authenticator("127.0.0.1:1", "", false, Lock::Open).check().is_ok());
        assert!(authenticator("0.0.0.0:1", "", false, Lock::Unknown).check().is_ok(), "not known yet");
    }
}
