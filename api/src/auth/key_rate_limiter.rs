//! Per-key rate limits, and the periodic write of each key's `last_used_at`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gapless_config::Api;
use gapless_domain::{ApiKeyId, PresentedKey};
use gapless_store::{ApiKeyRow, RateLimit, Store};
use parking_lot::{Mutex, MutexGuard};
use subtle::ConstantTimeEq;
use tokio::sync::mpsc;

use super::bucket::{Bucket, Limit};

/// Interval of `last_used_at` writes per key: accurate to about a minute.
const USAGE_WRITE_INTERVAL: Duration = Duration::from_secs(60);
/// Keys waiting for a `last_used_at` write. Beyond that, a key is written at a later use.
const MAX_PENDING_WRITES: usize = 1_000;

/// One for each key authenticated since the process started.
#[derive(Debug)]
struct KeyUsage {
    /// Hash of the secret that was verified.
    secret_hash: [u8; 32],
    bucket: Option<Bucket>,
    written_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct KeyRateLimiter {
    default: Limit,
    seen: Mutex<HashMap<ApiKeyId, KeyUsage>>,
    used_keys: mpsc::Sender<ApiKeyId>,
}

impl KeyRateLimiter {
    pub(super) fn start(api: &Api, store: Store) -> KeyRateLimiter {
        let (used_keys, used) = mpsc::channel(MAX_PENDING_WRITES);
        tokio::spawn(write_usage(store, used));
        let default = Limit { rate: api.rate_limit, burst: f64::from(api.rate_burst) };
        KeyRateLimiter { default, seen: Mutex::default(), used_keys }
    }

    /// Counts a request of an authenticated key. `Err`: how long to wait.
    pub(super) fn take(&self, key: &ApiKeyRow, now: Instant) -> Result<(), Duration> {
        let mut seen = self.lock();
        let usage = seen.entry(key.id.clone()).or_insert_with(|| KeyUsage {
            secret_hash: key.secret_hash,
            bucket: self.bucket(key.limit, now),
            written_at: None,
        });
        let is_due = |written| now.saturating_duration_since(written) >= USAGE_WRITE_INTERVAL;
        if usage.written_at.is_none_or(is_due) && self.used_keys.try_send(key.id.clone()).is_ok() {
            usage.written_at = Some(now);
        }
        usage.bucket.as_mut().map_or(Ok(()), |bucket| bucket.take(now))
    }

    /// Whether this key was authenticated since the process started. It may have been revoked since.
    pub(super) fn has_seen(&self, key: &PresentedKey) -> bool {
        let seen = self.lock();
        seen.get(&key.id).is_some_and(|usage| bool::from(usage.secret_hash.ct_eq(&key.secret_hash)))
    }

    /// Charges `requests` more requests.
    pub(super) fn charge(&self, id: &ApiKeyId, requests: usize) {
        if let Some(bucket) = self.lock().get_mut(id).and_then(|usage| usage.bucket.as_mut()) {
            bucket.charge(requests);
        }
    }

    /// Drops the state of a key that is no longer usable.
    pub(super) fn remove(&self, id: &ApiKeyId) {
        self.lock().remove(id);
    }

    fn bucket(&self, own: RateLimit, now: Instant) -> Option<Bucket> {
        let rate = own.rate.unwrap_or(self.default.rate);
        let burst = own.burst.map_or(self.default.burst, f64::from);
        (rate > 0.0).then(|| Bucket::full(Limit { rate, burst }, now))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ApiKeyId, KeyUsage>> {
        self.seen.lock()
    }
}

/// Runs in the background; a lost write is repeated at a later use of the key.
async fn write_usage(store: Store, mut used: mpsc::Receiver<ApiKeyId>) {
    let mut ids = Vec::new();
    while used.recv_many(&mut ids, MAX_PENDING_WRITES).await > 0 {
        if let Err(error) = store.note_api_keys_used(&ids).await {
            tracing::debug!(%error, "could not update last_used_at of API keys");
        }
        ids.clear();
    }
}
