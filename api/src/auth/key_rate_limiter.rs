//! What each key has used of its rate, and when that it was used was last written down.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gapless::config::Api;
use gapless::domain::{ApiKeyId, PresentedKey};
use gapless::store::{ApiKeyRow, RateLimit, Store};
use subtle::ConstantTimeEq;
use tokio::sync::mpsc;

use super::bucket::{Bucket, Limit};

/// `last_used_at` is about right, and costs a write a minute.
const NOTE_EVERY: Duration = Duration::from_secs(60);
/// Keys whose first use, or first in a minute, is being written. More than that wait for their next use.
const MAX_NOTES: usize = 1_000;

/// One for each key that was used since the start.
#[derive(Debug)]
struct KeyUsage {
    /// What the key was recognised by.
    secret_hash: [u8; 32],
    bucket: Option<Bucket>,
    noted_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct KeyRateLimiter {
    default: Limit,
    seen: Mutex<HashMap<ApiKeyId, KeyUsage>>,
    notes: mpsc::Sender<ApiKeyId>,
}

impl KeyRateLimiter {
    pub(super) fn start(api: &Api, store: Store) -> KeyRateLimiter {
        let (notes, used) = mpsc::channel(MAX_NOTES);
        tokio::spawn(write_down(store, used));
        let default = Limit { rate: api.rate_limit, burst: f64::from(api.rate_burst) };
        KeyRateLimiter { default, seen: Mutex::default(), notes }
    }

    /// Of a key that was recognised. `Err`: how long it has to wait.
    pub(super) fn enter(&self, key: &ApiKeyRow, now: Instant) -> Result<(), Duration> {
        let mut seen = self.lock();
        let usage = seen.entry(key.id.clone()).or_insert_with(|| KeyUsage {
            secret_hash: key.secret_hash,
            bucket: self.bucket(key.limit, now),
            noted_at: None,
        });
        if usage.noted_at.is_none_or(|noted| now.saturating_duration_since(noted) >= NOTE_EVERY)
            && self.notes.try_send(key.id.clone()).is_ok()
        {
            usage.noted_at = Some(now);
        }
        usage.bucket.as_mut().map_or(Ok(()), |bucket| bucket.take(now))
    }

    /// Whether somebody has come in with this key since the start. It may have been revoked since.
    pub(super) fn knows(&self, key: &PresentedKey) -> bool {
        let seen = self.lock();
        seen.get(&key.id).is_some_and(|usage| bool::from(usage.secret_hash.ct_eq(&key.secret_hash)))
    }

    /// What somebody who is in costs beyond one request.
    pub(super) fn charge(&self, id: &ApiKeyId, requests: usize) {
        if let Some(bucket) = self.lock().get_mut(id).and_then(|usage| usage.bucket.as_mut()) {
            bucket.charge(requests);
        }
    }

    /// A key that is over needs no place.
    pub(super) fn forget(&self, id: &ApiKeyId) {
        self.lock().remove(id);
    }

    fn bucket(&self, own: RateLimit, now: Instant) -> Option<Bucket> {
        let rate = own.rate.unwrap_or(self.default.rate);
        let burst = own.burst.map_or(self.default.burst, f64::from);
        (rate > 0.0).then(|| Bucket::full(Limit { rate, burst }, now))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ApiKeyId, KeyUsage>> {
        // The map is valid after every statement, so a panic elsewhere leaves nothing half done.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Beside the requests: nobody waits for it, and one that is lost is written at the next.
async fn write_down(store: Store, mut used: mpsc::Receiver<ApiKeyId>) {
    let mut ids = Vec::new();
    while used.recv_many(&mut ids, MAX_NOTES).await > 0 {
        if let Err(error) = store.note_api_keys_used(&ids).await {
            tracing::debug!(%error, "the use of keys was not written down");
        }
        ids.clear();
    }
}
