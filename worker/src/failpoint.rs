//! Named points at which a test can kill the process, in the order in which a transaction reaches them.
//!
//! Compiled only with the feature `failpoints`, which no product build enables. `GAPLESS_FAILPOINT=sent` (or `sent:3`
//! for the third hit) kills the process there with SIGKILL. `GAPLESS_FAILPOINT_SIGNER` names a file: while it exists,
//! the signer is unavailable, which an in-memory key never is otherwise.

/// All points, in order. The crash tests cover each.
pub const POINTS: [&str; 9] = [
    "claimed",   // lease acquired, nothing read
    "prepared",  // gas, price and balance are known; nothing is signed
    "signed",    // signed bytes exist in memory only
    "committed", // nonce and bytes are stored; nothing was sent
    "sent",      // the node has answered; SUBMITTED is not stored
    "submitted", // SUBMITTED is stored
    "included",  // the receipt is in memory only
    "tracking",  // the receipt is stored
    "final",     // finality reached; the final state is not stored
];

/// Points reached only by reserved nonces, in order.
pub const RESERVATION_POINTS: [&str; 3] = [
    "reserved", // nonce and placeholder are stored, the reserving client can read the nonce; nothing was sent
    "answered", // the client's transaction was read; nothing is signed
    "released", // the end of the reservation is stored; the placeholder was not sent
];

/// Points reached only by requests about an intent.
pub const REQUEST_POINTS: [&str; 1] = [
    "asked", // a speed-up request was read; its attempt is not stored
];

/// Points reached only by the delivery of events.
pub const DELIVERY_POINTS: [&str; 1] = [
    "delivered", // the receiver has answered; nothing of it is stored
];

#[cfg(feature = "failpoints")]
pub(crate) fn hit(point: &'static str) {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};
    static HITS: AtomicU32 = AtomicU32::new(0);
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    let known = [POINTS.as_slice(), &RESERVATION_POINTS, &REQUEST_POINTS, &DELIVERY_POINTS];
    debug_assert!(known.iter().any(|points| points.contains(&point)));
    let Ok(wanted) = std::env::var("GAPLESS_FAILPOINT") else { return };
    let (name, nth) = wanted.split_once(':').unwrap_or((wanted.as_str(), "1"));
    if name != point || HITS.fetch_add(1, Ordering::SeqCst) + 1 < nth.parse().unwrap_or(1) {
        return;
    }
    // A second thread blocks here: the process is killed before the guard drops.
    let _guard = ONE_AT_A_TIME.lock();
    tracing::warn!(point, "failpoint: killing this process");
    gapless_telemetry::flush_logs(); // tests check for this line
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
    loop {
        std::thread::park();
    }
}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn hit(_: &'static str) {}

#[cfg(feature = "failpoints")]
pub(crate) fn signer_is_away() -> bool {
    std::env::var_os("GAPLESS_FAILPOINT_SIGNER").is_some_and(|file| std::path::Path::new(&file).exists())
}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn signer_is_away() -> bool {
    false
}
