//! Limits the connections of one client address that have not authenticated.
//!
//! A connection above the limit is accepted, and the oldest one of its address that has no request in progress is closed
//! in its place: after a moment, or at once while another connection waits for a slot. So one address cannot use up all
//! slots with half-open connections, and its other clients still get in: they send their request at once.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

/// How long an excess connection stays open while slots are free. When many clients behind one address connect at the
/// same time, each has this time to authenticate.
const GRACE: Duration = Duration::from_secs(2);

/// The connections of each address in the order of arrival.
#[derive(Debug, Default)]
struct Connections {
    last: u64,
    by_address: HashMap<IpAddr, BTreeMap<u64, CancellationToken>>,
}

#[derive(Clone, Debug)]
pub(crate) struct PerAddress {
    /// `None`: unlimited.
    limit: Option<usize>,
    connections: Arc<Mutex<Connections>>,
    /// A connection waits for a slot.
    full: watch::Sender<bool>,
}

impl PerAddress {
    pub(crate) fn new(limit: Option<usize>) -> PerAddress {
        PerAddress { limit, connections: Arc::default(), full: watch::Sender::new(false) }
    }

    /// Counts a new connection, and marks the oldest one of its address if there are too many.
    pub(crate) fn enter(&self, from: IpAddr) -> ClientConnection {
        let (address, excess) = (network(from), CancellationToken::new());
        let mut number = 0;
        if let Some(limit) = self.limit {
            let mut connections = self.lock();
            connections.last += 1;
            number = connections.last;
            let ours = connections.by_address.entry(address).or_default();
            ours.insert(number, excess.clone());
            while ours.len() > limit.max(1) {
                if let Some((_, oldest)) = ours.pop_first() {
                    oldest.cancel();
                }
            }
        }
        let (authenticated, requests) = (CancellationToken::new(), watch::Sender::new(0));
        let counted_by = self.clone();
        let slot = Mutex::default();
        ClientConnection(Arc::new(Entry {
            number,
            address,
            excess,
            authenticated,
            requests,
            counted_by,
            slot,
        }))
    }

    /// While true, excess connections are closed at once.
    pub(crate) fn set_full(&self, full: bool) {
        self.full.send_if_modified(|before| std::mem::replace(before, full) != full);
    }

    fn remove(&self, address: IpAddr, number: u64) {
        let mut connections = self.lock();
        if let Some(ours) = connections.by_address.get_mut(&address) {
            ours.remove(&number);
            if ours.is_empty() {
                connections.by_address.remove(&address);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock()
    }
}

/// The connection of a request; in the request's data.
#[derive(Clone, Debug)]
pub struct ClientConnection(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    number: u64,
    address: IpAddr,
    /// Newer connections of this address take its place.
    excess: CancellationToken,
    authenticated: CancellationToken,
    /// Number of requests in progress.
    requests: watch::Sender<usize>,
    counted_by: PerAddress,
    /// Its slot among all connections.
    slot: Mutex<Option<OwnedSemaphorePermit>>,
}

/// Counts as a request in progress until it is dropped.
#[derive(Debug)]
pub(crate) struct RequestInProgress(ClientConnection);

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.0.0.requests.send_modify(|count| *count -= 1);
    }
}

impl ClientConnection {
    pub(crate) fn begin_request(&self) -> RequestInProgress {
        self.0.requests.send_modify(|count| *count += 1);
        RequestInProgress(self.clone())
    }

    /// The client is known: from now on the connection does not count for its address.
    pub fn set_authenticated(&self) {
        if !self.0.authenticated.is_cancelled() {
            self.0.authenticated.cancel();
            self.0.leave();
        }
    }

    /// Keeps the slot until the connection ends or `free_slot`.
    pub(crate) fn hold_slot(&self, permit: OwnedSemaphorePermit) {
        *self.0.slot.lock() = Some(permit);
    }

    /// From now on the connection does not count towards the limit of all connections. For responses that last as long
    /// as the connection and have a limit of their own.
    pub fn free_slot(&self) {
        self.0.slot.lock().take();
    }

