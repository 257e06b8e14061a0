//! Limits attempts with keys that this process has not authenticated yet, because each attempt costs a database
//! lookup.
//!
//! Attempts are counted per client address, since an unauthenticated client has no other identity. Clients that share
//! an address with one that guesses keys, for example behind a proxy, may be refused with 429 when they first use a
//! key. Keys that this process has already authenticated are never limited here.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::bucket::{Bucket, Limit};

/// Enough for mistyped keys, far too few to guess one of 2^256.
const LIMIT: Limit = Limit { rate: 5.0, burst: 50.0 };
/// Addresses with a bucket of their own. Beyond that, new addresses share one bucket.
const MAX_ADDRESSES: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct FailedAuthLimiter {
    /// `None`: the bucket shared by all other addresses.
    buckets: Mutex<HashMap<Option<IpAddr>, Bucket>>,
}

impl FailedAuthLimiter {
    /// Call before a key is looked up. `Err`: how long to wait.
    pub(super) fn try_key(&self, from: Option<IpAddr>, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.lock();
        let from = bucket_key(&mut buckets, from, now);
        buckets.entry(from).or_insert_with(|| Bucket::full(LIMIT, now)).take(now)
    }

    /// The key was valid, or the lookup failed: the attempt does not count.
    pub(super) fn refund(&self, from: Option<IpAddr>) {
        let (mut buckets, from) = (self.lock(), from.map(network));
        let from = if buckets.contains_key(&from) { from } else { None };
        if let Some(bucket) = buckets.get_mut(&from) {
            bucket.refund();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<IpAddr>, Bucket>> {
        self.buckets.lock()
    }
}

/// The bucket that counts an address.
fn bucket_key(
    buckets: &mut HashMap<Option<IpAddr>, Bucket>,
    from: Option<IpAddr>,
    now: Instant,
) -> Option<IpAddr> {
    let from = from.map(network);
    if buckets.len() < MAX_ADDRESSES || buckets.contains_key(&from) {
        return from;
    }
    // A full bucket means no recent attempts: drop it.
    buckets.retain(|_, bucket| !bucket.is_full(now));
    if buckets.len() < MAX_ADDRESSES { from } else { None }
}

/// An IPv6 client usually has a whole /64 network, so its addresses count as one.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn allowed(failed_auth_limiter: &FailedAuthLimiter, from: Option<IpAddr>, now: Instant) -> usize {
        (0..1_000).filter(|_| failed_auth_limiter.try_key(from, now).is_ok()).count()
    }

    #[test]
    fn each_address_has_its_own_bucket_and_an_ipv6_network_shares_one() {
        let (failed_auth_limiter, now) = (FailedAuthLimiter::default(), Instant::now());
        assert_eq!(allowed(&failed_auth_limiter, address("192.0.2.1"), now), 50);
        assert_eq!(allowed(&failed_auth_limiter, address("::ffff:192.0.2.1"), now), 0, "the same address");
        assert_eq!(allowed(&failed_auth_limiter, address("192.0.2.2"), now), 50);
        assert_eq!(allowed(&failed_auth_limiter, address("2001:db8::1"), now), 50);
        assert_eq!(allowed(&failed_auth_limiter, address("2001:db8::2:1"), now), 0);
        assert_eq!(allowed(&failed_auth_limiter, address("192.0.2.1"), now + Duration::from_secs(2)), 10);
    }

    #[test]
    fn a_valid_key_costs_nothing() {
        let (failed_auth_limiter, now) = (FailedAuthLimiter::default(), Instant::now());
        for _ in 0..1_000 {
            failed_auth_limiter.try_key(address("192.0.2.1"), now).unwrap();
            failed_auth_limiter.refund(address("192.0.2.1"));
        }
        assert_eq!(allowed(&failed_auth_limiter, address("192.0.2.1"), now), 50);
    }

    #[test]
    fn the_number_of_addresses_is_bounded_and_the_rest_share_a_bucket() {
        let (failed_auth_limiter, now) = (FailedAuthLimiter::default(), Instant::now());
        let nth = |n: usize| Some(IpAddr::from((0x0a00_0000 + u32::try_from(n).unwrap()).to_be_bytes()));
        for n in 0..MAX_ADDRESSES {
            failed_auth_limiter.try_key(nth(n), now).unwrap();
        }
        assert_eq!(allowed(&failed_auth_limiter, nth(MAX_ADDRESSES), now), 50);
        assert_eq!(allowed(&failed_auth_limiter, nth(MAX_ADDRESSES + 1), now), 0);
        assert!(failed_auth_limiter.lock().len() <= MAX_ADDRESSES + 1);
        // Later, addresses without recent attempts were dropped.
        assert_eq!(allowed(&failed_auth_limiter, nth(MAX_ADDRESSES + 1), now + Duration::from_secs(60)), 50);
    }
}
