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

use super::keyring::Keyring;
use super::strangers::Strangers;
use super::visits::Visits;
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
pub(crate) struct Door {
    admin_token: Secret,
    /// Nobody else can connect.
    loopback: bool,
    /// This machine's own users may do everything.
    trusting: bool,
    lock: watch::Sender<Lock>,
    keyring: Keyring,
    visits: Visits,
    strangers: Strangers,
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
pub(super) struct Visitor {
    pub(super) proof: Proof,
    pub(super) rights: Arc<Rights>,
}

impl Door {
    pub(crate) fn new(api: &Api, store: &Store) -> Door {
        let loopback = api.bind.ip().is_loopback();
        let unlocked = Rights { scopes: [Scope::TxRead, Scope::TxWrite].into(), submitters: None };
        Door {
            admin_token: api.admin_token.clone(),
            loopback,
            trusting: api.admin_on_loopback && loopback,
            lock: watch::Sender::new(Lock::Unknown),
            keyring: Keyring::start(store.clone()),
            visits: Visits::start(api, store.clone()),
            strangers: Strangers::default(),
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
    ) -> Result<Visitor, ApiError> {
        if let Some(presented) = presented {
            if self.is_admin_token(presented) {
                return Ok(Visitor { proof: Proof::AdminToken, rights: self.everything.clone() });
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
            return Ok(Visitor { proof: Proof::Loopback, rights: self.everything.clone() });
        }
        match *self.lock.borrow() {
            Lock::Unknown => Err(ApiError::DatabaseUnavailable),
            Lock::Open => Ok(Visitor { proof: Proof::Nothing, rights: self.unlocked.clone() }),
            Lock::Locked => Err(ApiError::Unauthorized),
        }
    }

    async fn admit_key(&self, key: &PresentedKey, from: Option<IpAddr>) -> Result<Visitor, ApiError> {
        let limited = |wait| ApiError::RateLimited { retry_after: wait };
        let is_stranger = !self.visits.knows(key);
        if is_stranger {
            self.strangers.try_key(from, Instant::now()).map_err(limited)?;
        }
        let found = self.recognise(key).await;
        if is_stranger && !matches!(found, Err(ApiError::Unauthorized)) {
            self.strangers.was_not_wrong(from);
        }
        let row = found?;
        // Only now: who knows no more than an id uses up nobody's rate.
        self.visits.enter(&row, Instant::now()).map_err(limited)?;
        let proof = Proof::Key { id: row.id.clone(), name: row.name.clone() };
        Ok(Visitor { proof, rights: Arc::new(row.rights.clone()) })
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
        let row = self.keyring.find(id).await?.filter(|row| row.usable);
        row.ok_or_else(|| {
            self.visits.forget(id);
            ApiError::Unauthorized
        })
    }

    /// Whether somebody who came in some time ago would still.
    pub(super) async fn recheck(&self, visitor: &Visitor) -> Result<(), ApiError> {
        match &visitor.proof {
            Proof::Key { id, .. } => self.usable(id).await.map(|_| ()),
            Proof::Nothing | Proof::AdminToken | Proof::Loopback => Ok(()),
        }
    }

    /// What a request costs beyond one.
    pub(super) fn charge(&self, visitor: &Visitor, requests: usize) {
        if let Proof::Key { id, .. } = &visitor.proof {
            self.visits.charge(id, requests);
        }
    }

    /// Why somebody who is in may not do this.
    pub(super) fn refusal(&self, visitor: &Visitor, scope: Scope) -> ApiError {
        match visitor.proof {
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
    fn door(bind: &str, token: &str, admin_on_loopback: bool, lock: Lock) -> Door {
        let api = Api {
            bind: bind.parse().unwrap(),
            admin_token: Secret::new(token),
            admin_on_loopback,
            ..Api::default()
        };
        let url = Secret::new("postgres://nobody@127.0.0.1:1/none");
        let store = Store::new(&url, "test", 1, Timeouts::default()).unwrap();
        let door = Door::new(&api, &store);
        door.lock.send_replace(lock);
        door
    }

    async fn may(door: &Door, presented: Option<&str>, scope: Scope) -> Result<(), &'static str> {
        match door.admit(presented, None).await {
            Ok(visitor) if visitor.rights.scopes.contains(&scope) => Ok(()),
            Ok(visitor) => Err(door.refusal(&visitor, scope).code()),
            Err(error) => Err(error.code()),
        }
    }

    #[tokio::test]
    async fn without_keys_clients_come_in_and_without_a_token_there_are_no_admins() {
        let open = door("127.0.0.1:1", "", false, Lock::Open);
        for presented in [None, Some(""), Some("guess")] {
            assert_eq!(may(&open, presented, Scope::TxWrite).await, Ok(()), "{presented:?}");
            assert_eq!(may(&open, presented, Scope::Admin).await, Err("admin_disabled"), "{presented:?}");
        }
    }

    #[tokio::test]
    async fn with_a_token_only_that_token_makes_an_admin_and_a_wrong_one_is_refused_everywhere() {
        let open = door("127.0.0.1:1", "s3cret", false, Lock::Open);
        assert_eq!(may(&open, Some("s3cret"), Scope::Admin).await, Ok(()));
        assert_eq!(may(&open, None, Scope::TxRead).await, Ok(()));
        assert_eq!(may(&open, None, Scope::Admin).await, Err("unauthorized"));
        for wrong in ["", "s3cre", "s3cret ", "guess"] {
            assert_eq!(may(&open, Some(wrong), Scope::TxRead).await, Err("unauthorized"), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_locked_door_opens_for_nobody_without_a_key() {
        let locked = door("127.0.0.1:1", "", false, Lock::Locked);
        for presented in [None, Some(""), Some("guess")] {
            assert_eq!(may(&locked, presented, Scope::TxRead).await, Err("unauthorized"), "{presented:?}");
        }
        let with_token = door("0.0.0.0:1", "s3cret", false, Lock::Locked);
        for scope in Scope::ALL {
            assert_eq!(may(&with_token, Some("s3cret"), scope).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn loopback_is_trusted_where_that_is_configured_and_the_open_network_never() {
        for bind in ["127.0.0.1:1", "[::1]:1"] {
            for lock in [Lock::Open, Lock::Locked] {
                let trusting = door(bind, "", true, lock);
                assert_eq!(may(&trusting, None, Scope::Admin).await, Ok(()));
            }
        }
        assert_eq!(
            may(&door("0.0.0.0:1", "", true, Lock::Locked), None, Scope::Admin).await,
            Err("unauthorized")
        );
        let with_token = door("127.0.0.1:1", "s3cret", true, Lock::Open);
        assert_eq!(may(&with_token, Some("guess"), Scope::Admin).await, Err("unauthorized"));
    }

    #[tokio::test]
    async fn before_the_database_was_asked_nobody_comes_in() {
        let unknown = door("127.0.0.1:1", "s3cret", false, Lock::Unknown);
        assert_eq!(may(&unknown, None, Scope::TxRead).await, Err("database_unavailable"));
        assert_eq!(may(&unknown, Some("s3cret"), Scope::TxRead).await, Ok(()));
    }

    #[tokio::test]
    async fn an_address_that_others_reach_needs_a_key() {
        assert!(door("0.0.0.0:1", "s3cret", true, Lock::Open).check().is_err(), "a token is no key");
        assert!(door("0.0.0.0:1", "", false, Lock::Locked).check().is_ok());
        assert!(door("127.0.0.1:1", "", false, Lock::Open).check().is_ok());
        assert!(door("0.0.0.0:1", "", false, Lock::Unknown).check().is_ok(), "not known yet");
    }
}