    /// Returns when the connection must be closed to make room for newer ones.
    pub(crate) async fn displaced(&self) {
        self.0.excess.cancelled().await;
        let mut full = self.0.counted_by.full.subscribe();
        let is_full = async {
            // The sender is in `counted_by`, so it exists.
            let _ = full.wait_for(|full| *full).await;
        };
        let mut requests = self.0.requests.subscribe();
        let unused = async {
            tokio::select! {
                () = tokio::time::sleep(GRACE) => {}
                () = is_full => {}
            }
            // The sender is in this connection, so it exists.
            let _ = requests.wait_for(|count| *count == 0).await;
        };
        tokio::select! {
            biased;
            () = self.0.authenticated.cancelled() => std::future::pending().await,
            () = unused => {}
        }
    }
}

impl Entry {
    fn leave(&self) {
        if self.counted_by.limit.is_some() {
            self.counted_by.remove(self.address, self.number);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Addresses that one client can choose freely count as one: the loopback addresses, and a /64 network of IPv6.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    async fn is_displaced(connection: &ClientConnection) -> bool {
        tokio::time::timeout(2 * GRACE, connection.displaced()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_unauthenticated_connection_of_an_address_makes_room() {
        let counted = PerAddress::new(Some(2));
        let other = counted.enter(address("192.0.2.9"));
        let known = counted.enter(address("192.0.2.1"));
        known.set_authenticated();
        let ours: Vec<_> = (0..3).map(|_| counted.enter(address("192.0.2.1"))).collect();
        assert!(is_displaced(&ours[0]).await);
        for kept in [&other, &known, &ours[1], &ours[2]] {
            assert!(!is_displaced(kept).await, "{kept:?}");
        }
        drop(ours);
        let next = [counted.enter(address("192.0.2.1")), counted.enter(address("192.0.2.1"))];
        assert!(!is_displaced(&next[0]).await, "those that have ended do not count");
        drop((next, other, known));
        assert!(counted.lock().by_address.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_authenticates_in_time_stays() {
        let counted = PerAddress::new(Some(1));
        let (late, quick) = (counted.enter(address("192.0.2.1")), counted.enter(address("192.0.2.1")));
        let _newest = counted.enter(address("192.0.2.1"));
        quick.set_authenticated();
        let (late, quick) = tokio::join!(is_displaced(&late), is_displaced(&quick));
        assert!(late && !quick);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_request_in_progress_stays_until_it_is_answered() {
        let counted = PerAddress::new(Some(1));
        let (oldest, _newest) = (counted.enter(address("192.0.2.1")), counted.enter(address("192.0.2.1")));
        counted.set_full(true);
        let request = oldest.begin_request();
        assert!(!is_displaced(&oldest).await);
        drop(request);
        assert!(is_displaced(&oldest).await);
    }

    #[tokio::test(start_paused = true)]
    async fn while_no_slot_is_free_excess_connections_are_closed_at_once() {
        let counted = PerAddress::new(Some(1));
        let (excess, newest) = (counted.enter(address("192.0.2.1")), counted.enter(address("192.0.2.1")));
        let began = tokio::time::Instant::now();
        counted.set_full(true);
        excess.displaced().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(!is_displaced(&newest).await, "within the limit");
        counted.set_full(false);
        let _next = counted.enter(address("192.0.2.1"));
        newest.displaced().await;
        assert!(began.elapsed() >= GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_nothing_is_displaced() {
        let counted = PerAddress::new(None);
        let all: Vec<_> = (0..100).map(|_| counted.enter(address("192.0.2.1"))).collect();
        assert!(!is_displaced(&all[0]).await);
    }

    #[test]
    fn addresses_of_one_client_are_one() {
        for (one, other) in [
            ("127.0.0.1", "127.9.9.9"),
            ("127.0.0.1", "::1"),
            ("192.0.2.1", "::ffff:192.0.2.1"),
            ("2001:db8::1", "2001:db8::ffff:1"),
        ] {
            assert_eq!(network(address(one)), network(address(other)));
        }
        assert_ne!(network(address("192.0.2.1")), network(address("192.0.2.2")));
        assert_ne!(network(address("2001:db8::1")), network(address("2001:db8:0:1::1")));
    }
}
