//! How often somebody may try keys that nobody has come in with. Each try is a look into the database.
//!
//! By address, because a stranger has nothing else. So whoever shares one with a guesser, behind a proxy for example, can be kept
//! waiting with a key that is new to this process. Keys that are in use are no strangers, and are never kept waiting here.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::bucket::{Bucket, Limit};

/// More wrong keys than people mistype, and far less than helps to guess one of 2^256.
const TRIES: Limit = Limit { rate: 5.0, burst: 50.0 };
/// Addresses that are told apart. When there are more who try, the newcomers share one allowance.
const MAX_ADDRESSES: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct FailedAuthLimiter {
    /// `None`: of those who are not told apart.
    tries: Mutex<HashMap<Option<IpAddr>, Bucket>>,
}

impl FailedAuthLimiter {
    /// Before a key is looked up. `Err`: how long until it may be.
    pub(super) fn try_key(&self, from: Option<IpAddr>, now: Instant) -> Result<(), Duration> {
        let mut tries = self.lock();
        let from = place(&mut tries, from, now);
        tries.entry(from).or_insert_with(|| Bucket::full(TRIES, now)).take(now)
    }

    /// The key was right, or nobody could be asked: the try was none.
    pub(super) fn was_not_wrong(&self, from: Option<IpAddr>) {
        let (mut tries, from) = (self.lock(), from.map(network));
        let from = if tries.contains_key(&from) { from } else { None };
        if let Some(bucket) = tries.get_mut(&from) {
            bucket.give_back();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<IpAddr>, Bucket>> {
        // The map is valid after every statement, so a panic elsewhere leaves nothing half done.
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Under which name an address is counted.
fn place(tries: &mut HashMap<Option<IpAddr>, Bucket>, from: Option<IpAddr>, now: Instant) -> Option<IpAddr> {
    let from = from.map(network);
    if tries.len() < MAX_ADDRESSES || tries.contains_key(&from) {
        return from;
    }
    // Those who have not tried for a while need no place.
    tries.retain(|_, bucket| !bucket.is_full(now));
    if tries.len() < MAX_ADDRESSES { from } else { None }
}

/// Whoever has one address of version 6 has 2^64 of them.
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

    fn let_in(failed_auth_limiter: &FailedAuthLimiter, from: Option<IpAddr>, now: Instant) -> usize {
        (0..1_000).filter(|_| failed_auth_limiter.try_key(from, now).is_ok()).count()
    }

    #[test]
    fn each_address_has_its_tries_and_a_network_of_version_6_has_them_together() {
        let (failed_auth_limiter, now) = (FailedAuthLimiter::default(), Instant::now());
        assert_eq!(let_in(&failed_auth_limiter, address("192.0.2.1"), now), 50);
        assert_eq!(let_in(&failed_auth_limiter, address("::ffff:192.0.2.1"), now), 0, "the same one");
        assert_eq!(let_in(&failed_auth_limiter, address("192.0.2.2"), now), 50);
        assert_eq!(let_in(&failed_auth_limiter, address("2001:db8::1"), now), 50);
        assert_eq!(let_in(&failed_auth_limiter, address("2001:db8::2:1"), now), 0);
        assert_eq!(let_in(&failed_auth_limiter, address("192.0.2.1"), now + Duration::from_secs(2)), 10);
    }

    #[test]
    fn a_right_key_costs_nothing() {
        let (failed_auth_limiter, now) = (FailedAuthLimiter::default(), Instant::now());
        for _ in 0..1_000 {
            failed_auth_limiter.try_key(address("192.0.2.1"), now).unwrap();
            failed_auth_limiter.was_not_wrong(address("192.0.2.1"));
        }
        assert_eq!(let_in(&failed_auth_limiter, address("192.0.2.1"), now), 50);
    }

    #[test]
    fn there_is_a_place_for_so_many_and_the_rest_share_one() {
        let (failed_auth_limiter, now) = (FailedAuthLimiter::default(), Instant::now());
        let nth = |n: usize| Some(IpAddr::from((0x0a00_0000 + u32::try_from(n).unwrap()).to_be_bytes()));
        for n in 0..MAX_ADDRESSES {
            failed_auth_limiter.try_key(nth(n), now).unwrap();
        }
        assert_eq!(let_in(&failed_auth_limiter, nth(MAX_ADDRESSES), now), 50);
        assert_eq!(let_in(&failed_auth_limiter, nth(MAX_ADDRESSES + 1), now), 0);
        assert!(failed_auth_limiter.lock().len() <= MAX_ADDRESSES + 1);
        // Later those who have stopped have made room.
        assert_eq!(let_in(&failed_auth_limiter, nth(MAX_ADDRESSES + 1), now + Duration::from_secs(60)), 50);
    }
}
